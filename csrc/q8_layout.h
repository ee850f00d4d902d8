// Where things lie in packed int8 weights and in quantised rows: the one truth of packing, kernels
// and checks.
//
// ```
// weights  header | panel of 48 columns | panel | ... | last panel, of 16, 32 or 48
// panel    codes  [K / 32][8 steps][columns / 16][16 columns][4 of K]  one byte each, or half: the
//                 low nibbles hold steps 0-3 and the high ones 4-7
//          scales [K / group][scale, then minimum if any][columns]     half or float
//                 or, per channel, [columns]
// row      [K / group][codes, one byte each | GroupTail]
// ```
#pragma once

#include <cstdint>

namespace chairlift {

// What a weight is, beside scale * code.
enum class Q8Form : int32_t {
  kMinimum = 0,    // + minimum
  kZeroPoint = 1,  // - scale * 8 (codes of four bits) or - scale * 128
  kChannel = 2,    // - scale * 128 with one scale for a whole column
};

struct PackedQ8 {
  uint64_t magic;
  int64_t num_bytes;
  int64_t out_features;
  int64_t in_features;
  int32_t stored_bits;       // 4 or 8
  int32_t group_size;        // of weights: 16 or 32
  int32_t activation_group;  // 32, or 64
  Q8Form form;
  int32_t half_scales;
  int32_t interleave;  // columns of a gate, then as many of its up; 0: none
  int64_t reserved;
};
static_assert(sizeof(PackedQ8) == 64, "panels begin on a cache line");

constexpr uint64_t kPackedQ8Magic = 0x3130715f676e6f43;
constexpr int kQ8Lanes = 16;
constexpr int kQ8PanelVectors = 3;
constexpr int kQ8PanelColumns = kQ8PanelVectors * kQ8Lanes;
constexpr int kQ8BlockDepth = 32;  // of K
constexpr int kGroupTailBytes = 16;

// Unnamed: compiled with several sets of flags.
namespace {

constexpr int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// Bytes of a quantised row.
constexpr int64_t group_row_bytes(int64_t width, int64_t group_size) {
  return (width + group_size - 1) / group_size * (group_size + kGroupTailBytes);
}

inline int64_t num_depth_blocks(const PackedQ8& w) {
  return round_up(w.in_features, w.activation_group) / kQ8BlockDepth;
}

inline int64_t num_column_vectors(const PackedQ8& w) {
  return (w.out_features + kQ8Lanes - 1) / kQ8Lanes;
}

inline int64_t num_panels(const PackedQ8& w) {
  return (num_column_vectors(w) + kQ8PanelVectors - 1) / kQ8PanelVectors;
}

inline int panel_vectors(const PackedQ8& w, int64_t panel) {
  const int64_t left = num_column_vectors(w) - panel * kQ8PanelVectors;
  return static_cast<int>(left < kQ8PanelVectors ? left : kQ8PanelVectors);
}

inline int64_t panel_code_bytes(const PackedQ8& w, int vectors) {
  return num_depth_blocks(w) * vectors * kQ8Lanes * kQ8BlockDepth * w.stored_bits / 8;
}

inline int64_t panel_scales(const PackedQ8& w, int vectors) {
  if (w.form == Q8Form::kChannel) return vectors * kQ8Lanes;
  const int64_t per_block = kQ8BlockDepth / w.group_size * (w.form == Q8Form::kMinimum ? 2 : 1);
  return num_depth_blocks(w) * per_block * vectors * kQ8Lanes;
}

inline int64_t panel_bytes(const PackedQ8& w, int vectors) {
  return round_up(panel_code_bytes(w, vectors) + panel_scales(w, vectors) * (w.half_scales ? 2 : 4),
                  64);
}

inline int64_t panel_offset(const PackedQ8& w, int64_t panel) {
  return static_cast<int64_t>(sizeof(PackedQ8)) + panel * panel_bytes(w, kQ8PanelVectors);
}

inline int64_t packed_bytes(const PackedQ8& w) {
  const int64_t last = num_panels(w) - 1;
  return panel_offset(w, last) + panel_bytes(w, panel_vectors(w, last));
}

}  // namespace
}  // namespace chairlift
