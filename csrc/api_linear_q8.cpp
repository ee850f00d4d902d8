// The C functions of linear layers on bytes: packing, quantising rows, cutting into tiles.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>

#include "api.h"
#include "arguments.h"
#include "dispatch.h"
#include "linear_q8.h"
#include "q8_layout.h"

namespace chairlift {

int64_t linear_q8_scratch_bytes(const LinearQ8Task& task, const LinearQ8Tile& tile) {
  const PackedQ8& w = *task.weight;
  const int64_t panels = task.gated_rows ? tile.num_panels : 1;
  const int64_t gates = task.gated_rows ? kQ8GatedRows * panels * kQ8PanelColumns * 4 : 0;
  const int64_t codes = w.stored_bits == 4 ? 2 * panel_code_bytes(w, kQ8PanelVectors) : 0;
  return gates + panels * codes;
}

namespace {

constexpr int64_t kMaxRowsPerItem = 256;
constexpr int64_t kMinRowsPerItem = 16;
constexpr int64_t kRowsTogether = 4;             // in a tile's inner loop
constexpr int64_t kRowBytesPerItem = 384 << 10;  // activations of one item stay in L2
constexpr int64_t kFewRows = 16;                 // from here on the panel's codes are reused enough
constexpr int64_t kItemsPerThread = 8;
constexpr int64_t kFloatsPerQuantizeItem = 8192;
constexpr int64_t kQuantizedTogether = 16;  // rows that go side by side
constexpr int64_t kMaxPanelsPerItem = 8;
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kCachedBytes = 4 << 20;  // of an output that whoever reads it finds in a cache

// -- packing -------------------------------------------------------------------------------------

int32_t check_weights(const chairlift_grouped_weights* w) {
  if (!w) return invalid("linear_q8: weights is null");
  if (!all_aligned(w)) return invalid("linear_q8: weights is not aligned");
  if (w->struct_size != static_cast<int64_t>(sizeof(*w))) {
    return invalid("linear_q8: the caller was built for another version");
  }
  if (any_null(w->codes, w->scales, w->mins)) return invalid("linear_q8: a pointer is null");
  if (!all_aligned(w->scales, w->mins)) return invalid("linear_q8: a pointer is not aligned");
  if (w->out_features < 1 || w->in_features < 1) return invalid("linear_q8: a size is below 1");
  if (!fit_memory({w->out_features, kQ8PanelColumns, w->in_features, kFloatBytes})) {
    return invalid("linear_q8: a size is out of range");
  }
  if (w->bits != 4 && w->bits != 8) return invalid("linear_q8: bits must be 4 or 8");
  if (w->group_size != 16 && w->group_size != 32) {
    return invalid("linear_q8: group_size must be 16 or 32");
  }
  if (w->interleave != 0 && w->interleave != 16 && w->interleave != 32) {
    return invalid("linear_q8: interleave must be 0, 16 or 32");
  }
  if (w->interleave != 0 && w->out_features % (2 * w->interleave) != 0) {
    return invalid("linear_q8: gates and ups do not divide into blocks of the interleave");
  }
  return CHAIRLIFT_OK;
}

// Larger ones would spill into their neighbours'.
bool has_codes_of_its_bits(const chairlift_grouped_weights& w) {
  uint8_t all = 0;
  for (int64_t i = 0; i < w.out_features * w.in_features; ++i) all |= w.codes[i];
  return all >> w.bits == 0;
}

int64_t groups_of_row(const chairlift_grouped_weights& w) {
  return divide_up(w.in_features, w.group_size);
}

// The row whose weights become column `column`.
int64_t source_row(const chairlift_grouped_weights& w, int64_t column) {
  if (w.interleave == 0) return column;
  const int64_t block = column / w.interleave;
  return block % 2 * (w.out_features / 2) + block / 2 * w.interleave + column % w.interleave;
}

// Whether all minima of a row are -z * scale for one z; if so, what to add to its codes for z to
// become the zero point of the form.
bool find_zero_point(const chairlift_grouped_weights& w, int64_t row, int* shift) {
  const int64_t groups = groups_of_row(w);
  const float* scales = w.scales + row * groups;
  const float* mins = w.mins + row * groups;
  float zero_point = 0;
  bool is_known = false;
  for (int64_t g = 0; g < groups && !is_known; ++g) {
    if (scales[g] == 0) continue;
    zero_point = std::nearbyint(-mins[g] / scales[g]);
    is_known = true;
  }
  if (!(zero_point >= 0 && zero_point <= 255)) return false;
  for (int64_t g = 0; g < groups; ++g) {
    if (!(mins[g] == -(zero_point * scales[g]))) return false;
  }
  const int limit = w.bits == 4 ? 15 : 255;
  *shift = (w.bits == 4 ? 8 : 128) - static_cast<int>(zero_point);
  const uint8_t* codes = w.codes + row * w.in_features;
  int smallest = 255, largest = 0;
  for (int64_t k = 0; k < w.in_features; ++k) {
    smallest = std::min<int>(smallest, codes[k]);
    largest = std::max<int>(largest, codes[k]);
  }
  return smallest + *shift >= 0 && largest + *shift <= limit;
}

// Half precision holds the number exactly.
bool fits_half(float x) {
  const float magnitude = std::fabs(x);
  if (!(magnitude <= 65504.0f)) return false;
  // Eleven significant bits, and no unit below 2^-24.
  int exponent;
  std::frexp(magnitude, &exponent);
  const float unit = std::ldexp(1.0f, std::max(exponent - 11, -24));
  return std::nearbyint(magnitude / unit) * unit == magnitude;
}

uint16_t to_half(float x) {  // of a number that fits
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  if (exponent >= -14) {
    return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | (bits >> 13 & 0x3ff));
  }
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::fabs(x) * 16777216.0f));
}

