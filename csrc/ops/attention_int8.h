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
#elif defined(CHAIRLIFT_VEC_AVX2)
constexpr int kDotQueries = 2, kDotPages = 2;    // 8 registers
constexpr int kMixQueries = 1, kMixVectors = 2;  // 8 registers
#else
constexpr int kDotQueries = 1, kDotPages = 1;
constexpr int kMixQueries = 1, kMixVectors = 1;
#endif

constexpr int kTileGroupTokens = static_cast<int>(kGroupTokens);
constexpr int kTileGroupPages = static_cast<int>(kGroupPages);
constexpr int kBatchQueries = static_cast<int>(kKvBatchQueries);
constexpr int kBatchLanes = 32;
constexpr float kNothing = -INFINITY;
constexpr float kLargestWeight = 65535.0f;

CHAIRLIFT_INLINE void prefetch_line(const uint8_t* p) {
  prefetch(reinterpret_cast<const float*>(p));
}

struct Span {
  int64_t begin;
  int64_t end;
};

CHAIRLIFT_INLINE Span seen_from(const chairlift_attention_int8& task, int64_t position) {
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

CHAIRLIFT_INLINE GroupPages locate_group(const chairlift_attention_int8& task, const KvTile& tile,
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

// -- the two products ----------------------------------------------------------------------------

// scores[q][page][token] = dot * key scale * factor[q].  Codes of keys carry 128 too much, which
// `starts` has taken off beforehand.
template <int QUERIES, int PAGES, bool PREFETCH>
CHAIRLIFT_INLINE void score_pages(const int8_t* queries, const int32_t* starts,
                                  const float* factors, const uint8_t* const* pages,
                                  const uint8_t* const* next, const KvLayout& layout,
                                  float* scores) {
  const int64_t dim = layout.head_dim;
  I16 sum[QUERIES][PAGES];
  for (int q = 0; q < QUERIES; ++q) {
    for (int p = 0; p < PAGES; ++p) sum[q][p] = I16::all(starts[q]);
  }
  for (int64_t i = 0; i < dim / 4; ++i) {
    Codes codes[PAGES];
    for (int p = 0; p < PAGES; ++p) {
      codes[p] = Codes::load(pages[p] + i * kCodesBytes);
      if (PREFETCH) prefetch_line(next[p] + i * kCodesBytes);
    }
    for (int q = 0; q < QUERIES; ++q) {
      const Codes query = repeat_bytes(queries + q * dim + 4 * i);
      for (int p = 0; p < PAGES; ++p) sum[q][p] = add_dots(sum[q][p], codes[p], query);
    }
  }
  for (int p = 0; p < PAGES; ++p) {
    const F16 scale = F16::load(reinterpret_cast<const float*>(pages[p] + layout.key_scales()));
    if (PREFETCH) prefetch_line(next[p] + layout.key_scales());
    for (int q = 0; q < QUERIES; ++q) {
      (to_float(sum[q][p]) * scale * F16::all(factors[q]))
          .store(scores + q * kTileGroupTokens + p * kLanes);
    }
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void score_queries(const int8_t* queries, const int32_t* starts,
                                    const float* factors, const uint8_t* const* pages, int count,
                                    const uint8_t* const* next, const KvLayout& layout,
                                    float* scores) {
  int p = 0;
  for (; p + kDotPages <= count; p += kDotPages) {
    if (next) {
      score_pages<QUERIES, kDotPages, true>(queries, starts, factors, pages + p, next + p, layout,
                                            scores + p * kLanes);
    } else {
      score_pages<QUERIES, kDotPages, false>(queries, starts, factors, pages + p, pages, layout,
                                             scores + p * kLanes);
    }
  }
  if constexpr (kDotPages > 1) {
    for (; p < count; ++p) {
      if (next) {
        score_pages<QUERIES, 1, true>(queries, starts, factors, pages + p, next + p, layout,
                                      scores + p * kLanes);
      } else {
        score_pages<QUERIES, 1, false>(queries, starts, factors, pages + p, pages, layout,
                                       scores + p * kLanes);
      }
    }
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void score_up_to(int64_t num_queries, const int8_t* queries, const int32_t* starts,
                                  const float* factors, const uint8_t* const* pages, int count,
                                  const uint8_t* const* next, const KvLayout& layout,
                                  float* scores) {
  if constexpr (QUERIES > 1) {
    if (num_queries < QUERIES) {
      return score_up_to<QUERIES - 1>(num_queries, queries, starts, factors, pages, count, next,
                                      layout, scores);
    }
  }
  score_queries<QUERIES>(queries, starts, factors, pages, count, next, layout, scores);
}

// sums[q] = sums[q] * keep[q] + (weights[q] . values) * add[q], for some vectors of dimensions
template <int QUERIES, int VECTORS, bool PREFETCH>
CHAIRLIFT_INLINE void mix_tile(const uint8_t* high, const uint8_t* low, const uint8_t* const* pages,
                               int count, const uint8_t* const* next, int64_t first_code,
                               const KvLayout& layout, const float* keep, const float* add,
                               float* sums, int64_t stride) {
  I16 upper[QUERIES][VECTORS], lower[QUERIES][VECTORS];
  for (int q = 0; q < QUERIES; ++q) {
    for (int v = 0; v < VECTORS; ++v) upper[q][v] = lower[q][v] = I16::all(0);
  }
  for (int p = 0; p < count; ++p) {
    for (int four = 0; four < 4; ++four) {
      const int64_t offset = layout.values() + four * layout.head_dim * 4 + first_code;
      Codes value[VECTORS];
      for (int v = 0; v < VECTORS; ++v) {
        value[v] = Codes::load(pages[p] + offset + v * kCodesBytes);
        if (PREFETCH) prefetch_line(next[p] + offset + v * kCodesBytes);
      }
      for (int q = 0; q < QUERIES; ++q) {
        const int64_t at = q * kTileGroupTokens + p * kLanes + four * 4;
        const Codes upper_weights = repeat_bytes(high + at);
        for (int v = 0; v < VECTORS; ++v) {
          upper[q][v] = add_dots(upper[q][v], upper_weights, value[v]);
        }
        const Codes lower_weights = repeat_bytes(low + at);
        for (int v = 0; v < VECTORS; ++v) {
          lower[q][v] = add_dots(lower[q][v], lower_weights, value[v]);
        }
      }
    }
  }
  for (int q = 0; q < QUERIES; ++q) {
    for (int v = 0; v < VECTORS; ++v) {
      float* sum = sums + q * stride + v * kLanes;
      const F16 part = to_float(join_bytes(upper[q][v], lower[q][v])) * F16::all(add[q]);
      multiply_add(F16::load(sum), F16::all(keep[q]), part).store(sum);
    }
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void mix_queries(const uint8_t* high, const uint8_t* low,
                                  const uint8_t* const* pages, int count,
                                  const uint8_t* const* next, const KvLayout& layout,
                                  const float* keep, const float* add, float* sums,
                                  int64_t stride) {
  int64_t i = 0;
  for (; i + kMixVectors * kLanes <= layout.head_dim; i += kMixVectors * kLanes) {
    if (next) {
      mix_tile<QUERIES, kMixVectors, true>(high, low, pages, count, next, 4 * i, layout, keep, add,
                                           sums + i, stride);
    } else {
      mix_tile<QUERIES, kMixVectors, false>(high, low, pages, count, pages, 4 * i, layout, keep,
                                            add, sums + i, stride);
    }
  }
  for (; i < layout.head_dim; i += kLanes) {
    mix_tile<QUERIES, 1, false>(high, low, pages, count, pages, 4 * i, layout, keep, add, sums + i,
                                stride);
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void mix_up_to(int64_t num_queries, const uint8_t* high, const uint8_t* low,
                                const uint8_t* const* pages, int count, const uint8_t* const* next,
                                const KvLayout& layout, const float* keep, const float* add,
                                float* sums, int64_t stride) {
  if constexpr (QUERIES > 1) {
    if (num_queries < QUERIES) {
      return mix_up_to<QUERIES - 1>(num_queries, high, low, pages, count, next, layout, keep, add,
                                    sums, stride);
    }
  }
  mix_queries<QUERIES>(high, low, pages, count, next, layout, keep, add, sums, stride);
}

// -- softmax -------------------------------------------------------------------------------------

// What the queries of a batch have of one group.
struct GroupBatch {  // kKvBatchFloats
  alignas(64) float scores[kBatchQueries * kTileGroupTokens];
  alignas(64) uint8_t high[kBatchQueries * kTileGroupTokens];
  alignas(64) uint8_t low[kBatchQueries * kTileGroupTokens];
  alignas(64) float totals[kBatchQueries * kLanes];
  alignas(64) float largest[kBatchLanes];
  alignas(64) float unit[kBatchLanes];  // of the integer weights
  alignas(64) float keep[kBatchLanes];
  alignas(64) float add[kBatchLanes];
  alignas(64) float new_largest[kBatchLanes];
};

static_assert(sizeof(GroupBatch) == kKvBatchFloats * sizeof(float), "others reserve room for it");

// Scores of query `q` to integer weights; the query sees tokens [begin, end) of the group's.
CHAIRLIFT_INLINE void weigh(GroupBatch& batch, int64_t q, const uint8_t* const* pages, int count,
                            const KvLayout& layout, int begin, int end) {
  const F16 nothing = F16::all(kNothing), zero = F16::all(0.0f);
  const float* scores = batch.scores + q * kTileGroupTokens;
  F16 score[kTileGroupPages], scale[kTileGroupPages];
  const bool whole = begin <= 0 && end >= count * kLanes;
  for (int p = 0; p < kTileGroupPages; ++p) {
    if (p >= count) {
      score[p] = nothing;
      scale[p] = zero;
      continue;
    }
    score[p] = F16::load(scores + p * kLanes);
    scale[p] = F16::load(reinterpret_cast<const float*>(pages[p] + layout.value_scales()));
    if (whole) continue;
    int first = begin - p * kLanes, last = end - p * kLanes;
    first = first < 0 ? 0 : first > kLanes ? kLanes : first;
    last = last < first ? first : last > kLanes ? kLanes : last;
    score[p] = select_lanes(score[p], first, last, nothing);
    scale[p] = select_lanes(scale[p], first, last, zero);
  }
  const float largest =
      largest_lane(larger(larger(score[0], score[1]), larger(score[2], score[3])));
  F16 weight[kTileGroupPages];
  for (int p = 0; p < kTileGroupPages; ++p) {
    weight[p] = exp2_negative(score[p] - F16::all(largest));
  }
  ((weight[0] + weight[1]) + (weight[2] + weight[3])).store(batch.totals + q * kLanes);
  for (int p = 0; p < kTileGroupPages; ++p) weight[p] = weight[p] * scale[p];
  const float most =
      largest_lane(larger(larger(weight[0], weight[1]), larger(weight[2], weight[3])));
  const F16 inverse = F16::all(most > 0 ? kLargestWeight / most : 0.0f);
  for (int p = 0; p < count; ++p) {
    const int64_t at = q * kTileGroupTokens + p * kLanes;
    store_bytes(weight[p] * inverse, batch.high + at, batch.low + at);
  }
  batch.largest[q] = largest;
  batch.unit[q] = most / kLargestWeight;
}

CHAIRLIFT_INLINE void weigh_nothing(GroupBatch& batch, int64_t q) {
  for (int i = 0; i < kTileGroupTokens; ++i) {
    batch.high[q * kTileGroupTokens + i] = batch.low[q * kTileGroupTokens + i] = 0;
  }
  for (int i = 0; i < kLanes; ++i) batch.totals[q * kLanes + i] = 0.0f;
  batch.largest[q] = kNothing;
  batch.unit[q] = 0.0f;
}

// Factors on what was summed so far and on the group's part, and the new maximum.
CHAIRLIFT_INLINE void rescale(F16 before, F16 group, F16 unit, F16* keep, F16* add_total, F16* add,
                              F16* after) {
  *after = larger(before, group);
  *keep = exp2_negative(before - *after);
  *add_total = exp2_negative(group - *after);
  *add = *add_total * unit;
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

CHAIRLIFT_INLINE int64_t first_query_index(const chairlift_attention_int8& task, const KvTile& tile,
                                           int64_t group, int64_t head, int64_t row) {
  return (tile.first_row + row) * task.num_heads + (tile.first_kv_head + head) * group;
}

void start_queries(const chairlift_attention_int8& task, const KvTile& tile, int64_t group,
                   const KvState& state) {
  const int64_t dim = task.head_dim;
  const float log2_scale = task.scale * 1.44269504f;
  int64_t q = 0;
  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      const int64_t index = first_query_index(task, tile, group, head, row);
      for (int64_t g = 0; g < group; ++g, ++q) {
        const int8_t* query = task.query + (index + g) * dim;
        int32_t sum = 0;
        for (int64_t i = 0; i < dim; i += kLanes) sum += sum_codes(query + i);
        std::memcpy(state.codes + q * dim, query, static_cast<size_t>(dim));
        state.starts[q] = -128 * sum;
        state.factors[q] = task.query_scales[index + g] * log2_scale;
        state.largest[q] = kNothing;
      }
    }
  }
  for (int64_t i = 0; i < q * dim; i += kLanes) F16::all(0.0f).store(state.sums + i);
  for (int64_t i = 0; i < q * kLanes; i += kLanes) F16::all(0.0f).store(state.totals + i);
}

void finish_queries(const chairlift_attention_int8& task, const KvTile& tile, int64_t group,
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

// Queries [first, first + num) of the tile's head against one group.
CHAIRLIFT_INLINE void attend_batch(const chairlift_attention_int8& task, const KvTile& tile,
                                   int64_t group_heads, int64_t head, int64_t first, int64_t num,
                                   int64_t group, const uint8_t* const* pages, int count,
                                   const uint8_t* const* next, const KvState& state) {
  const KvLayout layout = {task.head_dim};
  const int64_t dim = task.head_dim, group_start = group * kGroupTokens;
  const int64_t head_queries = tile.num_rows * group_heads;
  const Span first_seen = seen_from(task, tile.first_position + first / group_heads);
  const Span last_seen = seen_from(task, tile.first_position + (first + num - 1) / group_heads);
  const bool sees_any =
      last_seen.end > group_start && first_seen.begin < group_start + kGroupTokens;
  if (!sees_any && !tile.partials) return;
  const int64_t pages_seen = (last_seen.end - group_start + kPageTokens - 1) / kPageTokens;
  if (pages_seen < count) count = pages_seen < 0 ? 0 : static_cast<int>(pages_seen);

  GroupBatch& batch = *state.batch;
  const int64_t base = head * head_queries + first;
  int64_t num_steps = (num + kDotQueries - 1) / kDotQueries;
  for (int64_t step = 0; step < num_steps; ++step) {
    const int64_t q = num * step / num_steps, end = num * (step + 1) / num_steps;
    score_up_to<kDotQueries>(end - q, state.codes + (base + q) * dim, state.starts + base + q,
                             state.factors + base + q, pages, count, step == 0 ? next : nullptr,
                             layout, batch.scores + q * kTileGroupTokens);
  }

  bool all_see = true;
  for (int64_t q = 0; q < num; ++q) {
    const Span seen = seen_from(task, tile.first_position + (first + q) / group_heads);
    const int64_t begin = seen.begin - group_start, end = seen.end - group_start;
    if (begin >= kGroupTokens || end <= 0) {
      all_see = false;
      weigh_nothing(batch, q);
    } else {
      weigh(batch, q, pages, count, layout, begin < 0 ? 0 : static_cast<int>(begin),
            static_cast<int>(smaller_of(end, kGroupTokens)));
    }
  }

  if (tile.partials) {
    const int64_t record = kPartialSums + dim;
    float* out = tile.partials +
                 ((group - tile.first_group) * tile.num_kv_heads * head_queries + base) * record;
    for (int64_t q = 0; q < num; ++q) {
      float* part = out + q * record;
      part[0] = batch.largest[q];
      part[1] = batch.unit[q];
      F16::load(batch.totals + q * kLanes).store(part + kPartialTotals);
      for (int64_t i = 0; i < dim; i += kLanes) F16::all(0.0f).store(part + kPartialSums + i);
      batch.keep[q] = 0.0f;
      batch.add[q] = 1.0f;
    }
  } else {
    for (int64_t q = 0; q < num; q += kLanes) {
      F16 keep, add_total, add, after;
      rescale(F16::load(state.largest + base + q), F16::load(batch.largest + q),
              F16::load(batch.unit + q), &keep, &add_total, &add, &after);
      keep.store(batch.keep + q);
      add.store(batch.add + q);
      after.store(batch.new_largest + q);
      float factor[kLanes];
      add_total.store(factor);
      for (int64_t i = q; i < num && i < q + kLanes; ++i) {
        if (!all_see && batch.largest[i] == kNothing) {
          batch.keep[i] = 1.0f;
          batch.add[i] = factor[i - q] = 0.0f;
        }
        state.largest[base + i] = batch.new_largest[i];
        float* total = state.totals + (base + i) * kLanes;
        multiply_add(F16::load(total), F16::all(batch.keep[i]),
                     F16::load(batch.totals + i * kLanes) * F16::all(factor[i - q]))
            .store(total);
      }
    }
  }

  float* sums = state.sums + base * dim;
  int64_t stride = dim;
  if (tile.partials) {
    stride = kPartialSums + dim;
    sums = tile.partials + kPartialSums +
           ((group - tile.first_group) * tile.num_kv_heads * head_queries + base) * stride;
  }
  num_steps = (num + kMixQueries - 1) / kMixQueries;
  for (int64_t step = 0; step < num_steps; ++step) {
    const int64_t q = num * step / num_steps, end = num * (step + 1) / num_steps;
    mix_up_to<kMixQueries>(end - q, batch.high + q * kTileGroupTokens,
                           batch.low + q * kTileGroupTokens, pages, count,
                           step == 0 ? next : nullptr, layout, batch.keep + q, batch.add + q,
                           sums + q * stride, stride);
  }
}

void attend_tile(const chairlift_attention_int8& task, const KvTile& tile, const KvTile* following,
                 float* memory) {
  const KvLayout layout = {task.head_dim};
  const int64_t page_bytes = task.num_kv_heads * layout.head_bytes();
  const int64_t group_heads = task.num_heads / task.num_kv_heads;
  const int64_t head_queries = tile.num_rows * group_heads;
  const KvState state = lay_out_state(memory, tile.num_kv_heads * head_queries, task.head_dim);
  start_queries(task, tile, group_heads, state);
  const int64_t last = tile.first_group + tile.num_groups - 1;
  GroupPages pages = locate_group(task, tile, tile.first_group, page_bytes), next;
  for (int64_t group = tile.first_group; group <= last; ++group) {
    int64_t next_head = tile.first_kv_head;
    bool has_next = true;
    if (group < last) {
      next = locate_group(task, tile, group + 1, page_bytes);
    } else if (following) {
      next = locate_group(task, *following, following->first_group, page_bytes);
      next_head = following->first_kv_head;
    } else {
      has_next = false;
    }
    for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
      const uint8_t* at[kTileGroupPages];
      const uint8_t* ahead[kTileGroupPages];
      const int64_t offset = (tile.first_kv_head + head) * layout.head_bytes();
      for (int j = 0; j < kTileGroupPages; ++j) {
        at[j] = j < pages.count ? pages.page[j] + offset : nullptr;
        ahead[j] =
            has_next ? next.page[smaller_of(j, next.count - 1)] +
                           smaller_of(next_head + head, task.num_kv_heads - 1) * layout.head_bytes()
                     : nullptr;
      }
      for (int64_t first = 0; first < head_queries; first += kBatchQueries) {
        attend_batch(task, tile, group_heads, head, first,
                     smaller_of(kBatchQueries, head_queries - first), group, at, pages.count,
                     has_next && first == 0 ? ahead : nullptr, state);
      }
    }
    if (has_next) pages = next;
  }
  if (!tile.partials) finish_queries(task, tile, group_heads, state);
}

void attend_tiles(const chairlift_attention_int8& task, const KvTile* tiles, int64_t num_tiles,
                  float* memory) {
  for (int64_t i = 0; i < num_tiles; ++i) {
    attend_tile(task, tiles[i], i + 1 < num_tiles ? tiles + i + 1 : nullptr, memory);
  }
}

void merge_partials(const chairlift_attention_int8& task, const KvTile& tile, float* memory) {
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
    const uint8_t* next = memory + blocks[b + 1 < num_blocks ? b + 1 : b] * stride;
    for (int64_t i = 0; i + 4 * kCodesBytes <= num_bytes; i += 4 * kCodesBytes) {
      for (int v = 0; v < 4; ++v) {
        I16 lanes;
        std::memcpy(&lanes, piece + i + v * kCodesBytes, sizeof lanes);
        sum[v] = sum[v] + lanes;
        prefetch_line(next + i + v * kCodesBytes);
      }
    }
  }
  return static_cast<int64_t>(sum_lanes(to_float((sum[0] + sum[1]) + (sum[2] + sum[3]))));
}

constexpr KvKernels kKvKernels = {store_qkv, attend_tiles, merge_partials, read_pieces};

}  // namespace
}  // namespace chairlift
