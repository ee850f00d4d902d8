// Causal attention over keys and values stored as bytes (kv_layout.h).
//
// A *query* is one head of one row; its positions are walked in groups of 64.  In a group
//   scores  integer dots of bytes, a token per lane: no sums across lanes,
//   weights 2^(score - the group's own maximum), times the value's scale, rounded to 16 bits of the
//           group's largest,
//   sums    exact integer dots of the weights' two bytes with the values' bytes.
// So a group's part depends on the query and on the positions it sees only: not on the tile, nor on
// where else the context is cut.  Parts are merged in order of position, by the same operations
// whether they come from registers or from memory (Milakov & Gimelshein 2018; Dao et al. 2022).
// Positions that a query does not see have weight zero, which changes no integer and no float.
#pragma once

#include <cmath>

#include "../isa/kernel_table.h"
#include "../kv_layout.h"
#include "dot_kv.h"
#include "kv_cache.h"

namespace chairlift {
namespace {

#if defined(CHAIRLIFT_VEC_AVX512)
constexpr int kDotQueries = 6, kDotPages = 4;    // 24 accumulators and 4 vectors of codes
constexpr int kMixQueries = 3, kMixVectors = 4;  // 2 * 12 accumulators and 4 vectors of codes
constexpr int kWeighQueries = 4;                 // 16 vectors of weights
#elif defined(CHAIRLIFT_VEC_AVX2)
constexpr int kDotQueries = 2, kDotPages = 2;    // 8 registers
constexpr int kMixQueries = 1, kMixVectors = 2;  // 8 registers
constexpr int kWeighQueries = 1;
#else
constexpr int kDotQueries = 1, kDotPages = 1;
constexpr int kMixQueries = 1, kMixVectors = 1;
constexpr int kWeighQueries = 1;
#endif

constexpr int kTileGroupTokens = static_cast<int>(kGroupTokens);
constexpr int kTileGroupPages = static_cast<int>(kGroupPages);
constexpr int kBatchQueries = static_cast<int>(kKvBatchQueries);
constexpr int kBatchLanes = 32;
constexpr int kFewQueries = 4;  // of a head: what they read comes from L2, not from L1
constexpr float kNothing = -INFINITY;
constexpr float kLowest = -3.402823466e38f;  // of the finite numbers
constexpr float kLargestWeight = 65535.0f;
constexpr float kSmallestWeight = 2e-34f;  // kLargestWeight divided by less overflows
constexpr bool kScoresFindLargest = kDotPages == kTileGroupPages;

struct Span {
  int64_t begin;
  int64_t end;
};

CHAIRLIFT_INLINE Span seen_from(const chairlift_attention& task, int64_t position) {
  const int64_t begin = position + 1 - task.sliding_window;
  return {task.sliding_window > 0 && begin > 0 ? begin : 0, position + 1};
}

CHAIRLIFT_INLINE int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

// The pages of one group.  Those that the tile does not read before its window are replaced by one
// that it reads: their weights are zero.
struct GroupPages {
  const uint8_t* page[kTileGroupPages];
  int count;
};

CHAIRLIFT_INLINE GroupPages locate_group(const chairlift_attention& task, const KvTile& tile,
                                         int64_t group, int64_t page_bytes) {
  const Span first = seen_from(task, tile.first_position);
  const int64_t end = tile.first_position + tile.num_rows;
  const int32_t* table = task.block_tables + tile.sequence * task.max_blocks;
  GroupPages pages;
  pages.count = 0;
  int replaced = 0;
  for (int j = 0; j < kTileGroupPages; ++j) {
    const int64_t position = group * kGroupTokens + j * kPageTokens;
    if (position >= end) break;
    pages.count = j + 1;
    if (position + kPageTokens <= first.begin) {
      replaced = j + 1;
      continue;
    }
    const int64_t block = position / task.block_size;
    pages.page[j] = task.kv_cache + table[block] * task.block_stride +
                    (position - block * task.block_size) / kPageTokens * page_bytes;
  }
  for (int j = 0; j < replaced; ++j) pages.page[j] = pages.page[replaced];
  return pages;
}

// -- fetching ahead ------------------------------------------------------------------------------

// Some cache lines of the next group, which a tile asks for while it multiplies.
struct Lines {
  const uint8_t* first;
  int64_t count;
  // Tiles of few queries: where that begins, in each page, which is read after this and is in L2.
  const uint8_t* const* near;
};

// What the next group's pages have for the tile: one run of memory in each.  It is asked for in
// small portions, because requests that all come at once wait for each other and stall the rest.
struct Fetcher {
  const uint8_t* page[kTileGroupPages];
  int64_t num_pages;
  int64_t page_lines;
  int64_t index;
  int64_t line;

