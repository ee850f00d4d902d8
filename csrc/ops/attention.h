// Causal attention over paged keys and values stored as floats: softmax online (Milakov &
// Gimelshein 2018), with the query heads of a group and the rows of a tile sharing every load
// (FlashAttention, Dao et al. 2022).  T is what they are stored as; everything is computed in
// float32.
//
// A *query* is one head of one row.  Positions are walked in groups of sixteen that start at
// multiples of sixteen, whatever the block size.  What a query computes in a group depends on its
// own range of positions only, and groups come in order, so a query's result is the same to the bit
// in any tile: that is what makes prefill, chunks and decode agree.
//
//   scratch | sums [Q][P] | weights [Q][16] | keys [D][16] | values [16][P] | queries [Q][D] | ...
//   Q = key/value heads of the tile * rows * query heads of a group, P = D rounded up to 16
#pragma once

#include <cmath>

#include "../isa/kernel_table.h"
#include "stored_floats.h"

namespace chairlift {
namespace {

// Not a matter of registers: a score is the sum of so many chains, and instruction sets are to
// agree.
constexpr int kScoreChains = 2;
#if defined(CHAIRLIFT_VEC_AVX512)
constexpr int kScoreQueries = 4;                 // 8 accumulators
constexpr int kSumQueries = 4, kSumVectors = 4;  // 16 accumulators
#elif defined(CHAIRLIFT_VEC_AVX2)
constexpr int kScoreQueries = 3;                 // 12 registers
constexpr int kSumQueries = 4, kSumVectors = 1;  // 8 registers
#else
constexpr int kScoreQueries = 1;
constexpr int kSumQueries = 2, kSumVectors = 1;
#endif

constexpr float kMinusInfinity = -INFINITY;

CHAIRLIFT_INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
CHAIRLIFT_INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

// Running softmax of one query.  Lanes of `total` are summed only at the end.
struct Softmax {
  float largest;
  float total[kLanes];
};

// Positions [begin, end) that a query sees.
struct Range {
  int64_t begin;
  int64_t end;
};

CHAIRLIFT_INLINE Range visible(const chairlift_attention& task, int64_t position) {
  const int64_t window = task.sliding_window;
  return {window > 0 ? at_least(0, position + 1 - window) : 0, position + 1};
}

// Addresses of the keys of one group of sixteen positions, at the tile's first head.
template <class T>
struct KeyGroup {
  const T* key[kLanes];  // null outside the range that the tile reads
};

// From a key to its value, in a piece [2][block_size][num_kv_heads][head_dim].
CHAIRLIFT_INLINE int64_t value_offset(const chairlift_attention& task) {
  return task.block_size * task.num_kv_heads * task.head_dim;
}

template <class T>
CHAIRLIFT_INLINE void locate_keys(const chairlift_attention& task, const AttentionTile& tile,
                                  int64_t group_start, Range range, KeyGroup<T>& group) {
  const int32_t* table = task.block_tables + tile.sequence * task.max_blocks;
  const int64_t first = tile.first_kv_head * task.head_dim;
  const int64_t token_stride = task.num_kv_heads * task.head_dim;
  int64_t block = group_start / task.block_size;
  int64_t offset = group_start - block * task.block_size;
  for (int j = 0; j < kLanes; ++j) {
    const int64_t position = group_start + j;
    const bool read = position >= range.begin && position < range.end;
    group.key[j] = nullptr;
    if (read) {
      const uint8_t* piece = task.kv_cache + table[block] * task.block_stride;
      group.key[j] = reinterpret_cast<const T*>(piece) + first + offset * token_stride;
    }
    if (++offset == task.block_size) {
      offset = 0;
      ++block;
    }
  }
}

template <class T>
CHAIRLIFT_INLINE void prefetch_group(const KeyGroup<T>& group, int64_t to_value, int64_t first,
                                     int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int j = 0; j < kLanes; ++j) {
    if (!group.key[j]) continue;
    for (int64_t i = first; i < first + width; i += kLine) {
      prefetch(group.key[j] + i);
      prefetch(group.key[j] + to_value + i);
    }
  }
}

// scores[q][j] = (queries[q] . key j) * scale
template <int QUERIES>
CHAIRLIFT_INLINE void score_tile(const float* queries, const float* keys, int64_t dim, float scale,
                                 float* scores) {
  F16 sum[QUERIES][kScoreChains];
  for (int q = 0; q < QUERIES; ++q) {
    for (int c = 0; c < kScoreChains; ++c) sum[q][c] = F16::all(0.0f);
  }
  int64_t i = 0;
  for (; i + kScoreChains <= dim; i += kScoreChains) {
    for (int c = 0; c < kScoreChains; ++c) {
      const F16 column = F16::load(keys + (i + c) * kLanes);
      for (int q = 0; q < QUERIES; ++q) {
        sum[q][c] = multiply_add(F16::all(queries[q * dim + i + c]), column, sum[q][c]);
      }
    }
  }
  for (; i < dim; ++i) {
    const F16 column = F16::load(keys + i * kLanes);
    for (int q = 0; q < QUERIES; ++q) {
      sum[q][0] = multiply_add(F16::all(queries[q * dim + i]), column, sum[q][0]);
    }
  }
  for (int q = 0; q < QUERIES; ++q) {
    F16 score = sum[q][0];
    for (int c = 1; c < kScoreChains; ++c) score = score + sum[q][c];
    (score * F16::all(scale)).store(scores + q * kLanes);
  }
}

// The `rest` queries, at most QUERIES, that fill no whole tile.
template <int QUERIES>
CHAIRLIFT_INLINE void score_rest(int64_t rest, const float* queries, const float* keys, int64_t dim,
                                 float scale, float* scores) {
  if constexpr (QUERIES > 0) {
    if (rest == QUERIES) return score_tile<QUERIES>(queries, keys, dim, scale, scores);
    score_rest<QUERIES - 1>(rest, queries, keys, dim, scale, scores);
  }
}

// sums[q] += weights[q][j] * value j for j in [begin, end), in order
template <int QUERIES, int VECTORS>
CHAIRLIFT_INLINE void add_values_tile(const float* weights, const float* const* values,
                                      int64_t column, int begin, int end, float* sums,
                                      int64_t padded) {
  F16 sum[QUERIES][VECTORS];
  for (int q = 0; q < QUERIES; ++q) {
    for (int v = 0; v < VECTORS; ++v) sum[q][v] = F16::load(sums + q * padded + v * kLanes);
  }
  for (int j = begin; j < end; ++j) {
    F16 value[VECTORS];
    for (int v = 0; v < VECTORS; ++v) value[v] = F16::load(values[j] + column + v * kLanes);
    for (int q = 0; q < QUERIES; ++q) {
      const F16 weight = F16::all(weights[q * kLanes + j]);
      for (int v = 0; v < VECTORS; ++v) sum[q][v] = multiply_add(weight, value[v], sum[q][v]);
    }
  }
  for (int q = 0; q < QUERIES; ++q) {
    for (int v = 0; v < VECTORS; ++v) sum[q][v].store(sums + q * padded + v * kLanes);
  }
}

template <int QUERIES>
CHAIRLIFT_INLINE void add_values(const float* weights, const float* const* values, int begin,
                                 int end, float* sums, int64_t padded) {
  int64_t i = 0;
  for (; i + kSumVectors * kLanes <= padded; i += kSumVectors * kLanes) {
    add_values_tile<QUERIES, kSumVectors>(weights, values, i, begin, end, sums + i, padded);
  }
  for (; i < padded; i += kLanes) {
    add_values_tile<QUERIES, 1>(weights, values, i, begin, end, sums + i, padded);
  }
}

// The `rest` queries, at most QUERIES, that fill no whole tile.
template <int QUERIES>
CHAIRLIFT_INLINE void add_rest(int64_t rest, const float* weights, const float* const* values,
                               float* sums, int64_t padded) {
  if constexpr (QUERIES > 0) {
    if (rest == QUERIES) return add_values<QUERIES>(weights, values, 0, kLanes, sums, padded);
    add_rest<QUERIES - 1>(rest, weights, values, sums, padded);
  }
}

// Turns 16 scores into weights relative to the query's running maximum, and rescales what the query
// has summed so far if that maximum grew.  Lanes outside [begin, end) get weight 0.
CHAIRLIFT_INLINE void update_softmax(Softmax& softmax, float* scores, int begin, int end,
                                     float* sums, int64_t padded) {
  for (int j = 0; j < begin; ++j) scores[j] = kMinusInfinity;
  for (int j = end; j < kLanes; ++j) scores[j] = kMinusInfinity;
  const F16 score = F16::load(scores);
  const float largest = largest_lane(score);
  F16 total = F16::load(softmax.total);
  if (largest > softmax.largest) {
    const F16 factor = exp_negative(F16::all(softmax.largest) - F16::all(largest));
    softmax.largest = largest;
    total = total * factor;
    for (int64_t i = 0; i < padded; i += kLanes) (F16::load(sums + i) * factor).store(sums + i);
  }
  const F16 weight = exp_negative(score - F16::all(softmax.largest));
  weight.store(scores);
  (total + weight).store(softmax.total);
}

// Sizes of a tile, per key/value head.
struct TileShape {
  int64_t dim;
  int64_t padded;   // dim rounded up to whole vectors
  int64_t group;    // query heads that share the key/value head
  int64_t queries;  // rows * group
};

struct TileScratch {
  float* sums;
  float* weights;
  float* keys;
  float* values;
  float* queries;
  Softmax* softmax;
};

CHAIRLIFT_INLINE TileScratch lay_out(float* memory, int64_t num_queries, const TileShape& shape) {
  TileScratch scratch;
  scratch.sums = memory;
  scratch.weights = scratch.sums + num_queries * shape.padded;
  scratch.keys = scratch.weights + num_queries * kLanes;
  scratch.values = scratch.keys + shape.dim * kLanes;
  scratch.queries = scratch.values + kLanes * shape.padded;
  scratch.softmax = reinterpret_cast<Softmax*>(scratch.queries + num_queries * shape.dim);
  return scratch;
}

// The part of one of the tile's key/value heads; keys and values are shared.
CHAIRLIFT_INLINE TileScratch part_of_head(TileScratch scratch, int64_t head,
                                          const TileShape& shape) {
  const int64_t first_query = head * shape.queries;
  scratch.sums += first_query * shape.padded;
  scratch.weights += first_query * kLanes;
  scratch.queries += first_query * shape.dim;
  scratch.softmax += first_query;
  return scratch;
}

// Where the values of a group are as float32, `padded` of them in a row: in the cache, or copied to
// scratch.  Null where there is no key.
template <class T>
CHAIRLIFT_INLINE void prepare_values(const T* const* stored, const TileShape& shape, float* scratch,
                                     const float** value) {
  for (int j = 0; j < kLanes; ++j) {
    value[j] = nullptr;
    if (!stored[j]) continue;
    float* copy = scratch + j * shape.padded;
    int64_t i = 0;
    for (; i + kLanes <= shape.dim; i += kLanes) load_floats(stored[j] + i).store(copy + i);
    for (; i < shape.dim; ++i) copy[i] = to_float(stored[j][i]);
    for (; i < shape.padded; ++i) copy[i] = 0.0f;
    value[j] = copy;
  }
}

CHAIRLIFT_INLINE void prepare_values(const float* const* stored, const TileShape& shape,
                                     float* scratch, const float** value) {
  if (shape.padded != shape.dim) return prepare_values<float>(stored, shape, scratch, value);
  for (int j = 0; j < kLanes; ++j) value[j] = stored[j];
}

// The queries of one of the tile's key/value heads against one group of positions.
template <class T>
CHAIRLIFT_INLINE void attend_group(const chairlift_attention& task, const AttentionTile& tile,
                                   const TileShape& shape, const TileScratch& scratch,
                                   const KeyGroup<T>& group, int64_t group_start, int64_t head) {
  const int64_t dim = shape.dim, padded = shape.padded, heads = shape.group;
  // Rows of the tile that see any of these positions: consecutive, since both ends of a row's range
  // move on from row to row.
  int64_t first = 0, last = tile.num_rows;
  while (first < last && visible(task, tile.first_position + first).end <= group_start) ++first;
  while (first < last &&
         visible(task, tile.first_position + last - 1).begin >= group_start + kLanes) {
    --last;
  }
  if (first == last) return;

  // Lanes that no row may read get key zero; their scores are masked, their values skipped.
  const T *key[kLanes], *stored[kLanes];
  for (int64_t i = 0; i < dim; ++i) scratch.values[i] = 0.0f;
  for (int j = 0; j < kLanes; ++j) {
    const T* found = group.key[j] ? group.key[j] + head * dim : nullptr;
    key[j] = found ? found : reinterpret_cast<const T*>(scratch.values);
    stored[j] = found ? found + value_offset(task) : nullptr;
  }
  transpose_rows(key, dim, scratch.keys);
  const float* value[kLanes];
  prepare_values(stored, shape, scratch.values, value);

  const int64_t end_query = last * heads;
  int64_t q = first * heads;
  for (; q + kScoreQueries <= end_query; q += kScoreQueries) {
    score_tile<kScoreQueries>(scratch.queries + q * dim, scratch.keys, dim, task.scale,
                              scratch.weights + q * kLanes);
  }
  score_rest<kScoreQueries - 1>(end_query - q, scratch.queries + q * dim, scratch.keys, dim,
                                task.scale, scratch.weights + q * kLanes);

  // Rows that see all sixteen positions are summed together, the others row by row.
  int64_t whole_begin = end_query, whole_end = first * heads;
  for (int64_t row = first; row < last; ++row) {
    const Range range = visible(task, tile.first_position + row);
    const int begin = static_cast<int>(at_least(range.begin - group_start, 0));
    const int end = static_cast<int>(at_most(range.end - group_start, kLanes));
    const bool whole = begin == 0 && end == kLanes;
    for (int64_t i = row * heads; i < (row + 1) * heads; ++i) {
      update_softmax(scratch.softmax[i], scratch.weights + i * kLanes, begin, end,
                     scratch.sums + i * padded, padded);
      if (whole) continue;
      add_values<1>(scratch.weights + i * kLanes, value, begin, end, scratch.sums + i * padded,
                    padded);
    }
    if (!whole) continue;
    whole_begin = at_most(whole_begin, row * heads);
    whole_end = (row + 1) * heads;
  }
  q = whole_begin;
  for (; q + kSumQueries <= whole_end; q += kSumQueries) {
    add_values<kSumQueries>(scratch.weights + q * kLanes, value, 0, kLanes,
                            scratch.sums + q * padded, padded);
  }
  add_rest<kSumQueries - 1>(whole_end - q, scratch.weights + q * kLanes, value,
                            scratch.sums + q * padded, padded);
}

// Where the queries of a row and key/value head of the tile begin, in `query` and in `out`.
CHAIRLIFT_INLINE int64_t query_offset(const chairlift_attention& task, const AttentionTile& tile,
                                      const TileShape& shape, int64_t row, int64_t head) {
  const int64_t first_head = (tile.first_kv_head + head) * shape.group;
  return ((tile.first_row + row) * task.num_heads + first_head) * shape.dim;
}

CHAIRLIFT_INLINE void start_head(const chairlift_attention& task, const AttentionTile& tile,
                                 const TileShape& shape, const TileScratch& scratch, int64_t head) {
  for (int64_t row = 0; row < tile.num_rows; ++row) {
    const float* query =
        static_cast<const float*>(task.query) + query_offset(task, tile, shape, row, head);
    float* copy = scratch.queries + row * shape.group * shape.dim;
    for (int64_t i = 0; i < shape.group * shape.dim; ++i) copy[i] = query[i];
  }
  for (int64_t i = 0; i < shape.queries * shape.padded; ++i) scratch.sums[i] = 0.0f;
  for (int64_t q = 0; q < shape.queries; ++q) {
    scratch.softmax[q].largest = kMinusInfinity;
    for (int j = 0; j < kLanes; ++j) scratch.softmax[q].total[j] = 0.0f;
  }
}

CHAIRLIFT_INLINE void finish_head(const chairlift_attention& task, const AttentionTile& tile,
                                  const TileShape& shape, const TileScratch& scratch,
                                  int64_t head) {
  for (int64_t row = 0; row < tile.num_rows; ++row) {
    float* out = task.out + query_offset(task, tile, shape, row, head);
    for (int64_t g = 0; g < shape.group; ++g) {
      const int64_t q = row * shape.group + g;
      const float total = sum_lanes(F16::load(scratch.softmax[q].total));
      for (int64_t i = 0; i < shape.dim; ++i) {
        out[g * shape.dim + i] = scratch.sums[q * shape.padded + i] / total;
      }
    }
  }
}

template <class T>
void attend_floats(const chairlift_attention& task, const AttentionTile& tile, float* memory) {
  TileShape shape;
  shape.dim = task.head_dim;
  shape.padded = (shape.dim + kLanes - 1) / kLanes * kLanes;
  shape.group = task.num_heads / task.num_kv_heads;
  shape.queries = tile.num_rows * shape.group;
  const TileScratch scratch = lay_out(memory, tile.num_kv_heads * shape.queries, shape);
  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    start_head(task, tile, shape, part_of_head(scratch, head, shape), head);
  }

