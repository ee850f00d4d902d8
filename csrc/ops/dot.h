// Products of unsigned 8-bit weight codes and signed 8-bit activations: the vec.h of integers.
//
// A vector of codes holds sixteen columns times four steps of K; a quad holds the four activations
// of one row that meet them.  Sums are exact 32-bit integers, so every instruction set and every
// order gives the same ones.  An isa/ file defines CHAIRLIFT_DOT_VNNI beside its CHAIRLIFT_VEC_*
// if the processor multiplies bytes in one instruction.
#pragma once

#include "../vec.h"

namespace chairlift {
namespace {

constexpr int kCodesBytes = 64;  // of a vector of codes

CHAIRLIFT_INLINE float half_to_float(uint16_t half) {
  // As an integer shifted into place the exponent is 112 too small; a multiplication by 2^112 also
  // sorts out denormals.  Infinities are not stored as halves here.
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  float value;
  std::memcpy(&value, &magnitude, sizeof value);
  value *= 5.192296858534828e33f;
  return half & 0x8000 ? -value : value;
}

#if defined(CHAIRLIFT_VEC_AVX512)

struct I16 {
  __m512i v;
  static CHAIRLIFT_INLINE I16 all(int32_t x) { return {_mm512_set1_epi32(x)}; }
};
CHAIRLIFT_INLINE I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
CHAIRLIFT_INLINE I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
template <int BITS>
CHAIRLIFT_INLINE I16 shift_left(I16 a) {
  return {_mm512_slli_epi32(a.v, BITS)};
}
CHAIRLIFT_INLINE F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

CHAIRLIFT_INLINE F16 load_scales(const float* p) { return F16::load(p); }
CHAIRLIFT_INLINE F16 load_scales(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

struct Codes {
  __m512i v;
  static CHAIRLIFT_INLINE Codes load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  CHAIRLIFT_INLINE void store(uint8_t* p) const { _mm512_storeu_si512(p, v); }
};
CHAIRLIFT_INLINE Codes low_nibbles(Codes a) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))};
}
CHAIRLIFT_INLINE Codes high_nibbles(Codes a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
CHAIRLIFT_INLINE Codes add_to_codes(Codes a, int x) {
  return {_mm512_add_epi8(a.v, _mm512_set1_epi8(static_cast<char>(x)))};
}

struct Quad {
  __m512i v;
  static CHAIRLIFT_INLINE Quad load(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return {_mm512_set1_epi32(four)};
  }
};

// The sum of products of codes below 2^BITS; it starts at kOffset times the sum of activations.
template <int BITS>
struct Dot {
  static constexpr int kOffset = 0;
  using Prepared = Codes;
  __m512i sum;

  static CHAIRLIFT_INLINE Dot start(I16 x) { return {x.v}; }
  static CHAIRLIFT_INLINE Prepared prepare(Codes codes) { return codes; }
  CHAIRLIFT_INLINE void add(Prepared codes, Quad quad) {
    sum = _mm512_dpbusd_epi32(sum, codes.v, quad.v);
  }
  CHAIRLIFT_INLINE I16 finish() const { return {sum}; }
};

#elif defined(CHAIRLIFT_VEC_AVX2)

struct I16 {
  __m256i low, high;
  static CHAIRLIFT_INLINE I16 all(int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
  }
};
CHAIRLIFT_INLINE I16 operator+(I16 a, I16 b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
CHAIRLIFT_INLINE I16 operator-(I16 a, I16 b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
template <int BITS>
CHAIRLIFT_INLINE I16 shift_left(I16 a) {
  return {_mm256_slli_epi32(a.low, BITS), _mm256_slli_epi32(a.high, BITS)};
}
CHAIRLIFT_INLINE F16 to_float(I16 a) {
  return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}

CHAIRLIFT_INLINE F16 load_scales(const float* p) { return F16::load(p); }
CHAIRLIFT_INLINE F16 load_scales(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

struct Codes {
  __m256i low, high;
  static CHAIRLIFT_INLINE Codes load(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  CHAIRLIFT_INLINE void store(uint8_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), high);
  }
};
CHAIRLIFT_INLINE Codes low_nibbles(Codes a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
CHAIRLIFT_INLINE Codes high_nibbles(Codes a) {
  return low_nibbles({_mm256_srli_epi16(a.low, 4), _mm256_srli_epi16(a.high, 4)});
}
CHAIRLIFT_INLINE Codes add_to_codes(Codes a, int x) {
  const __m256i all = _mm256_set1_epi8(static_cast<char>(x));
  return {_mm256_add_epi8(a.low, all), _mm256_add_epi8(a.high, all)};
}

struct Quad {
  __m256i v;
  static CHAIRLIFT_INLINE Quad load(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return {_mm256_set1_epi32(four)};
  }
};

#if defined(CHAIRLIFT_DOT_VNNI)

template <int BITS>
struct Dot {
  static constexpr int kOffset = 0;
  using Prepared = Codes;
  __m256i low, high;

  static CHAIRLIFT_INLINE Dot start(I16 x) { return {x.low, x.high}; }
  static CHAIRLIFT_INLINE Prepared prepare(Codes codes) { return codes; }
  CHAIRLIFT_INLINE void add(Prepared codes, Quad quad) {
#if defined(__AVXVNNI__) || defined(_MSC_VER)
    low = _mm256_dpbusd_avx_epi32(low, codes.low, quad.v);
    high = _mm256_dpbusd_avx_epi32(high, codes.high, quad.v);
#else
    low = _mm256_dpbusd_epi32(low, codes.low, quad.v);
    high = _mm256_dpbusd_epi32(high, codes.high, quad.v);
#endif
  }
  CHAIRLIFT_INLINE I16 finish() const { return {low, high}; }
};

#else

template <int BITS>
struct Dot;

// Up to eight steps fit into 16 bits: 8 * 2 * 15 * 127 < 2^15.
template <>
struct Dot<4> {
  static constexpr int kOffset = 0;
  using Prepared = Codes;
  I16 first;
  __m256i low, high;

  static CHAIRLIFT_INLINE Dot start(I16 x) {
    return {x, _mm256_setzero_si256(), _mm256_setzero_si256()};
  }
  static CHAIRLIFT_INLINE Prepared prepare(Codes codes) { return codes; }
  CHAIRLIFT_INLINE void add(Prepared codes, Quad quad) {
    low = _mm256_add_epi16(low, _mm256_maddubs_epi16(codes.low, quad.v));
    high = _mm256_add_epi16(high, _mm256_maddubs_epi16(codes.high, quad.v));
  }
  CHAIRLIFT_INLINE I16 finish() const {
    const __m256i ones = _mm256_set1_epi16(1);
    return first + I16{_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)};
  }
};

// Two products of a full byte would saturate.  Codes less 128 are signed: their magnitude goes into
// the product, their sign to the activation, and 2 * 128 * 127 < 2^15.
template <>
struct Dot<8> {
  static constexpr int kOffset = 128;
  struct Prepared {
    Codes code, magnitude;
  };
  __m256i low, high;

  static CHAIRLIFT_INLINE Dot start(I16 x) { return {x.low, x.high}; }
  static CHAIRLIFT_INLINE Prepared prepare(Codes codes) {
    const Codes code = add_to_codes(codes, 128);
    return {code, {_mm256_abs_epi8(code.low), _mm256_abs_epi8(code.high)}};
  }
  static CHAIRLIFT_INLINE __m256i products(__m256i code, __m256i magnitude, __m256i quad) {
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(quad, code));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  CHAIRLIFT_INLINE void add(const Prepared& codes, Quad quad) {
    low = _mm256_add_epi32(low, products(codes.code.low, codes.magnitude.low, quad.v));
    high = _mm256_add_epi32(high, products(codes.code.high, codes.magnitude.high, quad.v));
  }
  CHAIRLIFT_INLINE I16 finish() const { return {low, high}; }
};

#endif

#else  // any machine

struct I16 {
  int32_t lane[kLanes];
  static CHAIRLIFT_INLINE I16 all(int32_t x) {
    I16 r;
    for (int i = 0; i < kLanes; ++i) r.lane[i] = x;
    return r;
  }
};
// Too large a sum wraps, as it does in the others.
CHAIRLIFT_INLINE int32_t from_bits(uint32_t x) { return static_cast<int32_t>(x); }
CHAIRLIFT_INLINE I16 operator+(I16 a, const I16& b) {
  for (int i = 0; i < kLanes; ++i) {
    a.lane[i] = from_bits(static_cast<uint32_t>(a.lane[i]) + static_cast<uint32_t>(b.lane[i]));
  }
  return a;
}
CHAIRLIFT_INLINE I16 operator-(I16 a, const I16& b) {
  for (int i = 0; i < kLanes; ++i) {
    a.lane[i] = from_bits(static_cast<uint32_t>(a.lane[i]) - static_cast<uint32_t>(b.lane[i]));
  }
  return a;
}
template <int BITS>
CHAIRLIFT_INLINE I16 shift_left(I16 a) {
  for (int i = 0; i < kLanes; ++i) a.lane[i] *= 1 << BITS;
  return a;
}
CHAIRLIFT_INLINE F16 to_float(const I16& a) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<float>(a.lane[i]);
  return F16::load(lane);
}

CHAIRLIFT_INLINE F16 load_scales(const float* p) { return F16::load(p); }
CHAIRLIFT_INLINE F16 load_scales(const uint16_t* p) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = half_to_float(p[i]);
  return F16::load(lane);
}

struct Codes {
  uint8_t lane[kCodesBytes];
  static CHAIRLIFT_INLINE Codes load(const uint8_t* p) {
    Codes r;
    std::memcpy(r.lane, p, sizeof r.lane);
    return r;
  }
  CHAIRLIFT_INLINE void store(uint8_t* p) const { std::memcpy(p, lane, sizeof lane); }
};
CHAIRLIFT_INLINE Codes low_nibbles(Codes a) {
  for (int i = 0; i < kCodesBytes; ++i) a.lane[i] &= 15;
  return a;
}
CHAIRLIFT_INLINE Codes high_nibbles(Codes a) {
  for (int i = 0; i < kCodesBytes; ++i) a.lane[i] >>= 4;
  return a;
}
CHAIRLIFT_INLINE Codes add_to_codes(Codes a, int x) {
  for (int i = 0; i < kCodesBytes; ++i) a.lane[i] = static_cast<uint8_t>(a.lane[i] + x);
  return a;
}

struct Quad {
  int8_t lane[4];
  static CHAIRLIFT_INLINE Quad load(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
};

template <int BITS>
struct Dot {
  static constexpr int kOffset = 0;
  using Prepared = Codes;
  I16 sum;

  static CHAIRLIFT_INLINE Dot start(const I16& x) { return {x}; }
  static CHAIRLIFT_INLINE Prepared prepare(const Codes& codes) { return codes; }
  CHAIRLIFT_INLINE void add(const Prepared& codes, Quad quad) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < 4; ++j) sum.lane[i] += codes.lane[4 * i + j] * quad.lane[j];
    }
  }
  CHAIRLIFT_INLINE I16 finish() const { return sum; }
};

