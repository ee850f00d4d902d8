// The float ops for AVX-512 (F, BW, VL, DQ); its ops on bytes are in avx512_vnni.cpp.
#define CHAIRLIFT_VEC_AVX512

#include "../ops/attention.h"
#include "../ops/linear_f32.h"
#include "../ops/scan_logits.h"

namespace chairlift {

extern const KernelTable kAvx512Kernels = {
    "avx512", linear_f32, &kFloatAttention, fma_burst, &kAvx512VnniQ8Kernels, scan_logits};

}  // namespace chairlift
