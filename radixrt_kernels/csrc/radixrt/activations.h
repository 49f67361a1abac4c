// The work between products, one row a token: norms, the gated activation, rotary positions, and rounding to int8.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "radixrt/thread_pool.h"

namespace radixrt {

// Rows rounded to int8 in blocks of 32 columns: x = scale * a, a in [-127, 127].  Block-major, as the products read them:
// numbers [blocks, tokens, 32], scales and sums (of a, as float) [blocks, tokens].
struct QuantizedRows {
    std::int8_t *numbers;
    float *scales;
    float *sums;
    std::int64_t tokens;
};

// Room for QuantizedRows that grows as needed.
class QuantizedBuffer {
public:
    // cols are whole blocks.
    QuantizedRows rows(std::int64_t tokens, std::int64_t cols);

private:
    std::vector<std::int8_t> numbers_;
    std::vector<float> scales_, sums_;
};

enum class Activation : int { silu, gelu, gelu_tanh, relu };
// By the names of Hugging Face configs; throws std::invalid_argument for another.
Activation activation_of(std::string_view name);

// One path of the kernels; each call treats one row, in one order of operations on every instruction set.
struct ActivationPath {
    // scale = largest magnitude / 127, numbers rounded to even.  A block that holds something infinite or NaN gets the scale NaN.
    void (*quantize)(const float *x, std::int64_t cols, const QuantizedRows &out, std::int64_t token);
    // out = x / sqrt(mean(x^2) + eps) * weight
    void (*rms_norm)(const float *x, const float *weight, float eps, std::int64_t size, float *out);
    // out = activation(gate) * up
    void (*gated)(Activation activation, const float *gate, const float *up, std::int64_t size, float *out);
    // Turn dimension i with i + half for each of ``heads`` heads in place; cos and sin [half].
    void (*rope)(float *x, std::int64_t heads, std::int64_t head_dim, const float *cos, const float *sin, std::int64_t half);
};

const ActivationPath &activation_path();

extern const ActivationPath kActivationPortable;
#if defined(__x86_64__)
extern const ActivationPath kActivationAvx2;
extern const ActivationPath kActivationAvx512;
#endif

}  // namespace radixrt
