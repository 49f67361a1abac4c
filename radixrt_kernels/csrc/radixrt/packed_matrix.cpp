#include "radixrt/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "radixrt/half.h"
#include "radixrt/huge_pages.h"

namespace radixrt {

namespace {

constexpr const char *kNames[] = {"f32", "bf16", "q8_0", "q4_0", "q4_1"};

std::uint16_t read_u16(const std::uint8_t *from) {
    std::uint16_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

void write_u16(std::uint8_t *to, std::uint16_t value) { std::memcpy(to, &value, sizeof(value)); }

float reciprocal(float value) { return value == 0.0f ? 0.0f : 1.0f / value; }

// A number of a block; NaN and what is infinite become something in range, and the block's d tells.
int rounded(float value, int low, int high) {
    if (!(value > static_cast<float>(low))) return low;
    if (value >= static_cast<float>(high)) return high;
    return static_cast<int>(std::nearbyint(value));
}

// One block of 32 numbers as a file has it.
void quantize_block(WeightType type, const float *values, std::uint8_t *out) {
    float largest = 0.0f, signed_largest = 0.0f, low = values[0], high = values[0];
    bool finite = true;
    for (int i = 0; i < kBlock; ++i) {
        const float value = values[i];
        finite = finite && std::isfinite(value);
        if (std::fabs(value) > largest) largest = std::fabs(value), signed_largest = value;
        low = std::min(low, value);
        high = std::max(high, value);
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (type == WeightType::q8_0) {
        const std::uint16_t d = half_of_float(finite ? largest / 127.0f : nan);
        write_u16(out, d);
        const float inverse = reciprocal(float_of_half(d));
        for (int i = 0; i < kBlock; ++i) out[2 + i] = static_cast<std::uint8_t>(rounded(values[i] * inverse, -127, 127));
        return;
    }
    const bool offset = type == WeightType::q4_1;
    // q4_0 reaches one further on the negative side: the sign of d turns the largest number there.
    const std::uint16_t d = half_of_float(!finite ? nan : offset ? (high - low) / 15.0f : signed_largest / -8.0f);
    const float base = offset ? float_of_half(half_of_float(low)) : 0.0f;
    write_u16(out, d);
    if (offset) write_u16(out + 2, half_of_float(low));
    std::uint8_t *numbers = out + (offset ? 4 : 2);
    const float inverse = reciprocal(float_of_half(d));
    const auto number = [&](int i) { return rounded((values[i] - base) * inverse + (offset ? 0.0f : 8.0f), 0, 15); };
    for (int i = 0; i < kBlock / 2; ++i) numbers[i] = static_cast<std::uint8_t>(number(i) | number(i + kBlock / 2) << 4);
}

// Spread one block of a row over its place in the panel.
void pack_block(WeightType type, const std::uint8_t *block, std::uint8_t *panel, int lane) {
    const bool offset = type == WeightType::q4_1;
    std::memcpy(panel + 2 * lane, block, 2);
    if (offset) std::memcpy(panel + 2 * kPanel + 2 * lane, block + 2, 2);
    const std::uint8_t *numbers = block + (offset ? 4 : 2);
    std::uint8_t *out = panel + (offset ? 4 : 2) * kPanel + 4 * lane;
    // A file pairs columns i and i + 16 of the smaller types in a byte, and so does a panel.
    const int bytes = type == WeightType::q8_0 ? kBlock : kBlock / 2;
    for (int i = 0; i < bytes; i += 4) std::memcpy(out + i * kPanel, numbers + i, 4);
}

}  // namespace

const char *weight_type_name(WeightType type) { return kNames[static_cast<int>(type)]; }

WeightType weight_type_of(std::string_view name) {
    for (int i = 0; i < 5; ++i)
        if (name == kNames[i]) return static_cast<WeightType>(i);
    throw std::invalid_argument("[PackedMatrix] " + std::string(name) + " is not one of f32, bf16, q8_0, q4_0, q4_1");
}

bool is_quantized(WeightType type) { return type != WeightType::f32 && type != WeightType::bf16; }

std::size_t stored_block_bytes(WeightType type) {
    switch (type) {
        case WeightType::q8_0: return 34;
        case WeightType::q4_0: return 18;
        case WeightType::q4_1: return 20;
        case WeightType::bf16: return 2;
        default: return 4;
    }
}

PackedMatrix::PackedMatrix(WeightType type, std::int64_t rows, std::int64_t cols) : type_(type), rows_(rows), cols_(cols) {
    constexpr std::int64_t kMaxSize = std::int64_t{1} << 32;
    if (rows < 1 || cols < 1 || rows > kMaxSize || cols > kMaxSize)
        throw std::invalid_argument("[PackedMatrix] no matrix of " + std::to_string(rows) + " x " + std::to_string(cols));
    if (is_quantized(type) && cols % kBlock)
        throw std::invalid_argument("[PackedMatrix] " + std::to_string(cols) + " columns are not whole blocks of 32");
    panel_bytes_ = static_cast<std::size_t>(cols) * panel_block_bytes(type) / kBlock;
    if (static_cast<std::size_t>(num_panels()) > std::numeric_limits<std::ptrdiff_t>::max() / panel_bytes_) throw std::bad_alloc();
    data_ = allocate_weights(bytes());
    // Rows that fill up the last panel are read by the kernels.
    if (rows % kPanel) std::memset(mutable_panel(num_panels() - 1), 0, panel_bytes_);
}

void PackedMatrix::check_rows(std::int64_t first, std::size_t items, std::size_t items_a_row) const {
    if (first < 0 || first > rows_ || items % items_a_row || items / items_a_row > static_cast<std::size_t>(rows_ - first))
        throw std::invalid_argument("[PackedMatrix] what is packed is not whole rows, or ends outside the matrix");
}

void PackedMatrix::pack(std::int64_t first, std::span<const std::uint8_t> blocks) {
    const std::size_t row_bytes = stored_block_bytes(type_) * static_cast<std::size_t>(is_quantized(type_) ? cols_ / kBlock : cols_);
    check_rows(first, blocks.size(), row_bytes);
    for (std::size_t i = 0; i < blocks.size() / row_bytes; ++i) pack_row(first + static_cast<std::int64_t>(i), blocks.data() + i * row_bytes);
}

void PackedMatrix::pack_floats(std::int64_t first, std::span<const float> values) {
    const auto cols = static_cast<std::size_t>(cols_);
    check_rows(first, values.size(), cols);
    std::vector<std::uint8_t> row(stored_block_bytes(type_) * (is_quantized(type_) ? cols / kBlock : cols));
    for (std::size_t i = 0; i < values.size() / cols; ++i) {
        const float *from = values.data() + i * cols;
        if (type_ == WeightType::f32) {
            std::memcpy(row.data(), from, 4 * cols);
        } else if (type_ == WeightType::bf16) {
            for (std::size_t column = 0; column < cols; ++column) write_u16(row.data() + 2 * column, bf16_of_float(from[column]));
        } else {
            for (std::size_t block = 0; block < cols / kBlock; ++block)
                quantize_block(type_, from + block * kBlock, row.data() + block * stored_block_bytes(type_));
        }
        pack_row(first + static_cast<std::int64_t>(i), row.data());
    }
}

void PackedMatrix::pack_row(std::int64_t row, const std::uint8_t *blocks) {
    std::uint8_t *panel = mutable_panel(row / kPanel);
    const auto lane = static_cast<int>(row % kPanel);
    const std::size_t width = stored_block_bytes(type_);
    if (is_quantized(type_)) {
        for (std::int64_t block = 0; block < cols_ / kBlock; ++block)
            pack_block(type_, blocks + static_cast<std::size_t>(block) * width, panel + static_cast<std::size_t>(block) * panel_block_bytes(type_), lane);
        return;
    }
    for (std::size_t column = 0; column < static_cast<std::size_t>(cols_); ++column)
        std::memcpy(panel + (column * kPanel + static_cast<std::size_t>(lane)) * width, blocks + column * width, width);
}

void PackedMatrix::unpack_row(std::int64_t row, float *out) const {
    const std::uint8_t *from = panel(row / kPanel);
    const auto lane = static_cast<std::size_t>(row % kPanel);
    const auto cols = static_cast<std::size_t>(cols_);
    if (type_ == WeightType::f32) {
        for (std::size_t column = 0; column < cols; ++column) std::memcpy(out + column, from + 4 * (column * kPanel + lane), 4);
        return;
    }
    if (type_ == WeightType::bf16) {
        for (std::size_t column = 0; column < cols; ++column) out[column] = float_of_bf16(read_u16(from + 2 * (column * kPanel + lane)));
        return;
    }
    const bool offset = type_ == WeightType::q4_1;
    for (std::size_t block = 0; block < cols / kBlock; ++block, from += panel_block_bytes(type_), out += kBlock) {
        const float d = float_of_half(read_u16(from + 2 * lane));
        const float m = offset ? float_of_half(read_u16(from + 2 * kPanel + 2 * lane)) : 0.0f;
        const std::uint8_t *numbers = from + (offset ? 4 : 2) * kPanel + 4 * lane;
        for (int i = 0; i < kBlock; ++i) {
            if (type_ == WeightType::q8_0) {
                out[i] = d * static_cast<float>(static_cast<std::int8_t>(numbers[i / 4 * 4 * kPanel + i % 4]));
                continue;
            }
            const int half = i % (kBlock / 2);
            const int number = numbers[half / 4 * 4 * kPanel + half % 4] >> (i < kBlock / 2 ? 0 : 4) & 15;
            out[i] = offset ? d * static_cast<float>(number) + m : d * static_cast<float>(number - 8);
        }
    }
}

}  // namespace radixrt
