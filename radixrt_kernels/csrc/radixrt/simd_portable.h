// Eight lanes of plain C++, for any machine.
#pragma once

#include <cmath>

#include "radixrt/simd.h"

namespace radixrt {
namespace {

struct Simd {
    static constexpr int kLanes = 8;
    static constexpr int kManyRows = 2, kColumnsOfMany = 2, kColumnsOfFew = 2, kFewRows = 1;
    static constexpr bool kStages = false;  // see softmax_stages.h
    struct F {
        float lane[kLanes];
    };

    template <class Op>
    static F each(Op op) {
        F out;
        for (int i = 0; i < kLanes; ++i) out.lane[i] = op(i);
        return out;
    }

    static F zero() { return set1(0.0f); }
    static F set1(float x) {
        return each([&](int) { return x; });
    }
    static F broadcast(const float *p) { return set1(*p); }
    static F load(const float *p) {
        F out;
        std::memcpy(&out, p, sizeof out);
        return out;
    }
    static void store(float *p, const F &x) { std::memcpy(p, &x, sizeof x); }
    static F add(const F &a, const F &b) {
        return each([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static F sub(const F &a, const F &b) {
        return each([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static F mul(const F &a, const F &b) {
        return each([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static F fma(const F &a, const F &b, const F &c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
        return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
#else
        return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
#endif
    }
    static F max(const F &a, const F &b) {
        return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }

    // Bit i: lane i of a is at least that of b.
    static unsigned at_least(const F &a, const F &b) {
        unsigned bits = 0;
        for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(a.lane[i] >= b.lane[i]) << i;
        return bits;
    }
    // a, but the NaN of x where that has one.
    static F keep_nan(const F &a, const F &x) {
        return each([&](int i) { return x.lane[i] != x.lane[i] ? x.lane[i] : a.lane[i]; });
    }

    template <class Element>
    static F load_as(const Element *p) {
        return each([&](int i) { return to_float(p[i]); });
    }
    static F first_of_pairs(const F &words) {
        return each([&](int i) { return float_of(bits_of(words.lane[i]) << 16); });
    }
    static F second_of_pairs(const F &words) {
        return each([&](int i) { return float_of(bits_of(words.lane[i]) & 0xFFFF0000u); });
    }

    // x as an integer, rounded towards 0: -2^31 where it is NaN or below that.  None is 2^31 or more.
    static F integer(const F &x) {
        const F least = max(x, set1(-0x1p31f));
        return each([&](int i) { return float_of(static_cast<std::uint32_t>(static_cast<std::int32_t>(least.lane[i]))); });
    }
    // Half of an integer, rounded down.
    static F halved(const F &bits) {
        return each([&](int i) { return float_of(static_cast<std::uint32_t>(static_cast<std::int32_t>(bits_of(bits.lane[i])) >> 1)); });
    }
    // 1 + f: the low 23 bits of an integer as a fraction f.
    static F fraction(const F &bits) {
        return each([&](int i) { return float_of((bits_of(bits.lane[i]) & 0x7FFFFFu) | bits_of(1.0f)); });
    }
    static F add_bits(const F &a, const F &b) {
        return each([&](int i) { return float_of(bits_of(a.lane[i]) + bits_of(b.lane[i])); });
    }
    static void here(const F &) {}

    static float reduce_max(const F &x) {
        float best = x.lane[0];
        for (int i = 1; i < kLanes; ++i) best = best > x.lane[i] ? best : x.lane[i];
        return best;
    }
    static float reduce_add(const F (&x)[2]) {
        F sums = add(x[0], x[1]);
        for (int half = kLanes / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) sums.lane[i] += sums.lane[i + half];
        return sums.lane[0];
    }

    static void transpose(F (&x)[kLanes]) {
        for (int i = 0; i < kLanes; ++i)
            for (int j = 0; j < i; ++j) {
                const float kept = x[i].lane[j];
                x[i].lane[j] = x[j].lane[i];
                x[j].lane[i] = kept;
            }
    }

    // acc + a1 b1 + a0 b0 of pairs of bf16: each product and sum rounded once.
    static F dot_pairs(const F &acc, const F &a, const F &b) {
        return fma(first_of_pairs(a), first_of_pairs(b), fma(second_of_pairs(a), second_of_pairs(b), acc));
    }
    // Floats that bf16 holds exactly, as words: low half the first, high half the second.
    static F join_pairs(const F &first, const F &second) {
        return each([&](int i) { return float_of(bits_of(first.lane[i]) >> 16 | (bits_of(second.lane[i]) & 0xFFFF0000u)); });
    }
    // 2 kLanes consecutive floats rounded to bf16, as words.
    static F round_pairs(const float *p) {
        return each([&](int i) { return float_of(bf16_of(p[2 * i]) | std::uint32_t{bf16_of(p[2 * i + 1])} << 16); });
    }
};

}  // namespace
}  // namespace radixrt
