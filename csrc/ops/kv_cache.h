// From the joint projection of a step to the cache: norm and rotation of query and key heads, and
// the quantised form of all three.
//
// Every token and head is computed alone.  Multiplications and additions come in an order fixed by
// the source and are never fused, so that all instruction sets write the same bytes.
#pragma once

#include <cmath>

#include "../isa/kernel_table.h"
#include "../kv_layout.h"
#include "quantize.h"

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

// scratch: two heads of floats and one of codes
void store_qkv(const chairlift_qkv_to_cache& task, int64_t first_row, int64_t num_rows,
               float* scratch) {
  const int64_t dim = task.head_dim, half = task.rope_dim / 2;
  const KvLayout layout = {dim};
  float* normed = scratch;
  float* rotated = normed + dim;
  int8_t* codes = reinterpret_cast<int8_t*>(rotated + dim);
  const int64_t num_heads = task.num_heads, num_kv_heads = task.num_kv_heads;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const float* x = task.qkv + row * (num_heads + 2 * num_kv_heads) * dim;
    const float* cos = task.cos + task.positions[row] * half;
    const float* sin = task.sin + task.positions[row] * half;
    const int64_t slot = task.slots[row];
    const int64_t offset = slot % task.block_size, token = offset % kPageTokens;
    uint8_t* page = task.kv_cache + slot / task.block_size * task.block_stride +
                    offset / kPageTokens * num_kv_heads * layout.head_bytes();
    for (int64_t head = 0; head < num_heads + num_kv_heads; ++head, x += dim) {
      const bool is_query = head < num_heads;
      const float* weight = is_query ? task.q_norm : task.k_norm;
      if (weight) normalize_head(x, weight, dim, task.norm_eps, normed);
      rotate_head(weight ? normed : x, cos, sin, half, task.rope_interleaved != 0, dim, rotated);
      if (is_query) {
        const int64_t index = row * num_heads + head;
        task.query_scales[index] = quantize_head(rotated, dim, task.query + index * dim);
        continue;
      }
      uint8_t* key = page + (head - num_heads) * layout.head_bytes();
      const float scale = quantize_head(rotated, dim, codes);
      store_key(codes, dim, key, token);
      std::memcpy(key + layout.key_scales() + 4 * token, &scale, 4);
    }
    for (int64_t head = 0; head < num_kv_heads; ++head, x += dim) {
      uint8_t* base = page + head * layout.head_bytes();
      const float scale = quantize_head(x, dim, codes);
      store_value(codes, dim, base + layout.values(), token);
      std::memcpy(base + layout.value_scales() + 4 * token, &scale, 4);
    }
  }
}

}  // namespace
}  // namespace chairlift
