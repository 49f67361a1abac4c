// The one source of all paths of activations.h: each file that includes it compiles it for its instruction set.  Sums go over eight
// lanes in a fixed tree and nothing is contracted, so all of them give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
        std::int32_t top = 0;
        for (int i = 0; i < kBlock; ++i) {
            const std::int32_t magnitude = std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF;
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

// A register of numbers.
#if defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
using Floats = float __attribute__((vector_size(4 * kWidth)));
using Ints = std::int32_t __attribute__((vector_size(4 * kWidth)));
// The same anywhere in memory.
using Stored = float __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));

// Registers that each step is taken of before the next: the chain of steps is long, and a processor looks ahead no further than one chain.
constexpr int kChains = 4;

// A compiler would rather end one chain before it begins the next.
inline void here([[maybe_unused]] Floats &value) {  // NOLINT(misc-const-correctness)
#if defined(__x86_64__)
    asm volatile("" : "+x"(value));  // NOLINT(portability-no-assembler)
#elif defined(__aarch64__)
    asm volatile("" : "+w"(value));  // NOLINT(portability-no-assembler)
#endif
}

// x between -87 and 87; a NaN stays one, as these return the second of a NaN and a number.
inline void clamp(Floats &x) {
#if defined(__AVX__)
    x = _mm256_min_ps(_mm256_set1_ps(87.0f), _mm256_max_ps(_mm256_set1_ps(-87.0f), x));
#elif defined(__x86_64__)
    x = _mm_min_ps(_mm_set1_ps(87.0f), _mm_max_ps(_mm_set1_ps(-87.0f), x));
#else
    x = x < -87.0f ? Floats{} - 87.0f : x;
    x = x > 87.0f ? Floats{} + 87.0f : x;
#endif
}

// x = e^x for x in [-87, 87], to about 2 units in the last place: x = n ln 2 + r, with ln 2 in two parts (Cody and Waite, 1980), and the
// Taylor polynomial of degree 7 in r, |r| <= ln 2 / 2.
inline void exponentials(Floats (&x)[kChains]) {
    constexpr float kTaylor[] = {1.98412698e-4f, 1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f, 1.0f, 1.0f};
    Floats power[kChains], p[kChains];
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
        power[i] = x[i] * 1.44269504f + kRound;
        here(power[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
        const Floats n = power[i] - kRound;
        x[i] = (x[i] - n * 0.693145752f) - n * 1.42860677e-6f;
        here(x[i]);
        p[i] = x[i] * kTaylor[0] + kTaylor[1];
        here(p[i]);
    }
#pragma GCC unroll 8
    for (int degree = 2; degree < 8; ++degree)
#pragma GCC unroll 4
        for (int i = 0; i < kChains; ++i) {
            p[i] = p[i] * x[i] + kTaylor[degree];
            here(p[i]);
        }
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i)
        x[i] = p[i] * (Floats)(((Ints)power[i] - std::bit_cast<std::int32_t>(kRound) + 127) << 23);
}

// out = x / (1 + e^f(x)) * up; a NaN stays one, as x itself is a factor.
template <class F>
void gated_by_exponential(const float *gate, const float *up, std::int64_t size, float *out, F &&f) {
    constexpr int kStep = kChains * kWidth;
    const auto step = [&](const float *x, const float *factor, float *to) {
        Floats e[kChains];
#pragma GCC unroll 4
        for (int i = 0; i < kChains; ++i) {
            e[i] = *reinterpret_cast<const Stored *>(x + i * kWidth);
            f(e[i]);
            clamp(e[i]);
        }
        exponentials(e);
#pragma GCC unroll 4
        for (int i = 0; i < kChains; ++i) {
            e[i] = *reinterpret_cast<const Stored *>(x + i * kWidth) / (1.0f + e[i]);
            here(e[i]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kChains; ++i)
            *reinterpret_cast<Stored *>(to + i * kWidth) = e[i] * *reinterpret_cast<const Stored *>(factor + i * kWidth);
    };
    std::int64_t at = 0;
    for (; at + kStep <= size; at += kStep) step(gate + at, up + at, out + at);
    if (at == size) return;
    float rest[3][kStep] = {};
    const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(size - at);
    std::memcpy(rest[0], gate + at, bytes);
    std::memcpy(rest[1], up + at, bytes);
    step(rest[0], rest[1], rest[2]);
    std::memcpy(out + at, rest[2], bytes);
}

void gated(Activation activation, const float *gate, const float *up, std::int64_t size, float *out) {
    switch (activation) {
        case Activation::silu:
            return gated_by_exponential(gate, up, size, out, [](Floats &x) { x = -x; });
        case Activation::gelu_tanh:
            // 0.5 x (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) (x + 0.044715 x^3)
            return gated_by_exponential(gate, up, size, out, [](Floats &x) { x = -2.0f * (0.797884561f * (x + 0.044715f * x * x * x)); });
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