bool all_fit_half(const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!fits_half(x[i])) return false;
  }
  return true;
}

PackedQ8 describe(const chairlift_grouped_weights& w) {
  PackedQ8 header = {};
  header.magic = kPackedQ8Magic;
  header.out_features = w.out_features;
  header.in_features = w.in_features;
  header.interleave = w.interleave;
  header.group_size = w.group_size;
  header.activation_group = 32;
  header.stored_bits = w.bits;
  if (w.per_channel) {
    header.form = Q8Form::kChannel;
    header.stored_bits = 8;
    if (w.in_features % 64 == 0) header.activation_group = 64;
  } else {
    header.form = Q8Form::kZeroPoint;
    int shift;
    for (int64_t row = 0; row < w.out_features; ++row) {
      if (!find_zero_point(w, row, &shift)) {
        header.form = Q8Form::kMinimum;
        break;
      }
    }
    const int64_t count = w.out_features * groups_of_row(w);
    header.half_scales = w.group_size == 32 && all_fit_half(w.scales, count) &&
                         (header.form == Q8Form::kZeroPoint || all_fit_half(w.mins, count));
  }
  header.num_bytes = packed_bytes(header);
  return header;
}

// One column of a panel, written where its kernel wants it.
struct ColumnWriter {
  const PackedQ8& header;
  uint8_t* codes;
  uint8_t* scales;
  int vectors;
  int64_t column;  // of the panel

  void write_code(int64_t k, int code) const {
    const int64_t block = k / kQ8BlockDepth, step = k % kQ8BlockDepth / 4;
    const int64_t steps = header.stored_bits;  // vectors of codes per block and column vector
    const int64_t vector = (block * steps + step % steps) * vectors + column / kQ8Lanes;
    uint8_t& byte = codes[vector * 64 + column % kQ8Lanes * 4 + k % 4];
    if (header.stored_bits == 8) {
      byte = static_cast<uint8_t>(code);
    } else {
      byte = static_cast<uint8_t>(byte | (step < 4 ? code : code << 4));
    }
  }

  void write_scale(int64_t scale_row, float x) const {
    const int64_t at = scale_row * vectors * kQ8Lanes + column;
    if (header.half_scales) {
      const uint16_t half = to_half(x);
      std::memcpy(scales + at * 2, &half, 2);
    } else {
      std::memcpy(scales + at * 4, &x, 4);
    }
  }
};

