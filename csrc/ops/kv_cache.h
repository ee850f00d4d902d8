// From the joint projection of a step to the cache: norm and rotation of query and key heads, and
// the stored form of keys and values.
//
// Every token and head is computed alone.  Multiplications and additions come in an order fixed by
// the source and are never fused, so that all instruction sets write the same bytes.
#pragma once

#include <cmath>

#include "../isa/kernel_table.h"
#include "../kv_layout.h"
#include "quantize.h"
#include "stored_floats.h"

namespace chairlift {
namespace {

// Smaller magnitudes are stored as zeros: 127 / max would overflow.
constexpr float kSmallestMagnitude = 1e-30f;

// x / sqrt(mean(x^2) + eps) * weight; sixteen partial sums, then their halves
CHAIRLIFT_INLINE void normalize_head(const float* x, const float* weight, int64_t dim, float eps,
                                     float* out) {
  F16 sum = F16::all(0.0f);
  for (int64_t i = 0; i < dim; i += kLanes) sum = sum + F16::load(x + i) * F16::load(x + i);
  float lane[kLanes];
  sum.store(lane);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  const F16 root = F16::all(std::sqrt(lane[0] / static_cast<float>(dim) + eps));
  for (int64_t i = 0; i < dim; i += kLanes) {
    (F16::load(x + i) / root * F16::load(weight + i)).store(out + i);
  }
}

// (a, b) -> (a cos - b sin, b cos + a sin); dimensions past the rotated ones pass.
CHAIRLIFT_INLINE void rotate_head(const float* x, const float* cos, const float* sin, int64_t half,
                                  bool interleaved, int64_t dim, float* out) {
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      out[2 * i] = a * cos[i] - b * sin[i];
      out[2 * i + 1] = b * cos[i] + a * sin[i];
    }
  } else {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F16 a = F16::load(x + i), b = F16::load(x + half + i);
      const F16 c = F16::load(cos + i), s = F16::load(sin + i);
      (a * c - b * s).store(out + i);
      (b * c + a * s).store(out + half + i);
    }
    for (; i < half; ++i) {
      const float a = x[i], b = x[half + i];
      out[i] = a * cos[i] - b * sin[i];
      out[half + i] = b * cos[i] + a * sin[i];
    }
  }
  for (int64_t i = 2 * half; i < dim; ++i) out[i] = x[i];
}

// -- bytes ---------------------------------------------------------------------------------------

constexpr int kHeadsAtOnce = 16;     // a vector of scales
constexpr int64_t kClaimedRows = 8;  // as long as memory takes
static_assert(kStoreScratchHeads >= kHeadsAtOnce + 2, "rotated, normed, and codes");

#if defined(CHAIRLIFT_VEC_AVX512)
CHAIRLIFT_INLINE F16 largest_lanes(const Magnitude (&x)[kHeadsAtOnce]) {
  __m512i lanes[kHeadsAtOnce];
  CHAIRLIFT_UNROLL
  for (int i = 0; i < kHeadsAtOnce; ++i) lanes[i] = x[i].v;
  return {_mm512_castsi512_ps(combine_lanes<CombineLargest>(lanes))};
}
#else
CHAIRLIFT_INLINE F16 largest_lanes(const Magnitude (&x)[kHeadsAtOnce]) {
  uint32_t bits[kLanes];
  for (int i = 0; i < kHeadsAtOnce; ++i) bits[i] = largest_lane(x[i]);
  float lane[kLanes];
  std::memcpy(lane, bits, sizeof lane);
  return F16::load(lane);
}
#endif

// What multiplies the numbers of some heads to give codes from -127 to 127, and what gives the
// numbers back.
struct HeadScales {
  float inverse[kHeadsAtOnce];
  float scale[kHeadsAtOnce];
};

