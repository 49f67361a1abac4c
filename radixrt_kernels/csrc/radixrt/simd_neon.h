// Four lanes of NEON, as every 64-bit ARM has it.
#pragma once

#include <arm_neon.h>

#include "radixrt/simd.h"

namespace radixrt {
namespace {

struct Simd {
    static constexpr int kLanes = 4;
    static constexpr int kManyRows = 6, kColumnsOfMany = 4, kColumnsOfFew = 4, kFewRows = 3;
    static constexpr bool kStages = false;  // see softmax_stages.h
    using F = float32x4_t;

    static F zero() { return vdupq_n_f32(0.0f); }
    static F set1(float x) { return vdupq_n_f32(x); }
    static F broadcast(const float *p) { return vld1q_dup_f32(p); }
    static F load(const float *p) { return vld1q_f32(p); }
    static void store(float *p, F x) { vst1q_f32(p, x); }
    static F add(F a, F b) { return vaddq_f32(a, b); }
    static F sub(F a, F b) { return vsubq_f32(a, b); }
    static F mul(F a, F b) { return vmulq_f32(a, b); }
    static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
    // The second where one is NaN.
    static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }

    // Bit i: lane i of a is at least that of b.
    static unsigned at_least(F a, F b) {
        const uint32x4_t bits = {1, 2, 4, 8};
        return vaddvq_u32(vandq_u32(vcgeq_f32(a, b), bits));
    }
    // a, but the NaN of x where that has one.
    static F keep_nan(F a, F x) { return vbslq_f32(vceqq_f32(x, x), a, x); }

    static F load_as(const float *p) { return load(p); }
    static F load_as(const Bf16 *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16)); }
    static F load_as(const F16 *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
    static F load_as(const std::int8_t *p) {
        std::uint32_t four;
        std::memcpy(&four, p, sizeof four);
        const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    }
    // Words that hold two bf16 each, as floats.
    static F first_of_pairs(F words) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(words), 16)); }
    static F second_of_pairs(F words) {
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(words), vdupq_n_u32(0xFFFF0000u)));
    }

    // x as an integer, rounded towards 0: -2^31 where it is NaN or below that.  None is 2^31 or more.
    static F integer(F x) { return vreinterpretq_f32_s32(vcvtq_s32_f32(max(x, set1(-0x1p31f)))); }
    // Half of an integer, rounded down.
    static F halved(F bits) { return vreinterpretq_f32_s32(vshrq_n_s32(vreinterpretq_s32_f32(bits), 1)); }
    // 1 + f: the low 23 bits of an integer as a fraction f.
    static F fraction(F bits) {
        const uint32x4_t low = vandq_u32(vreinterpretq_u32_f32(bits), vdupq_n_u32(0x7FFFFFu));
        return vreinterpretq_f32_u32(vorrq_u32(low, vreinterpretq_u32_f32(set1(1.0f))));
    }
    static F add_bits(F a, F b) { return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b))); }
    static void here(const F &) {}

    static float reduce_max(F x) { return vmaxvq_f32(x); }
    // Sixteen lanes, halved again and again: the order of every instruction set.
    static float reduce_add(const F (&x)[4]) {
        const F folded = add(add(x[0], x[2]), add(x[1], x[3]));
        const float32x2_t y = vadd_f32(vget_low_f32(folded), vget_high_f32(folded));
        return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
    }

    // acc + a1 b1 + a0 b0 of pairs of bf16: each product and sum rounded once.
    static F dot_pairs(F acc, F a, F b) {
        return fma(first_of_pairs(a), first_of_pairs(b), fma(second_of_pairs(a), second_of_pairs(b), acc));
    }
    // Floats that bf16 holds exactly, as words: low half the first, high half the second.
    static F join_pairs(F first, F second) {
        return vreinterpretq_f32_u32(vsriq_n_u32(vreinterpretq_u32_f32(second), vreinterpretq_u32_f32(first), 16));
    }
    // 2 kLanes consecutive floats rounded to bf16, as words.
    static F round_pairs(const float *p) {
        std::uint32_t words[kLanes];
        for (int i = 0; i < kLanes; ++i) words[i] = bf16_of(p[2 * i]) | std::uint32_t{bf16_of(p[2 * i + 1])} << 16;
        return vreinterpretq_f32_u32(vld1q_u32(words));
    }

    static void transpose(F (&x)[4]) {
        const float32x4x2_t low = vzipq_f32(x[0], x[2]), high = vzipq_f32(x[1], x[3]);
        for (int i = 0; i < 2; ++i) {
            const float32x4x2_t columns = vzipq_f32(low.val[i], high.val[i]);
            x[2 * i] = columns.val[0];
            x[2 * i + 1] = columns.val[1];
        }
    }
};

}  // namespace
}  // namespace radixrt
