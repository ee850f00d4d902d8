// y = x W^T + b in float32, for weights packed in panels [in_features][32].
//
// A tile keeps its outputs in registers and walks once along in_features.  Whatever the tile's
// shape, an output is one chain of multiply-adds in the order of in_features, started at zero and
// followed by the bias, so results do not depend on how many rows there are.  Weights of 16 bits
// become the very floats that they stand for on their way into a register, so results do not depend
// on how weights are stored either.
#pragma once

#include "../isa/kernel_table.h"
#include "../vec.h"
#include "stored_floats.h"

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

// Vector VECTOR of the columns of a panel at one step of in_features.
template <int VECTOR, class T>
CHAIRLIFT_INLINE F16 load_weights(const T* step) {
  return load_floats(step + VECTOR * kLanes);
}

// Columns c and c + 16 lie side by side, in the lower and the upper half of 32 bits
// (linear_layout.h).
template <int VECTOR>
CHAIRLIFT_INLINE F16 load_weights(const BFloat16* step) {
  return VECTOR == 0 ? load_lower_halves(step) : load_upper_halves(step);
}

// VECTORS vectors of columns from vector FIRST on.
template <int FIRST, int VECTORS, int V = 0, class T>
CHAIRLIFT_INLINE void load_vectors(const T* step, F16* weight) {
  if constexpr (V < VECTORS) {
    weight[V] = load_weights<FIRST + V>(step);
    load_vectors<FIRST, VECTORS, V + 1>(step, weight);
  }
}

// ROWS rows times VECTORS vectors of the panel's columns, from vector FIRST on, which is that of
// column `column` of the result.
template <int ROWS, int FIRST, int VECTORS, class T>
CHAIRLIFT_INLINE void multiply_tile(const LinearTask& task, const LinearOutput& out, int64_t row,
                                    const T* panel, int64_t column) {
  const int64_t depth = task.in_features;
  const float* x = task.x + row * depth;
  F16 sum[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = F16::all(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k) {
    F16 weight[VECTORS];
    load_vectors<FIRST, VECTORS>(panel + k * kPanelWidth, weight);
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

template <int ROWS, int FIRST = 0, class T>
void multiply_rows(const LinearTask& task, const LinearOutput& out, int64_t row, const T* panel,
                   int64_t column) {
  if constexpr (FIRST < kPanelVectors) {
    multiply_tile<ROWS, FIRST, kLinearVectors>(task, out, row, panel, column + FIRST * kLanes);
    multiply_rows<ROWS, FIRST + kLinearVectors>(task, out, row, panel, column);
  }
}

template <int ROWS, class T>
CHAIRLIFT_INLINE void multiply_up_to(const LinearTask& task, const LinearOutput& out, int64_t row,
                                     int64_t num_rows, const T* panel, int64_t column) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return multiply_up_to<ROWS - 1>(task, out, row, num_rows, panel, column);
  }
  multiply_rows<ROWS>(task, out, row, panel, column);
}

// All rows of the tile over one panel, in counts that differ by at most one rather than full tiles
// and a thin rest.
template <class T>
void sweep_rows(const LinearTask& task, const LinearOutput& out, const LinearTile& tile,
                const T* panel, int64_t column) {
  const int64_t num_steps = (tile.num_rows + kLinearRows - 1) / kLinearRows;
  for (int64_t step = 0; step < num_steps; ++step) {
    const int64_t begin = tile.num_rows * step / num_steps;
    const int64_t end = tile.num_rows * (step + 1) / num_steps;
    multiply_up_to<kLinearRows>(task, out, tile.first_row + begin, end - begin, panel, column);
  }
}

template <class T>
void multiply_stored(const LinearTask& task, const LinearTile& tile) {
  LinearOutput out = {tile.out, tile.num_panels * kPanelWidth, tile.first_row,
                      tile.first_panel * kPanelWidth};
  if (!tile.out) {
    out.stride = task.out_features;
    out.corner = task.out + out.first_row * out.stride + out.first_column;
  }
  const int64_t panel_size = task.in_features * kPanelWidth;
  const T* panel = static_cast<const T*>(task.packed) + tile.first_panel * panel_size;
  int64_t column = tile.first_panel * kPanelWidth;
  for (int64_t i = 0; i < tile.num_panels; ++i) {
    if (tile.num_rows == 1) {
      // A whole panel at once, in one stream: memory serves several ones slower.
      multiply_tile<1, 0, kPanelVectors>(task, out, tile.first_row, panel, column);
    } else {
      sweep_rows(task, out, tile, panel, column);
    }
    panel += panel_size;
    column += kPanelWidth;
  }
}

void linear_f32(const LinearTask& task, const LinearTile& tile) {
  switch (task.weight_type) {
    case CHAIRLIFT_FLOAT16:
      return multiply_stored<Half>(task, tile);
    case CHAIRLIFT_BFLOAT16:
      return multiply_stored<BFloat16>(task, tile);
    default:
      return multiply_stored<float>(task, tile);
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
