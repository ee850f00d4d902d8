// What one instruction set offers to the rest of the library.
#pragma once

#include <cstdint>

#include "../include/chairlift_kernels.h"

namespace chairlift {

struct LinearTask {
  const float* x;
  const float* packed;
  const float* bias;  // may be null
  float* out;
  int64_t in_features;
  int64_t out_features;
};

// A tile of a linear layer: some rows times some panels.
struct LinearTile {
  int64_t first_row;
  int64_t num_rows;
  int64_t first_panel;
  int64_t num_panels;
};

// A tile of attention: consecutive query rows of one sequence, and the query heads that read some
// consecutive key/value heads.
struct AttentionTile {
  int64_t sequence;
  int64_t first_kv_head;
  int64_t num_kv_heads;
  int64_t first_row;  // of the whole step
  int64_t num_rows;
  int64_t first_position;  // of first_row in its sequence
};

struct KernelTable {
  const char* name;
  void (*linear)(const LinearTask& task, const LinearTile& tile);
  void (*attention)(const chairlift_attention& task, const AttentionTile& tile, float* scratch);
  // Runs `rounds` rounds of independent multiply-adds; returns how many it did.
  int64_t (*fma_burst)(int64_t rounds, float* sink);
};

// Floats of scratch that `attention` needs for a tile.
int64_t attention_scratch_floats(const chairlift_attention& task, const AttentionTile& tile);

extern const KernelTable kScalarKernels;
#if defined(CHAIRLIFT_X86)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace chairlift
