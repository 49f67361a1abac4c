// The one source of all paths of activations.h: each file that includes it compiles it for its instruction set.  Sums go over eight
// lanes in a fixed tree and nothing is contracted, so all of them give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "radixrt/activations.h"
#include "radixrt/packed_matrix.h"

namespace radixrt {
namespace {

constexpr int kLanes = 8;
// Below this a block is all zeros: its reciprocal would overflow.
constexpr float kTiny = 1e-30f;
// Adding and taking away 1.5 * 2^23 rounds what is within 2^22 to the nearest integer, ties to even.
constexpr float kRound = 12582912.0f;

void quantize(const float *x, std::int64_t cols, const QuantizedRows &out, std::int64_t token) {
    for (std::int64_t block = 0; block < cols / kBlock; ++block, x += kBlock) {
        // Magnitudes order like their bits, and NaN above all of them.
        std::int32_t bits[kBlock];
        std::memcpy(bits, x, sizeof(bits));
        std::int32_t top = 0;
        for (int i = 0; i < kBlock; ++i) {
            const std::int32_t magnitude = bits[i] & 0x7FFFFFFF;
            top = magnitude > top ? magnitude : top;
        }
        const std::int64_t place = block * out.tokens + token;
        std::int8_t *numbers = out.numbers + place * kBlock;
        const auto largest = std::bit_cast<float>(top);
        if (!(largest > kTiny) || top >= 0x7F800000) {
            std::memset(numbers, 0, kBlock);
            out.scales[place] = top >= 0x7F800000 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
            out.sums[place] = 0.0f;
            continue;
        }
        const float inverse = 127.0f / largest;
        std::int32_t sum = 0;
        for (int i = 0; i < kBlock; ++i) {
            const float shifted = x[i] * inverse + kRound;
            const std::int32_t number = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
            numbers[i] = static_cast<std::int8_t>(number);
            sum += number;
        }
        out.scales[place] = largest / 127.0f;
        out.sums[place] = static_cast<float>(sum);
    }
}

float sum_of_squares(const float *x, std::int64_t size) {
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    for (int lane = 0; i + lane < size; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

void rms_norm(const float *x, const float *weight, float eps, std::int64_t size, float *out) {
    const float factor = 1.0f / std::sqrt(sum_of_squares(x, size) / static_cast<float>(size) + eps);
    for (std::int64_t i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

// e^x for x in [-87, 87], to about 2 units in the last place: x = n ln 2 + r, with ln 2 in two parts (Cody and Waite, 1980), and the
// Taylor polynomial of degree 7 in r, |r| <= ln 2 / 2.
inline float exponential(float x) {
    const float shifted = x * 1.44269504f + kRound;
    const float n = shifted - kRound;
    const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const std::int32_t power = (std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound) + 127) << 23;
    return p * std::bit_cast<float>(power);
}

inline float clamped(float x) { return x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x; }

// x / (1 + e^-x); a NaN stays one, as x itself is a factor.
inline float silu(float x) { return x / (1.0f + exponential(clamped(-x))); }

// 0.5 x (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) (x + 0.044715 x^3)
inline float gelu_tanh(float x) {
    const float y = 0.797884561f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(clamped(-2.0f * y)));
}

void gated(Activation activation, const float *gate, const float *up, std::int64_t size, float *out) {
    switch (activation) {
        case Activation::silu:
            for (std::int64_t i = 0; i < size; ++i) out[i] = silu(gate[i]) * up[i];
            break;
        case Activation::gelu_tanh:
            for (std::int64_t i = 0; i < size; ++i) out[i] = gelu_tanh(gate[i]) * up[i];
            break;
        case Activation::gelu:
            for (std::int64_t i = 0; i < size; ++i) out[i] = 0.5f * gate[i] * (1.0f + std::erf(gate[i] * 0.707106781f)) * up[i];
            break;
        case Activation::relu:
            for (std::int64_t i = 0; i < size; ++i) out[i] = (gate[i] > 0.0f || gate[i] != gate[i] ? gate[i] : 0.0f) * up[i];
            break;
    }
}

void rope(float *x, std::int64_t heads, std::int64_t head_dim, const float *cos, const float *sin, std::int64_t half) {
    for (std::int64_t head = 0; head < heads; ++head, x += head_dim) {
        for (std::int64_t i = 0; i < half; ++i) {
            const float first = x[i], second = x[i + half];
            x[i] = first * cos[i] - second * sin[i];
            x[i + half] = second * cos[i] + first * sin[i];
        }
    }
}

constexpr ActivationPath kPath{quantize, rms_norm, gated, rope};

}  // namespace
}  // namespace radixrt
