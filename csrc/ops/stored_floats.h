// Floats as files and caches store them: float32, half precision (binary16) and bfloat16.
//
// Reading is exact.  Writing rounds to the nearest number, ties to even: the same bits on every
// instruction set.  Beyond 65504 there is no half but infinity.
#pragma once

#include "../vec.h"

namespace chairlift {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

CHAIRLIFT_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

CHAIRLIFT_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// -- one by one ----------------------------------------------------------------------------------

CHAIRLIFT_INLINE float to_float(float x) { return x; }
CHAIRLIFT_INLINE float to_float(BFloat16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}
CHAIRLIFT_INLINE float to_float(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  if (magnitude >= 0x0f800000) return float_of(sign | 0x70000000 | magnitude);  // all exponent bits
  // Shifted into place the exponent is 112 too small; multiplying sorts out denormals as well.
  return float_of(sign | bits_of(float_of(magnitude) * 5.192296858534828e33f));
}

CHAIRLIFT_INLINE void from_float(float x, float* out) { *out = x; }
CHAIRLIFT_INLINE void from_float(float x, BFloat16* out) {
  const uint32_t bits = bits_of(x);
  const bool is_number = (bits & 0x7fffffff) <= 0x7f800000;
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  out->bits = static_cast<uint16_t>(is_number ? rounded : bits >> 16 | 0x40);
}
CHAIRLIFT_INLINE void from_float(float x, Half* out) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // not a number, and a quiet one
    magnitude = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // what would round to 65536
    magnitude = 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14: units of 2^-24, which are those of one half
    magnitude = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  } else {
    magnitude = (magnitude - (112u << 23) + 0x0fff + (magnitude >> 13 & 1)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | magnitude);
}

// -- sixteen at a time ---------------------------------------------------------------------------

CHAIRLIFT_INLINE F16 load_floats(const float* p) { return F16::load(p); }

#if defined(CHAIRLIFT_VEC_AVX512)

CHAIRLIFT_INLINE F16 load_floats(const Half* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
CHAIRLIFT_INLINE F16 load_floats(const BFloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}

// The lower and the upper numbers of sixteen pairs.
CHAIRLIFT_INLINE F16 load_lower_halves(const BFloat16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
CHAIRLIFT_INLINE F16 load_upper_halves(const BFloat16* p) {
  const __m512i upper = _mm512_set1_epi32(-65536);
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper))};
}

#elif !defined(CHAIRLIFT_VEC_AVX2)

template <class T>
CHAIRLIFT_INLINE F16 load_floats(const T* p) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = to_float(p[i]);
  return F16::load(lanes);
}

CHAIRLIFT_INLINE F16 load_lower_halves(const BFloat16* p) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = to_float(p[2 * i]);
  return F16::load(lanes);
}
CHAIRLIFT_INLINE F16 load_upper_halves(const BFloat16* p) { return load_lower_halves(p + 1); }

#endif

#if defined(CHAIRLIFT_VEC_AVX512) || defined(CHAIRLIFT_VEC_AVX2)

CHAIRLIFT_INLINE __m256 load_eight(const float* p) { return _mm256_loadu_ps(p); }
CHAIRLIFT_INLINE __m256 load_eight(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
CHAIRLIFT_INLINE __m256 load_eight(const BFloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Writes as many of `count` as make whole vectors; returns how many.
CHAIRLIFT_INLINE int64_t store_whole_vectors(const float* x, int64_t count, Half* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

#else

CHAIRLIFT_INLINE int64_t store_whole_vectors(const float*, int64_t, Half*) { return 0; }

#endif

#if defined(CHAIRLIFT_VEC_AVX2)

template <class T>
CHAIRLIFT_INLINE F16 load_floats(const T* p) {
  return {load_eight(p), load_eight(p + 8)};
}

CHAIRLIFT_INLINE __m256 lower_halves(const BFloat16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
CHAIRLIFT_INLINE __m256 upper_halves(const BFloat16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}
CHAIRLIFT_INLINE F16 load_lower_halves(const BFloat16* p) {
  return {lower_halves(p), lower_halves(p + 16)};
}
CHAIRLIFT_INLINE F16 load_upper_halves(const BFloat16* p) {
  return {upper_halves(p), upper_halves(p + 16)};
}

#endif

CHAIRLIFT_INLINE void store_floats(const float* x, int64_t count, float* out) {
  std::memcpy(out, x, static_cast<size_t>(count) * sizeof *out);
}
CHAIRLIFT_INLINE void store_floats(const float* x, int64_t count, Half* out) {
  for (int64_t i = store_whole_vectors(x, count, out); i < count; ++i) from_float(x[i], out + i);
}
CHAIRLIFT_INLINE void store_floats(const float* x, int64_t count, BFloat16* out) {
  for (int64_t i = 0; i < count; ++i) from_float(x[i], out + i);
}

}  // namespace
}  // namespace chairlift