void pack_grouped_column(const chairlift_grouped_weights& w, int64_t row,
                         const ColumnWriter& writer) {
  const bool has_minimum = writer.header.form == Q8Form::kMinimum;
  int shift = 0;
  if (!has_minimum) find_zero_point(w, row, &shift);
  for (int64_t k = 0; k < w.in_features; ++k) {
    writer.write_code(k, w.codes[row * w.in_features + k] + shift);
  }
  const int64_t groups = groups_of_row(w);
  for (int64_t g = 0; g < groups; ++g) {
    writer.write_scale(has_minimum ? 2 * g : g, w.scales[row * groups + g]);
    if (has_minimum) writer.write_scale(2 * g + 1, w.mins[row * groups + g]);
  }
}

float weight_at(const chairlift_grouped_weights& w, int64_t row, int64_t k) {
  const int64_t group = row * groups_of_row(w) + k / w.group_size;
  return w.scales[group] * static_cast<float>(w.codes[row * w.in_features + k]) + w.mins[group];
}

// A column requantised with one scale.
void pack_channel_column(const chairlift_grouped_weights& w, int64_t row,
                         const ColumnWriter& writer) {
  float largest = 0;
  for (int64_t k = 0; k < w.in_features; ++k) {
    const float magnitude = std::fabs(weight_at(w, row, k));
    if (!(magnitude <= largest)) largest = magnitude;  // which keeps a number that is none
    if (!(largest <= 3.402823466e38f)) break;
  }
  float scale = largest / 127.0f;
  if (!(scale >= 1.17549435e-38f && scale <= 3.402823466e38f)) scale = 0;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int64_t k = 0; k < w.in_features; ++k) {
    const float code = scale > 0 ? std::nearbyint(weight_at(w, row, k) * inverse) : 0.0f;
    writer.write_code(k, 128 + static_cast<int>(code));
  }
  writer.write_scale(0, scale);
}

void pack_panel(const chairlift_grouped_weights& w, const PackedQ8& header, int64_t panel,
                uint8_t* packed) {
  const int vectors = panel_vectors(header, panel);
  uint8_t* codes = packed + panel_offset(header, panel);
  uint8_t* scales = codes + panel_code_bytes(header, vectors);
  std::memset(codes, 0, static_cast<size_t>(panel_bytes(header, vectors)));
  for (int64_t column = 0; column < vectors * kQ8Lanes; ++column) {
    const int64_t output = panel * kQ8PanelColumns + column;
    if (output >= w.out_features) break;
    const ColumnWriter writer = {header, codes, scales, vectors, column};
    if (header.form == Q8Form::kChannel) {
      pack_channel_column(w, source_row(w, output), writer);
    } else {
      pack_grouped_column(w, source_row(w, output), writer);
    }
  }
}

// -- running -------------------------------------------------------------------------------------

// False if a thread had no memory for its scratch.
bool quantize(ThreadPool& threads, const Q8Kernels& kernels, const Q8Input& input, int64_t width,
              int64_t group, uint8_t* records) {
  const int64_t rows = input.num_rows;
  int64_t chunk = std::max<int64_t>(1, kFloatsPerQuantizeItem / width);
  if (rows >= 2 * kQuantizedTogether) {
    chunk = std::max<int64_t>(1, chunk / kQuantizedTogether) * kQuantizedTogether;
  }
  const int64_t row_bytes = group_row_bytes(width, group);
  std::atomic<bool> has_memory{true};
  threads.for_each(divide_up(rows, chunk), [&](int64_t item) {
    const int64_t first = item * chunk, count = std::min(chunk, rows - first);
    const float* x = input.x + first * width;
    if (input.norm) {
      float* normed = thread_scratch(static_cast<size_t>(count * width));
      if (!normed) {
        has_memory = false;
        return;
      }
      kernels.rms_norm(x, input.norm, input.eps, count, width, normed);
      x = normed;
    }
    kernels.quantize_rows(x, count, width, group, records + first * row_bytes);
  });
  return has_memory;
}

// How rows and panels are cut into items.  All panels of some rows come one after the other, so
// that each thread keeps to rows of its own as soon as there are enough of them: what it has
// quantised or computed itself is in its own cache, and what another core has may be ten times
// further away.
struct ItemGrid {
  int64_t num_rows;
  int64_t rows_per_item;
  int64_t num_panels;
  int64_t panels_per_item;

