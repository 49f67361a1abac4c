// Eight lanes of plain C++, for any machine.
#pragma once

#include <cmath>

#include "radixrt/simd.h"

namespace radixrt {
namespace {

struct Simd {
    static constexpr int kLanes = 8;
    static constexpr int kManyRows = 2, kColumnsOfMany = 2, kColumnsOfFew = 2, kFewRows = 1;
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

    static F power(const F &t) {
        return each([&](int i) { return float_of((bits_of(t.lane[i]) - bits_of(kRound - 127.0f)) << 23); });
    }

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
