#if defined(__x86_64__)
#include "radixrt/simd_avx512.h"
//
#include "radixrt/attention_kernel.h"

namespace radixrt {

const AttentionPaths attention_avx512 = {{attend<float, false>, attend<Bf16, true>, attend<F16, false>, attend<std::int8_t, true>}};

}  // namespace radixrt
#endif