  int64_t num_columns() const { return divide_up(num_panels, panels_per_item); }
  int64_t num_items() const { return divide_up(num_rows, rows_per_item) * num_columns(); }

  LinearQ8Tile tile(int64_t item) const {
    const int64_t row = item / num_columns() * rows_per_item;
    const int64_t panel = item % num_columns() * panels_per_item;
    return {row, std::min(rows_per_item, num_rows - row), panel,
            std::min(panels_per_item, num_panels - panel), nullptr};
  }
};

// Rows of an item: few enough to stay in cache beside a panel, and as many for every thread.
int64_t rows_per_item(const PackedQ8& w, int64_t rows, int64_t num_threads) {
  const int64_t row_bytes = group_row_bytes(w.in_features, w.activation_group);
  const int64_t most = std::clamp(kRowBytesPerItem / row_bytes, kMinRowsPerItem, kMaxRowsPerItem);
  int64_t pieces = std::clamp<int64_t>(rows / kMinRowsPerItem, 1, num_threads);
  if (divide_up(rows, pieces) > most) {
    pieces = divide_up(divide_up(rows, most), num_threads) * num_threads;
  }
  const int64_t piece = std::max<int64_t>(1, divide_up(rows, pieces));
  return divide_up(piece, kRowsTogether) * kRowsTogether;
}

ItemGrid cut_items(const LinearQ8Task& task, int64_t rows, int64_t num_threads) {
  const int64_t panels = num_panels(*task.weight);
  int64_t panels_per_item = 1;
  if (task.gated_rows) {
    panels_per_item = q8_gated_panels(task.gated_group);
  } else if (rows < kFewRows) {
    panels_per_item =
        std::clamp<int64_t>(panels / (num_threads * kItemsPerThread), 1, kMaxPanelsPerItem);
  }
  return {rows, rows_per_item(*task.weight, rows, num_threads), panels, panels_per_item};
}

// The thread that computes the last item of its part goes on with its part of the next matrix.
void look_beyond(const ThreadPool& threads, const ItemGrid& grid, int64_t item,
                 const PackedQ8& next, LinearQ8Tile* tile) {
  const int64_t num_threads = threads.num_threads(), num_items = grid.num_items();
  const int64_t part = divide_up((item + 1) * num_threads, num_items) - 1;
  if (threads.part_begin(num_items, part + 1) != item + 1) return;
  const int64_t panels = num_panels(next), row_items = num_items / grid.num_columns();
  const int64_t panel = threads.part_begin(row_items * panels, part) % panels;
  tile->after = reinterpret_cast<const uint8_t*>(&next) + panel_offset(next, panel);
  tile->after_bytes = panel_bytes(next, panel_vectors(next, panel));
}

// Whether the output had better go past the caches: lines that are to be written are not read
// first.
bool is_streamed(const PackedQ8& w, int64_t rows, const float* residual, const float* out) {
  return rows * w.out_features * kFloatBytes > kCachedBytes && !residual &&
         w.out_features % kQ8Lanes == 0 && reinterpret_cast<uintptr_t>(out) % 64 == 0;
}

// Cuts the task into tiles and runs them; false if a thread had no memory for its scratch.
bool run_linear(ThreadPool& threads, const Q8Kernels& kernels, const LinearQ8Task& task,
                int64_t rows, const PackedQ8* next) {
  const ItemGrid grid = cut_items(task, rows, threads.num_threads());
  const ThreadPool::Upcoming upcoming = {reinterpret_cast<const uint8_t*>(next),
                                         next ? next->num_bytes : 0};
  std::atomic<bool> has_memory{true};
  const auto run_item = [&](int64_t item) {
    LinearQ8Tile tile = grid.tile(item);
    if (next) look_beyond(threads, grid, item, *next, &tile);
    const int64_t bytes = linear_q8_scratch_bytes(task, tile);
    float* scratch = thread_scratch(static_cast<size_t>(bytes / 4 + 1));
    if (scratch) {
      kernels.linear(task, tile, reinterpret_cast<uint8_t*>(scratch));
    } else {
      has_memory = false;
    }
  };
  threads.for_each(grid.num_items(), run_item, &upcoming);
  return has_memory;
}

