#include "radixrt/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "radixrt/cpu.h"

namespace radixrt {

namespace {

// Tasks a thread: enough to even out what other processes take away.
constexpr std::int64_t kTasksPerThread = 4;

// Panels whose products with eight tokens are computed between two spreadings of these, and as few of them a task.
constexpr int kSpreadPanels = 64, kSpreadPanelsPerTask = 8;

// Of how many of some tokens a matrix's products are computed eight at a time.
int num_spread(const LinearPath &path, const PackedMatrix &matrix, int tokens) {
    const bool small = matrix.type() == WeightType::q4_0 || matrix.type() == WeightType::q4_1;
    return path.spread != nullptr && small ? tokens / kSpreadTokens * kSpreadTokens : 0;
}

// Eight tokens' products with up to kSpreadPanels panels: out [count, 8, 16].
void spread_product(const SpreadPath &path, const PackedMatrix &matrix, std::int64_t panel, int count, const QuantizedRows &rows,
                    std::int64_t first, float *out) {
    const SpreadPath::Panels multiply = matrix.type() == WeightType::q4_0 ? path.q4_0 : path.q4_1;
    const float factor = matrix.type() == WeightType::q4_0 ? 8.0f : 1.0f;
    const std::int64_t blocks = matrix.cols() / kBlock, parts = (blocks + kSpreadBlocks - 1) / kSpreadBlocks;
    SpreadRows spread;
    std::fill_n(out, count * kSpreadTokens * kPanel, 0.0f);
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t block = blocks * part / parts;
        const auto some = static_cast<int>(blocks * (part + 1) / parts - block);
        path.spread(rows, first, block, some, factor, spread);
        multiply(matrix.panel(panel) + static_cast<std::size_t>(block) * panel_block_bytes(matrix.type()), matrix.panel_bytes(), count, some, spread, out);
    }
}

// What a path makes of eight tokens of three blocks, whose quantised results must be equal and whose others nearly so.
bool agrees(const LinearPath &path, const LinearPath &portable) {
    constexpr int kTokens = kSpreadTokens, kCols = 3 * kBlock;
    std::vector<float> x(kTokens * kCols), weights(kPanel * kCols);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>((i * 7919 + 13) % 1009) / 504.0f - 1.0f;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 104729 + 7) % 997) / 498.0f - 1.0f;
    QuantizedBuffer buffer;
    const QuantizedRows rows = buffer.rows(kTokens, kCols);
    for (int token = 0; token < kTokens; ++token) kActivationPortable.quantize(x.data() + token * kCols, kCols, rows, token);
    float left[kTokens * kPanel], right[kTokens * kPanel];
    const auto quantized = [&](WeightType type, auto member) {
        PackedMatrix matrix(type, kPanel, kCols);
        matrix.pack_floats(0, weights);
        for (int tokens = 1; tokens <= kTokens; ++tokens) {
            (path.*member)(matrix.panel(0), kCols / kBlock, rows, kTokens - tokens, tokens, left);
            (portable.*member)(matrix.panel(0), kCols / kBlock, rows, kTokens - tokens, tokens, right);
            if (std::memcmp(left, right, sizeof(float) * kPanel * static_cast<std::size_t>(tokens)) != 0) return false;
        }
        if (num_spread(path, matrix, kTokens) == 0) return true;
        spread_product(*path.spread, matrix, 0, 1, rows, 0, left);
        return std::memcmp(left, right, sizeof(left)) == 0;  // NOLINT(bugprone-suspicious-memory-comparison): bits are meant
    };
    const auto floats = [&](WeightType type, auto member) {
        PackedMatrix matrix(type, kPanel, kCols);
        matrix.pack_floats(0, weights);
        (path.*member)(matrix.panel(0), kCols, x.data(), kTokens, left);
        (portable.*member)(matrix.panel(0), kCols, x.data(), kTokens, right);
        return std::equal(left, left + kTokens * kPanel, right, [](float a, float b) { return std::fabs(a - b) <= 1e-4f; });
    };
    return quantized(WeightType::q8_0, &LinearPath::q8_0) && quantized(WeightType::q4_0, &LinearPath::q4_0) &&
           quantized(WeightType::q4_1, &LinearPath::q4_1) && floats(WeightType::f32, &LinearPath::f32) && floats(WeightType::bf16, &LinearPath::bf16);
}