  CHAIRLIFT_INLINE Lines take(int64_t num_lines) {
    if (index == num_pages) return {nullptr, 0, nullptr};
    const Lines lines = {page[index] + line * kCodesBytes, smaller_of(num_lines, page_lines - line),
                         nullptr};
    line += lines.count;
    if (line == page_lines) {
      line = 0;
      ++index;
    }
    return lines;
  }
};

CHAIRLIFT_INLINE void fetch(Lines lines, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < smaller_of(end, lines.count); ++i) {
    prefetch_far(lines.first + i * kCodesBytes);
  }
}

// -- the two products ----------------------------------------------------------------------------

// largest[i] = the largest of a vector's lanes; writes on to a multiple of four.
template <class LARGER, int COUNT, int FIRST = 0>
CHAIRLIFT_INLINE void store_largest(const F16 (&x)[COUNT], float* largest) {
  constexpr int kLeft = COUNT - FIRST < 4 ? COUNT - FIRST : 4;
  if constexpr (kLeft > 0) {
    F16 some[kLeft];
    CHAIRLIFT_UNROLL
    for (int i = 0; i < kLeft; ++i) some[i] = x[FIRST + i];
    store_largest_lanes<LARGER>(some, largest + FIRST);
    store_largest<LARGER, COUNT, FIRST + kLeft>(x, largest);
  }
}

// scores[q][page][token] = dot * key scale * factor[q].  Codes of keys carry 128 too much, which
// `starts` has taken off beforehand.  Whole groups also leave each query's largest score: while
// this tile's products end, the next one's begin.  FEW, here and below: no more than kFewQueries
// read these pages, so what is read after them is asked for meanwhile.
template <bool FEW, int QUERIES, int PAGES>
CHAIRLIFT_NOINLINE void score_pages(const int8_t* queries, const int32_t* starts,
                                    const float* factors, const uint8_t* const* pages, Lines ahead,
                                    const KvLayout& layout, float* scores, float* largest) {
  const int64_t dim = layout.head_dim;
  I16 sum[QUERIES][PAGES];
  CHAIRLIFT_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    CHAIRLIFT_UNROLL
    for (int p = 0; p < PAGES; ++p) sum[q][p] = I16::all(starts[q]);
  }
  const int64_t portion = (ahead.count * 4 + dim - 1) / dim;
  for (int64_t i = 0; i < dim / 4; ++i) {
    fetch(ahead, i * portion, (i + 1) * portion);
    Codes codes[PAGES];
    CHAIRLIFT_UNROLL
    for (int p = 0; p < PAGES; ++p) {
      if constexpr (FEW) prefetch_near(ahead.near[p] + i * kCodesBytes);
      codes[p] = Codes::load(pages[p] + i * kCodesBytes);
      keep_in_register(codes[p]);
    }
    CHAIRLIFT_UNROLL
    for (int q = 0; q < QUERIES; ++q) {
      const Codes query = repeat_bytes(queries + q * dim + 4 * i);
      CHAIRLIFT_UNROLL
      for (int p = 0; p < PAGES; ++p) sum[q][p] = add_dots(sum[q][p], codes[p], query);
    }
  }
  if constexpr (FEW) {
    for (int p = 0; p < PAGES; ++p) {
      prefetch_near(ahead.near[p] + layout.key_scales());
      prefetch_near(pages[p] + layout.value_scales());
    }
  }
  F16 most[QUERIES];
  CHAIRLIFT_UNROLL
  for (int p = 0; p < PAGES; ++p) {
    const F16 scale = F16::load(reinterpret_cast<const float*>(pages[p] + layout.key_scales()));
    CHAIRLIFT_UNROLL
    for (int q = 0; q < QUERIES; ++q) {
      const F16 score = to_float(sum[q][p]) * scale * F16::all(factors[q]);
      score.store(scores + q * kTileGroupTokens + p * kLanes);
      if constexpr (PAGES == kTileGroupPages) most[q] = p == 0 ? score : larger(most[q], score);
    }
  }
  if constexpr (PAGES == kTileGroupPages) store_largest<Larger>(most, largest);
}

template <bool FEW, int QUERIES, int PAGES = kDotPages>
CHAIRLIFT_INLINE void score_queries(const int8_t* queries, const int32_t* starts,
                                    const float* factors, const uint8_t* const* pages, int count,
                                    Lines ahead, const KvLayout& layout, float* scores,
                                    float* largest) {
  for (; count >= PAGES; count -= PAGES, pages += PAGES, scores += PAGES * kLanes) {
    score_pages<FEW, QUERIES, PAGES>(queries, starts, factors, pages, ahead, layout, scores,
                                     largest);
    ahead.count = 0;
    if constexpr (FEW) ahead.near += PAGES;
  }
  if constexpr (PAGES > 1) {
    score_queries<FEW, QUERIES, PAGES - 1>(queries, starts, factors, pages, count, ahead, layout,
                                           scores, largest);
  }
}

