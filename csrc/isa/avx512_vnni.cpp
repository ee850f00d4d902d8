// The ops on bytes for AVX-512 (F, BW, VL, DQ) with VNNI.
#define CHAIRLIFT_VEC_AVX512
#define CHAIRLIFT_DOT_VNNI

#include "../ops/attention_int8.h"
#include "../ops/linear_q8.h"
#include "../ops/rms_norm.h"

namespace chairlift {

extern const Q8Kernels kAvx512VnniQ8Kernels = {rms_norm_rows, quantize_rows, linear_q8,
                                               dot_burst,     kUnpackRows,   &kKvKernels};

}  // namespace chairlift
