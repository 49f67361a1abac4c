#if defined(__aarch64__)
#include "radixrt/linear_neon.h"

namespace radixrt {

const LinearPath kLinearNeon = kPath;

}  // namespace radixrt
#endif
