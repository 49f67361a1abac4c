#if defined(__aarch64__)
#include "radixrt/simd_neon.h"
//
#include "radixrt/attention_kernel.h"

namespace radixrt {

const AttentionPaths attention_neon = {{attend<float, false>, attend<Bf16, false>, attend<F16, false>, attend<std::int8_t, false>}};

}  // namespace radixrt
#endif
