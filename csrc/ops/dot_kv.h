// What reading a quantised cache needs beyond dot.h: products of unsigned with signed bytes where
// either may be the one that is repeated, weights cut into bytes, and 2^x.
#pragma once

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

// Rounds x, from 0 to 65535, to the nearest integer; writes its upper and lower bytes.
CHAIRLIFT_INLINE void store_bytes(F16 x, uint8_t* high, uint8_t* low) {
  const __m512i n = _mm512_cvtps_epi32(x.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(_mm512_srli_epi32(n, 8)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(n));
}

// x in lanes [begin, end), `other` elsewhere
CHAIRLIFT_INLINE F16 select_lanes(F16 x, int begin, int end, F16 other) {
  const uint32_t mask = ((1u << end) - 1) & ~((1u << begin) - 1);
  return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(mask), x.v)};
}

// p * 2^n for whole n
CHAIRLIFT_INLINE F16 scale_by_power(F16 p, F16 n) { return {_mm512_scalef_ps(p.v, n.v)}; }

CHAIRLIFT_INLINE F16 round_to_integer(F16 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
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

CHAIRLIFT_INLINE void store_bytes(F16 x, uint8_t* high, uint8_t* low) {
  // Sixteen 16-bit integers, put back in order after the lane-wise pack.
  const __m256i packed = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)), 0xd8);
  const __m256i bytes =
      _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_and_si256(packed, _mm256_set1_epi16(255)),
                                                   _mm256_srli_epi16(packed, 8)),
                               0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm256_castsi256_si128(bytes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm256_extracti128_si256(bytes, 1));
}

CHAIRLIFT_INLINE F16 round_to_integer(F16 x) {
  return {_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

CHAIRLIFT_INLINE F16 scale_by_power(F16 p, F16 n) {
  return p * power_of_two(n + F16::all(12582912.0f));
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

CHAIRLIFT_INLINE F16 round_to_integer(F16 x) {
  const F16 magic = F16::all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  return (x + magic) - magic;
}

CHAIRLIFT_INLINE F16 scale_by_power(F16 p, F16 n) {
  return p * power_of_two(n + F16::all(12582912.0f));
}

CHAIRLIFT_INLINE void store_bytes(F16 x, uint8_t* high, uint8_t* low) {
  float lane[kLanes];
  round_to_integer(x).store(lane);
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t n = lane[i] >= 0 && lane[i] <= 65535 ? static_cast<uint32_t>(lane[i]) : 0;
    high[i] = static_cast<uint8_t>(n >> 8);
    low[i] = static_cast<uint8_t>(n);
  }
}

#endif

// Asks for a cache line to come to L2.  Few lines can be on their way to L1 at a time; those bound
// for L2 keep memory twice as busy.
CHAIRLIFT_INLINE void prefetch_line(const uint8_t* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#else
  (void)p;
#endif
}

// 256 high + low
CHAIRLIFT_INLINE I16 join_bytes(const I16& high, const I16& low) {
  return shift_left<8>(high) + low;
}

#if !defined(CHAIRLIFT_VEC_AVX512)

CHAIRLIFT_INLINE void keep_in_register(Codes&) {}

CHAIRLIFT_INLINE F16 select_lanes(F16 x, int begin, int end, F16 other) {
  float lane[kLanes], rest[kLanes];
  x.store(lane);
  other.store(rest);
  for (int i = 0; i < kLanes; ++i) lane[i] = i >= begin && i < end ? lane[i] : rest[i];
  return F16::load(lane);
}

#endif

// 2^x for x <= 0 to about 2 ulp, and exactly 1 at 0.  Below -126, where the result would be
// denormal, it is 0; so it is for -inf.
CHAIRLIFT_INLINE F16 exp2_negative(F16 x) {
  const F16 limit = F16::all(-126.0f);
  const F16 clamped = larger(limit, x);
  const F16 n = round_to_integer(clamped);
  const F16 r = clamped - n;
  F16 p = F16::all(1.326472733e-3f);
  p = multiply_add(p, r, F16::all(9.671512991e-3f));
  p = multiply_add(p, r, F16::all(5.550733581e-2f));
  p = multiply_add(p, r, F16::all(2.402224243e-1f));
  p = multiply_add(p, r, F16::all(6.931470037e-1f));
  p = multiply_add(p, r, F16::all(1.0f));
  return zero_below(scale_by_power(p, n), x, limit);
}

}  // namespace
}  // namespace chairlift
