// The ops on bytes for AVX2 with AVX-VNNI.
#define CHAIRLIFT_VEC_AVX2
#define CHAIRLIFT_DOT_VNNI

#include "../ops/attention_int8.h"
#include "../ops/linear_q8.h"
#include "../ops/rms_norm.h"

namespace chairlift {

extern const Q8Kernels kAvxVnniQ8Kernels = {rms_norm_rows, quantize_rows, linear_q8,
                                            dot_burst,     kUnpackRows,   &kKvKernels};

}  // namespace chairlift
