// Memory of weights: aligned, apart from each other, given back, and the same numbers where the system refuses large pages.
#include "check.h"

#include <algorithm>
#include <cstring>
#include <memory>

#if defined(__linux__)
#include <cerrno>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "radixrt/huge_pages.h"
#include "radixrt/linear.h"

namespace {
bool refuse = false;
int asked = 0;
}  // namespace

#if defined(__linux__)
// Takes the place of the C library's for this program.
extern "C" int madvise(void *memory, size_t bytes, int advice) noexcept {
    ++asked;
    if (refuse) {
        errno = EINVAL;
        return -1;
    }
    return static_cast<int>(syscall(SYS_madvise, memory, bytes, advice));
}
#endif

namespace {

using namespace radixrt;
using namespace radixrt::test;

void check_memory(Random &random) {
    struct Piece {
        std::shared_ptr<std::uint8_t[]> memory;
        std::size_t size;
        std::uint8_t mark;
    };
    std::vector<Piece> pieces;
    for (int i = 0; i < 40; ++i) {
        if (!pieces.empty() && random.below(3) == 0) {
            std::swap(pieces[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(pieces.size())))], pieces.back());
            pieces.pop_back();
        }
        const auto size = static_cast<std::size_t>(1 + random.below(random.below(8) == 0 ? 5 << 20 : 100'000));
        pieces.push_back({allocate_weights(size), size, static_cast<std::uint8_t>(i)});
        expect(reinterpret_cast<std::uintptr_t>(pieces.back().memory.get()) % 64 == 0, "memory is not aligned");
        std::memset(pieces.back().memory.get(), i, size);
    }
    for (const Piece &piece : pieces)
        expect(std::all_of(piece.memory.get(), piece.memory.get() + piece.size, [&](std::uint8_t byte) { return byte == piece.mark; }), "two pieces share memory");
}

std::vector<float> product(const std::vector<float> &weights, const std::vector<float> &x, std::int64_t rows, std::int64_t cols) {
    ThreadPool alone(1);
    PackedMatrix matrix(WeightType::q4_1, rows, cols);
    matrix.pack_floats(0, weights);
    QuantizedBuffer buffer;
    const QuantizedRows quantized = buffer.rows(1, cols);
    activation_path().quantize(x.data(), cols, quantized, 0);
    std::vector<float> y(static_cast<std::size_t>(rows));
    const LinearOutput outputs[] = {{&matrix, nullptr, y.data(), rows, 0, false}};
    linear(x.data(), quantized, 1, outputs, alone);
    return y;
}

void trial(Random &random) {
    check_memory(random);
    const std::int64_t rows = 1 + random.below(40), cols = kBlock * (1 + random.below(4));
    const std::vector<float> weights = random.numbers(rows * cols), x = random.numbers(cols);
    refuse = false;
    const std::vector<float> large = product(weights, x, rows, cols);
    refuse = true;
    const int before = asked;
    // Bigger than what other allocations left, so that the system is asked once more.
    const auto own = allocate_weights(std::size_t{70} << 20);
    std::memset(own.get(), 1, 3 << 20);
#if defined(__linux__)
    expect(asked > before, "nobody asked for large pages");
#endif
    expect(product(weights, x, rows, cols) == large, "in small pages the numbers are others");
    // What belongs to somebody else and is smaller than a page, or begins anywhere, is left alone.
    advise_huge_pages(own.get() + 1, 100);
    advise_huge_pages(nullptr, 0);
    commit_pages(own.get() + 1, 100);
    refuse = false;
    commit_pages(own.get() + 1, 5 << 20);
    commit_pages(nullptr, 0);
    expect(std::count(own.get(), own.get() + (3 << 20), 1) == 3 << 20, "committed memory holds something else");
    bool refused = false;
    try {
        allocate_weights(SIZE_MAX - 10);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    expect(refused, "more memory than there can be was given");
}

}  // namespace

int main(int argc, char **argv) { return run_trials("huge_pages_test", argc, argv, 5, trial); }
