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

namespace radixrt {
namespace {

template <bool Pairs>
inline F multiply_add(F acc, F a, F b) {
    if constexpr (Pairs)
        return Simd::dot_pairs(acc, a, b);
    else
        return Simd::fma(a, b, acc);
}

// c[Rows][Columns x kLanes] = (or +=) a[Rows][depth] b[depth][Columns x kLanes], along depth in order.
template <bool Pairs, int Rows, int Columns>
inline void product(const float *a, int a_stride, const float *b, int b_stride, float *c, int c_stride, int depth, bool onto) {
    F acc[Rows][Columns];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) acc[i][j] = onto ? Simd::load(c + i * c_stride + j * kLanes) : Simd::zero();
    for (int k = 0; k < depth; ++k) {
        F columns[Columns];
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) columns[j] = Simd::load(b + static_cast<std::int64_t>(k) * b_stride + j * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
            const F value = Simd::broadcast(a + i * a_stride + k);
#pragma GCC unroll 8
            for (int j = 0; j < Columns; ++j) acc[i][j] = multiply_add<Pairs>(acc[i][j], value, columns[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) Simd::store(c + i * c_stride + j * kLanes, acc[i][j]);
}

template <bool Pairs, int Rows>
inline void product_rows(const float *a, int a_stride, const float *b, int b_stride, float *c, int c_stride, int depth, int vectors,
                         bool onto) {
    constexpr int columns = Rows <= Simd::kFewRows ? Simd::kColumnsOfFew : Simd::kColumnsOfMany;
    int j = 0;
    for (; j + columns <= vectors; j += columns)
        product<Pairs, Rows, columns>(a, a_stride, b + j * kLanes, b_stride, c + j * kLanes, c_stride, depth, onto);
    for (; j < vectors; ++j)
        product<Pairs, Rows, 1>(a, a_stride, b + j * kLanes, b_stride, c + j * kLanes, c_stride, depth, onto);
}

// The same for 1 to kManyRows rows.
template <bool Pairs>
inline void product_strip(int rows, const float *a, int a_stride, const float *b, int b_stride, float *c, int c_stride, int depth, int vectors,
                          bool onto) {
    switch (rows) {
        case 1: return product_rows<Pairs, 1>(a, a_stride, b, b_stride, c, c_stride, depth, vectors, onto);
        case 2: return product_rows<Pairs, 2>(a, a_stride, b, b_stride, c, c_stride, depth, vectors, onto);
        case 3: return product_rows<Pairs, 3>(a, a_stride, b, b_stride, c, c_stride, depth, vectors, onto);
        case 4: return product_rows<Pairs, 4>(a, a_stride, b, b_stride, c, c_stride, depth, vectors, onto);
        case 5: return product_rows<Pairs, 5>(a, a_stride, b, b_stride, c, c_stride, depth, vectors, onto);
        default: return product_rows<Pairs, Simd::kManyRows>(a, a_stride, b, b_stride, c, c_stride, depth, vectors, onto);
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

// The running softmax of one query row: the largest score, and the sum of weights relative to it.
struct RowState {
    float best;
    float sum;
};

// Turn scores [width] of one row and block into weights, in place, and bring its state and weighted sum of values up to date.
inline void softmax(float *scores, int width, int seen_begin, int seen_end, const float *k_scale, const float *v_scale, RowState &state,
                    float *sums, int padded) {
    if (k_scale != nullptr)
        for (int i = 0; i < width; i += kLanes) Simd::store(scores + i, Simd::mul(Simd::load(scores + i), Simd::load(k_scale + i)));
    for (int i = 0; i < seen_begin; ++i) scores[i] = kMinusInfinity;
    for (int i = seen_end; i < width; ++i) scores[i] = kMinusInfinity;
    F best = Simd::load(scores);
    for (int i = kLanes; i < width; i += kLanes) best = Simd::max(best, Simd::load(scores + i));
    const float block_best = Simd::reduce_max(best);
    if (block_best > state.best) {
        const float shrink = exp2_of(state.best - block_best);
        state.best = block_best;
        state.sum *= shrink;
        const F factor = Simd::set1(shrink);
        for (int d = 0; d < padded; d += kLanes) Simd::store(sums + d, Simd::mul(Simd::load(sums + d), factor));
    }
    const F offset = Simd::set1(state.best);
    F total[kVectorsPerSum];
    for (int i = 0; i < kVectorsPerSum; ++i) total[i] = Simd::zero();
    for (int i = 0; i < width; i += kSumLanes) {
#pragma GCC unroll 2
        for (int j = 0; j < kVectorsPerSum; ++j) {
            float *at = scores + i + j * kLanes;
            F weight = exp2_of(Simd::sub(Simd::load(at), offset));
            total[j] = Simd::add(total[j], weight);
            if (v_scale != nullptr) weight = Simd::mul(weight, Simd::load(v_scale + i + j * kLanes));
            Simd::store(at, weight);
        }
    }
    state.sum += Simd::reduce_add(total);
}

// Fold a later chunk's result into that of the chunks before it; a chunk of which nothing was seen has a sum of 0.
inline void fold(RowState &total, float *sums, const RowState &part, const float *part_sums, int padded) {
    if (part.sum == 0.0f) return;
    if (total.sum == 0.0f) {
        total = part;
        std::memcpy(sums, part_sums, sizeof(float) * padded);
        return;
    }
    const float best = total.best > part.best ? total.best : part.best;
    const float old_scale = exp2_of(total.best - best), new_scale = exp2_of(part.best - best);
    total.best = best;
    total.sum = total.sum * old_scale + part.sum * new_scale;
    const F old_factor = Simd::set1(old_scale), new_factor = Simd::set1(new_scale);
    for (int d = 0; d < padded; d += kLanes)
        Simd::store(sums + d, Simd::fma(Simd::load(part_sums + d), new_factor, Simd::mul(Simd::load(sums + d), old_factor)));
}

inline void finish(const RowState &state, const float *sums, float *out, int head_dim) {
    const float inverse = 1.0f / state.sum;
    int d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) Simd::store(out + d, Simd::mul(Simd::load(sums + d), Simd::set1(inverse)));
    for (; d < head_dim; ++d) out[d] = sums[d] * inverse;
}

}  // namespace
}  // namespace radixrt
