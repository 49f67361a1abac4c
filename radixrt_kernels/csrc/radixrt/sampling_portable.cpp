#include "radixrt/simd_portable.h"
//
#include "radixrt/sampling_row.h"

namespace radixrt {

const SamplingPaths sampling_portable = {largest, first_at_least, weigh, select};

}  // namespace radixrt
