#include "radixrt/activations.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "radixrt/cpu.h"
#include "radixrt/packed_matrix.h"

namespace radixrt {

namespace {

// Three and a half rows' worth of numbers of every size; what the paths make of them is compared bit by bit.
struct Sample {
    static constexpr int kSize = 96;
    float values[4 * kSize], out[4 * kSize];
    std::int8_t numbers[kSize];
    float scales[3], sums[3];

    explicit Sample(const ActivationPath &path) {
        std::memset(static_cast<void *>(this), 0, sizeof(*this));
        for (int i = 0; i < 4 * kSize; ++i) values[i] = std::ldexp(static_cast<float>((i * 7919 + 13) % 1009 - 504), i % 13 - 12);
        path.rms_norm(values, values + kSize, 1e-5f, kSize - 5, out);
        path.gated(Activation::silu, values, values + kSize, kSize, out + kSize);
        path.gated(Activation::gelu_tanh, values, values + kSize, kSize, out + 2 * kSize);
        std::memcpy(out + 3 * kSize, values, sizeof(float) * kSize);
        path.rope(out + 3 * kSize, 3, 32, values + 2 * kSize, values + 3 * kSize, 12);
        path.quantize(values, kSize, {numbers, scales, sums, 1}, 0);
    }
};

bool agrees(const ActivationPath &path, const ActivationPath &portable) {
    const Sample one(path), other(portable);
    // Bits, not values: all of it was cleared first.
    return std::memcmp(&one, &other, sizeof(one)) == 0;  // NOLINT(bugprone-suspicious-memory-comparison)
}

#if defined(__x86_64__)
Paths<ActivationPath> paths("activations", kActivationPortable, &kActivationAvx2, &kActivationAvx512, agrees);
#else
// Elsewhere the compiler makes vectors of what every processor has.
Paths<ActivationPath> paths("activations", kActivationPortable, nullptr, nullptr, agrees);
#endif

}  // namespace

Activation activation_of(std::string_view name) {
    constexpr const char *kNames[] = {"silu", "gelu", "gelu_pytorch_tanh", "relu"};
    for (int i = 0; i < 4; ++i)
        if (name == kNames[i]) return static_cast<Activation>(i);
    throw std::invalid_argument("[gated] no activation " + std::string(name));
}

QuantizedRows QuantizedBuffer::rows(std::int64_t tokens, std::int64_t cols) {
    const auto blocks = static_cast<std::size_t>(tokens * (cols / kBlock));
    if (scales_.size() < blocks) {
        numbers_.resize(blocks * kBlock);
        scales_.resize(blocks);
        sums_.resize(blocks);
    }
    return {numbers_.data(), scales_.data(), sums_.data(), tokens};
}

const ActivationPath &activation_path() { return paths(); }

}  // namespace radixrt
