// What the processor and the operating system together allow to run.
#pragma once

#include <string>

namespace chairlift {

struct CpuFeatures {
  bool avx2_fma = false;  // with the conversions of half precision
  bool avx_vnni = false;  // in the 256-bit form of AVX
  bool avx512 = false;    // F, BW, VL and DQ, with the registers enabled by the system
  bool avx512_vnni = false;
  // AMD: masks, shifts and conversions run beside multiplications, elsewhere instead of them.
  bool spare_vector_units = false;
};

CpuFeatures detect_cpu_features();

// Who made it, which one it is, and a digest of everything that it and the system let programs use;
// "" where that cannot be asked.
std::string identify_processor();

}  // namespace chairlift
