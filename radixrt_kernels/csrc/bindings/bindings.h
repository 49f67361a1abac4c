// The list of binding files.
#pragma once

#include <nanobind/nanobind.h>

void init_cpu(nanobind::module_& m);
void init_decoder(nanobind::module_& m);
void init_linear(nanobind::module_& m);
void init_attention(nanobind::module_& m);
void init_sampling(nanobind::module_& m);
void init_radix_tree(nanobind::module_& m);
void init_token_trie(nanobind::module_& m);
void init_tokens(nanobind::module_& m);
