// The C functions of the quantised cache: checking arguments, cutting attention into tiles.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "api.h"
#include "arguments.h"
#include "dispatch.h"
#include "kv_layout.h"

namespace chairlift {

int64_t attention_int8_scratch_floats(const chairlift_attention_int8& task, const KvTile& tile) {
  const int64_t queries = tile.num_kv_heads * tile.num_rows * (task.num_heads / task.num_kv_heads);
  return kKvBatchFloats + (queries + 16) * (task.head_dim + 16 + 3 + task.head_dim / 4) + 64;
}

namespace {

constexpr int64_t kRowsPerStore = 16;    // neighbours write to the same pages
constexpr int64_t kQueriesPerTile = 96;  // of one key/value head
constexpr int64_t kSplitQueries = 32;    // larger tiles are not split along the context
constexpr int64_t kItemsPerThread = 12;
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kParts = 3;           // queries, keys and values, with at most as many heads
constexpr int64_t kMinSplitGroups = 4;  // below that, partials cost more than they bring

int32_t check_sizes(const char* op, int64_t block_size, int64_t num_heads, int64_t num_kv_heads,
                    int64_t head_dim) {
  const std::string name = op;
  if (block_size < 1 || block_size % kPageTokens != 0) {
    return invalid(name + ": an int8 cache needs a block size that is a multiple of 16, not " +
                   std::to_string(block_size));
  }
  if (head_dim < 16 || head_dim % 16 != 0 || head_dim > kMaxInt8HeadDim) {
    return invalid(name +
                   ": an int8 cache needs a head size that is a multiple of 16 up to 512,"
                   " not " +
                   std::to_string(head_dim));
  }
  if (num_kv_heads < 1 || num_heads < 1 || num_heads % num_kv_heads != 0) {
    return invalid(name + ": the numbers of heads do not fit");
  }
  return CHAIRLIFT_OK;
}

// Of the cache; blocks may lie apart, but not in each other.
int32_t check_extent(const char* op, int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                     int64_t num_blocks, int64_t block_stride) {
  const std::string name = op;
  const int64_t head_bytes = KvLayout{head_dim}.head_bytes();
  if (!fit_memory({block_size, num_kv_heads, head_bytes}) ||
      !fit_memory({num_blocks, block_stride})) {
    return invalid(name + ": the cache is of an impossible size");
  }
  if (num_blocks > 1 && block_stride < block_size / kPageTokens * num_kv_heads * head_bytes) {
    return invalid(name + ": the blocks of the cache overlap");
  }
  return CHAIRLIFT_OK;
}

// -- storing -------------------------------------------------------------------------------------

int32_t check_store(const chairlift_qkv_to_cache& task) {
  if (any_null(task.qkv, task.cos, task.sin, task.positions, task.slots, task.kv_cache, task.query,
               task.query_scales)) {
    return invalid("qkv_to_cache: a pointer is null");
  }
  if (!all_aligned(task.qkv, task.q_norm, task.k_norm, task.cos, task.sin, task.positions,
                   task.slots, task.query_scales)) {
    return invalid("qkv_to_cache: a pointer is not aligned");
  }
  int32_t status = check_sizes("qkv_to_cache", task.block_size, task.num_heads, task.num_kv_heads,
                               task.head_dim);
  if (status != CHAIRLIFT_OK) return status;
  status = check_extent("qkv_to_cache", task.block_size, task.num_kv_heads, task.head_dim,
                        task.num_blocks, task.block_stride);
  if (status != CHAIRLIFT_OK) return status;
  if (task.rope_dim < 0 || task.rope_dim % 2 != 0 || task.rope_dim > task.head_dim ||
      !fit_memory({task.num_tokens, kParts, task.num_heads, task.head_dim, kFloatBytes}) ||
      !fit_memory({task.max_position, task.rope_dim, kFloatBytes})) {
    return invalid("qkv_to_cache: a size is out of range");
  }
  for (int64_t row = 0; row < task.num_tokens; ++row) {
    if (task.positions[row] < 0 || task.positions[row] >= task.max_position) {
      return invalid("qkv_to_cache: position " + std::to_string(task.positions[row]) +
                     " is not in the table of angles");
    }
    if (task.slots[row] < 0 || task.slots[row] / task.block_size >= task.num_blocks) {
      return invalid("qkv_to_cache: slot " + std::to_string(task.slots[row]) +
                     " is not in the cache");
    }
  }
  return CHAIRLIFT_OK;
}

// -- attention -----------------------------------------------------------------------------------

int32_t check_sequence(const chairlift_attention_int8& task, int64_t sequence) {
  const std::string which = "attention_int8: sequence " + std::to_string(sequence);
  const int64_t first = task.query_start[sequence], last = task.query_start[sequence + 1];
  const int64_t context_len = task.context_lens[sequence];
  if (first < 0 || last < first || last > task.num_tokens) {
    return invalid(which + ": query_start is not a rising list from 0 to num_tokens");
  }
  const int64_t first_position = context_len - (last - first);
  if (first_position < 0) return invalid(which + " has more new tokens than its context");
  if (context_len > task.max_blocks * task.block_size) {
    return invalid(which + ": its block table is too short for its context");
  }
  const int64_t window = task.sliding_window;
  const int64_t start = window > 0 ? std::max<int64_t>(0, first_position + 1 - window) : 0;
  const int32_t* table = task.block_tables + sequence * task.max_blocks;
  for (int64_t i = start / task.block_size; i * task.block_size < context_len; ++i) {
    if (table[i] < 0 || table[i] >= task.num_blocks) {
      return invalid(which + ": block id " + std::to_string(table[i]) + " is not in the cache");
    }
  }
  return CHAIRLIFT_OK;
}

int32_t check_attention(const chairlift_attention_int8& task) {
  if (any_null(task.query, task.query_scales, task.out, task.kv_cache, task.query_start,
               task.context_lens, task.block_tables)) {
    return invalid("attention_int8: a pointer is null");
  }
  if (!all_aligned(task.query_scales, task.out, task.query_start, task.context_lens,
                   task.block_tables)) {
    return invalid("attention_int8: a pointer is not aligned");
  }
  int32_t status = check_sizes("attention_int8", task.block_size, task.num_heads, task.num_kv_heads,
                               task.head_dim);
  if (status != CHAIRLIFT_OK) return status;
  status = check_extent("attention_int8", task.block_size, task.num_kv_heads, task.head_dim,
                        task.num_blocks, task.block_stride);
  if (status != CHAIRLIFT_OK) return status;
  if (task.sliding_window < 0 ||
      !fit_memory({task.num_tokens, task.num_heads, task.head_dim, kFloatBytes}) ||
      !fit_memory({task.num_sequences, task.max_blocks, kFloatBytes}) ||
      !fit_memory({task.max_blocks, task.block_size})) {
    return invalid("attention_int8: a size is out of range");
  }
  if (!covers(task.query_start, task.num_sequences, task.num_tokens)) {
    return invalid("attention_int8: query_start is not a rising list from 0 to num_tokens");
  }
  for (int64_t s = 0; status == CHAIRLIFT_OK && s < task.num_sequences; ++s) {
    status = check_sequence(task, s);
  }
  return status;
}

// Tiles that a thread takes together, one after the other.
struct KvItem {
  int64_t first_tile;
  int64_t num_tiles;
};

struct KvPlan {
  std::vector<KvTile> tiles;
  std::vector<KvItem> items;
  std::vector<KvTile> merges;
  std::unique_ptr<float[]> partials;
};

int64_t cost_of(const KvTile& tile) {
  return tile.num_kv_heads * (2 + tile.num_rows) * tile.num_groups;
}

// Rows and heads to tiles.  Heads of a page lie side by side, so tiles of few queries take many.
std::vector<KvTile> cut_rows(const chairlift_attention_int8& task) {
  const int64_t group = task.num_heads / task.num_kv_heads;
  const int64_t tile_rows = std::max<int64_t>(1, kQueriesPerTile / group);
  std::vector<KvTile> tiles;
  for (int64_t s = 0; s < task.num_sequences; ++s) {
    const int64_t first = task.query_start[s], last = task.query_start[s + 1];
    for (int64_t row = first; row < last; row += tile_rows) {
      const int64_t rows = std::min(tile_rows, last - row);
      const int64_t position = task.context_lens[s] - (last - row);
      const int64_t window = task.sliding_window;
      const int64_t begin = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
      const int64_t first_group = begin / kGroupTokens;
      const int64_t end_group = divide_up(position + rows, kGroupTokens);
      const int64_t room = std::clamp<int64_t>(kSplitQueries / (rows * group), 1, kKvTileHeads);
      for (int64_t head = 0; head < task.num_kv_heads; head += room) {
        const int64_t heads = std::min(room, task.num_kv_heads - head);
        tiles.push_back(
            {s, head, heads, row, rows, position, first_group, end_group - first_group, nullptr});
      }
    }
  }
  return tiles;
}

// Results depend neither on the cut nor on who computes what.
KvPlan plan_attention(const chairlift_attention_int8& task, int64_t num_threads) {
  const int64_t group = task.num_heads / task.num_kv_heads;
  std::vector<KvTile> whole = cut_rows(task);
  int64_t total = 0;
  for (const KvTile& tile : whole) total += cost_of(tile);
  const int64_t share = std::max<int64_t>(1, total / (num_threads * kItemsPerThread));
  const int64_t split_above = std::max<int64_t>(1, total / (num_threads * 4));

  KvPlan plan;
  int64_t num_floats = 0;
  std::vector<int64_t> offsets;  // of the partials of each tile, -1: none
  const auto add_tile = [&](const KvTile& tile, int64_t offset) {
    plan.tiles.push_back(tile);
    offsets.push_back(offset);
  };
  std::vector<int64_t> merge_offsets;
  for (const KvTile& tile : whole) {
    const int64_t queries = tile.num_rows * group;
    const bool split = num_threads > 1 && queries <= kSplitQueries && cost_of(tile) > split_above &&
                       tile.num_groups >= 2 * kMinSplitGroups;
    if (!split) {
      add_tile(tile, -1);
      continue;
    }
    const int64_t pieces =
        std::min(tile.num_groups / kMinSplitGroups, divide_up(cost_of(tile), split_above));
    const int64_t group_floats = tile.num_kv_heads * queries * (kPartialSums + task.head_dim);
    for (int64_t i = 0; i < pieces; ++i) {
      KvTile piece = tile;
      const int64_t begin = tile.num_groups * i / pieces;
      piece.first_group += begin;
      piece.num_groups = tile.num_groups * (i + 1) / pieces - begin;
      add_tile(piece, num_floats + begin * group_floats);
    }
    plan.merges.push_back(tile);
    merge_offsets.push_back(num_floats);
    num_floats += tile.num_groups * group_floats;
  }
  if (num_floats > 0) plan.partials.reset(new float[static_cast<size_t>(num_floats)]);
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    if (offsets[i] >= 0) plan.tiles[i].partials = plan.partials.get() + offsets[i];
  }
  for (size_t i = 0; i < plan.merges.size(); ++i) {
    plan.merges[i].partials = plan.partials.get() + merge_offsets[i];
  }
  // Costly tiles first, so that the threads finish together.
  std::stable_sort(plan.tiles.begin(), plan.tiles.end(),
                   [](const KvTile& a, const KvTile& b) { return cost_of(a) > cost_of(b); });
  int64_t cost = share;
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    if (cost >= share) {
      plan.items.push_back({static_cast<int64_t>(i), 0});
      cost = 0;
    }
    ++plan.items.back().num_tiles;
    cost += cost_of(plan.tiles[i]);
  }
  return plan;
}

