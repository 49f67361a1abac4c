#if defined(__x86_64__)
#include "radixrt/simd_avx512.h"
//
#include "radixrt/sampling_row.h"

namespace radixrt {

const SamplingPaths sampling_avx512 = {largest, first_at_least, weigh, select};

}  // namespace radixrt
#endif
