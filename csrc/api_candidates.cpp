// The C functions that apply an output head and keep only what sampling needs of its logits.
//
// Threads take bundles of panels from one counter; each multiplies a bundle for some rows into
// scratch, edits the logits, passes over them and goes on.  What the threads found of a row is then
// put together, row by row.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "api.h"
#include "arguments.h"
#include "dispatch.h"
#include "linear_q8.h"

namespace chairlift {
namespace {

constexpr int64_t kBundleColumns = 192;  // whole panels of any kind; weights are added up in it
constexpr int64_t kRowsPerTile = 128;    // a tile's activations and logits stay in L2
constexpr int64_t kFewRows = 16;         // their time is that of reading weights: in longer runs
constexpr int64_t kMaxItemBundles = 4;
constexpr int64_t kItemsPerThread = 8;
constexpr int64_t kAlignment = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Edit {
  int32_t id;
  float value;
  bool is_penalty;  // for `value` occurrences; otherwise `value` is added
};

int32_t check_rows(const float* x, int64_t rows, int64_t in_features) {
  if (!all_aligned(x)) return invalid("candidates: a pointer is not aligned");
  if (!fit_memory({rows, in_features, static_cast<int64_t>(sizeof *x)})) {
    return invalid("candidates: a size is out of range");
  }
  return CHAIRLIFT_OK;
}

int32_t check_query(const chairlift_candidates& task, int64_t row) {
  const chairlift_row_query& query = task.queries[row];
  const auto refuse = [&](const char* why) {
    return invalid("candidates: row " + std::to_string(row) + why);
  };
  if (!(query.temperature >= 0 && query.temperature < kInfinity)) {
    return refuse(": the temperature is negative or not finite");
  }
  if (query.list_size < 0 || query.list_size > task.max_listed) {
    return refuse(": the list size is not from 0 to max_listed");
  }
  if (!(query.depth >= 0)) return refuse(": the depth is negative");
  if (query.wants_weight && query.temperature == 0) {
    return refuse(": weights need a temperature");
  }
  const int64_t free_edit = row > 0 ? task.queries[row - 1].last_edit : 0;
  if (query.first_edit < free_edit || query.first_penalty < query.first_edit ||
      query.last_edit < query.first_penalty || query.last_edit > task.num_edits) {
    return refuse(": its edits are not a part of them all, after those of the row before");
  }
  return CHAIRLIFT_OK;
}

int32_t check_task(const chairlift_candidates* task, int64_t rows, int64_t vocab) {
  if (!task) return invalid("candidates: the task is null");
  if (!all_aligned(task)) return invalid("candidates: a pointer is not aligned");
  if (task->struct_size != static_cast<int64_t>(sizeof(*task))) {
    return invalid("candidates: the caller was built for another version");
  }
  constexpr int64_t kRowBytes = sizeof(chairlift_row_candidates);
  if (!fit_memory({rows, task->max_listed, kRowBytes}) ||
      !fit_memory({rows, vocab, static_cast<int64_t>(sizeof(float))}) ||
      !fit_memory({task->num_edits, static_cast<int64_t>(sizeof(Edit))})) {
    return invalid("candidates: a size is out of range");
  }
  if (vocab > std::numeric_limits<int32_t>::max()) return invalid("candidates: too many tokens");
  if (!task->queries || !task->found || (task->num_edits > 0 && !task->edit_ids) ||
      (task->num_edits > 0 && !task->edit_values) ||
      (task->max_listed > 0 && (!task->listed_ids || !task->listed_logits))) {
    return invalid("candidates: a pointer is null");
  }
  if (!all_aligned(task->queries, task->found, task->edit_ids, task->edit_values, task->listed_ids,
                   task->listed_logits)) {
    return invalid("candidates: a pointer is not aligned");
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t status = check_query(*task, row);
    if (status != CHAIRLIFT_OK) return status;
  }
  for (int64_t i = 0; i < task->num_edits; ++i) {
    if (task->edit_ids[i] < 0 || task->edit_ids[i] >= vocab) {
      return invalid("candidates: an edit of token " + std::to_string(task->edit_ids[i]) +
                     ", which is not in the vocabulary");
    }
  }
  return CHAIRLIFT_OK;
}

LogitRow row_of(const chairlift_row_query& query) {
  LogitRow row = {};
  const double temperature = static_cast<double>(query.temperature);
  row.key = query.key;
  row.inverse_temperature = temperature > 0 ? 1.0 / temperature : 0.0;
  row.depth = query.depth;
  row.num_listed = query.list_size;
  if (query.wants_weight) {
    const double largest = static_cast<double>(std::numeric_limits<float>::max());
    row.weight_scale = static_cast<float>(std::min(row.inverse_temperature, largest));
  }
  row.repetition_penalty = query.repetition_penalty;
  row.frequency_penalty = query.frequency_penalty;
  row.presence_penalty = query.presence_penalty;
  return row;
}

// The edits of a row by token, those of a token in the order they are made.
void sort_edits(const chairlift_candidates& task, int64_t row, Edit* edits) {
  const chairlift_row_query& query = task.queries[row];
  for (int64_t i = query.first_edit; i < query.last_edit; ++i) {
    edits[i] = {task.edit_ids[i], task.edit_values[i], i >= query.first_penalty};
  }
  std::stable_sort(edits + query.first_edit, edits + query.last_edit,
                   [](const Edit& a, const Edit& b) { return a.id < b.id; });
}

// The same operations in the same order as those on a whole row of logits.
float edited(const LogitRow& row, const Edit& edit, float x) {
  if (!edit.is_penalty) return x + edit.value;
  if (row.repetition_penalty != 1.0f) {
    x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
  }
  x -= row.frequency_penalty * edit.value;
  x -= row.presence_penalty * (edit.value > 0 ? 1.0f : 0.0f);
  return x;
}

void edit_logits(const LogitRow& row, LogitScan& scan, const Edit* edits, int64_t num_edits,
                 float* logits, int64_t first_id, int64_t num_ids) {
  const int64_t end = first_id + num_ids;
  for (; scan.next_edit < num_edits && edits[scan.next_edit].id < end; ++scan.next_edit) {
    const Edit& edit = edits[scan.next_edit];
    if (edit.id < first_id) continue;  // another thread's
    float& x = logits[edit.id - first_id];
    if (!(x < kInfinity)) scan.has_fault = true;
    x = edited(row, edit, x);
  }
}

// Memory of one call, cut from one piece.
struct Memory {
  LogitRow* rows;         // [rows]
  LogitScan* scans;       // [threads][rows]
  float* bundle_weights;  // [bundles][rows][2], if any row asks
  Edit* edits;
  int64_t* list_starts;  // [rows + 1], of one thread's lists
  uint64_t* lists;       // [threads][list_starts[rows]]
};

thread_local RowBuffer call_memory;

// False if there is no memory.
bool allocate(const chairlift_candidates& task, int64_t rows, int64_t num_threads,
              int64_t num_bundles, Memory* memory) {
  int64_t list_tokens = 0;
  bool has_weights = false;
  for (int64_t row = 0; row < rows; ++row) {
    const chairlift_row_query& query = task.queries[row];
    if (query.list_size > 0) list_tokens += list_capacity(query.list_size);
    has_weights = has_weights || query.wants_weight;
  }
  const int64_t sizes[] = {
      rows * static_cast<int64_t>(sizeof(LogitRow)),
      num_threads * rows * static_cast<int64_t>(sizeof(LogitScan)),
      has_weights ? num_bundles * rows * 2 * static_cast<int64_t>(sizeof(float)) : 0,
      task.num_edits * static_cast<int64_t>(sizeof(Edit)),
      (rows + 1) * static_cast<int64_t>(sizeof(int64_t)),
      num_threads * list_tokens * static_cast<int64_t>(sizeof(uint64_t)),
  };
  int64_t total = 0;
  for (const int64_t size : sizes) total += round_up(size, kAlignment);
  uint8_t* at = call_memory.get(total);
  if (!at) return false;
  uint8_t* pieces[6];
  for (int i = 0; i < 6; ++i) {
    pieces[i] = at;
    at += round_up(sizes[i], kAlignment);
  }
  memory->rows = reinterpret_cast<LogitRow*>(pieces[0]);
  memory->scans = reinterpret_cast<LogitScan*>(pieces[1]);
  memory->bundle_weights = reinterpret_cast<float*>(pieces[2]);
  memory->edits = reinterpret_cast<Edit*>(pieces[3]);
  memory->list_starts = reinterpret_cast<int64_t*>(pieces[4]);
  memory->lists = reinterpret_cast<uint64_t*>(pieces[5]);
  memory->list_starts[0] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const chairlift_row_query& query = task.queries[row];
    memory->rows[row] = row_of(query);
    const int64_t size = query.list_size > 0 ? list_capacity(query.list_size) : 0;
    memory->list_starts[row + 1] = memory->list_starts[row] + size;
  }
  return true;
}

// Contenders of all threads that may still win, by id; -1 if there are too many.
int32_t merge_contenders(const Memory& memory, int64_t rows, int64_t num_threads, int64_t row,
                         int32_t* ids, float* logits) {
  double top_score = -std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t < num_threads; ++t) {
    const LogitScan& scan = memory.scans[t * rows + row];
    if (scan.has_too_many) return -1;
    top_score = std::max(top_score, scan.top_score);
  }
  const double limit = top_score - score_slack(top_score);
  Contender found[CHAIRLIFT_MAX_CONTENDERS];
  int32_t count = 0;
  for (int64_t t = 0; t < num_threads; ++t) {
    const LogitScan& scan = memory.scans[t * rows + row];
    for (int32_t i = 0; i < scan.num_contenders; ++i) {
      if (scan.contenders[i].score < limit) continue;
      if (count == CHAIRLIFT_MAX_CONTENDERS) return -1;
      found[count++] = scan.contenders[i];
    }
  }
  std::sort(found, found + count,
            [](const Contender& a, const Contender& b) { return a.id < b.id; });
  for (int32_t i = 0; i < count; ++i) {
    ids[i] = found[i].id;
    logits[i] = found[i].logit;
  }
  return count;
}

