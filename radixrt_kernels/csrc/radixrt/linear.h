// Products with weight matrices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "radixrt/activations.h"
#include "radixrt/packed_matrix.h"
#include "radixrt/thread_pool.h"

namespace radixrt {

// y[t, column + r] for the rows r of a matrix: the product, plus bias[r] if there is one, plus what y held if ``add``.
struct LinearOutput {
    const PackedMatrix *matrix;
    const float *bias;
    float *y;
    std::int64_t stride;
    std::int64_t column;
    bool add;
};

// Multiply the same rows by several matrices.  ``x`` [tokens, cols] float32 is read by f32 and bf16 matrices, ``quantized`` (its
// rounding, see quantize_rows) by the others; what no matrix reads may be empty.
//
// Each element is computed in one order that depends on nothing but its matrix: for quantised weights, block after block,
//   y = y + s * (d * float(dot) [+ m * float(sum of a)])
// with the dot product of the block in integers, so that all instruction sets give the same bits; for the others column after column,
// fused or not as the instruction set has it.
void linear(const float *x, const QuantizedRows &quantized, std::int64_t tokens, std::span<const LinearOutput> outputs, ThreadPool &pool);

// Which rows of a matrix are wanted of each token: bit r of row t of ``bits`` [tokens, words].
struct WantedRows {
    // The tokens in the order in which the product takes them: those that want most of the matrix, which are multiplied together, come first.
    WantedRows(const std::int32_t *bits, std::int64_t tokens, const PackedMatrix &matrix);

    // Whether a row of a panel is wanted of a token.
    bool in_panel(std::int64_t token, std::int64_t panel) const {
        const auto word = static_cast<std::uint32_t>(bits[token * words + panel / 2]);
        return (word >> (panel % 2 * kPanel) & 0xFFFFu) != 0;
    }

    const std::int32_t *bits;
    std::int64_t words;
    std::vector<std::int64_t> order;
    std::int64_t num_wide;
};

// y[order[i], r] for the rows r that are wanted of that token, and some others; what is not computed stays as it is.  Row i of x and
// of its rounding is token order[i].  Each element has the bits that ``linear`` gives it.
void linear_where(const float *x, const QuantizedRows &quantized, const PackedMatrix &matrix, const WantedRows &wanted, float *y, ThreadPool &pool);

constexpr int kSpreadTokens = 8;
// As many blocks as fit a first-level cache.
constexpr int kSpreadBlocks = 9;

// Eight tokens' rounded numbers of some blocks, each four columns repeated for all lanes of a register, in the order in which the
// weights of a block are read; sums (times a factor) and scales likewise.
struct SpreadRows {
    alignas(64) std::int8_t numbers[kSpreadBlocks][8][kSpreadTokens][kBlock];
    alignas(64) float sums[kSpreadBlocks][kSpreadTokens][8], scales[kSpreadBlocks][kSpreadTokens][8];
};

// Products of eight tokens with several panels, for paths on which they are faster so.
struct SpreadPath {
    // Tokens first .. first + 7, blocks block .. block + blocks - 1, blocks <= kSpreadBlocks; ``factor`` of the sums: 8 for q4_0, whose
    // numbers are 8 too large.
    void (*spread)(const QuantizedRows &rows, std::int64_t first, std::int64_t block, int blocks, float factor, SpreadRows &out);
    // Add the blocks' terms to y [count, 8 tokens, 16]; ``panel`` is the first panel at its first block, others lie panel_bytes apart.
    using Panels = void (*)(const std::uint8_t *panel, std::size_t panel_bytes, int count, int blocks, const SpreadRows &rows, float *y);
    Panels q4_0, q4_1;
};

// One path of the kernels.  ``panel`` is one of a matrix of that type, ``out`` [tokens, 16].
struct LinearPath {
    // Tokens first .. first + tokens - 1 of the rows, tokens <= kTokenTile.
    using QuantizedPanel = void (*)(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first,
                                    int tokens, float *out);
    using FloatPanel = void (*)(const std::uint8_t *panel, std::int64_t cols, const float *x, int tokens, float *out);
    QuantizedPanel q8_0, q4_0, q4_1;
    FloatPanel f32, bf16;
    const SpreadPath *spread;  // null: the above for any number of tokens
};

constexpr int kTokenTile = 32;  // whole groups of kSpreadTokens

extern const LinearPath kLinearPortable;
#if defined(__x86_64__)
extern const LinearPath kLinearAvx2;
extern const SpreadPath kSpreadAvx2;
extern const LinearPath kLinearAvx512;
#elif defined(__aarch64__)
extern const LinearPath kLinearNeon;
extern const LinearPath kLinearDotprod;
#endif

}  // namespace radixrt
