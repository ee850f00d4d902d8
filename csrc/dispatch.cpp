#include "dispatch.h"

#include <atomic>
#include <string>

#include "cpu_features.h"

namespace chairlift {
namespace {

// Unpacking inside the tile costs nothing there, so only many rows repay a pass of its own.
constexpr int64_t kUnpackRowsWithSpareUnits = 256;

struct Levels {
  std::vector<FloatLevel> floats;
  std::vector<ByteLevel> bytes;
};

Levels detect_levels() {
  Levels levels;
#if defined(CHAIRLIFT_X86)
  const CpuFeatures features = detect_cpu_features();
  if (features.avx512) levels.floats.push_back({"avx512", &kAvx512Kernels});
  if (features.avx2_fma) levels.floats.push_back({"avx2", &kAvx2Kernels});
  if (features.avx512_vnni) {
    static Q8Kernels wide = kAvx512VnniQ8Kernels;
    if (features.spare_vector_units) wide.unpack_rows = kUnpackRowsWithSpareUnits;
    levels.bytes.push_back({"avx512_vnni", &wide});
  }
#if defined(CHAIRLIFT_AVX_VNNI)
  if (features.avx_vnni) levels.bytes.push_back({"avx2_vnni", &kAvxVnniQ8Kernels});
#endif
  if (features.avx2_fma) levels.bytes.push_back({"avx2", &kAvx2Q8Kernels});
#endif
  levels.floats.push_back({"scalar", &kScalarKernels});
  levels.bytes.push_back({"scalar", &kScalarQ8Kernels});
  return levels;
}

const Levels& levels() {
  static const Levels found = detect_levels();
  return found;
}

// A level for floats and one for bytes; those that belong together have a name of their own.
struct Pair {
  std::string floats, bytes;
  std::string name;
  KernelTable kernels;
};

// "" for a pair that only a measurement would make.
std::string name_of(const std::string& floats, const std::string& bytes) {
  if (floats == "avx512") {
    // With the widest bytes there are: the first processors had none of that width.
    return bytes == byte_levels().front().name ? floats : "";
  }
  return bytes == floats || bytes == floats + "_vnni" ? bytes : "";
}

std::vector<Pair> pair_levels() {
  std::vector<Pair> pairs;
  for (const FloatLevel& floats : float_levels()) {
    for (const ByteLevel& bytes : byte_levels()) {
      pairs.push_back({floats.name, bytes.name, name_of(floats.name, bytes.name), *floats.kernels});
      Pair& pair = pairs.back();
      if (pair.name.empty()) pair.name = pair.floats + "+" + pair.bytes;
      pair.kernels.q8 = bytes.kernels;
    }
  }
  for (Pair& pair : pairs) pair.kernels.name = pair.name.c_str();  // none moves any more
  return pairs;
}

// The widest levels first.
const std::vector<Pair>& pairs() {
  static const std::vector<Pair> found = pair_levels();
  return found;
}

std::atomic<const KernelTable*> chosen{nullptr};

}  // namespace

const std::vector<FloatLevel>& float_levels() { return levels().floats; }

const std::vector<ByteLevel>& byte_levels() { return levels().bytes; }

const KernelTable& kernels() {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  return table ? *table : pairs().front().kernels;
}

const KernelTable* find_kernels(const char* name) {
  const std::string wanted = name;
  if (wanted == "auto") return &pairs().front().kernels;
  for (const Pair& pair : pairs()) {
    if (wanted == pair.name || wanted == pair.floats + "+" + pair.bytes) return &pair.kernels;
  }
  return nullptr;
}

void use_kernels(const KernelTable& table) { chosen.store(&table, std::memory_order_release); }

const char* available_kernels() {
  static const std::string names = [] {
    std::string joined;
    for (const Pair& pair : pairs()) {
      if (pair.name.find('+') != std::string::npos) continue;
      if (!joined.empty()) joined += ",";
      joined += pair.name;
    }
    return joined;
  }();
  return names.c_str();
}

}  // namespace chairlift
