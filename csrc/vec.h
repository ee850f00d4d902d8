// F16: sixteen float lanes, and the few operations that the ops are written in.
//
// Included once by each file in isa/, which defines CHAIRLIFT_VEC_AVX512, CHAIRLIFT_VEC_AVX2 or
// neither.  Everything lives in an unnamed namespace: the same name compiled with other flags must
// never be merged by the linker.  For that reason isa/ files use no inline library functions.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(CHAIRLIFT_VEC_AVX512) || defined(CHAIRLIFT_VEC_AVX2)
#include <immintrin.h>
#endif

#if defined(_MSC_VER)
#define CHAIRLIFT_INLINE __forceinline
#else
#define CHAIRLIFT_INLINE inline __attribute__((always_inline))
#endif

#if defined(_MSC_VER)
#define CHAIRLIFT_NOINLINE __declspec(noinline)
#else
#define CHAIRLIFT_NOINLINE __attribute__((noinline))  // alone, a tile gets all the registers
#endif

#if !defined(CHAIRLIFT_VEC_AVX512) && !defined(CHAIRLIFT_VEC_AVX2)
#define CHAIRLIFT_UNROLL  // there the gain is small, the code large
#elif defined(__clang__)
#define CHAIRLIFT_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define CHAIRLIFT_UNROLL _Pragma("GCC unroll 16")
#else
#define CHAIRLIFT_UNROLL
#endif

namespace chairlift {
namespace {

constexpr int kLanes = 16;

#if defined(CHAIRLIFT_VEC_AVX512)

struct F16 {
  __m512 v;

  static CHAIRLIFT_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static CHAIRLIFT_INLINE F16 all(float x) { return {_mm512_set1_ps(x)}; }
  CHAIRLIFT_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  CHAIRLIFT_INLINE void stream(float* p) const { _mm512_stream_ps(p, v); }
};

CHAIRLIFT_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
CHAIRLIFT_INLINE F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
CHAIRLIFT_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
CHAIRLIFT_INLINE F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }

// a * b + c
CHAIRLIFT_INLINE F16 multiply_add(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

// The larger; b where either is not a number.
CHAIRLIFT_INLINE F16 larger(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }

// value, but 0 where x < limit
CHAIRLIFT_INLINE F16 zero_below(F16 value, F16 x, F16 limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), value.v)};
}

// 2^n for t = n + 1.5 * 2^23, that is, for n held in the low bits of t
CHAIRLIFT_INLINE F16 power_of_two(F16 t) {
  const __m512i n = _mm512_add_epi32(_mm512_castps_si512(t.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(n, 23))};
}

// p * 2^n for a whole number n
CHAIRLIFT_INLINE F16 scale_by_power(F16 p, F16 n) { return {_mm512_scalef_ps(p.v, n.v)}; }