int32_t run_attention(ThreadPool& threads, const chairlift_attention_int8& task) {
  const KvKernels& kernels = *chairlift::kernels().q8->kv;
  const KvPlan plan = plan_attention(task, threads.num_threads());
  std::atomic<bool> memory_ran_out{false};
  threads.for_each(static_cast<int64_t>(plan.items.size()), [&](int64_t i) {
    const KvItem& item = plan.items[i];
    const KvTile* tiles = plan.tiles.data() + item.first_tile;
    int64_t floats = 0;
    for (int64_t t = 0; t < item.num_tiles; ++t) {
      floats = std::max(floats, attention_int8_scratch_floats(task, tiles[t]));
    }
    float* scratch = thread_scratch(static_cast<size_t>(floats));
    if (scratch) {
      kernels.attention(task, tiles, item.num_tiles, scratch);
    } else {
      memory_ran_out = true;
    }
  });
  threads.for_each(static_cast<int64_t>(plan.merges.size()), [&](int64_t i) {
    const KvTile& tile = plan.merges[i];
    float* scratch = thread_scratch(static_cast<size_t>(attention_int8_scratch_floats(task, tile)));
    if (scratch) {
      kernels.merge(task, tile, scratch);
    } else {
      memory_ran_out = true;
    }
  });
  return memory_ran_out ? out_of_memory() : CHAIRLIFT_OK;
}

}  // namespace
}  // namespace chairlift

