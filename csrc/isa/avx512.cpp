// The ops for AVX-512 (F, BW, VL, DQ).
#define CHAIRLIFT_VEC_AVX512

#include "../ops/attention.h"
#include "../ops/linear_f32.h"

namespace chairlift {

extern const KernelTable kAvx512Kernels = {"avx512", linear_f32, paged_attention, fma_burst};

}  // namespace chairlift
