#if defined(__x86_64__)
#include "radixrt/simd_avx2.h"
//
#include "radixrt/attention_kernel.h"
#include "radixrt/attention_unpacked_avx2.h"

namespace radixrt {

const AttentionPaths attention_avx2 = {{attend<float, false>, attend<Bf16, false, UnpackedBf16>, attend<F16, false>,
                                         attend<std::int8_t, false>}};

}  // namespace radixrt
#endif
