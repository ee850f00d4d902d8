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

#if defined(CHAIRLIFT_VEC_AVX512)

constexpr int kGroupsAtOnce = 16;

// Where sixteen groups lie: each so many numbers and bytes after the other.
struct GroupColumn {
  const float* first;
  int64_t stride;
  uint8_t* first_record;
  int64_t record_stride;
  int64_t ahead;  // numbers from a group to the one that is asked for meanwhile
  CHAIRLIFT_INLINE const float* values(int g) const { return first + g * stride; }
  CHAIRLIFT_INLINE uint8_t* record(int g) const { return first_record + g * record_stride; }
};

struct CombineLargest {
  static CHAIRLIFT_INLINE __m512i apply(__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }
};

// Lane i of the result combines all lanes of x[i].
template <class COMBINE>
CHAIRLIFT_INLINE __m512i combine_lanes(const __m512i (&x)[16]) {
  __m512i pairs[8], quads[4], halves[2];
  CHAIRLIFT_UNROLL
  for (int i = 0; i < 8; ++i) {
    pairs[i] = COMBINE::apply(_mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]),
                              _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]));
  }
  CHAIRLIFT_UNROLL
  for (int i = 0; i < 4; ++i) {
    quads[i] = COMBINE::apply(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                              _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  }
  CHAIRLIFT_UNROLL
  for (int i = 0; i < 2; ++i) {
    halves[i] = COMBINE::apply(_mm512_shuffle_i32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                               _mm512_shuffle_i32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
  }
  return COMBINE::apply(_mm512_shuffle_i32x4(halves[0], halves[1], 0x88),
                        _mm512_shuffle_i32x4(halves[0], halves[1], 0xdd));
}

// Sixty-four numbers to bytes.
CHAIRLIFT_INLINE __m512i codes_of(const float* const (&x)[4], const __m512 (&factor)[4]) {
  __m512i integers[4];
  CHAIRLIFT_UNROLL
  for (int i = 0; i < 4; ++i) {
    integers[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x[i]), factor[i]));
  }
  // Packing joins what lies in the same 16 bytes of its operands: a matrix of 4 x 4 times four
  // bytes, to be transposed.
  const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(integers[0], integers[1]),
                                            _mm512_packs_epi32(integers[2], integers[3]));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}

// The codes of four groups, which are stored as well; the last halves are zero if they have
// only 32.
template <int GROUP>
CHAIRLIFT_INLINE void write_codes(const GroupColumn& groups, int first, const float* inverse,
                                  __m512i (&codes)[4]) {
  if constexpr (GROUP == 64) {
    CHAIRLIFT_UNROLL
    for (int g = 0; g < 4; ++g) {
      const float* x = groups.values(first + g);
      const __m512 factor = _mm512_set1_ps(inverse[first + g]);
      codes[g] = codes_of({x, x + 16, x + 32, x + 48}, {factor, factor, factor, factor});
      _mm512_storeu_si512(groups.record(first + g), codes[g]);
    }
  } else {
    CHAIRLIFT_UNROLL
    for (int g = 0; g < 4; g += 2) {
      const float *x = groups.values(first + g), *y = groups.values(first + g + 1);
      const __m512 factor = _mm512_set1_ps(inverse[first + g]);
      const __m512 other = _mm512_set1_ps(inverse[first + g + 1]);
      const __m512i both = codes_of({x, x + 16, y, y + 16}, {factor, factor, other, other});
      const __m256i low = _mm512_castsi512_si256(both), high = _mm512_extracti64x4_epi64(both, 1);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(groups.record(first + g)), low);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(groups.record(first + g + 1)), high);
      codes[g] = _mm512_zextsi256_si512(low);
      codes[g + 1] = _mm512_zextsi256_si512(high);
    }
  }
}

// Sums of four signed bytes each.
CHAIRLIFT_INLINE __m512i sums_of_four(__m512i codes) {
  const __m512i ones = _mm512_set1_epi8(1);
#if defined(CHAIRLIFT_DOT_VNNI)
  return _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, codes);
#else
  return _mm512_madd_epi16(_mm512_maddubs_epi16(ones, codes), _mm512_set1_epi16(1));
#endif
}