// The largest logits of all threads, best first; `merged` has room for the lists of all threads.
int32_t merge_lists(const Memory& memory, int64_t rows, int64_t num_threads, int64_t row,
                    float best, uint64_t* merged, int32_t* ids, float* logits) {
  const LogitRow& asked = memory.rows[row];
  const float floor = list_floor(asked, best);
  int64_t count = 0;
  for (int64_t t = 0; t < num_threads; ++t) {
    const LogitScan& scan = memory.scans[t * rows + row];
    for (int32_t i = 0; i < scan.num_listed; ++i) {
      if (listed_logit(scan.listed[i]) >= floor) merged[count++] = scan.listed[i];
    }
  }
  const int64_t wanted = std::min<int64_t>(count, asked.num_listed);
  std::nth_element(merged, merged + wanted, merged + count, std::greater<uint64_t>());
  std::sort(merged, merged + wanted, std::greater<uint64_t>());
  for (int64_t i = 0; i < wanted; ++i) {
    ids[i] = listed_id(merged[i]);
    logits[i] = listed_logit(merged[i]);
  }
  return static_cast<int32_t>(wanted);
}

double merge_weights(const Memory& memory, int64_t rows, int64_t num_bundles, int64_t row,
                     float best) {
  const double scale = memory.rows[row].inverse_temperature;
  double total = 0;
  for (int64_t bundle = 0; bundle < num_bundles; ++bundle) {
    const float* weights = memory.bundle_weights + (bundle * rows + row) * 2;
    if (weights[1] == 0) continue;
    const double distance = static_cast<double>(weights[0]) - static_cast<double>(best);
    total += static_cast<double>(weights[1]) * std::exp(distance * scale);
  }
  return total;
}

