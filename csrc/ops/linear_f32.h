// y = x W^T + b for float32 weights packed in panels [in_features][32].
//
// A tile keeps its outputs in registers and walks once along in_features.  Whatever the tile's
// shape, an output is one chain of multiply-adds in the order of in_features, started at zero and
// followed by the bias, so results do not depend on how many rows there are.
#pragma once

#include "../isa/kernel_table.h"
#include "../vec.h"

namespace chairlift {
namespace {

constexpr int kPanelWidth = CHAIRLIFT_PANEL_WIDTH;
constexpr int kPanelVectors = kPanelWidth / kLanes;

#if defined(CHAIRLIFT_VEC_AVX512)
constexpr int kLinearRows = 8, kLinearVectors = 2;  // 16 accumulators of 32 registers
#elif defined(CHAIRLIFT_VEC_AVX2)
constexpr int kLinearRows = 6, kLinearVectors = 1;  // 12 accumulators of 16 registers
#else
constexpr int kLinearRows = 2, kLinearVectors = 1;  // 8 registers of four lanes
#endif

// Writes the first `width` lanes.
CHAIRLIFT_INLINE void store_lanes(F16 value, float* out, int64_t width) {
  if (width >= kLanes) {
    value.store(out);
  } else {
    float lanes[kLanes];
    value.store(lanes);
    for (int64_t i = 0; i < width; ++i) out[i] = lanes[i];
  }
}

// Where outputs go: `corner` is that of the tile's first row and panel.
struct LinearOutput {
  float* corner;
  int64_t stride;
  int64_t first_row;
  int64_t first_column;
};

// ROWS rows times VECTORS vectors of columns.  Vector v of step k is at
// panel + k * 32 + (v % per_panel) * 16 + (v / per_panel) * panel_stride.
template <int ROWS, int VECTORS>
CHAIRLIFT_INLINE void multiply_tile(const LinearTask& task, const LinearOutput& out, int64_t row,
                                    const float* panel, int64_t column) {
  const int64_t depth = task.in_features;
  const float* x = task.x + row * depth;
  F16 sum[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = F16::all(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k) {
    F16 weight[VECTORS];
    for (int v = 0; v < VECTORS; ++v) {
      const int64_t panel_offset = (v / kPanelVectors) * depth * kPanelWidth;
      weight[v] = F16::load(panel + panel_offset + k * kPanelWidth + (v % kPanelVectors) * kLanes);
    }
    for (int r = 0; r < ROWS; ++r) {
      const F16 activation = F16::all(x[r * depth + k]);
      for (int v = 0; v < VECTORS; ++v) {
        sum[r][v] = multiply_add(activation, weight[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) {
      const int64_t first = column + v * kLanes;
      const int64_t width = task.out_features - first;
      if (width <= 0) continue;
      if (task.bias) {
        float bias[kLanes] = {};
        for (int i = 0; i < kLanes && i < width; ++i) bias[i] = task.bias[first + i];
        sum[r][v] = sum[r][v] + F16::load(bias);
      }
      store_lanes(sum[r][v],
                  out.corner + (row + r - out.first_row) * out.stride + (first - out.first_column),
                  width);
    }
  }
}

template <int ROWS>
void multiply_rows(const LinearTask& task, const LinearOutput& out, int64_t row,
                   int64_t panel_index) {
  const float* panel = task.packed + panel_index * task.in_features * kPanelWidth;
  for (int v = 0; v < kPanelVectors; v += kLinearVectors) {
    multiply_tile<ROWS, kLinearVectors>(task, out, row, panel + v * kLanes,
                                        panel_index * kPanelWidth + v * kLanes);
  }
}

// One row alone: two panels at once, so that four chains hide the latency of the multiply-adds.
void multiply_one_row(const LinearTask& task, const LinearOutput& out, int64_t row,
                      int64_t first_panel, int64_t num_panels) {
  int64_t p = first_panel;
  const int64_t end = first_panel + num_panels;
  for (; p + 2 <= end; p += 2) {
    multiply_tile<1, 2 * kPanelVectors>(
        task, out, row, task.packed + p * task.in_features * kPanelWidth, p * kPanelWidth);
  }
  if (p < end) multiply_rows<1>(task, out, row, p);
}

template <int ROWS>
CHAIRLIFT_INLINE void multiply_up_to(const LinearTask& task, const LinearOutput& out, int64_t row,
                                     int64_t num_rows, int64_t panel) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return multiply_up_to<ROWS - 1>(task, out, row, num_rows, panel);
  }
  multiply_rows<ROWS>(task, out, row, panel);
}

void linear_f32(const LinearTask& task, const LinearTile& tile) {
  LinearOutput out = {tile.out, tile.num_panels * kPanelWidth, tile.first_row,
                      tile.first_panel * kPanelWidth};
  if (!tile.out) {
    out.stride = task.out_features;
    out.corner = task.out + out.first_row * out.stride + out.first_column;
  }
  if (tile.num_rows == 1) {
    return multiply_one_row(task, out, tile.first_row, tile.first_panel, tile.num_panels);
  }
  // Row counts that differ by at most one, rather than full tiles and a thin rest.
  const int64_t num_steps = (tile.num_rows + kLinearRows - 1) / kLinearRows;
  for (int64_t panel = tile.first_panel; panel < tile.first_panel + tile.num_panels; ++panel) {
    for (int64_t step = 0; step < num_steps; ++step) {
      const int64_t begin = tile.num_rows * step / num_steps;
      const int64_t end = tile.num_rows * (step + 1) / num_steps;
      multiply_up_to<kLinearRows>(task, out, tile.first_row + begin, end - begin, panel);
    }
  }
}

int64_t fma_burst(int64_t rounds, float* sink) {
  constexpr int kChains = kLinearRows * kLinearVectors;  // as many registers as a tile uses
  F16 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = F16::all(sink[i]);
  const F16 a = F16::all(sink[kChains]), b = F16::all(sink[kChains + 1]);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) sum[i] = multiply_add(sum[i], a, b);
  }
  F16 total = sum[0];
  for (int i = 1; i < kChains; ++i) total = total + sum[i];
  sink[0] = sum_lanes(total);
  return rounds * kChains * kLanes;
}

}  // namespace
}  // namespace chairlift
