// Causal attention over paged keys and values stored as floats of type T (kv_layout.h).
//
// A *query* is one head of one row; its positions are walked in groups of 64.  In a group
//   scores  query-key products: multiply-adds in the order of dimensions, a token per lane,
//   weights e^(score - the group's own maximum),
//   sums    weighted values: multiply-adds in the order of positions.
// A group's part depends on the query and on the positions it sees only: not on the tile, nor on
// where else the context is cut.  Parts are merged in order of position, by the same operations
// whether they come from registers or from memory (Milakov & Gimelshein 2018; Dao et al. 2022).
// That is what makes prefill, chunks and decode agree to the bit.  Positions that a query does not
// see are left out, for what lies there may be no number.
//
// Names live in a namespace of their own: attention over bytes has parts of the same kind.
#pragma once

#include <cmath>

#include "../isa/kernel_table.h"
#include "../kv_layout.h"
#include "stored_floats.h"

namespace chairlift {
namespace {
namespace floats {

#if defined(CHAIRLIFT_VEC_AVX512)
constexpr int kScoreQueries = 6, kScorePages = 4;  // 24 accumulators and 4 of keys
constexpr int kMixQueries = 6, kMixVectors = 4;    // the same of values
#elif defined(CHAIRLIFT_VEC_AVX2)
constexpr int kScoreQueries = 2, kScorePages = 2;  // 8 registers
constexpr int kMixQueries = 2, kMixVectors = 2;    // 8 registers
#else
constexpr int kScoreQueries = 1, kScorePages = 1;
constexpr int kMixQueries = 1, kMixVectors = 1;
#endif

constexpr int kTileGroupTokens = static_cast<int>(kGroupTokens);
constexpr int kTileGroupPages = static_cast<int>(kGroupPages);
constexpr int kBatchQueries = static_cast<int>(kKvBatchQueries);
constexpr int kBatchLanes = 32;
constexpr int kLineBytes = 64;
constexpr float kNothing = -INFINITY;

struct Span {
  int64_t begin;
  int64_t end;
};

CHAIRLIFT_INLINE Span seen_from(const chairlift_attention& task, int64_t position) {
  const int64_t begin = position + 1 - task.sliding_window;
  return {task.sliding_window > 0 && begin > 0 ? begin : 0, position + 1};
}

template <class T>
CHAIRLIFT_INLINE FloatKvLayout layout_of(int64_t dim, int64_t page_tokens = kPageTokens) {
  return {dim, static_cast<int64_t>(sizeof(T)), page_tokens};
}

CHAIRLIFT_INLINE int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

// The pages of one group.  Those that the tile does not read before its window are replaced by one
// that it reads: their weights are zero.
struct GroupPages {
  const uint8_t* page[kTileGroupPages];
  int count;
};

// Of blocks that are whole pages of sixteen tokens.
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
    const Lines lines = {page[index] + line * kLineBytes, smaller_of(num_lines, page_lines - line)};
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
    prefetch_far(lines.first + i * kLineBytes);
  }
}

// -- the two products ----------------------------------------------------------------------------

// Some queries that see the same tokens [begin, end) of the group.
struct WeighedQueries {
  const float* weights;  // [queries][64]
  const float* keep;
  const float* add;
  float* sums;
  int64_t stride;
  int begin;
  int end;
};

// scores[q][page][token] = (query . key) * factor[q]
template <class T, int QUERIES, int PAGES>
CHAIRLIFT_NOINLINE void score_pages(const float* queries, const float* factors,
                                    const uint8_t* const* pages, Lines ahead, int64_t dim,
                                    float* scores) {
  F16 sum[QUERIES][PAGES];
  CHAIRLIFT_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    CHAIRLIFT_UNROLL
    for (int p = 0; p < PAGES; ++p) sum[q][p] = F16::all(0.0f);
  }
  const int64_t portion = (ahead.count + dim - 1) / dim;
  for (int64_t i = 0; i < dim; ++i) {
    fetch(ahead, i * portion, (i + 1) * portion);
    F16 key[PAGES];
    CHAIRLIFT_UNROLL
    for (int p = 0; p < PAGES; ++p) {
      key[p] = load_floats(reinterpret_cast<const T*>(pages[p]) + i * kLanes);
    }
    CHAIRLIFT_UNROLL
    for (int q = 0; q < QUERIES; ++q) {
      const F16 query = F16::all(queries[q * dim + i]);
      CHAIRLIFT_UNROLL
      for (int p = 0; p < PAGES; ++p) sum[q][p] = multiply_add(query, key[p], sum[q][p]);
    }
  }
  CHAIRLIFT_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    CHAIRLIFT_UNROLL
    for (int p = 0; p < PAGES; ++p) {
      (sum[q][p] * F16::all(factors[q])).store(scores + q * kTileGroupTokens + p * kLanes);
    }
  }
}