template <bool FEW, int QUERIES>
CHAIRLIFT_INLINE void score_up_to(int64_t num_queries, const int8_t* queries, const int32_t* starts,
                                  const float* factors, const uint8_t* const* pages, int count,
                                  Lines ahead, const KvLayout& layout, float* scores,
                                  float* largest) {
  if constexpr (QUERIES > 1) {
    if (num_queries < QUERIES) {
      return score_up_to<FEW, QUERIES - 1>(num_queries, queries, starts, factors, pages, count,
                                           ahead, layout, scores, largest);
    }
  }
  score_queries<FEW, QUERIES>(queries, starts, factors, pages, count, ahead, layout, scores,
                              largest);
}

// sums[q] = sums[q] * keep[q] + (weights[q] . values) * add[q], for some vectors of dimensions
template <bool FEW, int QUERIES, int VECTORS>
CHAIRLIFT_NOINLINE void mix_tile(const uint8_t* high, const uint8_t* low,
                                 const uint8_t* const* pages, int count, Lines ahead,
                                 int64_t first_code, const KvLayout& layout, const float* keep,
                                 const float* add, float* sums, int64_t stride) {
  I16 upper[QUERIES][VECTORS], lower[QUERIES][VECTORS];
  CHAIRLIFT_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    CHAIRLIFT_UNROLL
    for (int v = 0; v < VECTORS; ++v) upper[q][v] = lower[q][v] = I16::all(0);
  }
  const int64_t portion = count > 0 ? (ahead.count + 4 * count - 1) / (4 * count) : 0;
  const int64_t values = layout.values();
  for (int p = 0; p < count; ++p) {
    for (int four = 0; four < 4; ++four) {
      fetch(ahead, (4 * p + four) * portion, (4 * p + four + 1) * portion);
      const int64_t offset = values + four * layout.head_dim * 4 + first_code;
      Codes value[VECTORS];
      CHAIRLIFT_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        if constexpr (FEW) prefetch_near(ahead.near[p] + offset - values + v * kCodesBytes);
        value[v] = Codes::load(pages[p] + offset + v * kCodesBytes);
        keep_in_register(value[v]);
      }
      CHAIRLIFT_UNROLL
      for (int q = 0; q < QUERIES; ++q) {
        const int64_t at = q * kTileGroupTokens + four * kLanes + p * 4;
        const Codes upper_weights = repeat_bytes(high + at);
        CHAIRLIFT_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          upper[q][v] = add_dots(upper[q][v], upper_weights, value[v]);
        }
        const Codes lower_weights = repeat_bytes(low + at);
        CHAIRLIFT_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          lower[q][v] = add_dots(lower[q][v], lower_weights, value[v]);
        }
      }
    }
  }
  CHAIRLIFT_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    CHAIRLIFT_UNROLL
    for (int v = 0; v < VECTORS; ++v) {
      float* sum = sums + q * stride + v * kLanes;
      const F16 part = to_float(join_bytes(upper[q][v], lower[q][v])) * F16::all(add[q]);
      multiply_add(F16::load(sum), F16::all(keep[q]), part).store(sum);
    }
  }
}

template <bool FEW, int QUERIES>
CHAIRLIFT_INLINE void mix_queries(const uint8_t* high, const uint8_t* low,
                                  const uint8_t* const* pages, int count, Lines ahead,
                                  const KvLayout& layout, const float* keep, const float* add,
                                  float* sums, int64_t stride) {
  int64_t i = 0;
  for (; i + kMixVectors * kLanes <= layout.head_dim; i += kMixVectors * kLanes) {
    mix_tile<FEW, QUERIES, kMixVectors>(high, low, pages, count, ahead, 4 * i, layout, keep, add,
                                        sums + i, stride);
    ahead.count = 0;
  }
  for (; i < layout.head_dim; i += kLanes) {
    mix_tile<FEW, QUERIES, 1>(high, low, pages, count, ahead, 4 * i, layout, keep, add, sums + i,
                              stride);
    ahead.count = 0;
  }
}

template <bool FEW, int QUERIES>
CHAIRLIFT_INLINE void mix_up_to(int64_t num_queries, const uint8_t* high, const uint8_t* low,
                                const uint8_t* const* pages, int count, Lines ahead,
                                const KvLayout& layout, const float* keep, const float* add,
                                float* sums, int64_t stride) {
  if constexpr (QUERIES > 1) {
    if (num_queries < QUERIES) {
      return mix_up_to<FEW, QUERIES - 1>(num_queries, high, low, pages, count, ahead, layout, keep,
                                         add, sums, stride);
    }
  }
  mix_queries<FEW, QUERIES>(high, low, pages, count, ahead, layout, keep, add, sums, stride);
}

// -- softmax -------------------------------------------------------------------------------------

// What the queries of a batch have of one group.
struct GroupBatch {  // kKvBatchFloats
  alignas(64) float scores[kBatchQueries * kTileGroupTokens];
  alignas(64) uint8_t high[kBatchQueries * kTileGroupTokens];  // [Q][4][page][4 tokens]
  alignas(64) uint8_t low[kBatchQueries * kTileGroupTokens];
  alignas(64) float totals[kBatchQueries * kLanes];
  alignas(64) float largest[kBatchLanes];  // of the scores
  alignas(64) float most[kBatchLanes];     // of the weights; it becomes kLargestWeight
  alignas(64) float keep[kBatchLanes];
  alignas(64) float add[kBatchLanes];
  alignas(64) float add_total[kBatchLanes];
};

