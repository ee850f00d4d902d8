// The C functions of the cache of keys and values: its form, and storing.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "api.h"
#include "arguments.h"
#include "dispatch.h"
#include "kv_cache_form.h"
#include "kv_layout.h"

namespace chairlift {

namespace {

constexpr int64_t kFloatBytes = 4;
// A key's and a value's, with the value's padding to whole vectors.
constexpr int64_t kMaxBytesPerFeature = (2 + kLaneFloats) * kFloatBytes;

int64_t number_bytes(int32_t kv_type) {
  if (kv_type == CHAIRLIFT_KV_INT8) return 1;
  return kv_type == CHAIRLIFT_KV_FLOAT32 ? 4 : 2;
}

}  // namespace

int32_t check_form(const char* op, const KvCacheForm& form) {
  const std::string name = op;
  if (form.kv_type < CHAIRLIFT_KV_INT8 || form.kv_type > CHAIRLIFT_KV_FLOAT32) {
    return invalid(name + ": unknown type of cache");
  }
  if (form.block_size < 1 || form.head_dim < 1 ||
      !fit_memory({form.block_size, form.num_heads, form.head_dim, kMaxBytesPerFeature})) {
    return invalid(name + ": a size is out of range");
  }
  if (form.num_kv_heads < 1 || form.num_heads < 1 || form.num_heads % form.num_kv_heads != 0) {
    return invalid(name + ": the numbers of heads do not fit");
  }
  if (form.kv_type != CHAIRLIFT_KV_INT8) return CHAIRLIFT_OK;
  if (form.block_size % kPageTokens != 0) {
    return invalid(name + ": an int8 cache needs a block size that is a multiple of 16, not " +
                   std::to_string(form.block_size));
  }
  if (form.head_dim % 16 != 0 || form.head_dim > kMaxInt8HeadDim) {
    return invalid(name +
                   ": an int8 cache needs a head size that is a multiple of 16 up to 512, not " +
                   std::to_string(form.head_dim));
  }
  return CHAIRLIFT_OK;
}

int64_t piece_bytes(const KvCacheForm& form) {
  if (form.kv_type == CHAIRLIFT_KV_INT8) {
    return form.block_size / kPageTokens * form.num_kv_heads * KvLayout{form.head_dim}.head_bytes();
  }
  const int64_t page_tokens = float_page_tokens(form.block_size);
  const FloatKvLayout layout = {form.head_dim, number_bytes(form.kv_type), page_tokens};
  return form.block_size / page_tokens * form.num_kv_heads * layout.head_bytes();
}

int32_t check_pieces(const char* op, const KvCacheForm& form, const uint8_t* kv_cache,
                     int64_t num_blocks, int64_t block_stride) {
  const std::string name = op;
  if (!fit_memory({num_blocks, block_stride})) {
    return invalid(name + ": the cache is of an impossible size");
  }
  if (num_blocks > 1 && block_stride < piece_bytes(form)) {
    return invalid(name + ": the blocks of the cache overlap");
  }
  const int64_t bytes = number_bytes(form.kv_type);
  if (reinterpret_cast<uintptr_t>(kv_cache) % static_cast<uintptr_t>(bytes) != 0 ||
      block_stride % bytes != 0) {
    return invalid(name + ": the cache is not aligned");
  }
  return CHAIRLIFT_OK;
}

namespace {

constexpr int64_t kRowsPerStore = 16;  // neighbours write to the same pages
constexpr int64_t kParts = 3;          // queries, keys and values, with at most as many heads

template <class TASK>
int32_t check_slots(const char* op, const TASK& task) {
  for (int64_t row = 0; row < task.num_tokens; ++row) {
    if (task.slots[row] < 0 || task.slots[row] / task.block_size >= task.num_blocks) {
      return invalid(std::string(op) + ": slot " + std::to_string(task.slots[row]) +
                     " is not in the cache");
    }
  }
  return CHAIRLIFT_OK;
}

int32_t check_qkv(const chairlift_qkv_to_cache& task) {
  const bool is_bytes = task.kv_type == CHAIRLIFT_KV_INT8;
  if (any_null(task.qkv, task.cos, task.sin, task.positions, task.slots, task.kv_cache) ||
      !task.query || (is_bytes && !task.query_scales)) {
    return invalid("store_qkv: a pointer is null");
  }
  if (!all_aligned(task.qkv, task.q_norm, task.k_norm, task.cos, task.sin, task.positions,
                   task.slots, task.query_scales) ||
      (!is_bytes && !all_aligned(static_cast<const float*>(task.query)))) {
    return invalid("store_qkv: a pointer is not aligned");
  }
  const KvCacheForm form = {task.kv_type, task.block_size, task.num_heads, task.num_kv_heads,
                            task.head_dim};
  int32_t status = check_form("store_qkv", form);
  if (status != CHAIRLIFT_OK) return status;
  status = check_pieces("store_qkv", form, task.kv_cache, task.num_blocks, task.block_stride);
  if (status != CHAIRLIFT_OK) return status;
  if (task.head_dim % 16 != 0) {
    return invalid("store_qkv: the head size must be a multiple of 16, not " +
                   std::to_string(task.head_dim));
  }
  if (task.rope_dim < 0 || task.rope_dim % 2 != 0 || task.rope_dim > task.head_dim ||
      !fit_memory({task.num_tokens, kParts, task.num_heads, task.head_dim, kFloatBytes}) ||
      !fit_memory({task.max_position, task.rope_dim, kFloatBytes})) {
    return invalid("store_qkv: a size is out of range");
  }
  for (int64_t row = 0; row < task.num_tokens; ++row) {
    if (task.positions[row] < 0 || task.positions[row] >= task.max_position) {
      return invalid("store_qkv: position " + std::to_string(task.positions[row]) +
                     " is not in the table of angles");
    }
  }
  return check_slots("store_qkv", task);
}

int32_t check_kv(const chairlift_kv_to_cache& task) {
  if (any_null(task.key, task.value, task.slots, task.kv_cache)) {
    return invalid("store_kv: a pointer is null");
  }
  if (!all_aligned(task.key, task.value, task.slots)) {
    return invalid("store_kv: a pointer is not aligned");
  }
  const KvCacheForm form = {task.kv_type, task.block_size, task.num_kv_heads, task.num_kv_heads,
                            task.head_dim};
  int32_t status = check_form("store_kv", form);
  if (status != CHAIRLIFT_OK) return status;
  if (task.kv_type == CHAIRLIFT_KV_INT8) {
    return invalid("store_kv: a cache of bytes takes queries, keys and values together");
  }
  status = check_pieces("store_kv", form, task.kv_cache, task.num_blocks, task.block_stride);
  if (status != CHAIRLIFT_OK) return status;
  if (!fit_strides(task.num_tokens, task.key_stride) ||
      !fit_strides(task.num_tokens, task.value_stride)) {
    return invalid("store_kv: a size is out of range");
  }
  return check_slots("store_kv", task);
}

int32_t check_reading(const chairlift_pool* pool, const uint8_t* memory, int64_t stride,
                      int64_t num_bytes, const int32_t* blocks, int64_t num_blocks) {
  if (any_null(pool, memory, blocks)) return invalid("measure_read: a pointer is null");
  if (!all_aligned(blocks)) return invalid("measure_read: a pointer is not aligned");
  if (num_blocks < 1 || num_bytes < 1 || !fit_memory({num_blocks, num_bytes})) {
    return invalid("measure_read: a size is out of range");
  }
  const auto [first, last] = std::minmax_element(blocks, blocks + num_blocks);
  if (*first < 0 || stride < num_bytes || !fit_memory({int64_t{*last} + 1, stride})) {
    return invalid("measure_read: a block is out of range");
  }
  return CHAIRLIFT_OK;
}

}  // namespace
}  // namespace chairlift