template <class T, int QUERIES>
CHAIRLIFT_INLINE void score_queries(int64_t num, const float* queries, const float* factors,
                                    const uint8_t* const* pages, int count, Lines ahead,
                                    int64_t dim, float* scores) {
  if constexpr (QUERIES > 1) {
    if (num < QUERIES) {
      return score_queries<T, QUERIES - 1>(num, queries, factors, pages, count, ahead, dim, scores);
    }
  }
  int p = 0;
  for (; p + kScorePages <= count; p += kScorePages) {
    score_pages<T, QUERIES, kScorePages>(queries, factors, pages + p, ahead, dim,
                                         scores + p * kLanes);
    ahead.count = 0;
  }
  if constexpr (kScorePages > 1) {
    for (; p < count; ++p) {
      score_pages<T, QUERIES, 1>(queries, factors, pages + p, ahead, dim, scores + p * kLanes);
      ahead.count = 0;
    }
  }
}

// sums[q] = sums[q] * keep[q] + (weights[q] . values) * add[q], for some vectors of dimensions
template <class T, int QUERIES, int VECTORS>
CHAIRLIFT_NOINLINE void mix_tile(const WeighedQueries& w, const uint8_t* const* pages, Lines ahead,
                                 const FloatKvLayout& layout, int64_t column) {
  F16 part[QUERIES][VECTORS];
  CHAIRLIFT_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    CHAIRLIFT_UNROLL
    for (int v = 0; v < VECTORS; ++v) part[q][v] = F16::all(0.0f);
  }
  const int64_t stride = layout.padded_dim();
  const int64_t portion =
      w.end > w.begin ? (ahead.count + w.end - w.begin - 1) / (w.end - w.begin) : 0;
  int64_t fetched = 0;
  for (int first = w.begin, last; first < w.end; first = last) {  // page by page
    const unsigned page = static_cast<unsigned>(first) / kLanes, in_page = first % kLanes;
    last = static_cast<int>(smaller_of(w.end, (page + 1) * kLanes));
    const T* values =
        reinterpret_cast<const T*>(pages[page] + layout.values()) + in_page * stride + column;
    for (int token = first; token < last; ++token, values += stride) {
      fetch(ahead, fetched, fetched + portion);
      fetched += portion;
      F16 value[VECTORS];
      CHAIRLIFT_UNROLL
      for (int v = 0; v < VECTORS; ++v) value[v] = load_floats(values + v * kLanes);
      CHAIRLIFT_UNROLL
      for (int q = 0; q < QUERIES; ++q) {
        const F16 weight = F16::all(w.weights[q * kTileGroupTokens + token]);
        CHAIRLIFT_UNROLL
        for (int v = 0; v < VECTORS; ++v) part[q][v] = multiply_add(weight, value[v], part[q][v]);
      }
    }
  }
  CHAIRLIFT_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    CHAIRLIFT_UNROLL
    for (int v = 0; v < VECTORS; ++v) {
      float* sum = w.sums + q * w.stride + column + v * kLanes;
      multiply_add(F16::load(sum), F16::all(w.keep[q]), part[q][v] * F16::all(w.add[q])).store(sum);
    }
  }
}

