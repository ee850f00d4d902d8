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
constexpr int64_t kRowsPerItem = 256;  // activations of one item stay in L2
constexpr int64_t kPanelsPerItem = 2;  // of a single row: one pass of the kernel
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kFloatBytes = 4;

thread_local std::string last_error;

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

int32_t check_linear_f32(const float* packed, const float* bias, int64_t out_features,
                         int64_t in_features) {
  if (!packed) return invalid("linear: a pointer is null");
  if (!all_aligned(packed, bias)) return invalid("linear: a pointer is not aligned");
  if (out_features < 1 || in_features < 1) return invalid("linear: a size is below 1");
  if (!fit_memory({out_features, kPanelWidth, in_features, kFloatBytes})) {
    return invalid("linear: a size is out of range");
  }
  return CHAIRLIFT_OK;
}

int32_t fail(int32_t status, std::string message) {
  last_error = std::move(message);
  return status;
}

int32_t invalid(std::string message) {
  return fail(CHAIRLIFT_INVALID_ARGUMENT, std::move(message));
}

int32_t out_of_memory() { return fail(CHAIRLIFT_OUT_OF_MEMORY, "out of memory"); }

}  // namespace chairlift

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
  constexpr float kAnyPointer = 0;
  const int32_t status =
      chairlift::check_linear_f32(&kAnyPointer, nullptr, out_features, in_features);
  if (status != CHAIRLIFT_OK) return 0;
  return chairlift::divide_up(out_features, kPanelWidth) * kPanelWidth * in_features;
}

int32_t chairlift_linear_f32_pack(chairlift_pool* pool, const float* weight, int64_t out_features,
                                  int64_t in_features, float* packed) {
  if (!pool || !weight || !packed) return chairlift::invalid("linear: a pointer is null");
  if (!chairlift::all_aligned(weight))
    return chairlift::invalid("linear: a pointer is not aligned");
  const int32_t status = chairlift::check_linear_f32(packed, nullptr, out_features, in_features);
  if (status != CHAIRLIFT_OK) return status;
  pool->threads.for_each(chairlift::divide_up(out_features, kPanelWidth), [&](int64_t panel) {
    chairlift::pack_panel(weight, out_features, in_features, panel, packed);
  });
  return CHAIRLIFT_OK;
}

int32_t chairlift_linear_f32(chairlift_pool* pool, const float* x, int64_t rows,
                             const float* packed, const float* bias, int64_t out_features,
                             int64_t in_features, float* out) {
  if (!pool || !x || !out) return chairlift::invalid("linear: a pointer is null");
  if (!chairlift::all_aligned(x, out))
    return chairlift::invalid("linear: a pointer is not aligned");
  const int32_t status = chairlift::check_linear_f32(packed, bias, out_features, in_features);
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
                        std::min(panels, num_panels - first_panel), nullptr});
  });
  return CHAIRLIFT_OK;
}

double chairlift_measure_fma(void) { return chairlift::measure_fma(chairlift::kernels()); }

}  // extern "C"
