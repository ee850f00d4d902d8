// Linear layers on bytes, as the blocks of a model use them: rows of floats in, rows of floats out.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "api.h"
#include "q8_layout.h"
#include "threads.h"

namespace chairlift {

// Memory that a thread's calls reuse, on a cache line; null if there is none left.
class RowBuffer {
 public:
  uint8_t* get(int64_t num_bytes) {
    constexpr int64_t kAlignment = 64;
    if (!memory_ || num_bytes > num_bytes_) {
      num_bytes_ = 0;
      memory_.reset(new (std::nothrow) uint8_t[static_cast<size_t>(num_bytes + kAlignment)]);
      if (!memory_) return nullptr;
      num_bytes_ = num_bytes;
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<uint8_t*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  int64_t num_bytes_ = 0;
};

// A packed matrix with its bias, which may be null.
struct Q8Linear {
  const PackedQ8* weight;
  const float* bias;
};

// Rows [num_rows, width], to be normalised before they are quantised unless `norm` is null.
struct Q8Input {
  const float* x;
  int64_t num_rows;
  const float* norm;
  float eps;
};

// Null if the memory holds nothing that this library packed.
const PackedQ8* as_packed(const void* packed);

// The rows as `weight` meets them, in memory of the calling thread that the next op on bytes
// reuses; null if there is none left.
const uint8_t* quantized_rows(ThreadPool& threads, const Q8Input& input, const PackedQ8& weight);

// out = q(norm(x)) W^T + bias + residual; `residual` may be null and may be `out`.  `next`, which
// may be null, is the matrix that will be needed afterwards.
int32_t linear_q8(ThreadPool& threads, const Q8Input& input, const Q8Linear& linear,
                  const float* residual, float* out, const PackedQ8* next);

// out = q(silu(gate) * up) W_down^T + bias + residual, gate and up being linear in q(norm(x)).
int32_t mlp_q8(ThreadPool& threads, const Q8Input& input, const Q8Linear& gate_up,
               const Q8Linear& down, const float* residual, float* out, const PackedQ8* next);

// The same from what a caller of the library says.
int32_t checked_mlp_q8(chairlift_pool* pool, const Q8Input& input, const void* gate_up,
                       const float* gate_up_bias, const void* down, const float* down_bias,
                       const float* residual, float* out, const PackedQ8* next);

}  // namespace chairlift
