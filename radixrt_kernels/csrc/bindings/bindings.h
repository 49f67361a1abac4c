// The list of binding files.
#pragma once

#include <nanobind/nanobind.h>

void init_tokens(nanobind::module_& m);
