// What the processor and the operating system together allow to run.
#pragma once

namespace chairlift {

struct CpuFeatures {
  bool avx2_fma = false;
  bool avx512 = false;  // F, BW, VL and DQ, with the registers enabled by the system
};

CpuFeatures detect_cpu_features();

}  // namespace chairlift
