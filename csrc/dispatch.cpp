#include "dispatch.h"

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "cpu_features.h"

namespace chairlift {
namespace {

// Unpacking inside the tile costs nothing there, so only many rows repay a pass of its own.
constexpr int64_t kUnpackRowsWithSpareUnits = 256;

// Best first.
std::vector<KernelTable> detect_tables() {
  std::vector<KernelTable> tables;
#if defined(CHAIRLIFT_X86)
  const CpuFeatures features = detect_cpu_features();
  const Q8Kernels* best_narrow_q8 = &kAvx2Q8Kernels;
#if defined(CHAIRLIFT_AVX_VNNI)
  if (features.avx_vnni) best_narrow_q8 = &kAvxVnniQ8Kernels;
#endif
  if (features.avx512) {
    static Q8Kernels wide_q8 = kAvx512VnniQ8Kernels;
    if (features.spare_vector_units) wide_q8.unpack_rows = kUnpackRowsWithSpareUnits;
    tables.push_back(kAvx512Kernels);
    tables.back().q8 = features.avx512_vnni ? &wide_q8 : best_narrow_q8;
  }
  if (best_narrow_q8 != &kAvx2Q8Kernels) {
    tables.push_back(kAvx2Kernels);
    tables.back().name = "avx2_vnni";
    tables.back().q8 = best_narrow_q8;
  }
  if (features.avx2_fma) tables.push_back(kAvx2Kernels);
#endif
  tables.push_back(kScalarKernels);
  return tables;
}

const std::vector<KernelTable>& tables() {
  static const std::vector<KernelTable> found = detect_tables();
  return found;
}

std::atomic<const KernelTable*> chosen{nullptr};

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  return table ? *table : tables().front();
}

const KernelTable* find_kernels(const char* name) {
  if (std::strcmp(name, "auto") == 0) return &tables().front();
  for (const KernelTable& table : tables()) {
    if (std::strcmp(name, table.name) == 0) return &table;
  }
  return nullptr;
}

void use_kernels(const KernelTable& table) { chosen.store(&table, std::memory_order_release); }

const char* available_kernels() {
  static const std::string names = [] {
    std::string joined;
    for (const KernelTable& table : tables()) {
      if (!joined.empty()) joined += ",";
      joined += table.name;
    }
    return joined;
  }();
  return names.c_str();
}

}  // namespace chairlift
