// The C functions of linear layers in float32: packing, cutting into tiles, reading rows back.
#include <algorithm>
#include <string>

#include "api.h"
#include "arguments.h"
#include "dispatch.h"
#include "linear_layout.h"
#include "ops/stored_floats.h"

namespace chairlift {
namespace {

constexpr int64_t kPanelWidth = CHAIRLIFT_PANEL_WIDTH;
constexpr int64_t kRowsPerItem = 256;  // activations of one item stay in L2
constexpr int64_t kPanelsPerItem = 2;  // of a single row
constexpr int64_t kIdsPerItem = 8;
constexpr int64_t kFloatBytes = 4;

template <class T>
void pack_panel(const T* weight, int32_t weight_type, int64_t out_features, int64_t in_features,
                int64_t panel, T* packed) {
  T* out = packed + panel * in_features * kPanelWidth;
  const int64_t first = panel * kPanelWidth;
  const int64_t width = std::min(kPanelWidth, out_features - first);
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    const T* row = weight + (first + column) * in_features;
    const int64_t place = place_in_panel(weight_type, column);
    for (int64_t k = 0; k < in_features; ++k) {
      out[k * kPanelWidth + place] = column < width ? row[k] : T(0);
    }
  }
}

template <class T>
void pack(ThreadPool& threads, const T* weight, int32_t weight_type, int64_t out_features,
          int64_t in_features, T* packed) {
  threads.for_each(divide_up(out_features, kPanelWidth), [&](int64_t panel) {
    pack_panel(weight, weight_type, out_features, in_features, panel, packed);
  });
}

void multiply(ThreadPool& threads, const LinearTask& task, int64_t rows) {
  const KernelTable& table = kernels();
  const int64_t num_panels = divide_up(task.out_features, kPanelWidth);
  const int64_t panels = rows == 1 ? kPanelsPerItem : 1;
  const int64_t chunks = divide_up(rows, kRowsPerItem);
  // Chunks of rows that share panels come one after the other: the second finds them in cache.
  const int64_t columns = divide_up(num_panels, panels);
  threads.for_each(columns * chunks, [&](int64_t item) {
    const int64_t first_row = item % chunks * kRowsPerItem;
    const int64_t first_panel = item / chunks * panels;
    table.linear(task, {first_row, std::min(kRowsPerItem, rows - first_row), first_panel,
                        std::min(panels, num_panels - first_panel), nullptr});
  });
}

// Row `id` of a packed matrix: one number of each cache line or two.
template <class T>
void read_row(const LinearTask& task, int64_t id, float* out) {
  const int64_t panel = id / kPanelWidth * task.in_features * kPanelWidth;
  const T* column = static_cast<const T*>(task.packed) + panel +
                    place_in_panel(task.weight_type, id % kPanelWidth);
  for (int64_t k = 0; k < task.in_features; ++k) out[k] = to_float(column[k * kPanelWidth]);
}

void read_row(const LinearTask& task, int64_t id, float* out) {
  switch (task.weight_type) {
    case CHAIRLIFT_FLOAT16:
      return read_row<Half>(task, id, out);
    case CHAIRLIFT_BFLOAT16:
      return read_row<BFloat16>(task, id, out);
    default:
      return read_row<float>(task, id, out);
  }
}

void read_rows(ThreadPool& threads, const LinearTask& task, const int32_t* ids, int64_t num_ids) {
  threads.for_each(divide_up(num_ids, kIdsPerItem), [&](int64_t item) {
    const int64_t end = std::min(num_ids, (item + 1) * kIdsPerItem);
    for (int64_t i = item * kIdsPerItem; i < end; ++i) {
      read_row(task, ids[i], task.out + i * task.in_features);
    }
  });
}

bool rows_fit(int64_t rows, int64_t out_features, int64_t in_features) {
  return fit_memory({rows, out_features, kFloatBytes}) &&
         fit_memory({rows, in_features, kFloatBytes});
}

}  // namespace

