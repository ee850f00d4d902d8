// The ops for AVX2 with FMA.
#define CHAIRLIFT_VEC_AVX2

#include "../ops/attention.h"
#include "../ops/attention_int8.h"
#include "../ops/linear_f32.h"
#include "../ops/linear_q8.h"
#include "../ops/rms_norm.h"
#include "../ops/scan_logits.h"

namespace chairlift {

extern const Q8Kernels kAvx2Q8Kernels = {rms_norm_rows, quantize_rows, linear_q8,
                                         dot_burst,     kUnpackRows,   &kKvKernels};
extern const KernelTable kAvx2Kernels = {"avx2",    linear_f32,      &kFloatAttention,
                                         fma_burst, &kAvx2Q8Kernels, scan_logits};

}  // namespace chairlift