template <class T, int QUERIES>
CHAIRLIFT_INLINE void mix_queries(int64_t num, const WeighedQueries& w, const uint8_t* const* pages,
                                  Lines ahead, const FloatKvLayout& layout) {
  if constexpr (QUERIES > 1) {
    if (num < QUERIES) return mix_queries<T, QUERIES - 1>(num, w, pages, ahead, layout);
  }
  int64_t column = 0;
  for (; column + kMixVectors * kLanes <= layout.padded_dim(); column += kMixVectors * kLanes) {
    mix_tile<T, QUERIES, kMixVectors>(w, pages, ahead, layout, column);
    ahead.count = 0;
  }
  for (; column < layout.padded_dim(); column += kLanes) {
    mix_tile<T, QUERIES, 1>(w, pages, ahead, layout, column);
    ahead.count = 0;
  }
}

// -- softmax -------------------------------------------------------------------------------------

// What the queries of a batch have of one group.
struct GroupBatch {
  alignas(64) float scores[kBatchQueries * kTileGroupTokens];  // then weights
  alignas(64) float totals[kBatchQueries * kLanes];
  alignas(64) float largest[kBatchLanes];
  alignas(64) float keep[kBatchLanes];
  alignas(64) float add[kBatchLanes];
  alignas(64) float new_largest[kBatchLanes];
};

static_assert(sizeof(GroupBatch) <= kKvBatchFloats * sizeof(float), "others reserve room for it");

// Scores of query `q` to weights e^(score - the group's own maximum); the query sees tokens
// [begin, end) of the group.
template <bool WHOLE>
CHAIRLIFT_NOINLINE void weigh(GroupBatch& batch, int64_t q, int begin, int end) {
  float* scores = batch.scores + q * kTileGroupTokens;
  if (!WHOLE) {
    for (int i = 0; i < begin; ++i) scores[i] = kNothing;
    for (int i = end; i < kTileGroupTokens; ++i) scores[i] = kNothing;
  }
  F16 weight[kTileGroupPages];
  CHAIRLIFT_UNROLL
  for (int p = 0; p < kTileGroupPages; ++p) weight[p] = F16::load(scores + p * kLanes);
  const float largest =
      largest_lane(larger(larger(weight[0], weight[1]), larger(weight[2], weight[3])));
  CHAIRLIFT_UNROLL
  for (int p = 0; p < kTileGroupPages; ++p) {
    weight[p] = exp_negative(weight[p] - F16::all(largest));
    weight[p].store(scores + p * kLanes);
  }
  ((weight[0] + weight[1]) + (weight[2] + weight[3])).store(batch.totals + q * kLanes);
  batch.largest[q] = largest;
}

// A query that sees nothing of the group.
CHAIRLIFT_INLINE void weigh_nothing(GroupBatch& batch, int64_t q) {
  F16::all(0.0f).store(batch.totals + q * kLanes);
  batch.largest[q] = kNothing;
}

// Factors on what was summed so far and on the group's part, and the new maximum.
CHAIRLIFT_INLINE void rescale(F16 before, F16 group, F16* keep, F16* add, F16* after) {
  *after = larger(before, group);
  *keep = exp_negative(before - *after);
  *add = exp_negative(group - *after);
}

// -- tiles ---------------------------------------------------------------------------------------

// State of the tile's queries, [key/value heads][rows][query heads of a group].
struct KvState {
  float* sums;     // [Q][sum_width]
  float* totals;   // [Q][16]
  float* largest;  // [Q], and a vector more
  float* factors;  // [Q]
  float* queries;  // [Q][dim]
  GroupBatch* batch;
  int64_t sum_width;  // the head size in whole vectors
};

CHAIRLIFT_INLINE KvState lay_out_state(float* memory, int64_t num_queries, int64_t dim) {
  const int64_t sum_width = (dim + kLanes - 1) / kLanes * kLanes;
  const int64_t padded = (num_queries + kLanes - 1) / kLanes * kLanes;
  KvState state;
  state.batch = reinterpret_cast<GroupBatch*>(memory);
  state.sums = memory + sizeof(GroupBatch) / sizeof(float);
  state.totals = state.sums + num_queries * sum_width;
  state.largest = state.totals + num_queries * kLanes;
  state.factors = state.largest + padded + kBatchLanes;
  state.queries = state.factors + padded;
  state.sum_width = sum_width;
  return state;
}

