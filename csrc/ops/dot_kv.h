// What reading a quantised cache needs beyond dot.h: products of unsigned with signed bytes where
// either may be the one that is repeated, weights cut into bytes, and 2^x.
#pragma once

#include <type_traits>

#include "dot.h"

namespace chairlift {
namespace {

#if defined(CHAIRLIFT_VEC_AVX512)

// Four bytes, sixteen times.
CHAIRLIFT_INLINE Codes repeat_bytes(const void* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return {_mm512_set1_epi32(four)};
}

// sum[i] += a[4i] b[4i] + ... + a[4i + 3] b[4i + 3] for bytes a >= 0 and signed bytes b
CHAIRLIFT_INLINE I16 add_dots(I16 sum, Codes a, Codes b) {
#if defined(__GNUC__)
  // GCC copies accumulators to and fro around its own intrinsic.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  return sum;
#else
  return {_mm512_dpbusd_epi32(sum.v, a.v, b.v)};
#endif
}

// Keeps a value in its register: GCC would rather load it again for every use.
CHAIRLIFT_INLINE void keep_in_register(Codes& a) {
#if defined(__GNUC__)
  __asm__("" : "+v"(a.v));
#else
  (void)a;
#endif
}

// Rounds numbers from 0 to 65535, one for each token of four pages, to integers; writes their upper
// and lower bytes, [4][page][4 tokens], the order in which packing leaves them.
CHAIRLIFT_INLINE void store_weights(const F16 (&x)[4], uint8_t* high, uint8_t* low) {
  const __m512i byte = _mm512_set1_epi16(255);
  const __m512i first = _mm512_packus_epi32(_mm512_cvtps_epi32(x[0].v), _mm512_cvtps_epi32(x[1].v));
  const __m512i second =
      _mm512_packus_epi32(_mm512_cvtps_epi32(x[2].v), _mm512_cvtps_epi32(x[3].v));
  _mm512_storeu_si512(
      low, _mm512_packus_epi16(_mm512_and_si512(first, byte), _mm512_and_si512(second, byte)));
  _mm512_storeu_si512(
      high, _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8)));
}

// Lanes of `x` where the mask has a bit, those of `other` elsewhere.
CHAIRLIFT_INLINE F16 select_lanes(uint16_t mask, F16 x, F16 other) {
  return {_mm512_mask_mov_ps(other.v, mask, x.v)};
}

// The larger of numbers, or of numbers that are not negative: those as integers, which more units
// compare, and of which not-a-number is the largest.
struct Larger {
  static CHAIRLIFT_INLINE __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};