bool rows_fit(int64_t rows, std::initializer_list<const PackedQ8*> weights) {
  return std::all_of(weights.begin(), weights.end(), [&](const PackedQ8* w) {
    return fit_memory({rows, w->in_features, kFloatBytes}) &&
           fit_memory({rows, w->out_features, kFloatBytes});
  });
}

// Rounds on every thread at once, in 1e9 products per second together; the best of a few.
double measure_dot(ThreadPool& threads, const Q8Kernels& kernels) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int attempt = 0; attempt < 30; ++attempt) {
    std::atomic<int64_t> count{0};
    const auto start = Clock::now();
    threads.for_each(threads.num_threads(), [&](int64_t) {
      int32_t sink[1] = {1};
      count += kernels.dot_burst(5000, sink);
    });
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, static_cast<double>(count) / seconds.count() * 1e-9);
  }
  return best;
}

thread_local RowBuffer input_rows, gated_rows;

// -- reading back --------------------------------------------------------------------------------

float half_to_float(uint16_t half) {  // of a finite number
  const int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

// The weights of one output, as floats [in_features].
void unpack_column(const PackedQ8& w, int64_t output, float* out) {
  const int64_t panel = output / kQ8PanelColumns, column = output % kQ8PanelColumns;
  const int64_t vectors = panel_vectors(w, panel), steps = w.stored_bits;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(&w) + panel_offset(w, panel);
  const uint8_t* scales = codes + panel_code_bytes(w, static_cast<int>(vectors));
  const auto scale_at = [&](int64_t row) {
    const int64_t at = row * vectors * kQ8Lanes + column;
    if (w.half_scales) {
      uint16_t half;
      std::memcpy(&half, scales + at * 2, 2);
      return half_to_float(half);
    }
    float scale;
    std::memcpy(&scale, scales + at * 4, 4);
    return scale;
  };
  const bool has_minimum = w.form == Q8Form::kMinimum;
  const int zero_point = has_minimum ? 0 : w.form == Q8Form::kZeroPoint && steps == 4 ? 8 : 128;
  float scale = 0, minimum = 0;
  for (int64_t k = 0; k < w.in_features; ++k) {
    if (k % w.group_size == 0) {
      const int64_t group = w.form == Q8Form::kChannel ? 0 : k / w.group_size;
      scale = scale_at(has_minimum ? 2 * group : group);
      if (has_minimum) minimum = scale_at(2 * group + 1);
    }
    const int64_t block = k / kQ8BlockDepth, step = k % kQ8BlockDepth / 4;
    const int64_t vector = (block * steps + step % steps) * vectors + column / kQ8Lanes;
    int code = codes[vector * 64 + column % kQ8Lanes * 4 + k % 4];
    if (steps == 4) code = step < 4 ? code & 15 : code >> 4;
    out[k] = scale * static_cast<float>(code - zero_point) + minimum;
  }
}

}  // namespace

const PackedQ8* as_packed(const void* packed) {
  const PackedQ8* header = static_cast<const PackedQ8*>(packed);
  return all_aligned(header) && header->magic == kPackedQ8Magic ? header : nullptr;
}

const uint8_t* quantized_rows(ThreadPool& threads, const Q8Input& input, const PackedQ8& weight) {
  const int64_t width = weight.in_features, group = weight.activation_group;
  uint8_t* records = input_rows.get(input.num_rows * group_row_bytes(width, group));
  const Q8Kernels& kernels = *chairlift::kernels().q8;
  const bool done = records && quantize(threads, kernels, input, width, group, records);
  return done ? records : nullptr;
}

int32_t linear_q8(ThreadPool& threads, const Q8Input& input, const Q8Linear& linear,
                  const float* residual, float* out, const PackedQ8* next) {
  const Q8Kernels& kernels = *chairlift::kernels().q8;
  const PackedQ8& w = *linear.weight;
  const uint8_t* records = quantized_rows(threads, input, w);
  if (!records) return out_of_memory();
  const LinearQ8Task task = {records,
                             &w,
                             linear.bias,
                             residual,
                             out,
                             nullptr,
                             0,
                             kernels.unpack_rows,
                             is_streamed(w, input.num_rows, residual, out)};
  return run_linear(threads, kernels, task, input.num_rows, next) ? CHAIRLIFT_OK : out_of_memory();
}