CHAIRLIFT_INLINE int64_t first_query_index(const chairlift_attention& task, const KvTile& tile,
                                           int64_t group, int64_t head, int64_t row) {
  return (tile.first_row + row) * task.num_heads + (tile.first_kv_head + head) * group;
}

void start_queries(const chairlift_attention& task, const KvTile& tile, int64_t group,
                   const KvState& state) {
  int64_t q = 0;
  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      const int64_t index = first_query_index(task, tile, group, head, row);
      for (int64_t g = 0; g < group; ++g, ++q) {
        std::memcpy(state.queries + q * task.head_dim,
                    static_cast<const float*>(task.query) + (index + g) * task.head_dim,
                    static_cast<size_t>(task.head_dim) * sizeof(float));
        state.factors[q] = task.scale;
        state.largest[q] = kNothing;
      }
    }
  }
  const int64_t width = state.sum_width;
  for (int64_t i = 0; i < q * width; i += kLanes) F16::all(0.0f).store(state.sums + i);
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
        const float inverse = 1.0f / sum_lanes(F16::load(state.totals + q * kLanes));
        const float* sums = state.sums + q * state.sum_width;
        int64_t i = 0;
        for (; i + kLanes <= dim; i += kLanes) {
          (F16::load(sums + i) * F16::all(inverse)).store(out + i);
        }
        for (; i < dim; ++i) out[i] = sums[i] * inverse;
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
    F16 keep, add, after;
    rescale(F16::load(largest + q), F16::load(batch.largest + q), &keep, &add, &after);
    keep.store(batch.keep + q);
    add.store(batch.add + q);
    after.store(batch.new_largest + q);
    for (int64_t i = q; i < num && i < q + kLanes; ++i) {
      if (!all_see && batch.largest[i] == kNothing) {
        batch.keep[i] = 1.0f;
        batch.add[i] = 0.0f;
      }
      largest[i] = batch.new_largest[i];
      float* total = totals + i * kLanes;
      multiply_add(F16::load(total), F16::all(batch.keep[i]),
                   F16::load(batch.totals + i * kLanes) * F16::all(batch.add[i]))
          .store(total);
    }
  }
}

// Leaves the group's maxima and totals as they are, and has its sums left so too.
CHAIRLIFT_INLINE void store_totals(GroupBatch& batch, int64_t num, int64_t width, float* records) {
  for (int64_t q = 0; q < num; ++q) {
    float* record = records + q * (kPartialSums + width);
    record[0] = batch.largest[q];
    F16::load(batch.totals + q * kLanes).store(record + kPartialTotals);
    for (int64_t i = 0; i < width; i += kLanes) F16::all(0.0f).store(record + kPartialSums + i);
    batch.keep[q] = 0.0f;
    batch.add[q] = 1.0f;
  }
}

// What a batch computes in one group.
struct BatchWork {
  const chairlift_attention& task;
  const KvTile& tile;
  const BatchRange& range;
  const HeadPages* heads;  // of the tile
  int count;               // pages that some query sees
  int64_t group_start;
  int64_t group_heads;
  int64_t base;  // of the batch's first query in the state

  CHAIRLIFT_INLINE Span seen(int64_t row) const {
    const Span span = seen_from(task, tile.first_position + row);
    return {span.begin - group_start, span.end - group_start};
  }
};

// Shares of what is to be fetched, in lines, for each of so many calls; of sixteenths.
CHAIRLIFT_INLINE int64_t portion_of(int64_t lines, int64_t sixteenths, int64_t num_calls) {
  return (lines * sixteenths / 16 + num_calls - 1) / num_calls;
}

template <class T>
CHAIRLIFT_INLINE void score_batch(const BatchWork& work, int64_t lines, Fetcher& fetcher,
                                  const KvState& state) {
  const int64_t num = work.range.num;
  const int64_t num_steps = (num + kScoreQueries - 1) / kScoreQueries;
  const int64_t portion = portion_of(lines, 5, work.range.num_heads * num_steps);
  for (int64_t head = 0; head < work.range.num_heads; ++head) {
    const HeadPages& pages = work.heads[work.range.first_head + head];
    int64_t q = 0;
    for (int64_t step = num_steps; step > 0; --step) {
      const int64_t size = (num - q + step - 1) / step, at = head * num + q;
      const int64_t dim = work.task.head_dim, query = work.base + at;
      score_queries<T, kScoreQueries>(size, state.queries + query * dim, state.factors + query,
                                      pages.at, work.count, fetcher.take(portion), dim,
                                      state.batch->scores + at * kTileGroupTokens);
      q += size;
    }
  }
}

