#include "cpu_features.h"

#include <cstdint>
#include <cstdio>
#include <cstring>

#if defined(CHAIRLIFT_X86)
#if defined(_MSC_VER)
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace chairlift {

#if defined(CHAIRLIFT_X86)
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
#if defined(_MSC_VER)
  int out[4];
  __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
  r.eax = out[0], r.ebx = out[1], r.ecx = out[2], r.edx = out[3];
#else
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) r = Registers();
#endif
  return r;
}

// XCR0: which register files the operating system saves on a context switch.
uint64_t enabled_register_files() {
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
#endif
}

bool has_bits(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

}  // namespace

CpuFeatures detect_cpu_features() {
  constexpr uint32_t kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28;          // 1.ecx
  constexpr uint32_t kF16c = 1u << 29;                                               // 1.ecx
  constexpr uint32_t kAvx2 = 1u << 5;                                                // 7.ebx
  constexpr uint32_t kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;  // 7.ebx
  constexpr uint32_t kAvx512Vnni = 1u << 11;                                         // 7.ecx
  constexpr uint32_t kAvxVnni = 1u << 4;                                             // 7.1.eax
  constexpr uint32_t kAmd = 0x444d4163;        // 0.ecx: the end of "AuthenticAMD"
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;  // XCR0
  CpuFeatures features;
  const Registers basic = cpuid(1, 0);
  if (!has_bits(basic.ecx, kFma | kOsxsave | kAvx | kF16c)) return features;
  const uint64_t files = enabled_register_files();
  const Registers extended = cpuid(7, 0);
  features.avx2_fma = has_bits(files, kYmm) && has_bits(extended.ebx, kAvx2);
  features.avx512 =
      features.avx2_fma && has_bits(files, kZmm) && has_bits(extended.ebx, kF | kDq | kBw | kVl);
  features.avx512_vnni = features.avx512 && has_bits(extended.ecx, kAvx512Vnni);
  features.spare_vector_units = cpuid(0, 0).ecx == kAmd;
  const bool has_subleaf = extended.eax >= 1;
  features.avx_vnni = features.avx2_fma && has_subleaf && has_bits(cpuid(7, 1).eax, kAvxVnni);
  return features;
}

// Family, model and stepping are put together as the vendors' manuals say: extensions count only
// where the short fields have run out.
std::string identify_processor() {
  const Registers vendor = cpuid(0, 0), basic = cpuid(1, 0);
  const Registers extended = cpuid(7, 0), more = cpuid(7, 1);
  char name[13] = {};
  std::memcpy(name, &vendor.ebx, 4);
  std::memcpy(name + 4, &vendor.edx, 4);
  std::memcpy(name + 8, &vendor.ecx, 4);
  uint32_t family = basic.eax >> 8 & 0xf, model = basic.eax >> 4 & 0xf;
  if (family == 6 || family == 15) model += basic.eax >> 12 & 0xf0;
  if (family == 15) family += basic.eax >> 20 & 0xff;
  constexpr uint32_t kOsxsave = 1u << 27;
  const uint64_t files = basic.ecx & kOsxsave ? enabled_register_files() : 0;
  // Leaf 1 has the number of the core in ebx, which is no feature.
  const uint64_t features[] = {basic.ecx,    basic.edx, extended.ebx, extended.ecx,
                               extended.edx, more.eax,  files};
  uint64_t digest = 0xcbf29ce484222325;  // FNV-1a
  for (const uint64_t word : features) {
    for (int shift = 0; shift < 64; shift += 8) {
      digest = (digest ^ (word >> shift & 0xff)) * 0x100000001b3;
    }
  }
  char text[96];
  std::snprintf(text, sizeof text, "%s family %u model %u stepping %u features %016llx", name,
                family, model, basic.eax & 0xf, static_cast<unsigned long long>(digest));
  return text;
}

#else

CpuFeatures detect_cpu_features() { return CpuFeatures(); }

std::string identify_processor() { return std::string(); }

#endif

}  // namespace chairlift
