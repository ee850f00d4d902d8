// Passing over tiles of logits in search of the few that matter.
//
// Noise is compared before it is computed.  A token whose noise has the word w scores
// x / T - log(-log(u)), u = (w + 1/2) / 2^32, and reaches a score L only if
//
//     1 - u <= exp(x / T - L),    so only if    log2(~w) <= (x / T - L) log2(e) + 32
//
// The bits of the float ~w, read as an integer, are 2^23 (127 + log2(~w)) or up to 2^23 * 0.087
// less.  So `bits <= slope * x + offset` holds for all that can reach L, and for few others.
#pragma once

#include "../isa/kernel_table.h"
#include "../vec.h"

namespace chairlift {
namespace {

constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
constexpr uint64_t kFirstFactor = 0xbf58476d1ce4e5b9;
constexpr uint64_t kSecondFactor = 0x94d049bb133111eb;

#if defined(CHAIRLIFT_VEC_AVX512)

// Bits of the lanes for which it holds.  The first two hold for what is not a number too.
CHAIRLIFT_INLINE uint32_t lanes_not_at_most(F16 x, F16 limit) {
  return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLE_UQ);
}
CHAIRLIFT_INLINE uint32_t lanes_not_above(F16 x, F16 limit) {
  return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_NGT_UQ);
}
CHAIRLIFT_INLINE uint32_t lanes_at_least(F16 x, F16 limit) {
  return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ);
}

// The bits of ~w as floats, read as integers, for the words of sixteen tokens, whose first state is
// `state`.
CHAIRLIFT_INLINE F16 inverted_word_bits(uint64_t state) {
  const __m512i ramp = _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7),
                                          _mm512_set1_epi64(static_cast<int64_t>(kGamma)));
  __m512i z = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(state)), ramp);
  z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
  z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<int64_t>(kFirstFactor)));
  z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
  z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<int64_t>(kSecondFactor)));
  const __m512i ones = _mm512_set1_epi64(-1);
  z = _mm512_ternarylogic_epi64(z, _mm512_srli_epi64(z, 31), ones, 0x96);  // xor of all three
  return {_mm512_cvtepi32_ps(_mm512_castps_si512(_mm512_cvtepu32_ps(z)))};
}

#elif defined(CHAIRLIFT_VEC_AVX2)

CHAIRLIFT_INLINE uint32_t joined_lanes(__m256 low, __m256 high) {
  return static_cast<uint32_t>(_mm256_movemask_ps(low)) |
         static_cast<uint32_t>(_mm256_movemask_ps(high)) << 8;
}
CHAIRLIFT_INLINE uint32_t lanes_not_at_most(F16 x, F16 limit) {
  return joined_lanes(_mm256_cmp_ps(x.low, limit.low, _CMP_NLE_UQ),
                      _mm256_cmp_ps(x.high, limit.high, _CMP_NLE_UQ));
}
CHAIRLIFT_INLINE uint32_t lanes_not_above(F16 x, F16 limit) {
  return joined_lanes(_mm256_cmp_ps(x.low, limit.low, _CMP_NGT_UQ),
                      _mm256_cmp_ps(x.high, limit.high, _CMP_NGT_UQ));
}
CHAIRLIFT_INLINE uint32_t lanes_at_least(F16 x, F16 limit) {
  return joined_lanes(_mm256_cmp_ps(x.low, limit.low, _CMP_GE_OQ),
                      _mm256_cmp_ps(x.high, limit.high, _CMP_GE_OQ));
}

CHAIRLIFT_INLINE __m256i multiply_64(__m256i a, uint64_t factor) {
  const __m256i b = _mm256_set1_epi64x(static_cast<int64_t>(factor));
  const __m256i b_high = _mm256_set1_epi64x(static_cast<int64_t>(factor >> 32));
  const __m256i cross =
      _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b), _mm256_mul_epu32(a, b_high));
  return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32));
}

CHAIRLIFT_INLINE __m256 inverted_word_bits_of_eight(__m256i z) {
  z = multiply_64(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), kFirstFactor);
  z = multiply_64(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), kSecondFactor);
  z = _mm256_xor_si256(z, _mm256_srli_epi64(z, 31));
  z = _mm256_xor_si256(z, _mm256_set1_epi64x(-1));
  // Conversions are signed here: half of it, and an exponent that is higher by one.
  const __m256i bits = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srli_epi32(z, 1)));
  return _mm256_cvtepi32_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(1 << 23)));
}

CHAIRLIFT_INLINE F16 inverted_word_bits(uint64_t state) {
  const auto step = [](uint64_t i) { return static_cast<int64_t>(i * kGamma); };
  const __m256i first = _mm256_set1_epi64x(static_cast<int64_t>(state));
  const __m256i low = _mm256_setr_epi64x(0, step(1), step(2), step(3));
  const __m256i high = _mm256_setr_epi64x(step(4), step(5), step(6), step(7));
  return {inverted_word_bits_of_eight(_mm256_add_epi64(first, low)),
          inverted_word_bits_of_eight(_mm256_add_epi64(first, high))};
}

#else

