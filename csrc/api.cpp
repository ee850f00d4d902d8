// The C functions: arguments are checked here, cut into items and shared among the threads.
#include "api.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "dispatch.h"

namespace chairlift {
namespace {

constexpr int64_t kPanelWidth = CHAIRLIFT_PANEL_WIDTH;
constexpr int64_t kRowsPerItem = 256;    // activations of one item stay in L2
constexpr int64_t kPanelsPerItem = 2;    // of a single row: one pass of the kernel
constexpr int64_t kQueriesPerTile = 64;  // rows of a tile times query heads
constexpr int64_t kTilesPerThread = 4;   // enough to share out evenly
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kFloatBytes = 4;

thread_local std::string last_error;

int32_t check_matrix(int64_t out_features, int64_t in_features) {
  if (out_features < 1 || in_features < 1) return invalid("linear: a size is below 1");
  if (!fit_memory({out_features, kPanelWidth, in_features, kFloatBytes})) {
    return invalid("linear: a size is out of range");
  }
  return CHAIRLIFT_OK;
}

int32_t check_attention(const chairlift_attention& task) {
  if (any_null(task.query, task.out, task.kv_cache, task.query_start, task.context_lens,
               task.block_tables, task.positions)) {
    return invalid("attention: a pointer is null");
  }
  if (!all_aligned(task.query, task.out, task.kv_cache, task.query_start, task.context_lens,
                   task.block_tables, task.positions)) {
    return invalid("attention: a pointer is not aligned");
  }
  if (task.num_tokens < 0 || task.num_sequences < 0 || task.max_blocks < 0 || task.block_size < 1 ||
      task.head_dim < 1 || task.num_kv_heads < 1 || task.num_heads < 1 ||
      task.num_heads % task.num_kv_heads != 0 || task.sliding_window < 0 ||
      !fit_memory({task.num_tokens, task.num_heads, task.head_dim, kFloatBytes}) ||
      !fit_memory({task.num_sequences, task.max_blocks, kFloatBytes}) ||
      !fit_memory({task.max_blocks, task.block_size})) {
    return invalid("attention: a size is out of range");
  }
  if (!fit_memory({task.num_blocks, task.block_stride, kFloatBytes}) ||
      !fit_memory({task.block_size, task.token_stride, kFloatBytes}) ||
      !fit_memory({task.value_offset, kFloatBytes})) {
    return invalid("attention: the cache is of an impossible size");
  }
  if (!covers(task.query_start, task.num_sequences, task.num_tokens)) {
    return invalid("attention: query_start is not a rising list from 0 to num_tokens");
  }
  return CHAIRLIFT_OK;
}

// The sequence's block ids must lie in the cache wherever its rows will read.
int32_t check_sequence(const chairlift_attention& task, int64_t sequence) {
  const std::string which = "attention: sequence " + std::to_string(sequence);
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
  for (int64_t row = first; row < last; ++row) {
    if (task.positions[row] != first_position + (row - first)) {
      return invalid(which + ": positions must run up to context_lens - 1 without gaps");
    }
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

// Results do not depend on the cut.  Where there is work enough for all threads, a tile takes as
// many key/value heads as it has room for: they lie side by side, and long runs of memory read
// faster than short ones.
std::vector<AttentionTile> cut_attention(const chairlift_attention& task, int64_t num_threads) {
  const int64_t group = task.num_heads / task.num_kv_heads;
  const int64_t tile_rows = std::max<int64_t>(1, kQueriesPerTile / group);
  const bool plenty = task.num_sequences >= kTilesPerThread * num_threads;
  std::vector<AttentionTile> tiles;
  for (int64_t s = 0; s < task.num_sequences; ++s) {
    const int64_t first = task.query_start[s], last = task.query_start[s + 1];
    for (int64_t row = first; row < last; row += tile_rows) {
      const int64_t rows = std::min(tile_rows, last - row);
      const int64_t position = task.context_lens[s] - (last - row);
      const int64_t room = plenty ? kQueriesPerTile / (rows * group) : 1;
      const int64_t heads = std::max<int64_t>(1, std::min(room, task.num_kv_heads));
      for (int64_t head = 0; head < task.num_kv_heads; head += heads) {
        tiles.push_back({s, head, std::min(heads, task.num_kv_heads - head), row, rows, position});
      }
    }
  }
  // Costly tiles first, so that the threads finish together.
  const auto cost = [](const AttentionTile& tile) {
    return tile.num_kv_heads * tile.num_rows * (2 * tile.first_position + tile.num_rows);
  };
  std::stable_sort(tiles.begin(), tiles.end(), [&](const AttentionTile& a, const AttentionTile& b) {
    return cost(a) > cost(b);
  });
  return tiles;
}

// The best of a few short bursts on the calling thread, in 1e9 multiply-adds per second.
double measure_fma(const KernelTable& table) {
  using Clock = std::chrono::steady_clock;
  float sink[32] = {};
  double best = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto start = Clock::now();
    const int64_t count = table.fma_burst(50000, sink);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, count / seconds.count() * 1e-9);
  }
  return best;
}

void pack_panel(const float* weight, int64_t out_features, int64_t in_features, int64_t panel,
                float* packed) {
  float* out = packed + panel * in_features * kPanelWidth;
  const int64_t first = panel * kPanelWidth;
  const int64_t width = std::min(kPanelWidth, out_features - first);
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    const float* row = weight + (first + column) * in_features;
    for (int64_t k = 0; k < in_features; ++k) {
      out[k * kPanelWidth + column] = column < width ? row[k] : 0.0f;
    }
  }
}

}  // namespace

