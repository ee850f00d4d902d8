// The C function of paged attention: checking arguments, cutting into tiles.
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "api.h"
#include "arguments.h"
#include "dispatch.h"
#include "kv_cache_form.h"
#include "kv_layout.h"

namespace chairlift {

int64_t attention_scratch_floats(const chairlift_attention& task, const KvTile& tile) {
  const bool is_bytes = task.kv_type == CHAIRLIFT_KV_INT8;
  const int64_t queries = tile.num_kv_heads * tile.num_rows * (task.num_heads / task.num_kv_heads);
  const int64_t padded = divide_up(task.head_dim, kLaneFloats) * kLaneFloats;
  const int64_t query_floats = is_bytes ? task.head_dim / 4 : task.head_dim;
  int64_t floats = kKvBatchFloats + (queries + 16) * (padded + 16 + 3 + query_floats) + 64;
  if (task.block_size % kPageTokens != 0) {  // a group of floats is copied together
    floats += kLaneFloats + tile.num_kv_heads * kGroupTokens * (task.head_dim + padded);
  }
  return floats;
}

namespace {

constexpr int64_t kQueriesPerTile = 96;  // of one key/value head
constexpr int64_t kSplitQueries = 32;    // larger tiles are not split along the context
constexpr int64_t kItemsPerThread = 12;  // what others may help with is a twelfth
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kMinSplitGroups = 4;  // below that, partials cost more than they bring

int32_t check_sequence(const chairlift_attention& task, int64_t sequence) {
  const auto refuse = [&](const std::string& why) {
    return invalid("attention: sequence " + std::to_string(sequence) + why);
  };
  const int64_t first = task.query_start[sequence], last = task.query_start[sequence + 1];
  const int64_t context_len = task.context_lens[sequence];
  if (first < 0 || last < first || last > task.num_tokens) {
    return refuse(": query_start is not a rising list from 0 to num_tokens");
  }
  const int64_t first_position = context_len - (last - first);
  if (first_position < 0) return refuse(" has more new tokens than its context");
  if (context_len > task.max_blocks * task.block_size) {
    return refuse(": its block table is too short for its context");
  }
  const int64_t window = task.sliding_window;
  const int64_t start = window > 0 ? std::max<int64_t>(0, first_position + 1 - window) : 0;
  const int32_t* table = task.block_tables + sequence * task.max_blocks;
  for (int64_t i = start / task.block_size; i * task.block_size < context_len; ++i) {
    if (table[i] < 0 || table[i] >= task.num_blocks) {
      return refuse(": block id " + std::to_string(table[i]) + " is not in the cache");
    }
  }
  return CHAIRLIFT_OK;
}

int32_t check_attention(const chairlift_attention& task) {
  const bool is_bytes = task.kv_type == CHAIRLIFT_KV_INT8;
  if (!task.query || (is_bytes && !task.query_scales) ||
      any_null(task.out, task.kv_cache, task.query_start, task.context_lens, task.block_tables)) {
    return invalid("attention: a pointer is null");
  }
  if (!all_aligned(task.query_scales, task.out, task.query_start, task.context_lens,
                   task.block_tables) ||
      (!is_bytes && !all_aligned(static_cast<const float*>(task.query)))) {
    return invalid("attention: a pointer is not aligned");
  }
  const KvCacheForm form = {task.kv_type, task.block_size, task.num_heads, task.num_kv_heads,
                            task.head_dim};
  int32_t status = check_form("attention", form);
  if (status != CHAIRLIFT_OK) return status;
  status = check_pieces("attention", form, task.kv_cache, task.num_blocks, task.block_stride);
  if (status != CHAIRLIFT_OK) return status;
  if (task.sliding_window < 0 ||
      !fit_memory({task.num_tokens, task.num_heads, task.head_dim, kFloatBytes}) ||
      !fit_memory({task.num_sequences, task.max_blocks, kFloatBytes}) ||
      !fit_memory({task.max_blocks, task.block_size})) {
    return invalid("attention: a size is out of range");
  }
  if (!covers(task.query_start, task.num_sequences, task.num_tokens)) {
    return invalid("attention: query_start is not a rising list from 0 to num_tokens");
  }
  for (int64_t s = 0; status == CHAIRLIFT_OK && s < task.num_sequences; ++s) {
    status = check_sequence(task, s);
  }
  return status;
}

// -- cutting -------------------------------------------------------------------------------------

// Tiles that a thread takes together, one after the other.
struct KvItem {
  int64_t first_tile;
  int64_t num_tiles;
  int64_t end_of_thread;  // the last tile, and one, of the thread that will probably take it
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
std::vector<KvTile> cut_rows(const chairlift_attention& task) {
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

// Calls `work(begin, end)` for `num_runs` runs of tiles that cost about the same.
template <class Work>
void cut_by_cost(const KvTile* tiles, int64_t num_tiles, int64_t num_runs, const Work& work) {
  int64_t total = 0, cost = 0, end = 0;
  for (int64_t i = 0; i < num_tiles; ++i) total += cost_of(tiles[i]);
  for (int64_t run = 1; run <= num_runs; ++run) {
    const int64_t begin = end;
    // A tile belongs to the run that its middle is in.
    while (end < num_tiles && (cost + cost_of(tiles[end]) / 2) * num_runs < total * run) {
      cost += cost_of(tiles[end++]);
    }
    if (run == num_runs) end = num_tiles;
    work(begin, end);
  }
}

// Tiles to items, as many for each thread.  A thread gets rows that lie together: those whose keys
// and values it has stored, and whose outputs it will read.  Its costly tiles come first, so that
// little is left at the end for others to help with.
void share_out(int64_t num_threads, KvPlan* plan) {
  const int64_t num_tiles = static_cast<int64_t>(plan->tiles.size());
  const int64_t num_shares = std::min(num_threads, num_tiles);
  const int64_t num_items = std::min(kItemsPerThread, divide_up(num_tiles, num_threads));
  plan->items.reserve(static_cast<size_t>(num_shares * num_items));
  const auto add_items = [&](int64_t begin, int64_t end) {
    KvTile* const tiles = plan->tiles.data() + begin;
    std::stable_sort(tiles, tiles + (end - begin),
                     [](const KvTile& a, const KvTile& b) { return cost_of(a) > cost_of(b); });
    cut_by_cost(tiles, end - begin, num_items, [&](int64_t first, int64_t last) {
      plan->items.push_back({begin + first, last - first, end});
    });
  };
  cut_by_cost(plan->tiles.data(), num_tiles, num_shares, add_items);
}

// Results depend neither on the cut nor on who computes what.
KvPlan plan_attention(const chairlift_attention& task, int64_t num_threads) {
  const int64_t group = task.num_heads / task.num_kv_heads;
  std::vector<KvTile> whole = cut_rows(task);
  int64_t total = 0;
  for (const KvTile& tile : whole) total += cost_of(tile);
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
    const int64_t group_floats =
        tile.num_kv_heads * queries *
        (kPartialSums + divide_up(task.head_dim, kLaneFloats) * kLaneFloats);
    // The newest positions first: who has stored them is the first to begin.
    for (int64_t i = pieces - 1; i >= 0; --i) {
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
  share_out(num_threads, &plan);
  return plan;
}

int32_t attend(ThreadPool& threads, const chairlift_attention& task) {
  const KernelTable& table = chairlift::kernels();
  const bool is_bytes = task.kv_type == CHAIRLIFT_KV_INT8;
  const AttentionKernels& kernels = is_bytes ? table.q8->kv->attention : *table.float_attention;
  const KvPlan plan = plan_attention(task, threads.num_threads());
  std::atomic<bool> memory_ran_out{false};
  threads.for_each(static_cast<int64_t>(plan.items.size()), [&](int64_t i) {
    const KvItem& item = plan.items[i];
    for (int64_t t = item.first_tile; t < item.first_tile + item.num_tiles; ++t) {
      const KvTile& tile = plan.tiles[t];
      const KvTile* following = t + 1 < item.end_of_thread ? &tile + 1 : nullptr;
      float* scratch = thread_scratch(static_cast<size_t>(attention_scratch_floats(task, tile)));
      if (scratch) {
        kernels.attend(task, tile, following, scratch);
      } else {
        memory_ran_out = true;
      }
    }
  });
  threads.for_each(static_cast<int64_t>(plan.merges.size()), [&](int64_t i) {
    const KvTile& tile = plan.merges[i];
    float* scratch = thread_scratch(static_cast<size_t>(attention_scratch_floats(task, tile)));
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

extern "C" int32_t chairlift_paged_attention(chairlift_pool* pool,
                                             const chairlift_attention* task) {
  if (!pool || !task) return chairlift::invalid("attention: a pointer is null");
  if (!chairlift::all_aligned(task)) {
    return chairlift::invalid("attention: a pointer is not aligned");
  }
  if (task->struct_size != static_cast<int64_t>(sizeof(*task))) {
    return chairlift::invalid("attention: the caller was built for another version");
  }
  try {
    const int32_t status = chairlift::check_attention(*task);
    if (status != CHAIRLIFT_OK) return status;
    return chairlift::attend(pool->threads, *task);
  } catch (const std::bad_alloc&) {
    return chairlift::out_of_memory();
  }
}