// False if a thread had no memory for its scratch.
bool merge_row(const chairlift_candidates& task, const Memory& memory, int64_t rows,
               int64_t num_threads, int64_t num_bundles, int64_t row) {
  const LogitRow& asked = memory.rows[row];
  float best = -kInfinity;
  int32_t best_id = -1;
  bool has_fault = false;
  for (int64_t t = 0; t < num_threads; ++t) {
    const LogitScan& scan = memory.scans[t * rows + row];
    has_fault = has_fault || scan.has_fault;
    if (scan.best > best || (scan.best == best && scan.best_id < best_id && scan.best_id >= 0)) {
      best = scan.best;
      best_id = scan.best_id;
    }
  }
  chairlift_row_candidates& found = task.found[row];
  found = {};
  found.best_logit = has_fault ? std::numeric_limits<float>::quiet_NaN() : best;
  found.best_id = best_id;
  if (has_fault || !(best > -kInfinity && best < kInfinity)) return true;
  if (asked.inverse_temperature > 0) {
    found.num_contenders = merge_contenders(memory, rows, num_threads, row, found.contender_ids,
                                            found.contender_logits);
  }
  if (asked.num_listed > 0) {
    const int64_t tokens = num_threads * list_capacity(asked.num_listed);
    float* scratch = thread_scratch(static_cast<size_t>(2 * tokens));
    if (!scratch) return false;
    found.num_listed = merge_lists(
        memory, rows, num_threads, row, best, reinterpret_cast<uint64_t*>(scratch),
        task.listed_ids + row * task.max_listed, task.listed_logits + row * task.max_listed);
  }
  if (asked.weight_scale != 0) {
    found.total_weight = merge_weights(memory, rows, num_bundles, row, best);
  }
  return true;
}

