// What one instruction set offers to the rest of the library.
#pragma once

#include <cstdint>

#include "../include/chairlift_kernels.h"
#include "../logit_scan.h"
#include "../q8_layout.h"

namespace chairlift {

struct LinearTask {
  const float* x;
  const void* packed;  // of weight_type
  const float* bias;   // may be null
  float* out;
  int64_t in_features;
  int64_t out_features;
  int32_t weight_type = CHAIRLIFT_FLOAT32;
};

// A tile of a linear layer: some rows times some panels.
struct LinearTile {
  int64_t first_row;
  int64_t num_rows;
  int64_t first_panel;
  int64_t num_panels;
  float* out;  // [num_rows, columns of the panels], of this tile alone; null: to the task's `out`
  // What to fetch during the last panel; null: the matrix's next panel.
  const uint8_t* after = nullptr;
  int64_t after_bytes = 0;
};

// A linear layer on quantised rows.  Plain: out = x W^T + bias + residual.  Gated, for weights
// packed with an interleave: silu(gate) * up, quantised in groups of `gated_group` and in no other
// form.
struct LinearQ8Task {
  const uint8_t* rows;     // records of weight->activation_group, see q8_layout.h
  const PackedQ8* weight;  // panels follow
  const float* bias;       // may be null
  const float* residual;   // may be null; may be `out`
  float* out;
  uint8_t* gated_rows;  // null: plain
  int64_t gated_group;
  int64_t unpack_rows;   // tiles of so many rows unpack codes of four bits to scratch; 0: none does
  bool streams = false;  // `out` is too large to be found in a cache later; its rows are on lines
};

using LinearQ8Tile = LinearTile;  // panels of kQ8PanelColumns

constexpr int64_t kQ8GatedRows = 16;  // computed at once: their gates and ups stay in L1
constexpr int64_t kQ8MaxGatedPanels = 8;

// Panels of a gated tile: gates and ups of whole pairs and whole groups.
constexpr int64_t q8_gated_panels(int64_t gated_group) { return gated_group == 64 ? 8 : 4; }

// Some query rows of one sequence, the query heads that read some consecutive key/value heads, and
// some consecutive groups of positions (see kv_layout.h).
struct KvTile {
  int64_t sequence;
  int64_t first_kv_head;
  int64_t num_kv_heads;
  int64_t first_row;  // of the whole step
  int64_t num_rows;
  int64_t first_position;  // of first_row in its sequence
  int64_t first_group;
  int64_t num_groups;
  float* partials;  // null: all groups are here, the result goes to `out`
};

// What a query leaves of one group, in floats: maximum, unit of the sums, totals [16], sums [dim].
constexpr int64_t kPartialTotals = 16;
constexpr int64_t kPartialSums = 32;

// Attention over keys and values of some types.
struct AttentionKernels {
  // The keys of `following`, which may be null, are asked for towards the end.
  void (*attend)(const chairlift_attention& task, const KvTile& tile, const KvTile* following,
                 float* scratch);
  // Merges the partials of a tile's groups, [groups][key/value heads][queries].
  void (*merge)(const chairlift_attention& task, const KvTile& tile, float* scratch);
};

// Storing keys and values of any type, and attention over those stored as bytes.
struct KvKernels {
  void (*store_kv)(const chairlift_kv_to_cache& task, int64_t first_row, int64_t num_rows);
  void (*store_qkv)(const chairlift_qkv_to_cache& task, int64_t first_row, int64_t num_rows,
                    float* scratch);
  AttentionKernels attention;
  // Reads pieces of memory in order; returns something that depends on all of them.
  int64_t (*read)(const uint8_t* memory, int64_t stride, int64_t num_bytes, const int32_t* blocks,
                  int64_t num_blocks);
};

// Floats of scratch that AttentionKernels need for a tile.
int64_t attention_scratch_floats(const chairlift_attention& task, const KvTile& tile);

// The ops on bytes, which have instruction sets of their own.
struct Q8Kernels {
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t num_rows, int64_t width,
                   float* out);
  // Rows of floats to rows of records.
  void (*quantize_rows)(const float* x, int64_t num_rows, int64_t width, int64_t group_size,
                        uint8_t* records);
  void (*linear)(const LinearQ8Task& task, const LinearQ8Tile& tile, uint8_t* scratch);
  // Runs `rounds` rounds of independent products of bytes; returns how many it did.
  int64_t (*dot_burst)(int64_t rounds, int32_t* sink);
  // Good for LinearQ8Task; results do not depend on it.
  int64_t unpack_rows;
  const KvKernels* kv;
};

// Bytes of scratch that Q8Kernels::linear needs for a tile.
int64_t linear_q8_scratch_bytes(const LinearQ8Task& task, const LinearQ8Tile& tile);

struct KernelTable {
  const char* name;
  void (*linear)(const LinearTask& task, const LinearTile& tile);
  const AttentionKernels* float_attention;  // over keys and values stored as floats
  // Runs `rounds` rounds of independent multiply-adds; returns how many it did.
  int64_t (*fma_burst)(int64_t rounds, float* sink);
  const Q8Kernels* q8;
  // Passes over a tile of logits; `rows` and `scans` begin with the tile's first row.
  void (*scan_logits)(const LogitTile& tile, const LogitRow* rows, LogitScan* scans);
};

extern const Q8Kernels kScalarQ8Kernels;
extern const KernelTable kScalarKernels;
#if defined(CHAIRLIFT_X86)
extern const Q8Kernels kAvx2Q8Kernels;
extern const Q8Kernels kAvx512VnniQ8Kernels;
#if defined(CHAIRLIFT_AVX_VNNI)
extern const Q8Kernels kAvxVnniQ8Kernels;
#endif
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace chairlift