#if defined(__x86_64__)
Paths<LinearPath> paths("linear", kLinearPortable, &kLinearAvx2, &kLinearAvx512, agrees);
#elif defined(__aarch64__)
Paths<LinearPath> paths("linear", kLinearPortable, &kLinearNeon, &kLinearDotprod, agrees);
#else
Paths<LinearPath> paths("linear", kLinearPortable, nullptr, nullptr, agrees);
#endif

void panel_product(const LinearPath &path, const PackedMatrix &matrix, std::int64_t panel, const float *x, const QuantizedRows &rows,
                   std::int64_t first, int tokens, float *out) {
    const std::uint8_t *weights = matrix.panel(panel);
    const std::int64_t cols = matrix.cols();
    switch (matrix.type()) {
        case WeightType::q8_0: return path.q8_0(weights, cols / kBlock, rows, first, tokens, out);
        case WeightType::q4_0: return path.q4_0(weights, cols / kBlock, rows, first, tokens, out);
        case WeightType::q4_1: return path.q4_1(weights, cols / kBlock, rows, first, tokens, out);
        case WeightType::bf16: return path.bf16(weights, cols, x + first * cols, tokens, out);
        case WeightType::f32: return path.f32(weights, cols, x + first * cols, tokens, out);
    }
}

void write_panel(const LinearOutput &to, std::int64_t panel, std::int64_t first, int tokens, const float *products) {
    const std::int64_t row = panel * kPanel;
    const auto count = static_cast<int>(std::min<std::int64_t>(kPanel, to.matrix->rows() - row));
    for (int token = 0; token < tokens; ++token, products += kPanel) {
        float *y = to.y + (first + token) * to.stride + to.column + row;
        for (int i = 0; i < count; ++i) {
            float value = products[i];
            if (to.bias != nullptr) value += to.bias[row + i];
            y[i] = to.add ? y[i] + value : value;
        }
    }
}

// Some tokens' products with some panels.
void tile_product(const LinearPath &path, const LinearOutput &output, std::int64_t begin, std::int64_t end, const float *x,
                  const QuantizedRows &rows, std::int64_t first, int tokens) {
    const PackedMatrix &matrix = *output.matrix;
    const int spread = num_spread(path, matrix, tokens);
    if (spread > 0) {
        alignas(64) float products[kSpreadPanels * kSpreadTokens * kPanel];
        for (std::int64_t panel = begin; panel < end; panel += kSpreadPanels) {
            const auto count = static_cast<int>(std::min<std::int64_t>(kSpreadPanels, end - panel));
            for (int token = 0; token < spread; token += kSpreadTokens) {
                spread_product(*path.spread, matrix, panel, count, rows, first + token, products);
                for (int i = 0; i < count; ++i) write_panel(output, panel + i, first + token, kSpreadTokens, products + i * kSpreadTokens * kPanel);
            }
        }
    }
    if (spread == tokens) return;
    float products[kTokenTile * kPanel];
    for (std::int64_t panel = begin; panel < end; ++panel) {
        panel_product(path, matrix, panel, x, rows, first + spread, tokens - spread, products);
        write_panel(output, panel, first + spread, tokens - spread, products);
    }
}

}  // namespace