int32_t mlp_q8(ThreadPool& threads, const Q8Input& input, const Q8Linear& gate_up,
               const Q8Linear& down, const float* residual, float* out, const PackedQ8* next) {
  const Q8Kernels& kernels = *chairlift::kernels().q8;
  const PackedQ8 &first = *gate_up.weight, &second = *down.weight;
  const int64_t rows = input.num_rows, width = first.in_features, group = first.activation_group;
  const int64_t inner = second.in_features, inner_group = second.activation_group;
  uint8_t* records = input_rows.get(rows * group_row_bytes(width, group));
  uint8_t* gated = gated_rows.get(rows * group_row_bytes(inner, inner_group));
  if (!records || !gated || !quantize(threads, kernels, input, width, group, records)) {
    return out_of_memory();
  }
  const LinearQ8Task gate = {records, &first, gate_up.bias, nullptr,
                             nullptr, gated,  inner_group,  kernels.unpack_rows};
  const LinearQ8Task project = {gated, &second, down.bias, residual,
                                out,   nullptr, 0,         kernels.unpack_rows};
  const bool done = run_linear(threads, kernels, gate, rows, &second) &&
                    run_linear(threads, kernels, project, rows, next);
  return done ? CHAIRLIFT_OK : out_of_memory();
}

int32_t checked_mlp_q8(chairlift_pool* pool, const Q8Input& input, const void* gate_up,
                       const float* gate_up_bias, const void* down, const float* down_bias,
                       const float* residual, float* out, const PackedQ8* next) {
  if (!pool || !input.x || !gate_up || !down || !out) return invalid("mlp_q8: a pointer is null");
  const PackedQ8 *first = as_packed(gate_up), *second = as_packed(down);
  if (!first || !second) return invalid("mlp_q8: these weights were not packed by this library");
  if (first->interleave == 0 || second->interleave != 0 ||
      first->out_features != 2 * second->in_features) {
    return invalid("mlp_q8: gate_up must be interleaved and twice as wide as down reads");
  }
  if (!all_aligned(input.x, input.norm, gate_up_bias, down_bias, residual, out)) {
    return invalid("mlp_q8: a pointer is not aligned");
  }
  if (!rows_fit(input.num_rows, {first, second})) return invalid("mlp_q8: rows is out of range");
  return mlp_q8(pool->threads, input, {first, gate_up_bias}, {second, down_bias}, residual, out,
                next);
}

}  // namespace chairlift

using chairlift::as_packed;
using chairlift::invalid;
using chairlift::out_of_memory;
using chairlift::PackedQ8;