extern "C" {

int64_t chairlift_kv_piece_bytes(int32_t kv_type, int64_t block_size, int64_t num_kv_heads,
                                 int64_t head_dim) {
  if (kv_type != CHAIRLIFT_KV_INT8) {
    chairlift::invalid("kv_piece_bytes: unknown type of cache");
    return 0;
  }
  if (chairlift::check_sizes("kv_piece_bytes", block_size, num_kv_heads, num_kv_heads, head_dim) !=
      CHAIRLIFT_OK) {
    return 0;
  }
  const int64_t head_bytes = chairlift::KvLayout{head_dim}.head_bytes();
  if (!chairlift::fit_memory({block_size, num_kv_heads, head_bytes})) {
    chairlift::invalid("kv_piece_bytes: a size is out of range");
    return 0;
  }
  return block_size / chairlift::kPageTokens * num_kv_heads * head_bytes;
}

int32_t chairlift_qkv_to_cache_int8(chairlift_pool* pool, const chairlift_qkv_to_cache* task) {
  if (!pool || !task) return chairlift::invalid("qkv_to_cache: a pointer is null");
  if (!chairlift::all_aligned(task)) {
    return chairlift::invalid("qkv_to_cache: a pointer is not aligned");
  }
  if (task->struct_size != static_cast<int64_t>(sizeof(*task))) {
    return chairlift::invalid("qkv_to_cache: the caller was built for another version");
  }
  const int32_t status = chairlift::check_store(*task);
  if (status != CHAIRLIFT_OK) return status;
  const chairlift::KvKernels& kernels = *chairlift::kernels().q8->kv;
  const int64_t num_items = chairlift::divide_up(task->num_tokens, chairlift::kRowsPerStore);
  std::atomic<bool> memory_ran_out{false};
  pool->threads.for_each(num_items, [&](int64_t item) {
    const int64_t first = item * chairlift::kRowsPerStore;
    float* scratch = chairlift::thread_scratch(static_cast<size_t>(3 * task->head_dim));
    if (scratch) {
      kernels.store(*task, first, std::min(chairlift::kRowsPerStore, task->num_tokens - first),
                    scratch);
    } else {
      memory_ran_out = true;
    }
  });
  return memory_ran_out ? chairlift::out_of_memory() : CHAIRLIFT_OK;
}

int32_t chairlift_paged_attention_int8(chairlift_pool* pool, const chairlift_attention_int8* task) {
  if (!pool || !task) return chairlift::invalid("attention_int8: a pointer is null");
  if (!chairlift::all_aligned(task)) {
    return chairlift::invalid("attention_int8: a pointer is not aligned");
  }
  if (task->struct_size != static_cast<int64_t>(sizeof(*task))) {
    return chairlift::invalid("attention_int8: the caller was built for another version");
  }
  try {
    const int32_t status = chairlift::check_attention(*task);
    if (status != CHAIRLIFT_OK) return status;
    return chairlift::run_attention(pool->threads, *task);
  } catch (const std::bad_alloc&) {
    return chairlift::out_of_memory();
  }
}

double chairlift_measure_read(chairlift_pool* pool, const uint8_t* memory, int64_t stride,
                              int64_t num_bytes, const int32_t* blocks, int64_t num_blocks) {
  using chairlift::fit_memory;
  if (!pool || !memory || !blocks || !chairlift::all_aligned(blocks) || num_blocks < 1 ||
      num_bytes < 1 || !fit_memory({num_blocks, num_bytes})) {
    return 0;
  }
  const auto [first, last] = std::minmax_element(blocks, blocks + num_blocks);
  if (*first < 0 || stride < num_bytes || !fit_memory({int64_t{*last} + 1, stride})) return 0;
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kBlocksPerItem = 36;
  const chairlift::KvKernels& kernels = *chairlift::kernels().q8->kv;
  std::atomic<int64_t> sink{0};
  const auto start = Clock::now();
  pool->threads.for_each(chairlift::divide_up(num_blocks, kBlocksPerItem), [&](int64_t item) {
    const int64_t first = item * kBlocksPerItem;
    sink += kernels.read(memory, stride, num_bytes, blocks + first,
                         std::min(kBlocksPerItem, num_blocks - first));
  });
  const std::chrono::duration<double> seconds = Clock::now() - start;
  return static_cast<double>(num_blocks * num_bytes) / seconds.count() * 1e-9;
}

}  // extern "C"