void linear(const float *x, const QuantizedRows &quantized, std::int64_t tokens, std::span<const LinearOutput> outputs, ThreadPool &pool) {
    const LinearPath &path = paths();
    std::int64_t panels = 0;
    bool spreads = false;
    for (const LinearOutput &output : outputs) {
        panels += output.matrix->num_panels();
        spreads = spreads || num_spread(path, *output.matrix, static_cast<int>(std::min<std::int64_t>(tokens, kTokenTile))) > 0;
    }
    // Tasks are ranges of panels; where tokens are spread first, which each task does for itself, ranges of tokens before that.
    const std::int64_t tiles = (tokens + kTokenTile - 1) / kTokenTile;
    const std::int64_t wanted = pool.num_threads() == 1 ? 1 : kTasksPerThread * pool.num_threads();
    const std::int64_t rows = spreads ? std::min(tiles, wanted) : 1;
    const std::int64_t least = spreads ? std::max<std::int64_t>(panels / kSpreadPanelsPerTask, pool.num_threads()) : panels;
    const std::int64_t columns = std::min({panels, least, (wanted + rows - 1) / rows});
    pool.run(static_cast<int>(rows * columns), [&](int task) {
        const std::int64_t row = task / columns, column = task % columns;
        const std::int64_t begin = panels * column / columns, end = panels * (column + 1) / columns;
        const std::int64_t last = std::min(tokens, tiles * (row + 1) / rows * kTokenTile);
        for (std::int64_t first = tiles * row / rows * kTokenTile; first < last; first += kTokenTile) {
            const auto count = static_cast<int>(std::min<std::int64_t>(kTokenTile, last - first));
            std::int64_t offset = 0;
            for (const LinearOutput &output : outputs) {
                const std::int64_t start = std::max<std::int64_t>(begin - offset, 0), stop = std::min(end - offset, output.matrix->num_panels());
                if (start < stop) tile_product(path, output, start, stop, x, quantized, first, count);
                offset += output.matrix->num_panels();
            }
        }
    });
}

WantedRows::WantedRows(const std::int32_t *bits, std::int64_t tokens, const PackedMatrix &matrix)
    : bits(bits), words((matrix.rows() + 31) / 32), order(static_cast<std::size_t>(tokens)) {
    std::iota(order.begin(), order.end(), 0);
    const auto is_wide = [&](std::int64_t token) {
        std::int64_t panels = 0;
        for (std::int64_t panel = 0; panel < matrix.num_panels(); ++panel) panels += in_panel(token, panel) ? 1 : 0;
        return 2 * panels > matrix.num_panels();
    };
    num_wide = std::stable_partition(order.begin(), order.end(), is_wide) - order.begin();
}

void linear_where(const float *x, const QuantizedRows &quantized, const PackedMatrix &matrix, const WantedRows &wanted, float *y, ThreadPool &pool) {
    const LinearPath &path = paths();
    const std::int64_t panels = matrix.num_panels();
    const auto tokens = static_cast<std::int64_t>(wanted.order.size());
    const std::int64_t tasks = std::min<std::int64_t>(panels, pool.num_threads() == 1 ? 1 : kTasksPerThread * pool.num_threads());
    pool.run(static_cast<int>(tasks), [&](int task) {
        const std::int64_t begin = panels * task / tasks, end = panels * (task + 1) / tasks;
        float products[kTokenTile * kPanel];
        const auto compute = [&](std::int64_t panel, std::int64_t first, std::int64_t count) {
            panel_product(path, matrix, panel, x, quantized, first, static_cast<int>(count), products);
            for (std::int64_t i = 0; i < count; ++i) {
                float *row = y + wanted.order[static_cast<std::size_t>(first + i)] * matrix.rows();
                write_panel({&matrix, nullptr, row, matrix.rows(), 0, false}, panel, 0, 1, products + i * kPanel);
            }
        };
        for (std::int64_t first = 0; first < wanted.num_wide; first += kTokenTile)
            for (std::int64_t panel = begin; panel < end; ++panel) compute(panel, first, std::min<std::int64_t>(kTokenTile, wanted.num_wide - first));
        for (std::int64_t place = wanted.num_wide; place < tokens; ++place)
            for (std::int64_t panel = begin; panel < end; ++panel)
                if (wanted.in_panel(wanted.order[static_cast<std::size_t>(place)], panel)) compute(panel, place, 1);
    });
}

}  // namespace radixrt
