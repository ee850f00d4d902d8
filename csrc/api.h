// What the files of C functions share: the pool behind its opaque pointer, and failing.
#pragma once

#include <cstdint>
#include <string>

#include "include/chairlift_kernels.h"
#include "threads.h"

struct chairlift_pool {
  explicit chairlift_pool(int num_threads) : threads(num_threads) {}
  chairlift::ThreadPool threads;
};

namespace chairlift {

// Each leaves the message for chairlift_last_error() and returns its status.
int32_t fail(int32_t status, std::string message);
int32_t invalid(std::string message);
int32_t out_of_memory();

// Of a packed matrix of floats and its bias, which may be null.
int32_t check_linear_f32(const float* packed, const float* bias, int64_t out_features,
                         int64_t in_features);

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace chairlift