int32_t check_matrix(const char* op, const void* weight, int32_t weight_type, int64_t out_features,
                     int64_t in_features) {
  const std::string name = op;
  if (weight_type < CHAIRLIFT_FLOAT32 || weight_type > CHAIRLIFT_BFLOAT16) {
    return invalid(name + ": weights must be float32, float16 or bfloat16");
  }
  const bool is_aligned = weight_type == CHAIRLIFT_FLOAT32
                              ? all_aligned(static_cast<const float*>(weight))
                              : all_aligned(static_cast<const uint16_t*>(weight));
  if (!is_aligned) return invalid(name + ": a pointer is not aligned");
  if (out_features < 1 || in_features < 1) return invalid(name + ": a size is below 1");
  if (!fit_memory({out_features, kPanelWidth, in_features, kFloatBytes})) {
    return invalid(name + ": a size is out of range");
  }
  return CHAIRLIFT_OK;
}

}  // namespace chairlift

using chairlift::check_matrix;
using chairlift::invalid;
using chairlift::rows_fit;

extern "C" {

int64_t chairlift_linear_f32_size(int64_t out_features, int64_t in_features) {
  if (check_matrix("size", nullptr, CHAIRLIFT_FLOAT32, out_features, in_features) != CHAIRLIFT_OK) {
    return 0;
  }
  constexpr int64_t kWidth = CHAIRLIFT_PANEL_WIDTH;
  return chairlift::divide_up(out_features, kWidth) * kWidth * in_features;
}

int32_t chairlift_linear_f32_pack(chairlift_pool* pool, const void* weight, int32_t weight_type,
                                  int64_t out_features, int64_t in_features, void* packed) {
  if (!pool || !weight || !packed) return invalid("pack: a pointer is null");
  int32_t status = check_matrix("pack", weight, weight_type, out_features, in_features);
  if (status == CHAIRLIFT_OK) {
    status = check_matrix("pack", packed, weight_type, out_features, in_features);
  }
  if (status != CHAIRLIFT_OK) return status;
  if (weight_type == CHAIRLIFT_FLOAT32) {
    chairlift::pack(pool->threads, static_cast<const float*>(weight), weight_type, out_features,
                    in_features, static_cast<float*>(packed));
  } else {
    chairlift::pack(pool->threads, static_cast<const uint16_t*>(weight), weight_type, out_features,
                    in_features, static_cast<uint16_t*>(packed));
  }
  return CHAIRLIFT_OK;
}

int32_t chairlift_linear_f32(chairlift_pool* pool, const float* x, int64_t rows, const void* packed,
                             int32_t weight_type, const float* bias, int64_t out_features,
                             int64_t in_features, float* out) {
  if (!pool || !x || !packed || !out) return invalid("linear: a pointer is null");
  const int32_t status = check_matrix("linear", packed, weight_type, out_features, in_features);
  if (status != CHAIRLIFT_OK) return status;
  if (!chairlift::all_aligned(x, bias, out)) return invalid("linear: a pointer is not aligned");
  if (!rows_fit(rows, out_features, in_features)) return invalid("linear: rows is out of range");
  const chairlift::LinearTask task = {x, packed, bias, out, in_features, out_features, weight_type};
  chairlift::multiply(pool->threads, task, rows);
  return CHAIRLIFT_OK;
}

int32_t chairlift_rows_f32(chairlift_pool* pool, const void* packed, int32_t weight_type,
                           int64_t out_features, int64_t in_features, const int32_t* ids,
                           int64_t num_ids, float* out) {
  if (!pool || !packed || !ids || !out) return invalid("rows: a pointer is null");
  const int32_t status = check_matrix("rows", packed, weight_type, out_features, in_features);
  if (status != CHAIRLIFT_OK) return status;
  if (!chairlift::all_aligned(ids, out)) return invalid("rows: a pointer is not aligned");
  if (!rows_fit(num_ids, 1, in_features)) return invalid("rows: num_ids is out of range");
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= out_features) {
      return invalid("rows: row " + std::to_string(ids[i]) + " is not in the matrix");
    }
  }
  const chairlift::LinearTask task = {nullptr,     packed,       nullptr,    out,
                                      in_features, out_features, weight_type};
  chairlift::read_rows(pool->threads, task, ids, num_ids);
  return CHAIRLIFT_OK;
}

}  // extern "C"