// Returns whether all queries see something.
CHAIRLIFT_INLINE bool weigh_batch(const BatchWork& work, int64_t lines, Fetcher& fetcher,
                                  GroupBatch& batch) {
  const BatchRange& range = work.range;
  const int64_t num = range.num;
  const int64_t portion = portion_of(lines, 4, range.num_heads * num);
  bool all_see = true;
  for (int64_t head = 0; head < range.num_heads; ++head) {
    int64_t row = range.first_row, in_row = range.first_in_row;
    for (int64_t q = head * num; q < (head + 1) * num; ++q) {
      fetch(fetcher.take(portion), 0, portion);
      const Span seen = work.seen(row);
      if (seen.begin <= 0 && seen.end >= kGroupTokens) {
        weigh<true>(batch, q, 0, kTileGroupTokens);
      } else if (seen.begin < kGroupTokens && seen.end > 0) {
        weigh<false>(batch, q, seen.begin < 0 ? 0 : static_cast<int>(seen.begin),
                     static_cast<int>(smaller_of(seen.end, kGroupTokens)));
      } else {
        weigh_nothing(batch, q);
        all_see = false;
      }
      if (++in_row == work.group_heads) {
        in_row = 0;
        ++row;
      }
    }
  }
  return all_see;
}

// Tokens [begin, end) of the group.
struct TokenRange {
  int begin;
  int end;
};

CHAIRLIFT_INLINE TokenRange tokens_seen(const BatchWork& work, int64_t row) {
  const Span seen = work.seen(row);
  const int64_t begin = seen.begin < 0 ? 0 : smaller_of(seen.begin, kGroupTokens);
  const int64_t end = smaller_of(seen.end, kGroupTokens);
  return {static_cast<int>(begin), static_cast<int>(end < begin ? begin : end)};
}

CHAIRLIFT_INLINE bool same(TokenRange a, TokenRange b) {
  return a.begin == b.begin && a.end == b.end;
}

// Rows that see the same tokens of the group are mixed together.
template <class T>
CHAIRLIFT_INLINE void mix_batch(const BatchWork& work, int64_t lines, Fetcher& fetcher,
                                const GroupBatch& batch, float* sums, int64_t stride) {
  const BatchRange& range = work.range;
  const FloatKvLayout layout = layout_of<T>(work.task.head_dim);
  const int64_t num = range.num;
  const int64_t num_calls = range.num_heads * ((num + kMixQueries - 1) / kMixQueries);
  const int64_t portion = portion_of(lines, 7, num_calls);
  for (int64_t head = 0; head < range.num_heads; ++head) {
    const HeadPages& pages = work.heads[range.first_head + head];
    int64_t row = range.first_row, row_end = work.group_heads - range.first_in_row;
    for (int64_t q = 0; q < num;) {
      const TokenRange seen = tokens_seen(work, row);
      int64_t end = row_end;
      while (end < num && same(tokens_seen(work, row + 1), seen)) {
        ++row;
        end += work.group_heads;
      }
      row_end = end + work.group_heads;
      ++row;
      if (end > num) end = num;
      for (int64_t step = (end - q + kMixQueries - 1) / kMixQueries; step > 0; --step) {
        const int64_t at = head * num + q, size = (end - q + step - 1) / step;
        mix_queries<T, kMixQueries>(
            size,
            {batch.scores + at * kTileGroupTokens, batch.keep + at, batch.add + at,
             sums + at * stride, stride, seen.begin, seen.end},
            pages.at, fetcher.take(portion), layout);
        q += size;
      }
    }
  }
}

