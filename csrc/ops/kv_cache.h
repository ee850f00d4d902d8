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

// Codes from -127 to 127 of one head; returns their scale.
CHAIRLIFT_INLINE float quantize_head(const float* x, int64_t dim, int8_t* codes) {
  Magnitude most = magnitude(F16::load(x));
  for (int64_t i = kLanes; i < dim; i += kLanes) most = larger(most, magnitude(F16::load(x + i)));
  const uint32_t bits = largest_lane(most);
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  if (largest < kSmallestMagnitude) {
    for (int64_t i = 0; i < dim; ++i) codes[i] = 0;
    return 0.0f;
  }
  const F16 inverse = F16::all(127.0f / largest);
  const F16 to_integer = F16::all(12582912.0f);  // 1.5 * 2^23
  for (int64_t i = 0; i < dim; i += kLanes) {
    store_low_bytes(F16::load(x + i) * inverse + to_integer, codes + i);
  }
  return largest / 127.0f;
}

CHAIRLIFT_INLINE void store_key(const int8_t* codes, int64_t dim, uint8_t* page, int64_t token) {
  for (int64_t i = 0; i < dim; i += 4) {
    uint32_t four;
    std::memcpy(&four, codes + i, 4);
    four ^= 0x80808080u;  // + 128
    std::memcpy(page + 16 * i + 4 * token, &four, 4);
  }
}

CHAIRLIFT_INLINE void store_value(const int8_t* codes, int64_t dim, uint8_t* values,
                                  int64_t token) {
  uint8_t* out = values + token / 4 * dim * 4 + token % 4;
  for (int64_t i = 0; i < dim; ++i) out[4 * i] = static_cast<uint8_t>(codes[i]);
}

// What becomes of one token's heads in a cache of bytes.
class ByteSlot {
 public:
  CHAIRLIFT_INLINE ByteSlot(const chairlift_qkv_to_cache& task, int64_t row, float* scratch)
      : task_(task), row_(row), codes_(reinterpret_cast<int8_t*>(scratch)) {
    const int64_t slot = task.slots[row], offset = slot % task.block_size;
    token_ = offset % kPageTokens;
    page_ = task.kv_cache + slot / task.block_size * task.block_stride +
            offset / kPageTokens * task.num_kv_heads * layout().head_bytes();
  }

  CHAIRLIFT_INLINE void take_query(int64_t head, const float* x) {
    const int64_t index = row_ * task_.num_heads + head;
    int8_t* codes = static_cast<int8_t*>(task_.query) + index * task_.head_dim;
    task_.query_scales[index] = quantize_head(x, task_.head_dim, codes);
  }

  CHAIRLIFT_INLINE void take_key(int64_t head, const float* x) {
    uint8_t* base = page_ + head * layout().head_bytes();
    const float scale = quantize_head(x, task_.head_dim, codes_);
    store_key(codes_, task_.head_dim, base, token_);
    std::memcpy(base + layout().key_scales() + 4 * token_, &scale, 4);
  }

  CHAIRLIFT_INLINE void take_value(int64_t head, const float* x) {
    uint8_t* base = page_ + head * layout().head_bytes();
    const float scale = quantize_head(x, task_.head_dim, codes_);
    store_value(codes_, task_.head_dim, base + layout().values(), token_);
    std::memcpy(base + layout().value_scales() + 4 * token_, &scale, 4);
  }

 private:
  CHAIRLIFT_INLINE KvLayout layout() const { return {task_.head_dim}; }

  const chairlift_qkv_to_cache& task_;
  int64_t row_;
  int8_t* codes_;
  uint8_t* page_;
  int64_t token_;
};

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

// What becomes of one token's heads in such a cache.
template <class T>
class FloatSlot {
 public:
  CHAIRLIFT_INLINE FloatSlot(const chairlift_qkv_to_cache& task, int64_t row, float*)
      : token_(task, task.slots[row]),
        dim_(task.head_dim),
        query_(static_cast<float*>(task.query) + row * task.num_heads * dim_) {}

  CHAIRLIFT_INLINE void take_query(int64_t head, const float* x) {
    store_floats(x, dim_, query_ + head * dim_);
  }
  CHAIRLIFT_INLINE void take_key(int64_t head, const float* x) { token_.store_key(head, x); }
  CHAIRLIFT_INLINE void take_value(int64_t head, const float* x) { token_.store_value(head, x); }

 private:
  FloatToken<T> token_;
  int64_t dim_;
  float* query_;
};

// scratch: two heads of floats and what SLOT needs, one of bytes at most
template <class SLOT>
void store_qkv_rows(const chairlift_qkv_to_cache& task, int64_t first_row, int64_t num_rows,
                    float* scratch) {
  const int64_t dim = task.head_dim, half = task.rope_dim / 2;
  float* normed = scratch;
  float* rotated = normed + dim;
  const int64_t num_heads = task.num_heads, num_kv_heads = task.num_kv_heads;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const float* x = task.qkv + row * (num_heads + 2 * num_kv_heads) * dim;
    const float* cos = task.cos + task.positions[row] * half;
    const float* sin = task.sin + task.positions[row] * half;
    SLOT slot(task, row, rotated + dim);
    for (int64_t head = 0; head < num_heads + num_kv_heads; ++head, x += dim) {
      const bool is_query = head < num_heads;
      const float* weight = is_query ? task.q_norm : task.k_norm;
      if (weight) normalize_head(x, weight, dim, task.norm_eps, normed);
      rotate_head(weight ? normed : x, cos, sin, half, task.rope_interleaved != 0, dim, rotated);
      if (is_query) {
        slot.take_query(head, rotated);
      } else {
        slot.take_key(head - num_heads, rotated);
      }
    }
    for (int64_t head = 0; head < num_kv_heads; ++head, x += dim) slot.take_value(head, x);
  }
}

void store_qkv(const chairlift_qkv_to_cache& task, int64_t first_row, int64_t num_rows,
               float* scratch) {
  switch (task.kv_type) {
    case CHAIRLIFT_KV_FLOAT16:
      return store_qkv_rows<FloatSlot<Half>>(task, first_row, num_rows, scratch);
    case CHAIRLIFT_KV_BFLOAT16:
      return store_qkv_rows<FloatSlot<BFloat16>>(task, first_row, num_rows, scratch);
    case CHAIRLIFT_KV_FLOAT32:
      return store_qkv_rows<FloatSlot<float>>(task, first_row, num_rows, scratch);
    default:
      return store_qkv_rows<ByteSlot>(task, first_row, num_rows, scratch);
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
