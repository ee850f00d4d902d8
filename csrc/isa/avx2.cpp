// The ops for AVX2 with FMA.
#define CHAIRLIFT_VEC_AVX2

#include "../ops/attention.h"
#include "../ops/linear_f32.h"

namespace chairlift {

extern const KernelTable kAvx2Kernels = {"avx2", linear_f32, paged_attention, fma_burst};

}  // namespace chairlift
