#if defined(__aarch64__)
#include "radixrt/simd_neon.h"
//
#include "radixrt/sampling_row.h"

namespace radixrt {

const SamplingPaths sampling_neon = {largest, first_at_least, weigh, select};

}  // namespace radixrt
#endif
