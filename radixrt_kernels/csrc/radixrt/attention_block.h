// The arithmetic of one block of keys, written once over ``Simd``: included after the header of one instruction set.
//
// A block is packed once and used by all query rows: K transposed, so that lanes are keys, V as it is, so that lanes are
// dimensions.  Both products are then the same small matrix product over 32-bit words.  A word is a float, or (``Pairs``) two bf16
// that lie next to each other along the summed dimension.  Each row's sums run over the dimensions, and over the keys, in order.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "radixrt/attention_plan.h"
#include "radixrt/simd_exp2.h"
#include "radixrt/softmax_stages.h"

namespace radixrt {
namespace {

template <bool Pairs>
inline F multiply_add(F acc, F a, F b) {
    if constexpr (Pairs)
        return Simd::dot_pairs(acc, a, b);
    else
        return Simd::fma(a, b, acc);
}

// As many rows, or the most there are: what is never called need not be compiled.
constexpr int up_to(int rows) { return rows < Simd::kManyRows ? rows : Simd::kManyRows; }

// Words from one row of a, b and c to the next.  0 stands for ``padded``; what is known when compiled costs no arithmetic.
template <int A, int B, int C>
struct Strides {
    int padded;
    int a() const { return A > 0 ? A : padded; }
    int b() const { return B > 0 ? B : padded; }
    int c() const { return C > 0 ? C : padded; }
};

// c[Rows][Columns x kLanes] = a[Rows][depth] b[depth][Columns x kLanes], along depth in order; with factors[Rows] instead of null,
// c * factors + a b.
template <bool Pairs, int Rows, int Columns, class S, class Factors>
[[gnu::always_inline]] inline void product(const float *a, const float *b, float *c, S strides, int depth, Factors factors) {
    F acc[Rows][Columns];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) {
            acc[i][j] = Simd::zero();
            if constexpr (!std::is_null_pointer_v<Factors>)
                acc[i][j] = Simd::mul(Simd::load(c + i * strides.c() + j * kLanes), Simd::set1(factors[i]));
        }
    // Fewer turns, whose end is easier to predict.
#pragma GCC unroll 4
    for (int k = 0; k < depth; ++k) {
        F columns[Columns];
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) columns[j] = Simd::load(b + static_cast<std::int64_t>(k) * strides.b() + j * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
            const F value = Simd::broadcast(a + i * strides.a() + k);
#pragma GCC unroll 8
            for (int j = 0; j < Columns; ++j) acc[i][j] = multiply_add<Pairs>(acc[i][j], value, columns[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) Simd::store(c + i * strides.c() + j * kLanes, acc[i][j]);
}

template <bool Pairs, int Rows, class S, class Factors>
inline void product_rows(const float *a, const float *b, float *c, S strides, int depth, int vectors, Factors factors) {
    constexpr int columns = Rows <= Simd::kFewRows ? Simd::kColumnsOfFew : Simd::kColumnsOfMany;
    int j = 0;
    for (; j + columns <= vectors; j += columns)
        product<Pairs, Rows, columns>(a, b + j * kLanes, c + j * kLanes, strides, depth, factors);
    for (; j < vectors; ++j) product<Pairs, Rows, 1>(a, b + j * kLanes, c + j * kLanes, strides, depth, factors);
}

// The same for 1 to kManyRows rows.
template <bool Pairs, class S, class Factors>
inline void product_strip(int rows, const float *a, const float *b, float *c, S strides, int depth, int vectors, Factors factors) {
    switch (rows) {
        case 1: return product_rows<Pairs, 1>(a, b, c, strides, depth, vectors, factors);
        case 2: return product_rows<Pairs, 2>(a, b, c, strides, depth, vectors, factors);
        case 3: return product_rows<Pairs, up_to(3)>(a, b, c, strides, depth, vectors, factors);
        case 4: return product_rows<Pairs, up_to(4)>(a, b, c, strides, depth, vectors, factors);
        case 5: return product_rows<Pairs, up_to(5)>(a, b, c, strides, depth, vectors, factors);
        default: return product_rows<Pairs, Simd::kManyRows>(a, b, c, strides, depth, vectors, factors);
    }
}

// Two values that bf16 holds exactly, as a word.
inline float joined(float first, float second) { return float_of(bits_of(first) >> 16 | (bits_of(second) & 0xFFFF0000u)); }

// kLanes words from 2 kLanes consecutive elements that bf16 holds exactly.
inline F pairs_of(const Bf16 *p) { return Simd::load(reinterpret_cast<const float *>(p)); }
inline F pairs_of(const std::int8_t *p) {
    float floats[2 * kLanes];
    Simd::store(floats, Simd::load_as(p));
    Simd::store(floats + kLanes, Simd::load_as(p + kLanes));
    return Simd::round_pairs(floats);
}
template <class Element>
inline F pairs_of(const Element *) {
    return Simd::zero();
}

// K of up to kBlockKeys keys, transposed: out[word][kBlockKeys].  Lanes up to a multiple of kSumLanes are filled, with 0.
template <class Element, bool Pairs>
inline void pack_keys(const Element *const *keys, int count, int head_dim, float *out) {
    constexpr bool in_pairs = Pairs || sizeof(Element) == 2;
    const int lanes = (count + kSumLanes - 1) / kSumLanes * kSumLanes;
    for (int key = 0; key < lanes; key += kLanes) {
        int d = 0;
        F rows[kLanes];
        if constexpr (in_pairs && !std::is_same_v<Element, F16>) {
            for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
#pragma GCC unroll 16
                for (int i = 0; i < kLanes; ++i) rows[i] = key + i < count ? pairs_of(keys[key + i] + d) : Simd::zero();
                Simd::transpose(rows);
                for (int i = 0; i < kLanes; ++i) {
                    if constexpr (Pairs) {
                        Simd::store(out + (d / 2 + i) * kBlockKeys + key, rows[i]);
                    } else {
                        Simd::store(out + (d + 2 * i) * kBlockKeys + key, Simd::first_of_pairs(rows[i]));
                        Simd::store(out + (d + 2 * i + 1) * kBlockKeys + key, Simd::second_of_pairs(rows[i]));
                    }
                }
            }
        }
        if constexpr (!Pairs) {
            for (; d + kLanes <= head_dim; d += kLanes) {
#pragma GCC unroll 16
                for (int i = 0; i < kLanes; ++i) rows[i] = key + i < count ? Simd::load_as(keys[key + i] + d) : Simd::zero();
                Simd::transpose(rows);
                for (int i = 0; i < kLanes; ++i) Simd::store(out + (d + i) * kBlockKeys + key, rows[i]);
            }
        }
        for (; d < head_dim; d += Pairs ? 2 : 1) {
            for (int i = key; i < key + kLanes; ++i) {
                const float first = i < count ? to_float(keys[i][d]) : 0.0f;
                if constexpr (Pairs)
                    out[d / 2 * kBlockKeys + i] = joined(first, i < count && d + 1 < head_dim ? to_float(keys[i][d + 1]) : 0.0f);
                else
                    out[d * kBlockKeys + i] = first;
            }
        }
    }
}

// V of up to kBlockKeys keys: out[word][padded], words along the keys; dimensions beyond head_dim are 0.
template <class Element, bool Pairs>
inline void pack_values(const Element *const *values, int count, int head_dim, int padded, float *out) {
    for (int key = 0; key < count; key += Pairs ? 2 : 1) {
        const Element *first = values[key];
        const Element *second = Pairs && key + 1 < count ? values[key + 1] : nullptr;
        float *row = out + static_cast<std::int64_t>(Pairs ? key / 2 : key) * padded;
        int d = 0;
        for (; d + kLanes <= head_dim; d += kLanes) {
            const F loaded = Simd::load_as(first + d);
            if constexpr (Pairs)
                Simd::store(row + d, Simd::join_pairs(loaded, second != nullptr ? Simd::load_as(second + d) : Simd::zero()));
            else
                Simd::store(row + d, loaded);
        }
        for (; d < padded; ++d) {
            const float value = d < head_dim ? to_float(first[d]) : 0.0f;
            row[d] = Pairs ? joined(value, second != nullptr && d < head_dim ? to_float(second[d]) : 0.0f) : value;
        }
    }
}

// The running softmax of one query row: the largest score, in units of 1 / kExp2Scale, and the sum of weights, 2 for a score that large.
struct RowState {
    float best;
    float sum;
};

// Vectors whose exponentials are taken at once, so that one need not wait for another.
constexpr int kExpVectors = kVectorsPerSum < 4 ? 2 * kVectorsPerSum : kVectorsPerSum;
constexpr int kExpLanes = kExpVectors * kLanes;

// Turn scores [Rows][width] into weights relative to each row's best, in place, times the scales of V where there are any; totals[Rows]: the
// sums of those without scales.
template <int Rows, int Width>
inline void weigh_rows(float *scores, int width, const float *v_scale, const float *bests, float *totals) {
    // One or two rows are faster without.
    if constexpr (Simd::kStages && Rows > 2 && Width == kBlockKeys)
        if (v_scale == nullptr) return SoftmaxStages::run(Rows, scores, bests, totals);
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) {
        float *at = scores + row * kBlockKeys;
        const F offset = Simd::set1(bests[row]);
        F total[kVectorsPerSum];
        for (int i = 0; i < kVectorsPerSum; ++i) total[i] = Simd::zero();
        for (int i = 0; i < width; i += kExpLanes) {
            F weights[kExpVectors];
#pragma GCC unroll 8
            for (int j = 0; j < kExpVectors; ++j) weights[j] = Simd::sub(Simd::load(at + i + j * kLanes), offset);
            twice_exp2(weights);
#pragma GCC unroll 8
            for (int j = 0; j < kExpVectors; ++j) {
                total[j % kVectorsPerSum] = Simd::add(total[j % kVectorsPerSum], weights[j]);
                if (v_scale != nullptr) weights[j] = Simd::mul(weights[j], Simd::load(v_scale + i + j * kLanes));
                Simd::store(at + i + j * kLanes, weights[j]);
            }
        }
        totals[row] = Simd::reduce_add(total);
    }
}

// Turn scores [Rows][width] of a block, those of keys that a row does not see at minus infinity, into weights, in place, and bring
// the rows' states up to date.  factors[Rows]: what their weighted sums so far are to be multiplied with.  ``Width`` is the width where
// it is not 0.
//
// A score that is NaN has a weight of 0.  A row of such, or one with a score of infinity, has a sum of 0, by which its result is NaN.
template <int Rows, int Width>
inline void softmax_rows(float *scores, int any_width, const float *v_scale, RowState *states, float *factors) {
    constexpr int padded = (Rows + kLanes - 1) / kLanes * kLanes;
    const int width = Width > 0 ? Width : any_width;
    float bests[Rows], totals[Rows], shrinks[padded] = {};
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) {
        const float *at = scores + row * kBlockKeys;
        // A row that has seen nothing yet has weights of 0: infinity less infinity would be none.
        F most = Simd::set1(kLowest);
        for (int i = 0; i < width; i += kLanes) most = Simd::max(Simd::load(at + i), most);
        const float best = Simd::reduce_max(most), before = states[row].best;
        bests[row] = best > before ? best : before;
        shrinks[row] = before - bests[row];
    }
    weigh_rows<Rows, Width>(scores, width, v_scale, bests, totals);
    // 1 where the best stayed: no branch to guess.
    for (int i = 0; i < padded; i += kLanes) Simd::store(shrinks + i, exp2_of(Simd::load(shrinks + i)));
    for (int row = 0; row < Rows; ++row) {
        states[row] = {bests[row], states[row].sum * shrinks[row] + totals[row]};
        factors[row] = shrinks[row];
    }
}