extern "C" {

int64_t chairlift_kv_piece_bytes(int32_t kv_type, int64_t block_size, int64_t num_kv_heads,
                                 int64_t head_dim) {
  const chairlift::KvCacheForm form = {kv_type, block_size, num_kv_heads, num_kv_heads, head_dim};
  if (chairlift::check_form("kv_piece_bytes", form) != CHAIRLIFT_OK) return 0;
  return chairlift::piece_bytes(form);
}

int32_t chairlift_store_kv(chairlift_pool* pool, const chairlift_kv_to_cache* task) {
  if (!pool || !task) return chairlift::invalid("store_kv: a pointer is null");
  if (!chairlift::all_aligned(task))
    return chairlift::invalid("store_kv: a pointer is not aligned");
  if (task->struct_size != static_cast<int64_t>(sizeof(*task))) {
    return chairlift::invalid("store_kv: the caller was built for another version");
  }
  const int32_t status = chairlift::check_kv(*task);
  if (status != CHAIRLIFT_OK) return status;
  const chairlift::KvKernels& kernels = *chairlift::kernels().q8->kv;
  const int64_t num_items = chairlift::divide_up(task->num_tokens, chairlift::kRowsPerStore);
  pool->threads.for_each(num_items, [&](int64_t item) {
    const int64_t first = item * chairlift::kRowsPerStore;
    kernels.store_kv(*task, first, std::min(chairlift::kRowsPerStore, task->num_tokens - first));
  });
  return CHAIRLIFT_OK;
}

int32_t chairlift_store_qkv(chairlift_pool* pool, const chairlift_qkv_to_cache* task) {
  if (!pool || !task) return chairlift::invalid("store_qkv: a pointer is null");
  if (!chairlift::all_aligned(task)) {
    return chairlift::invalid("store_qkv: a pointer is not aligned");
  }
  if (task->struct_size != static_cast<int64_t>(sizeof(*task))) {
    return chairlift::invalid("store_qkv: the caller was built for another version");
  }
  const int32_t status = chairlift::check_qkv(*task);
  if (status != CHAIRLIFT_OK) return status;
  const chairlift::KvKernels& kernels = *chairlift::kernels().q8->kv;
  const int64_t num_items = chairlift::divide_up(task->num_tokens, chairlift::kRowsPerStore);
  std::atomic<bool> memory_ran_out{false};
  pool->threads.for_each(num_items, [&](int64_t item) {
    const int64_t first = item * chairlift::kRowsPerStore;
    const int64_t rows = std::min(chairlift::kRowsPerStore, task->num_tokens - first);
    const int64_t floats = chairlift::kStoreScratchHeads * task->head_dim;
    float* scratch = chairlift::thread_scratch(static_cast<size_t>(floats));
    if (scratch) {
      kernels.store_qkv(*task, first, rows, scratch);
    } else {
      memory_ran_out = true;
    }
  });
  return memory_ran_out ? chairlift::out_of_memory() : CHAIRLIFT_OK;
}

double chairlift_measure_read(chairlift_pool* pool, const uint8_t* memory, int64_t stride,
                              int64_t num_bytes, const int32_t* blocks, int64_t num_blocks) {
  const int32_t status =
      chairlift::check_reading(pool, memory, stride, num_bytes, blocks, num_blocks);
  if (status != CHAIRLIFT_OK) return 0;
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kBlocksPerItem = 36;
  const chairlift::KvKernels& kernels = *chairlift::kernels().q8->kv;
  std::atomic<int64_t> sink{0};
  const auto start = Clock::now();
  pool->threads.for_each(chairlift::divide_up(num_blocks, kBlocksPerItem), [&](int64_t item) {
    const int64_t first = item * kBlocksPerItem;
    sink += kernels.read(memory, stride, num_bytes, blocks + first,
                         std::min(kBlocksPerItem, num_blocks - first));
  });
  const std::chrono::duration<double> seconds = Clock::now() - start;
  return static_cast<double>(num_blocks * num_bytes) / seconds.count() * 1e-9;
}

}  // extern "C"