// How the work is cut.
struct Cut {
  int64_t panels;
  int64_t bundle_panels;
  int64_t bundles;
  int64_t item_bundles;
  int64_t chunk;  // of rows
  int64_t chunks;

  Cut(int64_t columns, int64_t panel_columns, int64_t rows, int64_t num_threads)
      : panels(divide_up(columns, panel_columns)),
        bundle_panels(kBundleColumns / panel_columns),
        bundles(divide_up(panels, bundle_panels)),
        item_bundles(1),
        chunk(std::min(rows, kRowsPerTile)),
        chunks(divide_up(rows, chunk)) {
    const int64_t few = bundles / (num_threads * kItemsPerThread);
    if (rows < kFewRows) item_bundles = std::clamp<int64_t>(few, 1, kMaxItemBundles);
  }

  int64_t num_items() const { return divide_up(bundles, item_bundles) * chunks; }

  // Chunks of rows that share panels come one after the other: the second finds them in cache.
  LinearTile tile(int64_t item, int64_t rows) const {
    const int64_t row = item % chunks * chunk;
    const int64_t panel = item / chunks * item_bundles * bundle_panels;
    return {row, std::min(chunk, rows - row), panel,
            std::min(item_bundles * bundle_panels, panels - panel), nullptr};
  }
};

// Edits a tile of logits that begins with token `first_id`, and passes over it.
void search_tile(const chairlift_candidates& task, const Memory& memory, int64_t rows,
                 const LinearTile& tile, int64_t stride, int64_t first_id, int64_t width,
                 LogitScan* scans) {
  const int64_t padded = round_up(width, 16);
  for (int64_t i = 0; i < tile.num_rows; ++i) {
    const int64_t row = tile.first_row + i;
    const chairlift_row_query& query = task.queries[row];
    float* logits = tile.out + i * stride;
    std::fill(logits + width, logits + padded, -kInfinity);
    edit_logits(memory.rows[row], scans[row], memory.edits + query.first_edit,
                query.last_edit - query.first_edit, logits, first_id, width);
  }
  const KernelTable& table = kernels();
  for (int64_t column = 0; column < padded; column += kBundleColumns) {
    const int64_t bundle = (first_id + column) / kBundleColumns;
    const int64_t vectors = std::min(kBundleColumns, padded - column) / 16;
    table.scan_logits({tile.out + column, stride, tile.num_rows, first_id + column, vectors,
                       memory.bundle_weights + (bundle * rows + tile.first_row) * 2},
                      memory.rows + tile.first_row, scans + tile.first_row);
  }
}

// HEAD has: columns, kPanelColumns, scratch_floats(tile) and multiply(tile, scratch).
template <class HEAD>
int32_t find_candidates(ThreadPool& threads, const HEAD& head, int64_t rows,
                        const chairlift_candidates& task) {
  if (rows == 0) return CHAIRLIFT_OK;
  const int64_t num_threads = threads.num_threads();
  const Cut cut(head.columns, HEAD::kPanelColumns, rows, num_threads);
  Memory memory;
  if (!allocate(task, rows, num_threads, cut.bundles, &memory)) return out_of_memory();
  if (task.num_edits > 0) {
    threads.for_each(rows, [&](int64_t row) { sort_edits(task, row, memory.edits); });
  }
  std::atomic<int64_t> next_item{0};
  std::atomic<bool> has_memory{true};
  threads.for_each(num_threads, [&](int64_t thread) {
    LogitScan* scans = memory.scans + thread * rows;
    uint64_t* lists = memory.lists + thread * memory.list_starts[rows];
    for (int64_t row = 0; row < rows; ++row) {
      start_scan(scans[row], lists + memory.list_starts[row]);
    }
    for (int64_t item; (item = next_item.fetch_add(1)) < cut.num_items();) {
      LinearTile tile = cut.tile(item, rows);
      const int64_t stride = tile.num_panels * HEAD::kPanelColumns;
      const int64_t logits = round_up(tile.num_rows * stride, kAlignment / 4);
      tile.out = thread_scratch(static_cast<size_t>(logits + head.scratch_floats(tile)));
      if (!tile.out) {
        has_memory = false;
        return;
      }
      head.multiply(tile, tile.out + logits);
      const int64_t first_id = tile.first_panel * HEAD::kPanelColumns;
      const int64_t width = std::min(stride, head.columns - first_id);
      search_tile(task, memory, rows, tile, stride, first_id, width, scans);
    }
  });
  if (!has_memory) return out_of_memory();
  threads.for_each(rows, [&](int64_t row) {
    if (!merge_row(task, memory, rows, num_threads, cut.bundles, row)) has_memory = false;
  });
  return has_memory ? CHAIRLIFT_OK : out_of_memory();
}

