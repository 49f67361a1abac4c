#include "radixrt/simd_portable.h"
//
#include "radixrt/attention_kernel.h"

namespace radixrt {

const AttentionPaths attention_portable = {{attend<float, false>, attend<Bf16, false>, attend<F16, false>, attend<std::int8_t, false>}};
const AttentionPaths attention_portable_pairs = {{attend<float, false>, attend<Bf16, true>, attend<F16, false>, attend<std::int8_t, true>}};

}  // namespace radixrt