static_assert(sizeof(GroupBatch) == kKvBatchFloats * sizeof(float), "others reserve room for it");

// A bit for each token of a group.
using TokenMask = uint64_t;
static_assert(kTileGroupTokens == 64, "bits of a mask");

CHAIRLIFT_INLINE TokenMask mask_tokens(int64_t begin, int64_t end) {
  if (end <= 0 || begin >= kTileGroupTokens) return 0;
  const TokenMask all = ~TokenMask{0}, from = begin > 0 ? all << begin : all;
  return end < kTileGroupTokens ? from & ~(all << end) : from;
}

CHAIRLIFT_INLINE uint16_t mask_of_page(TokenMask mask, int page) {
  return static_cast<uint16_t>(mask >> (page * kLanes));
}

// Pages up to the last token of the mask.
CHAIRLIFT_INLINE int count_pages(TokenMask mask) {
  int count = kTileGroupPages;
  while (count > 0 && mask_of_page(mask, count - 1) == 0) --count;
  return count;
}

// Scores of queries [q, q + QUERIES) to integer weights.  MASKED: each sees some of the group's
// tokens, in `count` pages.
template <bool MASKED, int QUERIES>
CHAIRLIFT_NOINLINE void weigh(GroupBatch& batch, int64_t q, const uint8_t* const* pages, int count,
                              const KvLayout& layout, const TokenMask* seen) {
  const F16 nothing = F16::all(kNothing), zero = F16::all(0.0f);
  F16 weight[QUERIES][kTileGroupPages], most[QUERIES];
  CHAIRLIFT_UNROLL
  for (int i = 0; i < QUERIES; ++i) {
    F16(&w)[kTileGroupPages] = weight[i];
    CHAIRLIFT_UNROLL
    for (int p = 0; p < kTileGroupPages; ++p) {
      w[p] = F16::load(batch.scores + (q + i) * kTileGroupTokens + p * kLanes);
      if (MASKED) w[p] = select_lanes(mask_of_page(seen[i], p), w[p], nothing);
    }
    most[i] = larger(larger(w[0], w[1]), larger(w[2], w[3]));
  }
  if (MASKED || !kScoresFindLargest) store_largest<Larger>(most, batch.largest + q);
  CHAIRLIFT_UNROLL
  for (int i = 0; i < QUERIES; ++i) {
    F16(&w)[kTileGroupPages] = weight[i];
    F16 largest = F16::all(batch.largest[q + i]);
    if (MASKED) largest = larger(largest, F16::all(kLowest));  // it may see nothing
    CHAIRLIFT_UNROLL
    for (int p = 0; p < kTileGroupPages; ++p) w[p] = exp2_at_least(w[p] - largest);
    ((w[0] + w[1]) + (w[2] + w[3])).store(batch.totals + (q + i) * kLanes);
    CHAIRLIFT_UNROLL
    for (int p = 0; p < kTileGroupPages; ++p) {
      if (MASKED && p >= count) {
        w[p] = zero;
        continue;
      }
      w[p] = w[p] * F16::load(reinterpret_cast<const float*>(pages[p] + layout.value_scales()));
      // A scale that was never stored may be no number.
      if (MASKED) w[p] = select_lanes(mask_of_page(seen[i], p), w[p], zero);
    }
    most[i] = larger_positive(larger_positive(w[0], w[1]), larger_positive(w[2], w[3]));
  }
  store_largest<LargerPositive>(most, batch.most + q);
  float inverse[QUERIES];
  for (int i = 0; i < QUERIES; ++i) {
    const float divisor = batch.most[q + i];
    inverse[i] = kLargestWeight / (divisor > kSmallestWeight ? divisor : kSmallestWeight);
  }
  CHAIRLIFT_UNROLL
  for (int i = 0; i < QUERIES; ++i) {
    F16(&w)[kTileGroupPages] = weight[i];
    CHAIRLIFT_UNROLL
    for (int p = 0; p < kTileGroupPages; ++p) w[p] = w[p] * F16::all(inverse[i]);
    const int64_t at = (q + i) * kTileGroupTokens;
    store_weights(w, batch.high + at, batch.low + at);
  }
}

template <bool MASKED, int QUERIES = kWeighQueries>
CHAIRLIFT_INLINE void weigh_up_to(int64_t num_queries, GroupBatch& batch, int64_t q,
                                  const uint8_t* const* pages, int count, const KvLayout& layout,
                                  const TokenMask* seen) {
  if constexpr (QUERIES > 1) {
    if (num_queries < QUERIES) {
      return weigh_up_to<MASKED, QUERIES - 1>(num_queries, batch, q, pages, count, layout, seen);
    }
  }
  weigh<MASKED, QUERIES>(batch, q, pages, count, layout, seen);
}

