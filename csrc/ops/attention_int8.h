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
    if (index == num_pages) return {nullptr, 0};
    const Lines lines = {page[index] + line * kCodesBytes,
                         smaller_of(num_lines, page_lines - line)};
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
    prefetch_line(lines.first + i * kCodesBytes);
  }
}

// -- the two products ----------------------------------------------------------------------------

// scores[q][page][token] = dot * key scale * factor[q].  Codes of keys carry 128 too much, which
// `starts` has taken off beforehand.
template <int QUERIES, int PAGES>
CHAIRLIFT_NOINLINE void score_pages(const int8_t* queries, const int32_t* starts,
                                    const float* factors, const uint8_t* const* pages, Lines ahead,
                                    const KvLayout& layout, float* scores) {
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
  CHAIRLIFT_UNROLL
  for (int p = 0; p < PAGES; ++p) {
    const F16 scale = F16::load(reinterpret_cast<const float*>(pages[p] + layout.key_scales()));
    CHAIRLIFT_UNROLL
    for (int q = 0; q < QUERIES; ++q) {
      (to_float(sum[q][p]) * scale * F16::all(factors[q]))
          .store(scores + q * kTileGroupTokens + p * kLanes);
    }
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void score_queries(const int8_t* queries, const int32_t* starts,
                                    const float* factors, const uint8_t* const* pages, int count,
                                    Lines ahead, const KvLayout& layout, float* scores) {
  int p = 0;
  for (; p + kDotPages <= count; p += kDotPages) {
    score_pages<QUERIES, kDotPages>(queries, starts, factors, pages + p, ahead, layout,
                                    scores + p * kLanes);
    ahead.count = 0;
  }
  if constexpr (kDotPages > 1) {
    for (; p < count; ++p) {
      score_pages<QUERIES, 1>(queries, starts, factors, pages + p, ahead, layout,
                              scores + p * kLanes);
      ahead.count = 0;
    }
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void score_up_to(int64_t num_queries, const int8_t* queries, const int32_t* starts,
                                  const float* factors, const uint8_t* const* pages, int count,
                                  Lines ahead, const KvLayout& layout, float* scores) {
  if constexpr (QUERIES > 1) {
    if (num_queries < QUERIES) {
      return score_up_to<QUERIES - 1>(num_queries, queries, starts, factors, pages, count, ahead,
                                      layout, scores);
    }
  }
  score_queries<QUERIES>(queries, starts, factors, pages, count, ahead, layout, scores);
}

// sums[q] = sums[q] * keep[q] + (weights[q] . values) * add[q], for some vectors of dimensions
template <int QUERIES, int VECTORS>
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
  for (int p = 0; p < count; ++p) {
    for (int four = 0; four < 4; ++four) {
      fetch(ahead, (4 * p + four) * portion, (4 * p + four + 1) * portion);
      const int64_t offset = layout.values() + four * layout.head_dim * 4 + first_code;
      Codes value[VECTORS];
      CHAIRLIFT_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        value[v] = Codes::load(pages[p] + offset + v * kCodesBytes);
        keep_in_register(value[v]);
      }
      CHAIRLIFT_UNROLL
      for (int q = 0; q < QUERIES; ++q) {
        const int64_t at = q * kTileGroupTokens + p * kLanes + four * 4;
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

template <int QUERIES>
CHAIRLIFT_INLINE void mix_queries(const uint8_t* high, const uint8_t* low,
                                  const uint8_t* const* pages, int count, Lines ahead,
                                  const KvLayout& layout, const float* keep, const float* add,
                                  float* sums, int64_t stride) {
  int64_t i = 0;
  for (; i + kMixVectors * kLanes <= layout.head_dim; i += kMixVectors * kLanes) {
    mix_tile<QUERIES, kMixVectors>(high, low, pages, count, ahead, 4 * i, layout, keep, add,
                                   sums + i, stride);
    ahead.count = 0;
  }
  for (; i < layout.head_dim; i += kLanes) {
    mix_tile<QUERIES, 1>(high, low, pages, count, ahead, 4 * i, layout, keep, add, sums + i,
                         stride);
    ahead.count = 0;
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void mix_up_to(int64_t num_queries, const uint8_t* high, const uint8_t* low,
                                const uint8_t* const* pages, int count, Lines ahead,
                                const KvLayout& layout, const float* keep, const float* add,
                                float* sums, int64_t stride) {
  if constexpr (QUERIES > 1) {
    if (num_queries < QUERIES) {
      return mix_up_to<QUERIES - 1>(num_queries, high, low, pages, count, ahead, layout, keep, add,
                                    sums, stride);
    }
  }
  mix_queries<QUERIES>(high, low, pages, count, ahead, layout, keep, add, sums, stride);
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
template <bool WHOLE>
CHAIRLIFT_NOINLINE void weigh(GroupBatch& batch, int64_t q, const uint8_t* const* pages, int count,
                              const KvLayout& layout, int begin, int end) {
  const F16 nothing = F16::all(kNothing), zero = F16::all(0.0f);
  const float* scores = batch.scores + q * kTileGroupTokens;
  F16 score[kTileGroupPages], weight[kTileGroupPages];
  CHAIRLIFT_UNROLL
  for (int p = 0; p < kTileGroupPages; ++p) {
    score[p] = WHOLE || p < count ? F16::load(scores + p * kLanes) : nothing;
    if (WHOLE) continue;
    int first = begin - p * kLanes, last = end - p * kLanes;
    first = first < 0 ? 0 : first > kLanes ? kLanes : first;
    last = last < first ? first : last > kLanes ? kLanes : last;
    score[p] = select_lanes(score[p], first, last, nothing);
  }
  const float largest =
      largest_lane(larger(larger(score[0], score[1]), larger(score[2], score[3])));
  CHAIRLIFT_UNROLL
  for (int p = 0; p < kTileGroupPages; ++p) {
    weight[p] = exp2_negative(score[p] - F16::all(largest));
  }
  ((weight[0] + weight[1]) + (weight[2] + weight[3])).store(batch.totals + q * kLanes);
  CHAIRLIFT_UNROLL
  for (int p = 0; p < kTileGroupPages; ++p) {
    if (!WHOLE && p >= count) {
      weight[p] = zero;
      continue;
    }
    weight[p] =
        weight[p] * F16::load(reinterpret_cast<const float*>(pages[p] + layout.value_scales()));
    if (WHOLE) continue;
    // A scale that was never stored may be no number.
    int first = begin - p * kLanes, last = end - p * kLanes;
    first = first < 0 ? 0 : first > kLanes ? kLanes : first;
    last = last < first ? first : last > kLanes ? kLanes : last;
    weight[p] = select_lanes(weight[p], first, last, zero);
  }
  const float most =
      largest_lane(larger(larger(weight[0], weight[1]), larger(weight[2], weight[3])));
  const F16 inverse = F16::all(most > 0 ? kLargestWeight / most : 0.0f);
  CHAIRLIFT_UNROLL
  for (int p = 0; p < kTileGroupPages; ++p) {
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

CHAIRLIFT_INLINE int64_t first_query_index(const chairlift_attention& task, const KvTile& tile,
                                           int64_t group, int64_t head, int64_t row) {
  return (tile.first_row + row) * task.num_heads + (tile.first_kv_head + head) * group;
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
CHAIRLIFT_INLINE void merge_totals(GroupBatch& batch, int64_t num, bool all_see, float* largest,
                                   float* totals) {
  for (int64_t q = 0; q < num; q += kLanes) {
    F16 keep, add_total, add, after;
    rescale(F16::load(largest + q), F16::load(batch.largest + q), F16::load(batch.unit + q), &keep,
            &add_total, &add, &after);
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
      largest[i] = batch.new_largest[i];
      float* total = totals + i * kLanes;
      multiply_add(F16::load(total), F16::all(batch.keep[i]),
                   F16::load(batch.totals + i * kLanes) * F16::all(factor[i - q]))
          .store(total);
    }
  }
}

// Leaves the group's maxima and totals as they are, and has its sums left so too.
CHAIRLIFT_INLINE void store_totals(GroupBatch& batch, int64_t num, int64_t dim, float* records) {
  for (int64_t q = 0; q < num; ++q) {
    float* record = records + q * (kPartialSums + dim);
    record[0] = batch.largest[q];
    record[1] = batch.unit[q];
    F16::load(batch.totals + q * kLanes).store(record + kPartialTotals);
    for (int64_t i = 0; i < dim; i += kLanes) F16::all(0.0f).store(record + kPartialSums + i);
    batch.keep[q] = 0.0f;
    batch.add[q] = 1.0f;
  }
}

CHAIRLIFT_INLINE void attend_batch(const chairlift_attention& task, const KvTile& tile,
                                   int64_t group_heads, const BatchRange& range, int64_t group,
                                   const HeadPages* heads, int count, Fetcher& fetcher,
                                   const KvState& state) {
  const KvLayout layout = {task.head_dim};
  const int64_t dim = task.head_dim, group_start = group * kGroupTokens;
  const int64_t head_queries = tile.num_rows * group_heads;
  const int64_t num_rows = (range.first_in_row + range.num + group_heads - 1) / group_heads;
  const Span first_seen = seen_from(task, tile.first_position + range.first_row);
  const Span last_seen = seen_from(task, tile.first_position + range.first_row + num_rows - 1);
  const bool sees_any =
      last_seen.end > group_start && first_seen.begin < group_start + kGroupTokens;
  if (!sees_any && !tile.partials) return;
  const int64_t pages_seen = (last_seen.end - group_start + kPageTokens - 1) / kPageTokens;
  if (pages_seen < count) count = pages_seen < 0 ? 0 : static_cast<int>(pages_seen);

  GroupBatch& batch = *state.batch;
  const int64_t base = range.first_head * head_queries + range.first;
  const int64_t num = range.num, total = range.num_heads * num;
  // Shares of what is to be fetched, about as the phases share time.
  const int64_t lines = fetcher.page_lines * (fetcher.num_pages - fetcher.index);
  int64_t num_steps = (num + kDotQueries - 1) / kDotQueries;
  int64_t portion =
      (lines * 5 / 16 + range.num_heads * num_steps - 1) / (range.num_heads * num_steps);
  for (int64_t head = 0; head < range.num_heads; ++head) {
    const HeadPages& pages = heads[range.first_head + head];
    int64_t q = 0;
    for (int64_t step = num_steps; step > 0; --step) {
      const int64_t size = (num - q + step - 1) / step, at = head * num + q;
      score_up_to<kDotQueries>(size, state.codes + (base + at) * dim, state.starts + base + at,
                               state.factors + base + at, pages.at, count, fetcher.take(portion),
                               layout, batch.scores + at * kTileGroupTokens);
      q += size;
    }
  }

  bool all_see = true;
  portion = (lines * 4 / 16 + total - 1) / total;
  for (int64_t head = 0; head < range.num_heads; ++head) {
    const uint8_t* const* pages = heads[range.first_head + head].at;
    int64_t row = range.first_row, in_row = range.first_in_row;
    for (int64_t q = head * num; q < (head + 1) * num; ++q) {
      fetch(fetcher.take(portion), 0, portion);
      const Span seen = seen_from(task, tile.first_position + row);
      const int64_t begin = seen.begin - group_start, end = seen.end - group_start;
      if (begin <= 0 && end >= kGroupTokens) {
        weigh<true>(batch, q, pages, kTileGroupPages, layout, 0, kTileGroupTokens);
      } else if (begin < kGroupTokens && end > 0) {
        weigh<false>(batch, q, pages, count, layout, begin < 0 ? 0 : static_cast<int>(begin),
                     static_cast<int>(smaller_of(end, kGroupTokens)));
      } else {
        weigh_nothing(batch, q);
        all_see = false;
      }
      if (++in_row == group_heads) {
        in_row = 0;
        ++row;
      }
    }
  }

  float* sums = state.sums + base * dim;
  int64_t stride = dim;
  if (tile.partials) {
    stride = kPartialSums + dim;
    float* records =
        tile.partials +
        ((group - tile.first_group) * tile.num_kv_heads * head_queries + base) * stride;
    store_totals(batch, total, dim, records);
    sums = records + kPartialSums;
  } else {
    merge_totals(batch, total, all_see, state.largest + base, state.totals + base * kLanes);
  }

  num_steps = (num + kMixQueries - 1) / kMixQueries;
  portion = (lines * 7 / 16 + range.num_heads * num_steps - 1) / (range.num_heads * num_steps);
  for (int64_t head = 0; head < range.num_heads; ++head) {
    const HeadPages& pages = heads[range.first_head + head];
    int64_t q = 0;
    for (int64_t step = num_steps; step > 0; --step) {
      const int64_t size = (num - q + step - 1) / step, at = head * num + q;
      mix_up_to<kMixQueries>(size, batch.high + at * kTileGroupTokens,
                             batch.low + at * kTileGroupTokens, pages.at, count,
                             fetcher.take(portion), layout, batch.keep + at, batch.add + at,
                             sums + at * stride, stride);
      q += size;
    }
  }
}

CHAIRLIFT_INLINE void point_to_heads(const KvTile& tile, const GroupPages& pages,
                                     int64_t head_bytes, HeadPages* heads) {
  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    for (int j = 0; j < kTileGroupPages; ++j) {
      heads[head].at[j] =
          pages.page[smaller_of(j, pages.count - 1)] + (tile.first_kv_head + head) * head_bytes;
    }
  }
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
    point_to_heads(tile, pages, head_bytes, heads);
    BatchRange range;
    for (range.first_head = 0; range.first_head < tile.num_kv_heads;
         range.first_head += batch_heads) {
      range.num_heads = smaller_of(batch_heads, tile.num_kv_heads - range.first_head);
      range.first_row = range.first_in_row = 0;
      for (range.first = 0; range.first < head_queries; range.first += kBatchQueries) {
        range.num = smaller_of(kBatchQueries, head_queries - range.first);
        attend_batch(task, tile, group_heads, range, group, heads, pages.count, fetcher, state);
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

void attend_tiles(const chairlift_attention& task, const KvTile* tiles, int64_t num_tiles,
                  float* memory) {
  for (int64_t i = 0; i < num_tiles; ++i) {
    attend_tile(task, tiles[i], i + 1 < num_tiles ? tiles + i + 1 : nullptr, memory);
  }
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
        prefetch_line(next + i + v * kCodesBytes);
      }
    }
  }
  return static_cast<int64_t>(sum_lanes(to_float((sum[0] + sum[1]) + (sum[2] + sum[3]))));
}

constexpr KvKernels kKvKernels = {store_kv, store_qkv, attend_tiles, merge_partials, read_pieces};

}  // namespace
}  // namespace chairlift
