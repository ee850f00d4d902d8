// Rows of float32 to groups of signed bytes with a scale: the activations of an int8 product.
//
// A group is a record of its codes, its scale and sums of its codes, so that a kernel walks one
// pointer per row.  A group's record depends on its own numbers only.
#pragma once

#include "../isa/kernel_table.h"
#include "dot.h"

namespace chairlift {
namespace {

// Follows the codes of a group.
struct GroupTail {
  float scale;
  float scaled_sum;  // scale * sum
  int32_t sum;       // of all codes
  int32_t sum_first_half;
};
static_assert(sizeof(GroupTail) == kGroupTailBytes, "the record is cut by others as well");

// The nearest number with eleven significant bits, ties to even: what rounding to half precision
// gives, without its limits of range.
CHAIRLIFT_INLINE float round_to_eleven_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x0fff + ((bits >> 13) & 1)) & ~0x1fffu;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// GROUP values held in vectors, to a record.  A group without anything larger than the smallest
// normal number is zero; one that holds an infinity or not-a-number makes its row not-a-number.
template <int GROUP>
CHAIRLIFT_INLINE void quantize_group(const F16 (&x)[GROUP / kLanes], uint8_t* record) {
  constexpr int kVectors = GROUP / kLanes;
  constexpr float kSmallestNormal = 1.17549435e-38f;
  Magnitude magnitudes = magnitude(x[0]);
  CHAIRLIFT_UNROLL
  for (int i = 1; i < kVectors; ++i) magnitudes = larger(magnitudes, magnitude(x[i]));
  const uint32_t bits = largest_lane(magnitudes);
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  const float step = largest / 127.0f;
  const bool is_finite = bits < 0x7f800000;
  const bool is_zero = !(step >= kSmallestNormal);
  int8_t* codes = reinterpret_cast<int8_t*>(record);
  GroupTail tail = {};
  if (is_finite && !is_zero) {
    const F16 inverse = F16::all(1.0f / step);
    const F16 to_integer = F16::all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    int32_t sum = 0;
    CHAIRLIFT_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      store_low_bytes(x[i] * inverse + to_integer, codes + i * kLanes);
      sum += sum_codes(codes + i * kLanes);
      if (i == kVectors / 2 - 1) tail.sum_first_half = sum;
    }
    tail.sum = sum;
    tail.scale = round_to_eleven_bits(step);
    tail.scaled_sum = tail.scale * static_cast<float>(sum);
  } else {
    std::memset(codes, 0, GROUP);
    if (!is_finite) {
      const uint32_t not_a_number = 0x7fc00000;
      std::memcpy(&tail.scale, &not_a_number, sizeof tail.scale);
      tail.scaled_sum = tail.scale;
    }
  }
  std::memcpy(record + GROUP, &tail, sizeof tail);
}

template <int GROUP>
CHAIRLIFT_INLINE void quantize_row(const float* x, int64_t width, uint8_t* record) {
  F16 group[GROUP / kLanes];
  int64_t k = 0;
  for (; k + GROUP <= width; k += GROUP, record += GROUP + kGroupTailBytes) {
    CHAIRLIFT_UNROLL
    for (int i = 0; i < GROUP / kLanes; ++i) group[i] = F16::load(x + k + i * kLanes);
    quantize_group<GROUP>(group, record);
  }
  if (k < width) {
    float rest[GROUP] = {};
    for (int64_t i = k; i < width; ++i) rest[i - k] = x[i];
    for (int i = 0; i < GROUP / kLanes; ++i) group[i] = F16::load(rest + i * kLanes);
    quantize_group<GROUP>(group, record);
  }
}

// Rows of `width` floats to rows of records, each group_row_bytes() long.
void quantize_rows(const float* x, int64_t num_rows, int64_t width, int64_t group_size,
                   uint8_t* records) {
  const int64_t row_bytes = group_row_bytes(width, group_size);
  for (int64_t row = 0; row < num_rows; ++row) {
    if (group_size == 64) {
      quantize_row<64>(x + row * width, width, records + row * row_bytes);
    } else {
      quantize_row<32>(x + row * width, width, records + row * row_bytes);
    }
  }
}

}  // namespace
}  // namespace chairlift