// Factors on what was summed so far and on the group's part, and the new maximum.
CHAIRLIFT_INLINE void rescale(F16 before, F16 group, F16 most, F16* keep, F16* add_total, F16* add,
                              F16* after) {
  *after = larger(before, group);
  const F16 finite = larger(*after, F16::all(kLowest));  // nothing may have been seen yet
  *keep = exp2_negative(before - finite);
  *add_total = exp2_negative(group - finite);
  *add = *add_total * (most / F16::all(kLargestWeight));
}

// -- tiles ---------------------------------------------------------------------------------------

// State of the tile's queries, [key/value heads][rows][query heads of a group].
struct KvState {
  float* sums;      // [Q][dim]
  float* totals;    // [Q][16]
  float* largest;   // [Q], and a vector more
  float* factors;   // [Q]
  int32_t* starts;  // [Q]
  int8_t* codes;    // [Q][dim]
  GroupBatch* batch;
};

CHAIRLIFT_INLINE KvState lay_out_state(float* memory, int64_t num_queries, int64_t dim) {
  const int64_t padded = (num_queries + kLanes - 1) / kLanes * kLanes;
  KvState state;
  state.batch = reinterpret_cast<GroupBatch*>(memory);
  state.sums = memory + sizeof(GroupBatch) / sizeof(float);
  state.totals = state.sums + num_queries * dim;
  state.largest = state.totals + num_queries * kLanes;
  state.factors = state.largest + padded + kBatchLanes;
  state.starts = reinterpret_cast<int32_t*>(state.factors + padded);
  state.codes = reinterpret_cast<int8_t*>(state.starts + padded);
  return state;
}

CHAIRLIFT_INLINE int64_t first_query_index(const chairlift_attention& task, const KvTile& tile,
                                           int64_t group, int64_t head, int64_t row) {
  return (tile.first_row + row) * task.num_heads + (tile.first_kv_head + head) * group;
}

// Copies `dim` codes; returns their sum.
CHAIRLIFT_INLINE int32_t copy_codes(const int8_t* codes, int64_t dim, int8_t* copy) {
  const int8_t ones[4] = {1, 1, 1, 1};
  I16 sums = I16::all(0);
  int64_t i = 0;
  for (; i + kCodesBytes <= dim; i += kCodesBytes) {
    const Codes some = Codes::load(reinterpret_cast<const uint8_t*>(codes + i));
    some.store(reinterpret_cast<uint8_t*>(copy + i));
    sums = add_dots(sums, repeat_bytes(ones), some);
  }
  int32_t sum = static_cast<int32_t>(sum_lanes(to_float(sums)));
  for (; i < dim; i += kLanes) {
    std::memcpy(copy + i, codes + i, kLanes);
    sum += sum_codes(codes + i);
  }
  return sum;
}

void start_queries(const chairlift_attention& task, const KvTile& tile, int64_t group,
                   const KvState& state) {
  const int64_t dim = task.head_dim;
  const float log2_scale = task.scale * 1.44269504f;
  int64_t q = 0;
  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      const int64_t index = first_query_index(task, tile, group, head, row);
      for (int64_t g = 0; g < group; ++g, ++q) {
        const int8_t* query = static_cast<const int8_t*>(task.query) + (index + g) * dim;
        state.starts[q] = -128 * copy_codes(query, dim, state.codes + q * dim);
        state.factors[q] = task.query_scales[index + g] * log2_scale;
        state.largest[q] = kNothing;
      }
    }
  }
  for (int64_t i = 0; i < q * dim; i += kLanes) F16::all(0.0f).store(state.sums + i);
  for (int64_t i = 0; i < q * kLanes; i += kLanes) F16::all(0.0f).store(state.totals + i);
}

void finish_queries(const chairlift_attention& task, const KvTile& tile, int64_t group,
                    const KvState& state) {
  const int64_t dim = task.head_dim;
  int64_t q = 0;
  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      float* out = task.out + first_query_index(task, tile, group, head, row) * dim;
      for (int64_t g = 0; g < group; ++g, ++q, out += dim) {
        const F16 inverse = F16::all(1.0f / sum_lanes(F16::load(state.totals + q * kLanes)));
        for (int64_t i = 0; i < dim; i += kLanes) {
          (F16::load(state.sums + q * dim + i) * inverse).store(out + i);
        }
      }
    }
  }
}

// Some queries of the tile that go through a group at once: queries [first, first + num) of each of
// some heads, which lie side by side in the state (either all of a head's, or one head's only).
struct BatchRange {
  int64_t first_head;
  int64_t num_heads;
  int64_t first;
  int64_t num;
  int64_t first_row;  // of query `first`, and its head inside the row
  int64_t first_in_row;
};

// The pages of one head.
struct HeadPages {
  const uint8_t* at[kTileGroupPages];
};