template <class T>
CHAIRLIFT_INLINE void attend_batch(const chairlift_attention& task, const KvTile& tile,
                                   int64_t group_heads, const BatchRange& range, int64_t group,
                                   const HeadPages* heads, int count, Fetcher& fetcher,
                                   const KvState& state) {
  const int64_t group_start = group * kGroupTokens;
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
  const int64_t total = range.num_heads * range.num, width = state.sum_width;
  const BatchWork work = {task, tile, range, heads, count, group_start, group_heads, base};
  // What is to be fetched is shared out about as the phases share time.
  const int64_t lines = fetcher.page_lines * (fetcher.num_pages - fetcher.index);
  score_batch<T>(work, lines, fetcher, state);
  const bool all_see = weigh_batch(work, lines, fetcher, batch);
  if (tile.partials) {
    const int64_t stride = kPartialSums + width;
    float* records =
        tile.partials +
        ((group - tile.first_group) * tile.num_kv_heads * head_queries + base) * stride;
    store_totals(batch, total, width, records);
    mix_batch<T>(work, lines, fetcher, batch, records + kPartialSums, stride);
  } else {
    merge_totals(batch, total, all_see, state.largest + base, state.totals + base * kLanes);
    mix_batch<T>(work, lines, fetcher, batch, state.sums + base * width, width);
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
  fetcher.page_lines = tile.num_kv_heads * head_bytes / kLineBytes;
  fetcher.index = fetcher.line = 0;
  return fetcher;
}

// Copies a group's tokens to whole pages, head by head; returns how many pages there are.
template <class T>
CHAIRLIFT_NOINLINE int gather_group(const chairlift_attention& task, const KvTile& tile,
                                    int64_t group, uint8_t* copies, HeadPages* heads) {
  const int64_t dim = task.head_dim, start = group * kGroupTokens;
  const FloatKvLayout from = layout_of<T>(dim, float_page_tokens(task.block_size)),
                      to = layout_of<T>(dim);
  const int64_t first = seen_from(task, tile.first_position).begin;
  const int64_t end = tile.first_position + tile.num_rows;
  const int32_t* table = task.block_tables + tile.sequence * task.max_blocks;
  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    for (int p = 0; p < kTileGroupPages; ++p) {
      heads[head].at[p] = copies + (head * kTileGroupPages + p) * to.head_bytes();
    }
  }
  for (int64_t position = first > start ? first : start;
       position < smaller_of(end, start + kGroupTokens); ++position) {
    const int64_t block = position / task.block_size, offset = position % task.block_size;
    const uint8_t* page = task.kv_cache + table[block] * task.block_stride +
                          offset / from.page_tokens * task.num_kv_heads * from.head_bytes();
    const int64_t token = offset % from.page_tokens, at = position - start;
    for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
      const uint8_t* source = page + (tile.first_kv_head + head) * from.head_bytes();
      uint8_t* copy = const_cast<uint8_t*>(heads[head].at[at / kPageTokens]);
      const T* key = reinterpret_cast<const T*>(source) + token;
      T* key_copy = reinterpret_cast<T*>(copy) + at % kPageTokens;
      for (int64_t i = 0; i < dim; ++i) key_copy[i * kPageTokens] = key[i * from.page_tokens];
      std::memcpy(reinterpret_cast<T*>(copy + to.values()) + at % kPageTokens * to.padded_dim(),
                  reinterpret_cast<const T*>(source + from.values()) + token * to.padded_dim(),
                  static_cast<size_t>(to.padded_dim()) * sizeof(T));
    }
  }
  const int64_t count = (smaller_of(end - start, kGroupTokens) + kPageTokens - 1) / kPageTokens;
  return static_cast<int>(count);
}

