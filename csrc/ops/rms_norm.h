// x / sqrt(mean(x^2) + eps) * weight for each row, summed in sixteen lanes and then by halves.
//
// A row is computed alone, multiplications and additions in an order fixed by the source.
#pragma once

#include <cmath>

#include "../vec.h"

namespace chairlift {
namespace {

CHAIRLIFT_INLINE void rms_norm_row(const float* x, const float* weight, float eps, int64_t width,
                                   float* out) {
  F16 sum = F16::all(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) sum = sum + F16::load(x + i) * F16::load(x + i);
  float lane[kLanes];
  sum.store(lane);
  for (int64_t rest = i; rest < width; ++rest) lane[rest - i] += x[rest] * x[rest];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  const float factor = 1.0f / std::sqrt(lane[0] / static_cast<float>(width) + eps);
  const F16 factors = F16::all(factor);
  for (i = 0; i + kLanes <= width; i += kLanes) {
    (F16::load(x + i) * factors * F16::load(weight + i)).store(out + i);
  }
  for (; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

// `out` may be `x`.
void rms_norm_rows(const float* x, const float* weight, float eps, int64_t num_rows, int64_t width,
                   float* out) {
  for (int64_t row = 0; row < num_rows; ++row) {
    rms_norm_row(x + row * width, weight, eps, width, out + row * width);
  }
}

}  // namespace
}  // namespace chairlift
