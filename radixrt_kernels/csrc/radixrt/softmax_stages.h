// Weights of whole rows of scores, the steps of several vectors woven: included after the header of an instruction set with kStages.
//
// A processor with a short queue of waiting instructions, such as the first Zen, fills its pipes only if instructions come in an order
// in which they hardly wait.  So while one vector is converted, the polynomials of three before it are at different terms.  Which step of
// which vector comes when was found by a random search on that processor.
#pragma once

#include "radixrt/attention_plan.h"
#include "radixrt/simd_exp2.h"

namespace radixrt {
namespace {

class SoftmaxStages {
public:
    // Turn scores[rows][kBlockKeys] into weights 2 * 2^((score - best[row]) / kExp2Scale), in place, and sum each row's.
    [[gnu::noinline]] static void run(int rows, float *scores, const float *bests, float *totals) {
        SoftmaxStages stages;
        stages.run_row<true, false>(scores, Simd::broadcast(bests), totals);
#pragma GCC unroll 1
        for (int row = 1; row < rows; ++row) stages.run_row<false, false>(scores + row * kBlockKeys, Simd::broadcast(bests + row), totals + row - 1);
        stages.run_row<false, true>(scores + rows * kBlockKeys, Simd::zero(), totals + rows - 1);
    }

private:
    static constexpr int kVectors = kBlockKeys / kLanes;
    static constexpr int kLastLag = 6;

    F bits_[kVectors], m_[kVectors], p_[kVectors], sums_[kVectorsPerSum];

    // The steps of one row, and between them the last of the row before: there is none before a first row, and after the last there is
    // only the rest of it.  ``total`` is that of the row before.
    template <bool First, bool Rest>
    [[gnu::always_inline]] void run_row(float *at, F offset, float *total) {
#pragma GCC unroll 8
        for (int step = 0; step < (Rest ? kLastLag : kVectors); ++step) {
            const auto runs = [step](int lag) { return step < lag ? !First : !Rest; };
            // Where the vector is kept that was begun so many steps before.
            const auto begun = [step](int lag) { return (step - lag + kVectors) % kVectors; };
            if (runs(6)) sum(begun(6), total);
            if (runs(0)) subtract(step, at + step * kLanes, offset);
            if (runs(2)) fraction(begun(2));
            if (runs(2)) term(begun(2), 4);
            if (runs(2)) term(begun(2), 3);
            if (runs(4)) term(begun(4), 0);
            if (runs(3)) term(begun(3), 2);
            if (runs(6)) Simd::store(at + (step - 6) * kLanes, p_[begun(6)]);
            if (runs(3)) term(begun(3), 1);
            if (runs(0)) convert(step);
            if (runs(1)) halve(begun(1));
            if (runs(4)) weight(begun(4));
        }
    }

    [[gnu::always_inline]] void subtract(int i, const float *score, F offset) {
        bits_[i] = Simd::sub(Simd::load(score), offset);
        Simd::here(bits_[i]);
    }
    [[gnu::always_inline]] void convert(int i) {
        bits_[i] = Simd::integer(bits_[i]);
        Simd::here(bits_[i]);
    }
    [[gnu::always_inline]] void halve(int i) {
        bits_[i] = Simd::halved(bits_[i]);
        Simd::here(bits_[i]);
    }
    [[gnu::always_inline]] void fraction(int i) {
        m_[i] = Simd::fraction(bits_[i]);
        Simd::here(m_[i]);
    }
    [[gnu::always_inline]] void term(int i, int k) {
        p_[i] = Simd::fma(k == kExp2Degree - 1 ? Simd::set1(kExp2[kExp2Degree]) : p_[i], m_[i], Simd::set1(kExp2[k]));
        Simd::here(p_[i]);
    }
    [[gnu::always_inline]] void weight(int i) {
        p_[i] = Simd::add_bits(p_[i], bits_[i]);
        Simd::here(p_[i]);
    }
    [[gnu::always_inline]] void sum(int i, float *total) {
        F &sum = sums_[i % kVectorsPerSum];
        sum = i < kVectorsPerSum ? p_[i] : Simd::add(sum, p_[i]);
        Simd::here(sum);
        if (i == kVectors - 1) *total = Simd::reduce_add(sums_);
    }
};

}  // namespace
}  // namespace radixrt
