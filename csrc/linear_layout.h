// Where numbers lie in packed matrices of floats: the one truth of packing, kernels and reading.
//
// ```
// panels  [ceil(out / 32)][in][32]   float32, binary16: column c of a panel at place c
//                                    bfloat16: at 2c, or 2(c - 16) + 1 from the 16th on
// ```
// With bfloats in pairs, sixteen of them become floats by one shift or one mask.
#pragma once

#include <cstdint>

#include "include/chairlift_kernels.h"

namespace chairlift {
namespace {

// Of column `column` of a panel, 0 <= column < CHAIRLIFT_PANEL_WIDTH.
constexpr int64_t place_in_panel(int32_t weight_type, int64_t column) {
  constexpr int64_t kHalf = CHAIRLIFT_PANEL_WIDTH / 2;
  return weight_type == CHAIRLIFT_BFLOAT16 ? column % kHalf * 2 + column / kHalf : column;
}

}  // namespace
}  // namespace chairlift