template <typename Condition>
CHAIRLIFT_INLINE uint32_t lanes_where(F16 x, F16 limit, const Condition& holds) {
  float a[kLanes], b[kLanes];
  x.store(a);
  limit.store(b);
  uint32_t lanes = 0;
  for (int i = 0; i < kLanes; ++i) lanes |= static_cast<uint32_t>(holds(a[i], b[i])) << i;
  return lanes;
}
CHAIRLIFT_INLINE uint32_t lanes_not_at_most(F16 x, F16 limit) {
  return lanes_where(x, limit, [](float a, float b) { return !(a <= b); });
}
CHAIRLIFT_INLINE uint32_t lanes_not_above(F16 x, F16 limit) {
  return lanes_where(x, limit, [](float a, float b) { return !(a > b); });
}
CHAIRLIFT_INLINE uint32_t lanes_at_least(F16 x, F16 limit) {
  return lanes_where(x, limit, [](float a, float b) { return a >= b; });
}

CHAIRLIFT_INLINE float float_bits(uint32_t word) {
  const float x = static_cast<float>(word);
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<float>(bits);
}

CHAIRLIFT_INLINE F16 inverted_word_bits(uint64_t state) {
  float bits[kLanes];
  for (int pair = 0; pair < kLanes / 2; ++pair) {
    uint64_t z = state + static_cast<uint64_t>(pair) * kGamma;
    z = (z ^ z >> 30) * kFirstFactor;
    z = (z ^ z >> 27) * kSecondFactor;
    z = ~(z ^ z >> 31);
    bits[2 * pair] = float_bits(static_cast<uint32_t>(z));
    bits[2 * pair + 1] = float_bits(static_cast<uint32_t>(z >> 32));
  }
  return F16::load(bits);
}

#endif

template <bool HAS_NOISE, bool HAS_LIST>
CHAIRLIFT_INLINE void scan_row(const LogitRow& row, LogitScan& scan, const float* logits,
                               int64_t first_id, int64_t num_vectors) {
  F16 best = F16::all(scan.best), floor = F16::all(scan.floor), reach = F16::all(scan.reach);
  for (int64_t i = 0; i < num_vectors; ++i) {
    const float* at = logits + i * kLanes;
    const int64_t id = first_id + i * kLanes;
    const F16 x = F16::load(at);
    if (lanes_not_at_most(x, best) != 0) {
      offer_best(row, scan, at, id);
      best = F16::all(scan.best);
      if constexpr (HAS_LIST) floor = F16::all(scan.floor);
    }
    if constexpr (HAS_LIST) {
      const uint32_t lanes = lanes_at_least(x, floor);
      if (lanes != 0) {
        offer_listed(row, scan, at, lanes, id);
        floor = F16::all(scan.floor);
      }
    }
    if constexpr (HAS_NOISE) {
      if (lanes_at_least(x, reach) == 0) continue;
      const uint64_t state = row.key + (static_cast<uint64_t>(id) / 2 + 1) * kGamma;
      const F16 limit = multiply_add(x, F16::all(scan.slope), F16::all(scan.offset));
      const uint32_t lanes = lanes_not_above(inverted_word_bits(state), limit);
      if (lanes != 0) {
        offer_contenders(row, scan, at, lanes, id);
        reach = F16::all(scan.reach);
      }
    }
  }
}

// The largest logit, and the sum of exp((logit - largest) * scale).
CHAIRLIFT_INLINE void weigh_row(const float* logits, int64_t num_vectors, float scale,
                                float* weights) {
  F16 best = F16::load(logits);
  for (int64_t i = 1; i < num_vectors; ++i) best = larger(best, F16::load(logits + i * kLanes));
  const float largest = largest_lane(best);
  weights[0] = largest;
  weights[1] = 0;
  if (!(largest > -3.402823466e38f)) return;
  const F16 origin = F16::all(largest), scales = F16::all(scale);
  F16 sum = F16::all(0.0f);
  for (int64_t i = 0; i < num_vectors; ++i) {
    sum = sum + exp_negative((F16::load(logits + i * kLanes) - origin) * scales);
  }
  weights[1] = sum_lanes(sum);
}

void scan_logits(const LogitTile& tile, const LogitRow* rows, LogitScan* scans) {
  for (int64_t i = 0; i < tile.num_rows; ++i) {
    const float* logits = tile.logits + i * tile.stride;
    const LogitRow& row = rows[i];
    LogitScan& scan = scans[i];
    const bool has_list = row.num_listed > 0;
    if (row.inverse_temperature == 0) {
      has_list ? scan_row<false, true>(row, scan, logits, tile.first_id, tile.num_vectors)
               : scan_row<false, false>(row, scan, logits, tile.first_id, tile.num_vectors);
    } else {
      has_list ? scan_row<true, true>(row, scan, logits, tile.first_id, tile.num_vectors)
               : scan_row<true, false>(row, scan, logits, tile.first_id, tile.num_vectors);
    }
    if (row.weight_scale != 0) {
      weigh_row(logits, tile.num_vectors, row.weight_scale, tile.weights + 2 * i);
    }
  }
}

}  // namespace
}  // namespace chairlift