CHAIRLIFT_INLINE HeadScales find_scales(const float* const (&heads)[kHeadsAtOnce], int64_t dim) {
  Magnitude most[kHeadsAtOnce];
  CHAIRLIFT_UNROLL
  for (int i = 0; i < kHeadsAtOnce; ++i) most[i] = magnitude(F16::load(heads[i]));
  for (int64_t k = kLanes; k < dim; k += kLanes) {
    CHAIRLIFT_UNROLL
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      most[i] = larger(most[i], magnitude(F16::load(heads[i] + k)));
    }
  }
  const F16 largest = largest_lanes(most), limit = F16::all(kSmallestMagnitude);
  HeadScales scales;
  zero_below(F16::all(127.0f) / largest, largest, limit).store(scales.inverse);
  zero_below(largest / F16::all(127.0f), largest, limit).store(scales.scale);
  return scales;
}

CHAIRLIFT_INLINE void write_head_codes(const float* x, float inverse, int64_t dim, int8_t* codes) {
  const F16 to_integer = F16::all(12582912.0f);  // 1.5 * 2^23
  for (int64_t i = 0; i < dim; i += kLanes) {
    store_low_bytes(F16::load(x + i) * F16::all(inverse) + to_integer, codes + i);
  }
}

CHAIRLIFT_INLINE void store_key(const int8_t* codes, int64_t dim, uint8_t* page, int64_t token) {
  for (int64_t i = 0; i < dim; i += 4) {
    uint32_t four;
    std::memcpy(&four, codes + i, 4);
    four ^= 0x80808080u;  // + 128
    std::memcpy(page + 16 * i + 4 * token, &four, 4);
  }
}

// Sixteen codes to every fourth byte; others may write to the bytes in between meanwhile.
CHAIRLIFT_INLINE void store_every_fourth(const int8_t* codes, uint8_t* out, int64_t first) {
#if defined(CHAIRLIFT_VEC_AVX512)
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m512i spread = _mm512_sll_epi32(_mm512_cvtepu8_epi32(sixteen),
                                          _mm_cvtsi32_si128(static_cast<int>(8 * first)));
  _mm512_mask_storeu_epi8(out, 0x1111111111111111ull << first, spread);
#else
  for (int i = 0; i < kLanes; ++i) out[4 * i + first] = static_cast<uint8_t>(codes[i]);
#endif
}

CHAIRLIFT_INLINE void store_value(const int8_t* codes, int64_t dim, uint8_t* values,
                                  int64_t token) {
  uint8_t* out = values + token / 4 * dim * 4;
  for (int64_t i = 0; i < dim; i += kLanes) store_every_fourth(codes + i, out + 4 * i, token % 4);
}

// Where one token's keys and values lie in a cache of bytes.
class ByteToken {
 public:
  CHAIRLIFT_INLINE ByteToken(const chairlift_qkv_to_cache& task, int64_t slot)
      : layout_{task.head_dim} {
    const int64_t offset = slot % task.block_size;
    token_ = offset % kPageTokens;
    page_ = task.kv_cache + slot / task.block_size * task.block_stride +
            offset / kPageTokens * task.num_kv_heads * layout_.head_bytes();
  }

  CHAIRLIFT_INLINE void store_key_of(int64_t head, const int8_t* codes, float scale) const {
    uint8_t* base = page_ + head * layout_.head_bytes();
    store_key(codes, layout_.head_dim, base, token_);
    std::memcpy(base + layout_.key_scales() + 4 * token_, &scale, 4);
  }

  CHAIRLIFT_INLINE void store_value_of(int64_t head, const int8_t* codes, float scale) const {
    uint8_t* base = page_ + head * layout_.head_bytes();
    store_value(codes, layout_.head_dim, base + layout_.values(), token_);
    std::memcpy(base + layout_.value_scales() + 4 * token_, &scale, 4);
  }

  // Asks for the cache lines that will be written, less those that `before` has asked for.
  CHAIRLIFT_INLINE void claim(int64_t num_kv_heads, const ByteToken* before) const {
    const bool shares_page = before && page_ == before->page_;
    if (shares_page && token_ / 4 == before->token_ / 4) return;
    const int64_t dim = layout_.head_dim;
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      const uint8_t* base = page_ + head * layout_.head_bytes();
      claim_bytes(base + layout_.values() + token_ / 4 * dim * 4, dim * 4);
      if (shares_page) continue;
      claim_bytes(base, 16 * dim + 64);
      claim_bytes(base + layout_.value_scales(), 64);
    }
  }

 private:
  static CHAIRLIFT_INLINE void claim_bytes(const uint8_t* p, int64_t num_bytes) {
#if defined(__GNUC__)
    for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(p + i, 1);
#else
    (void)p, (void)num_bytes;
#endif
  }

  KvLayout layout_;
  uint8_t* page_;
  int64_t token_;
};

