// The ops for any machine, in the instructions that every machine of its kind has.
#include "../ops/attention.h"
#include "../ops/attention_int8.h"
#include "../ops/linear_f32.h"
#include "../ops/linear_q8.h"
#include "../ops/rms_norm.h"
#include "../ops/scan_logits.h"

namespace chairlift {

extern const Q8Kernels kScalarQ8Kernels = {rms_norm_rows, quantize_rows, linear_q8,
                                           dot_burst,     kUnpackRows,   &kKvKernels};
extern const KernelTable kScalarKernels = {"scalar",  linear_f32,        &kFloatAttention,
                                           fma_burst, &kScalarQ8Kernels, scan_logits};

}  // namespace chairlift