// For four groups their sums of sixteen codes: lane 4 * j + g of the result belongs to the j-th
// sixteen codes of group g.
CHAIRLIFT_INLINE __m512i sums_of_codes(const __m512i (&codes)[4]) {
  __m512i sum[4];
  CHAIRLIFT_UNROLL
  for (int g = 0; g < 4; ++g) sum[g] = sums_of_four(codes[g]);
  const __m512i first = _mm512_add_epi32(_mm512_unpacklo_epi32(sum[0], sum[1]),
                                         _mm512_unpackhi_epi32(sum[0], sum[1]));
  const __m512i second = _mm512_add_epi32(_mm512_unpacklo_epi32(sum[2], sum[3]),
                                          _mm512_unpackhi_epi32(sum[2], sum[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second),
                          _mm512_unpackhi_epi64(first, second));
}

// Not through memory: a load of what four stores left would wait until all of them have reached the
// cache, which took most of the time of this file.
CHAIRLIFT_INLINE __m512i join_quarters(const __m128i (&x)[4]) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(x[0]), x[1], 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(x[2]), x[3], 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Tails to behind the codes of their groups.
template <int GROUP>
CHAIRLIFT_INLINE void store_tails(__m512 scale, __m512i sum, __m512i first,
                                  const GroupColumn& groups) {
  const __m512 scaled = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum));
  const __m512i scale_bits = _mm512_castps_si512(scale), scaled_bits = _mm512_castps_si512(scaled);
  const __m512i low[2] = {_mm512_unpacklo_epi32(scale_bits, scaled_bits),
                          _mm512_unpackhi_epi32(scale_bits, scaled_bits)};
  const __m512i high[2] = {_mm512_unpacklo_epi32(sum, first), _mm512_unpackhi_epi32(sum, first)};
  CHAIRLIFT_UNROLL
  for (int i = 0; i < 4; ++i) {  // of every four groups, the i-th
    const __m512i tails = i % 2 == 0 ? _mm512_unpacklo_epi64(low[i / 2], high[i / 2])
                                     : _mm512_unpackhi_epi64(low[i / 2], high[i / 2]);
    const __m128i tail[4] = {_mm512_castsi512_si128(tails), _mm512_extracti32x4_epi32(tails, 1),
                             _mm512_extracti32x4_epi32(tails, 2),
                             _mm512_extracti32x4_epi32(tails, 3)};
    CHAIRLIFT_UNROLL
    for (int lane = 0; lane < 4; ++lane) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(groups.record(4 * lane + i) + GROUP), tail[lane]);
    }
  }
}

// What sixteen groups are scaled by.
struct GroupSteps {
  alignas(64) float inverse[kGroupsAtOnce];
  __m512 step;
  __mmask16 is_used;  // others are zero
  bool is_finite;
};

template <int GROUP>
CHAIRLIFT_INLINE void measure_sixteen_groups(const GroupColumn& groups, GroupSteps* steps) {
  const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
  __m512i magnitudes[kGroupsAtOnce];
  CHAIRLIFT_UNROLL
  for (int g = 0; g < kGroupsAtOnce; ++g) {
    const float* x = groups.values(g);
    CHAIRLIFT_UNROLL
    for (int i = 0; i < GROUP / kLanes; ++i) prefetch_near(x + groups.ahead + i * kLanes);
    magnitudes[g] = _mm512_and_si512(_mm512_loadu_si512(x), no_sign);
    CHAIRLIFT_UNROLL
    for (int i = 1; i < GROUP / kLanes; ++i) {
      magnitudes[g] = _mm512_max_epi32(
          magnitudes[g], _mm512_and_si512(_mm512_loadu_si512(x + i * kLanes), no_sign));
    }
  }
  const __m512i largest = combine_lanes<CombineLargest>(magnitudes);
  steps->is_finite = !_mm512_cmpge_epi32_mask(largest, _mm512_set1_epi32(0x7f800000));
  steps->step = _mm512_div_ps(_mm512_castsi512_ps(largest), _mm512_set1_ps(127.0f));
  steps->is_used = _mm512_cmp_ps_mask(steps->step, _mm512_set1_ps(1.17549435e-38f), _CMP_GE_OQ);
  _mm512_store_ps(steps->inverse,
                  _mm512_maskz_div_ps(steps->is_used, _mm512_set1_ps(1.0f), steps->step));
}