struct FloatHead {
  static constexpr int64_t kPanelColumns = CHAIRLIFT_PANEL_WIDTH;
  const KernelTable& table;
  LinearTask task;
  int64_t columns;

  int64_t scratch_floats(const LinearTile&) const { return 0; }
  void multiply(const LinearTile& tile, float*) const { table.linear(task, tile); }
};

struct Q8Head {
  static constexpr int64_t kPanelColumns = kQ8PanelColumns;
  const Q8Kernels& kernels;
  LinearQ8Task task;
  int64_t columns;

  int64_t scratch_floats(const LinearTile& tile) const {
    return divide_up(linear_q8_scratch_bytes(task, tile), 4);
  }
  void multiply(const LinearTile& tile, float* scratch) const {
    kernels.linear(task, tile, reinterpret_cast<uint8_t*>(scratch));
  }
};

static_assert(kBundleColumns % FloatHead::kPanelColumns == 0, "a bundle is whole panels");
static_assert(kBundleColumns % Q8Head::kPanelColumns == 0, "a bundle is whole panels");

}  // namespace
}  // namespace chairlift

using chairlift::invalid;

extern "C" {

int32_t chairlift_candidates_f32(chairlift_pool* pool, const float* x, int64_t rows,
                                 const void* packed, int32_t weight_type, const float* bias,
                                 int64_t out_features, int64_t in_features,
                                 const chairlift_candidates* task) {
  if (!pool || !x || !packed) return invalid("candidates: a pointer is null");
  int32_t status =
      chairlift::check_matrix("candidates", packed, weight_type, out_features, in_features);
  if (status == CHAIRLIFT_OK && !chairlift::all_aligned(bias)) {
    return invalid("candidates: a pointer is not aligned");
  }
  if (status == CHAIRLIFT_OK) status = chairlift::check_rows(x, rows, in_features);
  if (status == CHAIRLIFT_OK) status = chairlift::check_task(task, rows, out_features);
  if (status != CHAIRLIFT_OK) return status;
  const chairlift::FloatHead head = {
      chairlift::kernels(),
      {x, packed, bias, nullptr, in_features, out_features, weight_type},
      out_features};
  return chairlift::find_candidates(pool->threads, head, rows, *task);
}

int32_t chairlift_candidates_q8(chairlift_pool* pool, const float* x, int64_t rows,
                                const float* norm, float eps, const void* packed, const float* bias,
                                const chairlift_candidates* task) {
  if (!pool || !x || !packed) return invalid("candidates: a pointer is null");
  const chairlift::PackedQ8* weight = chairlift::as_packed(packed);
  if (!weight) return invalid("candidates: these weights were not packed by this library");
  if (weight->interleave != 0) return invalid("candidates: the head's rows are interleaved");
  if (!chairlift::all_aligned(norm, bias)) return invalid("candidates: a pointer is not aligned");
  int32_t status = chairlift::check_rows(x, rows, weight->in_features);
  if (status == CHAIRLIFT_OK) status = chairlift::check_task(task, rows, weight->out_features);
  if (status != CHAIRLIFT_OK) return status;
  const uint8_t* records = chairlift::quantized_rows(pool->threads, {x, rows, norm, eps}, *weight);
  if (!records) return chairlift::out_of_memory();
  const chairlift::Q8Kernels& kernels = *chairlift::kernels().q8;
  const chairlift::Q8Head head = {
      kernels,
      {records, weight, bias, nullptr, nullptr, nullptr, 0, kernels.unpack_rows},
      weight->out_features};
  return chairlift::find_candidates(pool->threads, head, rows, *task);
}

}  // extern "C"
