// The compiled module: one init function a topic, each in a file of its own beside this one.
#include "bindings.h"

NB_MODULE(_native, m) {
    init_cpu(m);
    init_tokens(m);
    init_linear(m);
    init_decoder(m);
    init_attention(m);
    init_sampling(m);
    init_radix_tree(m);
    init_token_trie(m);
}