// Merges the group's maxima and totals into the state; fills `keep` and `add`.
CHAIRLIFT_INLINE void merge_totals(GroupBatch& batch, int64_t num, float* largest, float* totals) {
  for (int64_t q = 0; q < num; q += kLanes) {
    F16 keep, add_total, add, after;
    rescale(F16::load(largest + q), F16::load(batch.largest + q), F16::load(batch.most + q), &keep,
            &add_total, &add, &after);
    keep.store(batch.keep + q);
    add.store(batch.add + q);
    add_total.store(batch.add_total + q);
    after.store(batch.largest + q);
  }
  for (int64_t q = 0; q < num; ++q) {
    largest[q] = batch.largest[q];
    float* total = totals + q * kLanes;
    multiply_add(F16::load(total), F16::all(batch.keep[q]),
                 F16::load(batch.totals + q * kLanes) * F16::all(batch.add_total[q]))
        .store(total);
  }
}

// Leaves the group's maxima and totals as they are, and has its sums left so too.
CHAIRLIFT_INLINE void store_totals(GroupBatch& batch, int64_t num, int64_t dim, float* records) {
  for (int64_t q = 0; q < num; ++q) {
    float* record = records + q * (kPartialSums + dim);
    record[0] = batch.largest[q];
    record[1] = batch.most[q];
    F16::load(batch.totals + q * kLanes).store(record + kPartialTotals);
    for (int64_t i = 0; i < dim; i += kLanes) F16::all(0.0f).store(record + kPartialSums + i);
    batch.keep[q] = 0.0f;
    batch.add[q] = 1.0f;
  }
}

CHAIRLIFT_INLINE HeadPages values_of(const HeadPages& pages, const KvLayout& layout) {
  HeadPages values;
  for (int p = 0; p < kTileGroupPages; ++p) values.at[p] = pages.at[p] + layout.values();
  return values;
}

// A batch on its way through one group.
struct BatchStep {
  const KvState& state;
  const KvLayout layout;
  const HeadPages* heads;  // of the batch
  const HeadPages* next;   // of what comes after the batch
  int64_t num_heads;
  int64_t num;            // queries of each
  int64_t base;           // of the first one in the state
  const TokenMask* seen;  // of a head's queries; null: all see the whole group
  Fetcher& fetcher;

  // Pages up to the last of which queries [q, q + size) see anything.
  CHAIRLIFT_INLINE int count_for(int64_t q, int64_t size) const {
    if (!seen) return kTileGroupPages;
    TokenMask any = 0;  // with a window it may be the first query that sees most
    for (int64_t i = q; i < q + size; ++i) any |= seen[i];
    return count_pages(any);
  }
};

// Calls `work(head, q, size, portion)` for all queries, at most `at_once` of a head at a time and
// in numbers that differ by one at most; a portion is what each is to fetch for all to fetch
// `lines`.
template <class Work>
CHAIRLIFT_INLINE void for_steps(const BatchStep& step, int64_t at_once, int64_t lines,
                                const Work& work) {
  const int64_t num_steps = (step.num + at_once - 1) / at_once, all = step.num_heads * num_steps;
  const int64_t portion = (lines + all - 1) / all;
  for (int64_t head = 0; head < step.num_heads; ++head) {
    int64_t q = 0;
    for (int64_t left = num_steps; left > 0; --left) {
      const int64_t size = (step.num - q + left - 1) / left;
      work(head, q, size, portion);
      q += size;
    }
  }
}

template <bool FEW>
CHAIRLIFT_INLINE void score_batch(const BatchStep& step, int64_t lines) {
  const int64_t dim = step.layout.head_dim;
  const KvState& state = step.state;
  for_steps(step, kDotQueries, lines, [&](int64_t head, int64_t q, int64_t size, int64_t portion) {
    const int64_t at = head * step.num + q, query = step.base + at;
    Lines ahead = step.fetcher.take(portion);
    HeadPages near;
    if constexpr (FEW) {
      near = head + 1 < step.num_heads ? step.heads[head + 1] : values_of(*step.heads, step.layout);
      ahead.near = near.at;
    }
    score_up_to<FEW, kDotQueries>(
        size, state.codes + query * dim, state.starts + query, state.factors + query,
        step.heads[head].at, step.count_for(q, size), ahead, step.layout,
        state.batch->scores + at * kTileGroupTokens, state.batch->largest + at);
  });
}

CHAIRLIFT_INLINE void weigh_batch(const BatchStep& step, int64_t lines) {
  GroupBatch& batch = *step.state.batch;
  for_steps(step, kWeighQueries, lines,
            [&](int64_t head, int64_t q, int64_t size, int64_t portion) {
              fetch(step.fetcher.take(portion), 0, portion);
              const int64_t at = head * step.num + q;
              const uint8_t* const* pages = step.heads[head].at;
              const int count = step.count_for(q, size);
              if (step.seen) {
                weigh_up_to<true>(size, batch, at, pages, count, step.layout, step.seen + q);
              } else {
                weigh_up_to<false>(size, batch, at, pages, count, step.layout, nullptr);
              }
            });
}