  const Range range = {visible(task, tile.first_position).begin,
                       visible(task, tile.first_position + tile.num_rows - 1).end};
  int64_t start = range.begin / kLanes * kLanes;
  KeyGroup<T> group, next;
  locate_keys(task, tile, start, range, group);
  for (; start < range.end; start += kLanes) {
    const bool has_next = start + kLanes < range.end;
    if (has_next) locate_keys(task, tile, start + kLanes, range, next);
    for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
      if (has_next) prefetch_group(next, value_offset(task), head * shape.dim, shape.dim);
      attend_group(task, tile, shape, part_of_head(scratch, head, shape), group, start, head);
    }
    group = next;
  }

  for (int64_t head = 0; head < tile.num_kv_heads; ++head) {
    finish_head(task, tile, shape, part_of_head(scratch, head, shape), head);
  }
}

void paged_attention(const chairlift_attention& task, const AttentionTile& tile, float* memory) {
  if (task.kv_type == CHAIRLIFT_KV_FLOAT16) return attend_floats<Half>(task, tile, memory);
  if (task.kv_type == CHAIRLIFT_KV_BFLOAT16) return attend_floats<BFloat16>(task, tile, memory);
  attend_floats<float>(task, tile, memory);
}

}  // namespace
}  // namespace chairlift