// What quantize_group does, for sixteen groups: largest numbers, divisions and sums side by side.
template <int GROUP>
CHAIRLIFT_INLINE void write_sixteen_groups(const GroupColumn& groups, const GroupSteps& steps) {
  if (!steps.is_finite) {  // rare
    for (int g = 0; g < kGroupsAtOnce; ++g) {
      quantize_row<GROUP>(groups.values(g), GROUP, groups.record(g));
    }
    return;
  }
  __m128i sums[4], first_halves[4];
  CHAIRLIFT_UNROLL
  for (int g = 0; g < kGroupsAtOnce; g += 4) {
    __m512i codes[4];
    write_codes<GROUP>(groups, g, steps.inverse, codes);
    const __m512i of_sixteen = sums_of_codes(codes);
    const __m128i a = _mm512_castsi512_si128(of_sixteen);
    const __m128i b = _mm512_extracti32x4_epi32(of_sixteen, 1);
    __m128i first = a, sum = _mm_add_epi32(a, b);
    if constexpr (GROUP == 64) {
      first = sum;
      sum = _mm_add_epi32(sum, _mm_add_epi32(_mm512_extracti32x4_epi32(of_sixteen, 2),
                                             _mm512_extracti32x4_epi32(of_sixteen, 3)));
    }
    sums[g / 4] = sum;
    first_halves[g / 4] = first;
  }
  // To eleven bits, as round_to_eleven_bits.
  const __m512i bits = _mm512_castps_si512(steps.step);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 13), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_and_si512(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x0fff))),
                       _mm512_set1_epi32(~0x1fff));
  const __m512 scale = _mm512_castsi512_ps(_mm512_maskz_mov_epi32(steps.is_used, rounded));
  store_tails<GROUP>(scale, join_quarters(sums), join_quarters(first_halves), groups);
}

// Sixteen groups after the other, `count` times; the next ones are measured before some are
// written, which hides how long divisions take.
template <int GROUP, class COLUMN_AT>
CHAIRLIFT_INLINE void quantize_columns(int64_t count, const COLUMN_AT& column_at) {
  if (count == 0) return;
  GroupSteps steps[2];
  measure_sixteen_groups<GROUP>(column_at(0), &steps[0]);
  for (int64_t i = 0; i < count; ++i) {
    if (i + 1 < count) measure_sixteen_groups<GROUP>(column_at(i + 1), &steps[(i + 1) % 2]);
    write_sixteen_groups<GROUP>(column_at(i), steps[i % 2]);
  }
}

// Rows [num_rows, stride] of whole groups, sixteen groups at once; returns how many groups, in the
// order of rows, are done.  Left are fewer than sixteen, or the groups of fewer than sixteen rows
// where rows or records do not follow each other.
template <int GROUP>
int64_t quantize_many_groups(const float* x, int64_t num_rows, int64_t stride,
                             int64_t groups_per_row, int64_t row_bytes, uint8_t* records) {
  constexpr int64_t kRecordBytes = GROUP + kGroupTailBytes;
  if (stride == groups_per_row * GROUP && row_bytes == groups_per_row * kRecordBytes) {
    const int64_t count = num_rows * groups_per_row / kGroupsAtOnce;
    quantize_columns<GROUP>(count, [&](int64_t i) {
      const int64_t group = i * kGroupsAtOnce;
      return GroupColumn{x + group * GROUP, GROUP, records + group * kRecordBytes, kRecordBytes,
                         kGroupsAtOnce * GROUP};
    });
    return count * kGroupsAtOnce;
  }
  int64_t row = 0;
  for (; row + kGroupsAtOnce <= num_rows; row += kGroupsAtOnce) {
    quantize_columns<GROUP>(groups_per_row, [&](int64_t group) {
      return GroupColumn{x + row * stride + group * GROUP, stride,
                         records + row * row_bytes + group * kRecordBytes, row_bytes, GROUP};
    });
  }
  return row * groups_per_row;
}

#else

template <int GROUP>
int64_t quantize_many_groups(const float*, int64_t, int64_t, int64_t, int64_t, uint8_t*) {
  return 0;
}

#endif

// Rows [num_rows, stride], of which `width` numbers count, to records; rows of records are
// `row_bytes` apart.
template <int GROUP>
void quantize_rows_of(const float* x, int64_t num_rows, int64_t width, int64_t stride,
                      int64_t row_bytes, uint8_t* records) {
  if (width % GROUP != 0) {
    for (int64_t row = 0; row < num_rows; ++row) {
      quantize_row<GROUP>(x + row * stride, width, records + row * row_bytes);
    }
    return;
  }
  const int64_t groups = width / GROUP;
  int64_t done = quantize_many_groups<GROUP>(x, num_rows, stride, groups, row_bytes, records);
  for (; done < num_rows * groups; ++done) {
    const int64_t row = done / groups, group = done % groups;
    quantize_row<GROUP>(x + row * stride + group * GROUP, GROUP,
                        records + row * row_bytes + group * (GROUP + kGroupTailBytes));
  }
}

// Rows of `width` floats to rows of records, each group_row_bytes() long.
void quantize_rows(const float* x, int64_t num_rows, int64_t width, int64_t group_size,
                   uint8_t* records) {
  const int64_t row_bytes = group_row_bytes(width, group_size);
  if (group_size == 64) {
    quantize_rows_of<64>(x, num_rows, width, width, row_bytes, records);
  } else {
    quantize_rows_of<32>(x, num_rows, width, width, row_bytes, records);
  }
}

}  // namespace
}  // namespace chairlift
