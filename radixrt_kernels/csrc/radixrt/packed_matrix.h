// A weight matrix in the order in which the kernels read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace radixrt {

// How weights are stored.  Of the quantised types a block is 32 neighbours in a row, and a weight is
//   q8_0: d * q, q in [-128, 127];   q4_0: d * (q - 8);   q4_1: d * q + m, q in [0, 15]
// with d and m half-precision numbers of the block: the types of these names of the GGUF format.
enum class WeightType : int { f32, bf16, q8_0, q4_0, q4_1 };

constexpr int kBlock = 32;
// Rows that lie interleaved.
constexpr int kPanel = 16;

const char *weight_type_name(WeightType type);
// Throws std::invalid_argument for an unknown name.
WeightType weight_type_of(std::string_view name);
bool is_quantized(WeightType type);
// Bytes of one block of a row in a file.
std::size_t stored_block_bytes(WeightType type);

// [rows, cols] weights, cut into panels of 16 rows; the last is filled up with zeros.  Within a panel:
//   quantised: for each block of 32 columns, 16 d, then 16 m (q4_1), then the numbers of four columns of all 16 rows after each other.
//     q8_0: columns 4j .. 4j+3 of row r are bytes 64j + 4r ..;  q4_*: the low halves of those bytes, j < 4, and for j >= 4 the high
//     halves of bytes 64(j-4) + 4r ...
//   f32, bf16: column after column, 16 rows each.
class PackedMatrix {
public:
    // Throws std::invalid_argument for sizes below 1, or cols that are no whole blocks of a quantised type.
    PackedMatrix(WeightType type, std::int64_t rows, std::int64_t cols);

    WeightType type() const { return type_; }
    std::int64_t rows() const { return rows_; }
    std::int64_t cols() const { return cols_; }
    std::int64_t num_panels() const { return (rows_ + kPanel - 1) / kPanel; }
    std::size_t panel_bytes() const { return panel_bytes_; }
    std::size_t bytes() const { return panel_bytes_ * static_cast<std::size_t>(num_panels()); }
    const std::uint8_t *panel(std::int64_t index) const { return data_.get() + static_cast<std::size_t>(index) * panel_bytes_; }

    // Fill whole rows from ``first`` on with blocks as a GGUF file has them (rows * cols / 32 of them; 4 or 2 bytes a number for f32
    // and bf16).  Throws std::invalid_argument when they are not whole rows or end outside the matrix.
    void pack(std::int64_t first, std::span<const std::uint8_t> blocks);
    // The same from numbers, which are rounded to the type: to the nearest number of a block whose largest magnitude (q8_0, q4_0) or
    // whose range (q4_1) is kept.
    void pack_floats(std::int64_t first, std::span<const float> values);

    // Write row ``row`` as numbers, cols of them.
    void unpack_row(std::int64_t row, float *out) const;

private:
    void pack_row(std::int64_t row, const std::uint8_t *blocks);
    std::uint8_t *mutable_panel(std::int64_t index) { return data_.get() + static_cast<std::size_t>(index) * panel_bytes_; }
    void check_rows(std::int64_t first, std::size_t items, std::size_t items_a_row) const;

    WeightType type_;
    std::int64_t rows_, cols_;
    std::size_t panel_bytes_;
    std::shared_ptr<std::uint8_t[]> data_;
};

// Bytes of one block of 32 columns of a panel.
constexpr std::size_t panel_block_bytes(WeightType type) {
    switch (type) {
        case WeightType::q8_0: return 2 * kPanel + kPanel * kBlock;
        case WeightType::q4_0: return 2 * kPanel + kPanel * kBlock / 2;
        case WeightType::q4_1: return 4 * kPanel + kPanel * kBlock / 2;
        case WeightType::bf16: return 2 * kPanel * kBlock;
        default: return 4 * kPanel * kBlock;
    }
}

}  // namespace radixrt