CHAIRLIFT_INLINE F16 round_to_integer(F16 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

CHAIRLIFT_INLINE float largest_lane(F16 a) { return _mm512_reduce_max_ps(a.v); }
CHAIRLIFT_INLINE float sum_lanes(F16 a) { return _mm512_reduce_add_ps(a.v); }

#elif defined(CHAIRLIFT_VEC_AVX2)

struct F16 {
  __m256 low, high;

  static CHAIRLIFT_INLINE F16 load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static CHAIRLIFT_INLINE F16 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  CHAIRLIFT_INLINE void store(float* p) const {
    _mm256_storeu_ps(p, low);
    _mm256_storeu_ps(p + 8, high);
  }
  CHAIRLIFT_INLINE void stream(float* p) const {
    _mm256_stream_ps(p, low);
    _mm256_stream_ps(p + 8, high);
  }
};

CHAIRLIFT_INLINE F16 operator+(F16 a, F16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
CHAIRLIFT_INLINE F16 operator-(F16 a, F16 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
CHAIRLIFT_INLINE F16 operator*(F16 a, F16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
CHAIRLIFT_INLINE F16 operator/(F16 a, F16 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
CHAIRLIFT_INLINE F16 multiply_add(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
CHAIRLIFT_INLINE F16 larger(F16 a, F16 b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
CHAIRLIFT_INLINE __m256 zero_below(__m256 value, __m256 x, __m256 limit) {
  return _mm256_and_ps(value, _mm256_cmp_ps(x, limit, _CMP_NLT_UQ));
}
CHAIRLIFT_INLINE F16 zero_below(F16 value, F16 x, F16 limit) {
  return {zero_below(value.low, x.low, limit.low), zero_below(value.high, x.high, limit.high)};
}
CHAIRLIFT_INLINE __m256 power_of_two(__m256 t) {
  const __m256i n = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
CHAIRLIFT_INLINE F16 power_of_two(F16 t) { return {power_of_two(t.low), power_of_two(t.high)}; }
CHAIRLIFT_INLINE F16 scale_by_power(F16 p, F16 n) {
  return p * power_of_two(n + F16::all(12582912.0f));
}
CHAIRLIFT_INLINE F16 round_to_integer(F16 x) {
  return {_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

CHAIRLIFT_INLINE float largest_lane(F16 a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
CHAIRLIFT_INLINE float sum_lanes(F16 a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

#else  // any machine: pieces of four lanes that a compiler turns into what the baseline has

#if defined(__GNUC__)
typedef float F4 __attribute__((vector_size(16)));
#else
struct F4 {
  float lane[4];
  float& operator[](int i) { return lane[i]; }
  float operator[](int i) const { return lane[i]; }
};
inline F4 operator+(F4 a, F4 b) { return {a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]}; }
inline F4 operator-(F4 a, F4 b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]}; }
inline F4 operator*(F4 a, F4 b) { return {a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]}; }
inline F4 operator/(F4 a, F4 b) { return {a[0] / b[0], a[1] / b[1], a[2] / b[2], a[3] / b[3]}; }
#endif

struct F16 {
  F4 part[4];

  static CHAIRLIFT_INLINE F16 load(const float* p) {
    F16 r;
    std::memcpy(r.part, p, sizeof r.part);
    return r;
  }
  static CHAIRLIFT_INLINE F16 all(float x) {
    const F4 part = {x, x, x, x};
    return {{part, part, part, part}};
  }
  CHAIRLIFT_INLINE void store(float* p) const { std::memcpy(p, part, sizeof part); }
  CHAIRLIFT_INLINE void stream(float* p) const { store(p); }
};

CHAIRLIFT_INLINE F16 operator+(F16 a, F16 b) {
  for (int i = 0; i < 4; ++i) a.part[i] = a.part[i] + b.part[i];
  return a;
}
CHAIRLIFT_INLINE F16 operator-(F16 a, F16 b) {
  for (int i = 0; i < 4; ++i) a.part[i] = a.part[i] - b.part[i];
  return a;
}
CHAIRLIFT_INLINE F16 operator*(F16 a, F16 b) {
  for (int i = 0; i < 4; ++i) a.part[i] = a.part[i] * b.part[i];
  return a;
}
CHAIRLIFT_INLINE F16 operator/(F16 a, F16 b) {
  for (int i = 0; i < 4; ++i) a.part[i] = a.part[i] / b.part[i];
  return a;
}
// Two roundings here, one in the others: only those agree to the bit.
CHAIRLIFT_INLINE F16 multiply_add(F16 a, F16 b, F16 c) { return a * b + c; }

CHAIRLIFT_INLINE F16 larger(F16 a, F16 b) {
  float x[kLanes], y[kLanes];
  a.store(x);
  b.store(y);
  for (int i = 0; i < kLanes; ++i) x[i] = x[i] > y[i] ? x[i] : y[i];
  return F16::load(x);
}
CHAIRLIFT_INLINE F16 zero_below(F16 value, F16 x, F16 limit) {
  float v[kLanes], y[kLanes], z[kLanes];
  value.store(v);
  x.store(y);
  limit.store(z);
  for (int i = 0; i < kLanes; ++i) v[i] = y[i] < z[i] ? 0 : v[i];
  return F16::load(v);
}
CHAIRLIFT_INLINE F16 power_of_two(F16 t) {
  uint32_t bits[kLanes];
  std::memcpy(bits, t.part, sizeof bits);
  for (int i = 0; i < kLanes; ++i) bits[i] = (bits[i] + 127) << 23;
  std::memcpy(t.part, bits, sizeof bits);
  return t;
}
CHAIRLIFT_INLINE F16 scale_by_power(F16 p, F16 n) {
  return p * power_of_two(n + F16::all(12582912.0f));
}
CHAIRLIFT_INLINE F16 round_to_integer(F16 x) {
  const F16 magic = F16::all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  return (x + magic) - magic;
}
CHAIRLIFT_INLINE float largest_lane(F16 a) {
  float lane[kLanes];
  a.store(lane);
  for (int i = 1; i < kLanes; ++i) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
  return lane[0];
}
CHAIRLIFT_INLINE float sum_lanes(F16 a) {
  float lane[kLanes];
  a.store(lane);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

#endif

// e^x for x <= 0 to about 1 ulp, and exactly 1 at 0 (Cephes' expf polynomial).  Below -87.33, where
// the result would be denormal, it is 0; so it is for -inf.
CHAIRLIFT_INLINE F16 exp_negative(F16 x) {
  const F16 limit = F16::all(-87.33f);
  const F16 to_integer = F16::all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F16 clamped = larger(limit, x);
  const F16 t = multiply_add(clamped, F16::all(1.44269504f), to_integer);
  const F16 n = t - to_integer;
  F16 r = multiply_add(n, F16::all(-0.693359375f), clamped);
  r = multiply_add(n, F16::all(2.12194440e-4f), r);
  F16 p = F16::all(1.9875691500e-4f);
  p = multiply_add(p, r, F16::all(1.3981999507e-3f));
  p = multiply_add(p, r, F16::all(8.3334519073e-3f));
  p = multiply_add(p, r, F16::all(4.1665795894e-2f));
  p = multiply_add(p, r, F16::all(1.6666665459e-1f));
  p = multiply_add(p, r, F16::all(5.0000001201e-1f));
  p = multiply_add(p, r * r, r) + F16::all(1.0f);
  return zero_below(p * power_of_two(t), x, limit);
}

// 2^r for |r| <= 1/2, to about 2 ulp, and exactly 1 at 0
CHAIRLIFT_INLINE F16 exp2_of_fraction(F16 r) {
  F16 p = F16::all(1.326472733e-3f);
  p = multiply_add(p, r, F16::all(9.671512991e-3f));
  p = multiply_add(p, r, F16::all(5.550733581e-2f));
  p = multiply_add(p, r, F16::all(2.402224243e-1f));
  p = multiply_add(p, r, F16::all(6.931470037e-1f));
  return multiply_add(p, r, F16::all(1.0f));
}

// 2^x for x <= 0.  Below -126, where the result would be denormal, it is 0; so it is for -inf.
CHAIRLIFT_INLINE F16 exp2_negative(F16 x) {
  const F16 n = round_to_integer(x);
  const F16 power = scale_by_power(exp2_of_fraction(x - n), n);
  return zero_below(power, x, F16::all(-126.0f));
}

// 2^x for x <= 127, and 2^-126 where that is less: what is too small to count need not be told
// apart.
CHAIRLIFT_INLINE F16 exp2_at_least(F16 x) {
  x = larger(F16::all(-126.0f), x);  // in this order not-a-number stays
  const F16 n = round_to_integer(x);
  return scale_by_power(exp2_of_fraction(x - n), n);
}

// After the last `stream`, which goes past the caches to 64 bytes on a cache line, and before
// anybody is told of it.
CHAIRLIFT_INLINE void end_streams() {
#if defined(CHAIRLIFT_VEC_AVX512) || defined(CHAIRLIFT_VEC_AVX2)
  _mm_sfence();
#endif
}

// Asks for a cache line to come to L1.
CHAIRLIFT_INLINE void prefetch_near(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 3);
#else
  (void)p;
#endif
}

// Asks for a cache line to come to L2.  Few lines can be on their way to L1 at a time; those bound
// for L2 keep memory twice as busy.
CHAIRLIFT_INLINE void prefetch_far(const uint8_t* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#else
  (void)p;
#endif
}

// Asks for a line that is in L2 to come to L1.
CHAIRLIFT_INLINE void prefetch_near(const uint8_t* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 3);
#else
  (void)p;
#endif
}

}  // namespace
}  // namespace chairlift