template <int Rows>
inline void softmax_width(float *scores, int width, const float *v_scale, RowState *states, float *factors) {
    if (width == kBlockKeys) return softmax_rows<Rows, kBlockKeys>(scores, width, v_scale, states, factors);
    return softmax_rows<Rows, 0>(scores, width, v_scale, states, factors);
}

// The same for 1 to kManyRows rows.
inline void softmax_strip(int rows, float *scores, int width, const float *v_scale, RowState *states, float *factors) {
    switch (rows) {
        case 1: return softmax_width<1>(scores, width, v_scale, states, factors);
        case 2: return softmax_width<2>(scores, width, v_scale, states, factors);
        case 3: return softmax_width<up_to(3)>(scores, width, v_scale, states, factors);
        case 4: return softmax_width<up_to(4)>(scores, width, v_scale, states, factors);
        case 5: return softmax_width<up_to(5)>(scores, width, v_scale, states, factors);
        default: return softmax_width<Simd::kManyRows>(scores, width, v_scale, states, factors);
    }
}

// Fold up to kLanes rows' results of a later chunk into those of the chunks before it, if anything was seen of them, and of it.
inline void fold(int rows, RowState *totals, float *sums, const RowState *parts, const float *part_sums, int padded) {
    float bests[kLanes], old_factors[kLanes] = {}, new_factors[kLanes] = {};
    for (int row = 0; row < rows; ++row) {
        bests[row] = totals[row].best > parts[row].best ? totals[row].best : parts[row].best;
        old_factors[row] = totals[row].best - bests[row];
        new_factors[row] = parts[row].best - bests[row];
    }
    Simd::store(old_factors, exp2_of(Simd::load(old_factors)));
    Simd::store(new_factors, exp2_of(Simd::load(new_factors)));
    for (int row = 0; row < rows; ++row, sums += padded, part_sums += padded) {
        if (parts[row].best < kLowest) continue;
        if (totals[row].best < kLowest) {
            totals[row] = parts[row];
            std::memcpy(sums, part_sums, sizeof(float) * padded);
            continue;
        }
        totals[row] = {bests[row], totals[row].sum * old_factors[row] + parts[row].sum * new_factors[row]};
        const F old_factor = Simd::set1(old_factors[row]), new_factor = Simd::set1(new_factors[row]);
        for (int d = 0; d < padded; d += kLanes)
            Simd::store(sums + d, Simd::fma(Simd::load(part_sums + d), new_factor, Simd::mul(Simd::load(sums + d), old_factor)));
    }
}

inline void finish(const RowState &state, const float *sums, float *out, int head_dim) {
    const float inverse = 1.0f / state.sum;
    int d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) Simd::store(out + d, Simd::mul(Simd::load(sums + d), Simd::set1(inverse)));
    for (; d < head_dim; ++d) out[d] = sums[d] * inverse;
}

}  // namespace
}  // namespace radixrt