template <bool FEW>
CHAIRLIFT_INLINE void mix_batch(const BatchStep& step, int64_t lines, float* sums, int64_t stride) {
  const GroupBatch& batch = *step.state.batch;
  for_steps(step, kMixQueries, lines, [&](int64_t head, int64_t q, int64_t size, int64_t portion) {
    const int64_t at = head * step.num + q;
    Lines ahead = step.fetcher.take(portion);
    HeadPages near;
    if constexpr (FEW) {
      near = head + 1 < step.num_heads ? values_of(step.heads[head + 1], step.layout) : *step.next;
      ahead.near = near.at;
    }
    mix_up_to<FEW, kMixQueries>(size, batch.high + at * kTileGroupTokens,
                                batch.low + at * kTileGroupTokens, step.heads[head].at,
                                step.count_for(q, size), ahead, step.layout, batch.keep + at,
                                batch.add + at, sums + at * stride, stride);
  });
}

CHAIRLIFT_INLINE void attend_batch(const chairlift_attention& task, const KvTile& tile,
                                   int64_t group_heads, const BatchRange& range, int64_t group,
                                   const HeadPages* heads, const HeadPages* next, Fetcher& fetcher,
                                   const KvState& state) {
  const int64_t dim = task.head_dim, group_start = group * kGroupTokens;
  const int64_t head_queries = tile.num_rows * group_heads;
  const int64_t num_rows = (range.first_in_row + range.num + group_heads - 1) / group_heads;
  const int64_t first_position = tile.first_position + range.first_row;
  const Span first_seen = seen_from(task, first_position);
  const Span last_seen = seen_from(task, first_position + num_rows - 1);
  const bool sees_any =
      last_seen.end > group_start && first_seen.begin < group_start + kGroupTokens;
  if (!sees_any && !tile.partials) return;
  const bool see_all =
      first_seen.end >= group_start + kGroupTokens && last_seen.begin <= group_start;
  TokenMask seen[kBatchQueries];
  if (!see_all) {
    int64_t position = first_position, in_row = range.first_in_row;
    for (int64_t q = 0; q < range.num; ++q) {
      const Span span = seen_from(task, position);
      seen[q] = mask_tokens(span.begin - group_start, span.end - group_start);
      if (++in_row == group_heads) {
        in_row = 0;
        ++position;
      }
    }
  }

  const int64_t base = range.first_head * head_queries + range.first;
  const int64_t total = range.num_heads * range.num;
  const BatchStep step = {state,     {dim}, heads + range.first_head, next,   range.num_heads,
                          range.num, base,  see_all ? nullptr : seen, fetcher};
  // Shares of what is to be fetched, about as the phases share time.
  const int64_t lines = fetcher.page_lines * (fetcher.num_pages - fetcher.index);
  const bool few = range.num <= kFewQueries;
  if (few) {
    score_batch<true>(step, lines * 5 / 16);
  } else {
    score_batch<false>(step, lines * 5 / 16);
  }
  weigh_batch(step, lines * 4 / 16);
  float* sums = state.sums + base * dim;
  int64_t stride = dim;
  if (tile.partials) {
    stride = kPartialSums + dim;
    float* records =
        tile.partials +
        ((group - tile.first_group) * tile.num_kv_heads * head_queries + base) * stride;
    store_totals(*state.batch, total, dim, records);
    sums = records + kPartialSums;
  } else {
    merge_totals(*state.batch, total, state.largest + base, state.totals + base * kLanes);
  }
  if (few) {
    mix_batch<true>(step, lines * 7 / 16, sums, stride);
  } else {
    mix_batch<false>(step, lines * 7 / 16, sums, stride);
  }
}

// Head `head` of the tile's.
CHAIRLIFT_INLINE HeadPages point_to_head(const KvTile& tile, const GroupPages& pages,
                                         int64_t head_bytes, int64_t head) {
  HeadPages result;
  for (int j = 0; j < kTileGroupPages; ++j) {
    result.at[j] =
        pages.page[smaller_of(j, pages.count - 1)] + (tile.first_kv_head + head) * head_bytes;
  }
  return result;
}

CHAIRLIFT_INLINE Fetcher fetch_from(const KvTile& tile, const GroupPages& pages,
                                    int64_t head_bytes) {
  Fetcher fetcher;
  for (int j = 0; j < pages.count; ++j) {
    fetcher.page[j] = pages.page[j] + tile.first_kv_head * head_bytes;
  }
  fetcher.num_pages = pages.count;
  fetcher.page_lines = tile.num_kv_heads * head_bytes / kCodesBytes;
  fetcher.index = fetcher.line = 0;
  return fetcher;
}