extern "C" {

int64_t chairlift_linear_q8_size(const chairlift_grouped_weights* weights) {
  if (chairlift::check_weights(weights) != CHAIRLIFT_OK) return 0;
  return chairlift::describe(*weights).num_bytes;
}

int32_t chairlift_linear_q8_pack(chairlift_pool* pool, const chairlift_grouped_weights* weights,
                                 void* packed) {
  if (!pool || !packed) return invalid("linear_q8: a pointer is null");
  if (!chairlift::all_aligned(static_cast<const PackedQ8*>(packed))) {
    return invalid("linear_q8: packed is not aligned to 8 bytes");
  }
  const int32_t status = chairlift::check_weights(weights);
  if (status != CHAIRLIFT_OK) return status;
  if (!chairlift::has_codes_of_its_bits(*weights)) {
    return invalid("linear_q8: a code is not below 2^bits");
  }
  const PackedQ8 header = chairlift::describe(*weights);
  std::memcpy(packed, &header, sizeof header);
  pool->threads.for_each(chairlift::num_panels(header), [&](int64_t panel) {
    chairlift::pack_panel(*weights, header, panel, static_cast<uint8_t*>(packed));
  });
  return CHAIRLIFT_OK;
}

int32_t chairlift_linear_q8(chairlift_pool* pool, const float* x, int64_t rows, const void* packed,
                            const float* bias, const float* residual, float* out) {
  return chairlift_norm_linear_q8(pool, x, rows, nullptr, 0.0f, packed, bias, residual, out);
}

int32_t chairlift_norm_linear_q8(chairlift_pool* pool, const float* x, int64_t rows,
                                 const float* norm, float eps, const void* packed,
                                 const float* bias, const float* residual, float* out) {
  if (!pool || !x || !packed || !out) return invalid("linear_q8: a pointer is null");
  const PackedQ8* weight = as_packed(packed);
  if (!weight) return invalid("linear_q8: these weights were not packed by this library");
  if (!chairlift::all_aligned(x, norm, bias, residual, out)) {
    return invalid("linear_q8: a pointer is not aligned");
  }
  if (!chairlift::rows_fit(rows, {weight})) return invalid("linear_q8: rows is out of range");
  return chairlift::linear_q8(pool->threads, {x, rows, norm, eps}, {weight, bias}, residual, out,
                              nullptr);
}

int32_t chairlift_mlp_q8(chairlift_pool* pool, const float* x, int64_t rows, const void* gate_up,
                         const void* down, const float* residual, float* out) {
  return chairlift_norm_mlp_q8(pool, x, rows, nullptr, 0.0f, gate_up, nullptr, down, nullptr,
                               residual, out);
}

int32_t chairlift_norm_mlp_q8(chairlift_pool* pool, const float* x, int64_t rows, const float* norm,
                              float eps, const void* gate_up, const float* gate_up_bias,
                              const void* down, const float* down_bias, const float* residual,
                              float* out) {
  return chairlift::checked_mlp_q8(pool, {x, rows, norm, eps}, gate_up, gate_up_bias, down,
                                   down_bias, residual, out, nullptr);
}

int32_t chairlift_rows_q8(chairlift_pool* pool, const void* packed, const int32_t* ids,
                          int64_t num_ids, float* out) {
  if (!pool || !packed || !ids || !out) return invalid("rows_q8: a pointer is null");
  const PackedQ8* weight = as_packed(packed);
  if (!weight) return invalid("rows_q8: these weights were not packed by this library");
  if (!chairlift::all_aligned(ids, out)) return invalid("rows_q8: a pointer is not aligned");
  if (weight->interleave != 0) return invalid("rows_q8: the rows of this matrix are interleaved");
  if (!chairlift::rows_fit(num_ids, {weight})) return invalid("rows_q8: num_ids is out of range");
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= weight->out_features) {
      return invalid("rows_q8: row " + std::to_string(ids[i]) + " is not in the matrix");
    }
  }
  constexpr int64_t kRowsPerItem = 8;
  pool->threads.for_each(chairlift::divide_up(num_ids, kRowsPerItem), [&](int64_t item) {
    const int64_t end = std::min(num_ids, (item + 1) * kRowsPerItem);
    for (int64_t i = item * kRowsPerItem; i < end; ++i) {
      chairlift::unpack_column(*weight, ids[i], out + i * weight->in_features);
    }
  });
  return CHAIRLIFT_OK;
}

int32_t chairlift_quantize_rows(chairlift_pool* pool, const float* x, int64_t rows, int64_t width,
                                int64_t group_size, uint8_t* records) {
  if (!pool || !x || !records) return invalid("quantize_rows: a pointer is null");
  if (!chairlift::all_aligned(x)) return invalid("quantize_rows: a pointer is not aligned");
  if (width < 1 || !chairlift::fit_memory({rows, width, chairlift::kFloatBytes})) {
    return invalid("quantize_rows: a size is out of range");
  }
  if (group_size != 32 && group_size != 64) {
    return invalid("quantize_rows: group_size must be 32 or 64");
  }
  const bool done = chairlift::quantize(pool->threads, *chairlift::kernels().q8,
                                        {x, rows, nullptr, 0.0f}, width, group_size, records);
  return done ? CHAIRLIFT_OK : out_of_memory();
}

double chairlift_measure_int8_dot(chairlift_pool* pool) {
  if (!pool) {
    invalid("measure_int8_dot: a pointer is null");
    return 0.0;
  }
  return chairlift::measure_dot(pool->threads, *chairlift::kernels().q8);
}

}  // extern "C"