#endif

// What a group needs to be quantised: the bits of the largest magnitude (those of infinity and of
// not-a-number are larger than any number's), and the low bytes of t = n + 1.5 * 2^23.
#if defined(CHAIRLIFT_VEC_AVX512)

struct Magnitude {
  __m512i v;
};
CHAIRLIFT_INLINE Magnitude magnitude(F16 a) {
  return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))};
}
CHAIRLIFT_INLINE Magnitude larger(Magnitude a, Magnitude b) { return {_mm512_max_epi32(a.v, b.v)}; }
CHAIRLIFT_INLINE uint32_t largest_lane(Magnitude a) {
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(a.v));
}
CHAIRLIFT_INLINE void store_low_bytes(F16 t, int8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_castps_si512(t.v)));
}

#elif defined(CHAIRLIFT_VEC_AVX2)

struct Magnitude {
  __m256i v;
};
CHAIRLIFT_INLINE Magnitude magnitude(F16 a) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return {_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a.low), mask),
                           _mm256_and_si256(_mm256_castps_si256(a.high), mask))};
}
CHAIRLIFT_INLINE Magnitude larger(Magnitude a, Magnitude b) { return {_mm256_max_epi32(a.v, b.v)}; }
CHAIRLIFT_INLINE uint32_t largest_lane(Magnitude a) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}
CHAIRLIFT_INLINE void store_low_bytes(F16 t, int8_t* p) {
  const __m256i first_bytes =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1);
  const __m256 half[2] = {t.low, t.high};
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_castps_si256(half[i]), first_bytes);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p + 8 * i),
                     _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order)));
  }
}

