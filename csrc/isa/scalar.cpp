// The ops for any machine, in the instructions that every machine of its kind has.
#include "../ops/attention.h"
#include "../ops/linear_f32.h"

namespace chairlift {

extern const KernelTable kScalarKernels = {"scalar", linear_f32, paged_attention, fma_burst};

}  // namespace chairlift
