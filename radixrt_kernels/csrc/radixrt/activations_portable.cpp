#include "radixrt/activations_impl.h"

namespace radixrt {

const ActivationPath kActivationPortable = kPath;

}  // namespace radixrt
