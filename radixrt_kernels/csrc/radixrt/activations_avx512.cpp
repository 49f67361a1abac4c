#if defined(__x86_64__)
#include "radixrt/activations_impl.h"

namespace radixrt {

const ActivationPath kActivationAvx512 = kPath;

}  // namespace radixrt
#endif