template <class T>
void attend_tile(const chairlift_attention& task, const KvTile& tile, const KvTile* following,
                 float* memory) {
  const int64_t group_heads = task.num_heads / task.num_kv_heads;
  const int64_t head_queries = tile.num_rows * group_heads;
  const int64_t batch_heads = head_queries < kBatchQueries ? kBatchQueries / head_queries : 1;
  const KvState state = lay_out_state(memory, tile.num_kv_heads * head_queries, task.head_dim);
  start_queries(task, tile, group_heads, state);
  const int64_t last = tile.first_group + tile.num_groups - 1;
  // Blocks of smaller pages are copied together; the others are read where they lie.
  const bool gathers = task.block_size % kPageTokens != 0;
  const int64_t head_bytes = layout_of<T>(task.head_dim).head_bytes();
  const int64_t page_bytes = task.num_kv_heads * head_bytes;
  GroupPages pages = {}, next = {};
  if (!gathers) pages = locate_group(task, tile, tile.first_group, page_bytes);
  HeadPages heads[kKvTileHeads];
  for (int64_t group = tile.first_group; group <= last; ++group) {
    const KvTile* next_tile = group < last ? &tile : following;
    Fetcher fetcher = {};
    if (gathers) {
      uint8_t* copies = reinterpret_cast<uint8_t*>(
          state.queries + tile.num_kv_heads * head_queries * task.head_dim + kLaneFloats);
      pages.count = gather_group<T>(task, tile, group, copies, heads);
    } else {
      if (next_tile) {
        next = locate_group(task, *next_tile, group < last ? group + 1 : following->first_group,
                            page_bytes);
        fetcher = fetch_from(*next_tile, next, head_bytes);
      }
      point_to_heads(tile, pages, head_bytes, heads);
    }
    BatchRange range;
    for (range.first_head = 0; range.first_head < tile.num_kv_heads;
         range.first_head += batch_heads) {
      range.num_heads = smaller_of(batch_heads, tile.num_kv_heads - range.first_head);
      range.first_row = range.first_in_row = 0;
      for (range.first = 0; range.first < head_queries; range.first += kBatchQueries) {
        range.num = smaller_of(kBatchQueries, head_queries - range.first);
        attend_batch<T>(task, tile, group_heads, range, group, heads, pages.count, fetcher, state);
        for (range.first_in_row += range.num; range.first_in_row >= group_heads;
             range.first_in_row -= group_heads) {
          ++range.first_row;
        }
      }
    }
    while (fetcher.index < fetcher.num_pages) {
      fetch(fetcher.take(fetcher.page_lines), 0, fetcher.page_lines);
    }
    if (!gathers) pages = next;
  }
  if (!tile.partials) finish_queries(task, tile, group_heads, state);
}

void merge_partials(const chairlift_attention& task, const KvTile& tile, float* memory) {
  const int64_t group_heads = task.num_heads / task.num_kv_heads;
  const int64_t num_queries = tile.num_kv_heads * tile.num_rows * group_heads;
  const KvState state = lay_out_state(memory, num_queries, task.head_dim);
  const int64_t width = state.sum_width, record = kPartialSums + width;
  for (int64_t q = 0; q < num_queries; ++q) {
    F16 largest = F16::all(kNothing), total = F16::all(0.0f);
    float* sums = state.sums + q * width;
    for (int64_t i = 0; i < width; i += kLanes) F16::all(0.0f).store(sums + i);
    for (int64_t group = 0; group < tile.num_groups; ++group) {
      const float* part = tile.partials + (group * num_queries + q) * record;
      if (part[0] == kNothing) continue;
      F16 keep, add, after;
      rescale(largest, F16::all(part[0]), &keep, &add, &after);
      largest = after;
      total = multiply_add(total, keep, F16::load(part + kPartialTotals) * add);
      for (int64_t i = 0; i < width; i += kLanes) {
        multiply_add(F16::load(sums + i), keep, F16::load(part + kPartialSums + i) * add)
            .store(sums + i);
      }
    }
    total.store(state.totals + q * kLanes);
  }
  finish_queries(task, tile, group_heads, state);
}

void attend(const chairlift_attention& task, const KvTile& tile, const KvTile* following,
            float* memory) {
  switch (task.kv_type) {
    case CHAIRLIFT_KV_FLOAT16:
      return attend_tile<Half>(task, tile, following, memory);
    case CHAIRLIFT_KV_BFLOAT16:
      return attend_tile<BFloat16>(task, tile, following, memory);
    default:
      return attend_tile<float>(task, tile, following, memory);
  }
}

}  // namespace floats

constexpr AttentionKernels kFloatAttention = {floats::attend, floats::merge_partials};

}  // namespace
}  // namespace chairlift