struct LargerPositive {
  static CHAIRLIFT_INLINE __m512 of(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
};
CHAIRLIFT_INLINE F16 larger_positive(F16 a, F16 b) { return {LargerPositive::of(a.v, b.v)}; }

// Writes the largest lane of x[i], by LARGER, to out[i], and something to the rest of out[4].
template <class LARGER, int COUNT>
CHAIRLIFT_INLINE void store_largest_lanes(const F16 (&x)[COUNT], float* out) {
  static_assert(COUNT >= 1 && COUNT <= 4, "one for each lane of 128 bits");
  const __m512 a = x[0].v, b = x[1 % COUNT].v, c = x[2 % COUNT].v, d = x[3 % COUNT].v;
  const __m512d ab =
      _mm512_castps_pd(LARGER::of(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd =
      _mm512_castps_pd(LARGER::of(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 four = LARGER::of(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m512 two = LARGER::of(four, _mm512_shuffle_f32x4(four, four, 0x4e));
  const __m512 one = LARGER::of(two, _mm512_shuffle_f32x4(two, two, 0xb1));
  _mm_storeu_ps(out, _mm512_castps512_ps128(one));
}

#elif defined(CHAIRLIFT_VEC_AVX2)

CHAIRLIFT_INLINE Codes repeat_bytes(const void* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return {_mm256_set1_epi32(four), _mm256_set1_epi32(four)};
}

CHAIRLIFT_INLINE __m256i add_dots(__m256i sum, __m256i a, __m256i b) {
#if defined(CHAIRLIFT_DOT_VNNI) && (defined(__AVXVNNI__) || defined(_MSC_VER))
  return _mm256_dpbusd_avx_epi32(sum, a, b);
#elif defined(CHAIRLIFT_DOT_VNNI)
  return _mm256_dpbusd_epi32(sum, a, b);
#else
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
#endif
}
CHAIRLIFT_INLINE I16 add_dots(I16 sum, Codes a, Codes b) {
  return {add_dots(sum.low, a.low, b.low), add_dots(sum.high, a.high, b.high)};
}

CHAIRLIFT_INLINE void store_weights(const __m256 (&x)[4], uint8_t* high, uint8_t* low) {
  const __m256i byte = _mm256_set1_epi16(255);
  const __m256i first = _mm256_packus_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
  const __m256i second = _mm256_packus_epi32(_mm256_cvtps_epi32(x[2]), _mm256_cvtps_epi32(x[3]));
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(low),
      _mm256_packus_epi16(_mm256_and_si256(first, byte), _mm256_and_si256(second, byte)));
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(high),
      _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8)));
}
CHAIRLIFT_INLINE void store_weights(const F16 (&x)[4], uint8_t* high, uint8_t* low) {
  store_weights({x[0].low, x[1].low, x[2].low, x[3].low}, high, low);
  store_weights({x[0].high, x[1].high, x[2].high, x[3].high}, high + 32, low + 32);
}

#else

CHAIRLIFT_INLINE Codes repeat_bytes(const void* p) {
  Codes r;
  for (int i = 0; i < kCodesBytes; i += 4) std::memcpy(r.lane + i, p, 4);
  return r;
}

CHAIRLIFT_INLINE I16 add_dots(I16 sum, const Codes& a, const Codes& b) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < 4; ++j) {
      sum.lane[i] += a.lane[4 * i + j] * static_cast<int8_t>(b.lane[4 * i + j]);
    }
  }
  return sum;
}

CHAIRLIFT_INLINE void store_weights(const F16 (&x)[4], uint8_t* high, uint8_t* low) {
  for (int page = 0; page < 4; ++page) {
    float lane[kLanes];
    round_to_integer(x[page]).store(lane);
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t n = lane[i] >= 0 && lane[i] <= 65535 ? static_cast<uint32_t>(lane[i]) : 0;
      const int at = i / 4 * 16 + page * 4 + i % 4;
      high[at] = static_cast<uint8_t>(n >> 8);
      low[at] = static_cast<uint8_t>(n);
    }
  }
}

#endif

// 256 high + low
CHAIRLIFT_INLINE I16 join_bytes(const I16& high, const I16& low) {
  return shift_left<8>(high) + low;
}

#if !defined(CHAIRLIFT_VEC_AVX512)

CHAIRLIFT_INLINE void keep_in_register(Codes&) {}

CHAIRLIFT_INLINE F16 select_lanes(uint16_t mask, F16 x, F16 other) {
  float lane[kLanes], rest[kLanes];
  x.store(lane);
  other.store(rest);
  for (int i = 0; i < kLanes; ++i) lane[i] = mask >> i & 1 ? lane[i] : rest[i];
  return F16::load(lane);
}

struct Larger {};
struct LargerPositive {};

// Not-a-number is larger than any.
CHAIRLIFT_INLINE F16 larger_positive(F16 a, F16 b) {
  float x[kLanes], y[kLanes];
  a.store(x);
  b.store(y);
  for (int i = 0; i < kLanes; ++i) x[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i];
  return F16::load(x);
}

template <class LARGER, int COUNT>
CHAIRLIFT_INLINE void store_largest_lanes(const F16 (&x)[COUNT], float* out) {
  for (int i = 0; i < COUNT; ++i) {
    if constexpr (std::is_same_v<LARGER, LargerPositive>) {
      const uint32_t bits = largest_lane(magnitude(x[i]));
      std::memcpy(out + i, &bits, sizeof bits);
    } else {
      out[i] = largest_lane(x[i]);
    }
  }
}

#endif

}  // namespace
}  // namespace chairlift