void attend_tile(const chairlift_attention& task, const KvTile& tile, const KvTile* following,
                 float* memory) {
  const int64_t head_bytes = KvLayout{task.head_dim}.head_bytes();
  const int64_t page_bytes = task.num_kv_heads * head_bytes;
  const int64_t group_heads = task.num_heads / task.num_kv_heads;
  const int64_t head_queries = tile.num_rows * group_heads;
  const int64_t batch_heads = head_queries < kBatchQueries ? kBatchQueries / head_queries : 1;
  const KvState state = lay_out_state(memory, tile.num_kv_heads * head_queries, task.head_dim);
  start_queries(task, tile, group_heads, state);
  const int64_t last = tile.first_group + tile.num_groups - 1;
  GroupPages pages = locate_group(task, tile, tile.first_group, page_bytes), next;
  HeadPages heads[kKvTileHeads];
  for (int64_t group = tile.first_group; group <= last; ++group) {
    const KvTile* next_tile = group < last ? &tile : following;
    Fetcher fetcher = {};
    if (next_tile) {
      next = locate_group(task, *next_tile, group < last ? group + 1 : following->first_group,
                          page_bytes);
      fetcher = fetch_from(*next_tile, next, head_bytes);
    }
    for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
      heads[head] = point_to_head(tile, pages, head_bytes, head);
    }
    const HeadPages after = next_tile ? point_to_head(*next_tile, next, head_bytes, 0) : heads[0];
    BatchRange range;
    for (range.first_head = 0; range.first_head < tile.num_kv_heads;
         range.first_head += batch_heads) {
      range.num_heads = smaller_of(batch_heads, tile.num_kv_heads - range.first_head);
      range.first_row = range.first_in_row = 0;
      for (range.first = 0; range.first < head_queries; range.first += kBatchQueries) {
        range.num = smaller_of(kBatchQueries, head_queries - range.first);
        const int64_t end_head = range.first_head + range.num_heads;
        attend_batch(task, tile, group_heads, range, group, heads,
                     end_head < tile.num_kv_heads ? heads + end_head : &after, fetcher, state);
        for (range.first_in_row += range.num; range.first_in_row >= group_heads;
             range.first_in_row -= group_heads) {
          ++range.first_row;
        }
      }
    }
    while (fetcher.index < fetcher.num_pages) {
      fetch(fetcher.take(fetcher.page_lines), 0, fetcher.page_lines);
    }
    pages = next;
  }
  if (!tile.partials) finish_queries(task, tile, group_heads, state);
}

void merge_partials(const chairlift_attention& task, const KvTile& tile, float* memory) {
  const int64_t dim = task.head_dim, group_heads = task.num_heads / task.num_kv_heads;
  const int64_t num_queries = tile.num_kv_heads * tile.num_rows * group_heads;
  const int64_t record = kPartialSums + dim;
  const KvState state = lay_out_state(memory, num_queries, dim);
  start_queries(task, tile, group_heads, state);
  for (int64_t q = 0; q < num_queries; ++q) {
    F16 largest = F16::all(kNothing), total = F16::all(0.0f);
    float* sums = state.sums + q * dim;
    for (int64_t group = 0; group < tile.num_groups; ++group) {
      const float* part = tile.partials + (group * num_queries + q) * record;
      if (part[0] == kNothing) continue;
      F16 keep, add_total, add, after;
      rescale(largest, F16::all(part[0]), F16::all(part[1]), &keep, &add_total, &add, &after);
      largest = after;
      total = multiply_add(total, keep, F16::load(part + kPartialTotals) * add_total);
      for (int64_t i = 0; i < dim; i += kLanes) {
        multiply_add(F16::load(sums + i), keep, F16::load(part + kPartialSums + i) * add)
            .store(sums + i);
      }
    }
    total.store(state.totals + q * kLanes);
  }
  finish_queries(task, tile, group_heads, state);
}

int64_t read_pieces(const uint8_t* memory, int64_t stride, int64_t num_bytes, const int32_t* blocks,
                    int64_t num_blocks) {
  I16 sum[4] = {I16::all(0), I16::all(0), I16::all(0), I16::all(0)};
  for (int64_t b = 0; b < num_blocks; ++b) {
    const uint8_t* piece = memory + blocks[b] * stride;
    const uint8_t* next = memory + blocks[b + 2 < num_blocks ? b + 2 : b] * stride;
    for (int64_t i = 0; i + 4 * kCodesBytes <= num_bytes; i += 4 * kCodesBytes) {
      for (int v = 0; v < 4; ++v) {
        I16 lanes;
        std::memcpy(&lanes, piece + i + v * kCodesBytes, sizeof lanes);
        sum[v] = sum[v] + lanes;
        prefetch_far(next + i + v * kCodesBytes);
      }
    }
  }
  return static_cast<int64_t>(sum_lanes(to_float((sum[0] + sum[1]) + (sum[2] + sum[3]))));
}

constexpr KvKernels kKvKernels = {store_kv, store_qkv, attend_tile, merge_partials, read_pieces};

}  // namespace
}  // namespace chairlift