int32_t fail(int32_t status, std::string message) {
  last_error = std::move(message);
  return status;
}

int32_t invalid(std::string message) {
  return fail(CHAIRLIFT_INVALID_ARGUMENT, std::move(message));
}

int32_t out_of_memory() { return fail(CHAIRLIFT_OUT_OF_MEMORY, "out of memory"); }

int64_t attention_scratch_floats(const chairlift_attention& task, const AttentionTile& tile) {
  const int64_t dim = task.head_dim, padded = divide_up(dim, 16) * 16;
  const int64_t queries = tile.num_kv_heads * tile.num_rows * (task.num_heads / task.num_kv_heads);
  return queries * (padded + 16 + dim + 17) + 16 * (dim + padded);
}

}  // namespace chairlift

using chairlift::AttentionTile;
using chairlift::kPanelsPerItem;
using chairlift::kPanelWidth;
using chairlift::kRowsPerItem;

extern "C" {

int32_t chairlift_abi_version(void) { return CHAIRLIFT_ABI_VERSION; }

const char* chairlift_last_error(void) { return chairlift::last_error.c_str(); }

const char* chairlift_available_isas(void) { return chairlift::available_kernels(); }

const char* chairlift_isa(void) { return chairlift::kernels().name; }

int32_t chairlift_set_isa(const char* name) {
  if (!name) return chairlift::invalid("the name of an instruction set is null");
  const chairlift::KernelTable* table = chairlift::find_kernels(name);
  if (!table) {
    return chairlift::fail(CHAIRLIFT_UNSUPPORTED_ISA,
                           "this machine cannot run instruction set '" + std::string(name) +
                               "'; it has: " + chairlift::available_kernels());
  }
  chairlift::use_kernels(*table);
  return CHAIRLIFT_OK;
}

int32_t chairlift_pool_create(int32_t num_threads, chairlift_pool** pool) {
  if (!pool) return chairlift::invalid("pool is null");
  if (!chairlift::all_aligned(pool)) return chairlift::invalid("pool is not aligned");
  if (num_threads < 1 || num_threads > chairlift::kMaxThreads) {
    return chairlift::invalid("num_threads must be from 1 to 1024");
  }
  *pool = new (std::nothrow) chairlift_pool(num_threads);
  return *pool ? CHAIRLIFT_OK : chairlift::out_of_memory();
}

void chairlift_pool_destroy(chairlift_pool* pool) { delete pool; }

int64_t chairlift_linear_f32_size(int64_t out_features, int64_t in_features) {
  if (chairlift::check_matrix(out_features, in_features) != CHAIRLIFT_OK) return 0;
  return chairlift::divide_up(out_features, kPanelWidth) * kPanelWidth * in_features;
}

int32_t chairlift_linear_f32_pack(chairlift_pool* pool, const float* weight, int64_t out_features,
                                  int64_t in_features, float* packed) {
  if (!pool || !weight || !packed) return chairlift::invalid("linear: a pointer is null");
  if (!chairlift::all_aligned(weight, packed)) {
    return chairlift::invalid("linear: a pointer is not aligned");
  }
  const int32_t status = chairlift::check_matrix(out_features, in_features);
  if (status != CHAIRLIFT_OK) return status;
  pool->threads.for_each(chairlift::divide_up(out_features, kPanelWidth), [&](int64_t panel) {
    chairlift::pack_panel(weight, out_features, in_features, panel, packed);
  });
  return CHAIRLIFT_OK;
}

int32_t chairlift_linear_f32(chairlift_pool* pool, const float* x, int64_t rows,
                             const float* packed, const float* bias, int64_t out_features,
                             int64_t in_features, float* out) {
  if (!pool || !x || !packed || !out) return chairlift::invalid("linear: a pointer is null");
  if (!chairlift::all_aligned(x, packed, bias, out)) {
    return chairlift::invalid("linear: a pointer is not aligned");
  }
  const int32_t status = chairlift::check_matrix(out_features, in_features);
  if (status != CHAIRLIFT_OK) return status;
  if (!chairlift::fit_memory({rows, in_features, chairlift::kFloatBytes}) ||
      !chairlift::fit_memory({rows, out_features, chairlift::kFloatBytes})) {
    return chairlift::invalid("linear: a size is out of range");
  }
  const chairlift::KernelTable& table = chairlift::kernels();
  const chairlift::LinearTask task = {x, packed, bias, out, in_features, out_features};
  const int64_t num_panels = chairlift::divide_up(out_features, kPanelWidth);
  const int64_t panels = rows == 1 ? kPanelsPerItem : 1;
  const int64_t chunks = chairlift::divide_up(rows, kRowsPerItem);
  // Chunks of rows that share panels come one after the other: the second finds them in cache.
  const int64_t columns = chairlift::divide_up(num_panels, panels);
  pool->threads.for_each(columns * chunks, [&](int64_t item) {
    const int64_t first_row = item % chunks * kRowsPerItem;
    const int64_t first_panel = pool->threads.spread(item / chunks, columns) * panels;
    table.linear(task, {first_row, std::min(kRowsPerItem, rows - first_row), first_panel,
                        std::min(panels, num_panels - first_panel)});
  });
  return CHAIRLIFT_OK;
}

int32_t chairlift_paged_attention_f32(chairlift_pool* pool, const chairlift_attention* task) {
  if (!pool || !task) return chairlift::invalid("attention: a pointer is null");
  if (!chairlift::all_aligned(task))
    return chairlift::invalid("attention: a pointer is not aligned");
  if (task->struct_size != static_cast<int64_t>(sizeof(*task))) {
    return chairlift::invalid("attention: the caller was built for another version");
  }
  try {
    int32_t status = chairlift::check_attention(*task);
    for (int64_t s = 0; status == CHAIRLIFT_OK && s < task->num_sequences; ++s) {
      status = chairlift::check_sequence(*task, s);
    }
    if (status != CHAIRLIFT_OK) return status;
    const chairlift::KernelTable& table = chairlift::kernels();
    const std::vector<AttentionTile> tiles =
        chairlift::cut_attention(*task, pool->threads.num_threads());
    std::atomic<bool> memory_ran_out{false};
    pool->threads.for_each(static_cast<int64_t>(tiles.size()), [&](int64_t item) {
      const AttentionTile& tile = tiles[item];
      const int64_t floats = chairlift::attention_scratch_floats(*task, tile);
      float* scratch = chairlift::thread_scratch(static_cast<size_t>(floats));
      if (scratch) {
        table.attention(*task, tile, scratch);
      } else {
        memory_ran_out = true;
      }
    });
    return memory_ran_out ? chairlift::out_of_memory() : CHAIRLIFT_OK;
  } catch (const std::bad_alloc&) {
    return chairlift::out_of_memory();
  }
}

double chairlift_measure_fma(void) { return chairlift::measure_fma(chairlift::kernels()); }

}  // extern "C"
