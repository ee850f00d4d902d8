// The C functions: arguments are checked here, cut into items and shared among the threads.
#include "api.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "dispatch.h"

namespace chairlift {
namespace {

constexpr int64_t kMaxThreads = 1024;

thread_local std::string last_error;

// The best of a few short bursts on the calling thread, in 1e9 multiply-adds per second.
double measure_fma(const KernelTable& table) {
  using Clock = std::chrono::steady_clock;
  float sink[32] = {};
  double best = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto start = Clock::now();
    const int64_t count = table.fma_burst(50000, sink);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, count / seconds.count() * 1e-9);
  }
  return best;
}

}  // namespace

int32_t fail(int32_t status, std::string message) {
  last_error = std::move(message);
  return status;
}

int32_t invalid(std::string message) {
  return fail(CHAIRLIFT_INVALID_ARGUMENT, std::move(message));
}

int32_t out_of_memory() { return fail(CHAIRLIFT_OUT_OF_MEMORY, "out of memory"); }

}  // namespace chairlift

extern "C" {

int32_t chairlift_abi_version(void) { return CHAIRLIFT_ABI_VERSION; }

const char* chairlift_last_error(void) { return chairlift::last_error.c_str(); }

const char* chairlift_available_isas(void) { return chairlift::available_kernels(); }

const char* chairlift_isa(void) { return chairlift::kernels().name; }

int32_t chairlift_set_isa(const char* name) {
  if (!name) return chairlift::invalid("the name of an instruction set is null");
  const chairlift::KernelTable* table = chairlift::find_kernels(name);
  if (!table) {
    return chairlift::fail(CHAIRLIFT_UNSUPPORTED_ISA,
                           "this machine cannot run instruction set '" + std::string(name) +
                               "'; it has: " + chairlift::available_kernels());
  }
  chairlift::use_kernels(*table);
  return CHAIRLIFT_OK;
}

int32_t chairlift_pool_create(int32_t num_threads, chairlift_pool** pool) {
  if (!pool) return chairlift::invalid("pool is null");
  if (!chairlift::all_aligned(pool)) return chairlift::invalid("pool is not aligned");
  if (num_threads < 1 || num_threads > chairlift::kMaxThreads) {
    return chairlift::invalid("num_threads must be from 1 to 1024");
  }
  *pool = new (std::nothrow) chairlift_pool(num_threads);
  return *pool ? CHAIRLIFT_OK : chairlift::out_of_memory();
}

void chairlift_pool_destroy(chairlift_pool* pool) { delete pool; }

double chairlift_measure_fma(void) { return chairlift::measure_fma(chairlift::kernels()); }

}  // extern "C"