// One row to a cache of bytes.
CHAIRLIFT_INLINE void store_qkv_bytes(const chairlift_qkv_to_cache& task, int64_t row,
                                      const ByteToken& token, float* scratch) {
  const int64_t dim = task.head_dim, half = task.rope_dim / 2;
  const int64_t num_heads = task.num_heads, num_kv_heads = task.num_kv_heads;
  const int64_t num_rotated = num_heads + num_kv_heads, num_all = num_rotated + num_kv_heads;
  float* rotated = scratch;
  float* normed = rotated + kHeadsAtOnce * dim;
  int8_t* codes = reinterpret_cast<int8_t*>(normed + dim);
  const float* x = task.qkv + row * num_all * dim;
  const float* cos = task.cos + task.positions[row] * half;
  const float* sin = task.sin + task.positions[row] * half;
  for (int64_t first = 0; first < num_all; first += kHeadsAtOnce) {
    const int64_t left = num_all - first, count = left < kHeadsAtOnce ? left : kHeadsAtOnce;
    const float* heads[kHeadsAtOnce];
    for (int64_t i = 0; i < count; ++i, x += dim) {
      heads[i] = x;
      if (first + i >= num_rotated) continue;
      const float* weight = first + i < num_heads ? task.q_norm : task.k_norm;
      if (weight) normalize_head(x, weight, dim, task.norm_eps, normed);
      float* out = rotated + i * dim;
      rotate_head(weight ? normed : x, cos, sin, half, task.rope_interleaved != 0, dim, out);
      heads[i] = out;
    }
    for (int64_t i = count; i < kHeadsAtOnce; ++i) heads[i] = heads[0];
    const HeadScales scales = find_scales(heads, dim);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t head = first + i;
      if (head < num_heads) {
        const int64_t index = row * num_heads + head;
        int8_t* query = static_cast<int8_t*>(task.query) + index * dim;
        write_head_codes(heads[i], scales.inverse[i], dim, query);
        task.query_scales[index] = scales.scale[i];
        continue;
      }
      write_head_codes(heads[i], scales.inverse[i], dim, codes);
      if (head < num_rotated) {
        token.store_key_of(head - num_heads, codes, scales.scale[i]);
      } else {
        token.store_value_of(head - num_rotated, codes, scales.scale[i]);
      }
    }
  }
}

void store_rows_as_bytes(const chairlift_qkv_to_cache& task, int64_t first_row, int64_t num_rows,
                         float* scratch) {
  const auto token_of = [&](int64_t row) { return ByteToken(task, task.slots[row]); };
  // Where later rows go is on its way from memory while these are computed, also the first of the
  // rows after these: probably the same thread's.
  token_of(first_row).claim(task.num_kv_heads, nullptr);
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const int64_t ahead = row + kClaimedRows;
    if (ahead < task.num_tokens) {
      const ByteToken before = token_of(ahead - 1);
      token_of(ahead).claim(task.num_kv_heads, &before);
    }
    store_qkv_bytes(task, row, token_of(row), scratch);
  }
}

// -- floats --------------------------------------------------------------------------------------

// Where one token's keys and values lie in a cache of floats.
template <class T>
class FloatToken {
 public:
  template <class TASK>
  CHAIRLIFT_INLINE FloatToken(const TASK& task, int64_t slot)
      : layout_{task.head_dim, static_cast<int64_t>(sizeof(T)),
                float_page_tokens(task.block_size)} {
    const int64_t offset = slot % task.block_size;
    token_ = offset % layout_.page_tokens;
    page_ = task.kv_cache + slot / task.block_size * task.block_stride +
            offset / layout_.page_tokens * task.num_kv_heads * layout_.head_bytes();
  }