#else

struct Magnitude {
  uint32_t lane[kLanes];
};
CHAIRLIFT_INLINE Magnitude magnitude(const F16& a) {
  Magnitude r;
  std::memcpy(r.lane, &a, sizeof r.lane);
  for (int i = 0; i < kLanes; ++i) r.lane[i] &= 0x7fffffff;
  return r;
}
CHAIRLIFT_INLINE Magnitude larger(Magnitude a, const Magnitude& b) {
  for (int i = 0; i < kLanes; ++i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
CHAIRLIFT_INLINE uint32_t largest_lane(const Magnitude& a) {
  uint32_t largest = 0;
  for (int i = 0; i < kLanes; ++i) largest = a.lane[i] > largest ? a.lane[i] : largest;
  return largest;
}
CHAIRLIFT_INLINE void store_low_bytes(const F16& t, int8_t* p) {
  uint32_t bits[kLanes];
  std::memcpy(bits, &t, sizeof bits);
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(bits[i]);
}

#endif

// The sum of sixteen codes.
CHAIRLIFT_INLINE int32_t sum_codes(const int8_t* codes) {
#if defined(CHAIRLIFT_VEC_AVX512) || defined(CHAIRLIFT_VEC_AVX2)
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  __m128i four = _mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), all), _mm_set1_epi16(1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#else
  int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += codes[i];
  return sum;
#endif
}

}  // namespace
}  // namespace chairlift