  CHAIRLIFT_INLINE void store_key(int64_t head, const float* x) const {
    T* key = reinterpret_cast<T*>(page_ + head * layout_.head_bytes()) + token_;
    for (int64_t first = 0; first < layout_.head_dim; first += kLanes) {
      const int64_t left = layout_.head_dim - first, count = left < kLanes ? left : kLanes;
      T some[kLanes];
      store_floats(x + first, count, some);
      for (int64_t i = 0; i < count; ++i) key[(first + i) * layout_.page_tokens] = some[i];
    }
  }

  CHAIRLIFT_INLINE void store_value(int64_t head, const float* x) const {
    uint8_t* values = page_ + head * layout_.head_bytes() + layout_.values();
    store_floats(x, layout_.head_dim, reinterpret_cast<T*>(values) + token_ * layout_.padded_dim());
  }

 private:
  FloatKvLayout layout_;
  uint8_t* page_;
  int64_t token_;
};

// scratch: two heads
template <class T>
void store_rows_as_floats(const chairlift_qkv_to_cache& task, int64_t first_row, int64_t num_rows,
                          float* scratch) {
  const int64_t dim = task.head_dim, half = task.rope_dim / 2;
  float* normed = scratch;
  float* rotated = normed + dim;
  const int64_t num_heads = task.num_heads, num_kv_heads = task.num_kv_heads;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const float* x = task.qkv + row * (num_heads + 2 * num_kv_heads) * dim;
    const float* cos = task.cos + task.positions[row] * half;
    const float* sin = task.sin + task.positions[row] * half;
    float* query = static_cast<float*>(task.query) + row * num_heads * dim;
    const FloatToken<T> token(task, task.slots[row]);
    for (int64_t head = 0; head < num_heads + num_kv_heads; ++head, x += dim) {
      const bool is_query = head < num_heads;
      const float* weight = is_query ? task.q_norm : task.k_norm;
      if (weight) normalize_head(x, weight, dim, task.norm_eps, normed);
      float* out = is_query ? query + head * dim : rotated;
      rotate_head(weight ? normed : x, cos, sin, half, task.rope_interleaved != 0, dim, out);
      if (!is_query) token.store_key(head - num_heads, rotated);
    }
    for (int64_t head = 0; head < num_kv_heads; ++head, x += dim) token.store_value(head, x);
  }
}

void store_qkv(const chairlift_qkv_to_cache& task, int64_t first_row, int64_t num_rows,
               float* scratch) {
  switch (task.kv_type) {
    case CHAIRLIFT_KV_FLOAT16:
      return store_rows_as_floats<Half>(task, first_row, num_rows, scratch);
    case CHAIRLIFT_KV_BFLOAT16:
      return store_rows_as_floats<BFloat16>(task, first_row, num_rows, scratch);
    case CHAIRLIFT_KV_FLOAT32:
      return store_rows_as_floats<float>(task, first_row, num_rows, scratch);
    default:
      return store_rows_as_bytes(task, first_row, num_rows, scratch);
  }
}

template <class T>
void store_kv_rows(const chairlift_kv_to_cache& task, int64_t first_row, int64_t num_rows) {
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const FloatToken<T> token(task, task.slots[row]);
    for (int64_t head = 0; head < task.num_kv_heads; ++head) {
      token.store_key(head, task.key + row * task.key_stride + head * task.head_dim);
      token.store_value(head, task.value + row * task.value_stride + head * task.head_dim);
    }
  }
}

void store_kv(const chairlift_kv_to_cache& task, int64_t first_row, int64_t num_rows) {
  switch (task.kv_type) {
    case CHAIRLIFT_KV_FLOAT16:
      return store_kv_rows<Half>(task, first_row, num_rows);
    case CHAIRLIFT_KV_BFLOAT16:
      return store_kv_rows<BFloat16>(task, first_row, num_rows);
    default:
      return store_kv_rows<float>(task, first_row, num_rows);
  }
}

}  // namespace
}  // namespace chairlift
