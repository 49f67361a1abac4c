// What the tests of the kernels share: a check that throws, numbers to compute with, and the main function around random trials.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "radixrt/cpu.h"

namespace radixrt::test {

inline void expect(bool holds, const std::string &what) {
    if (!holds) throw std::runtime_error(what);
}

class Random {
public:
    explicit Random(unsigned seed) : engine_(seed) {}

    // 0 .. bound - 1
    std::int64_t below(std::int64_t bound) { return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(bound)); }
    // [-1, 1)
    float number() { return static_cast<float>(engine_() >> 8) * 0x1p-23f - 1.0f; }

    std::vector<float> numbers(std::int64_t count, float scale = 1.0f) {
        std::vector<float> made(static_cast<std::size_t>(count));
        for (float &value : made) value = scale * number();
        return made;
    }

private:
    std::mt19937 engine_;
};

inline bool near(double found, double expected, double tolerance) { return std::fabs(found - expected) <= tolerance; }

// Arguments: number of trials, seed.  Ends with 1 and a message when one throws, or a path was found wanting and another used.
template <class Trial>
int run_trials(const char *name, int argc, char **argv, int trials, Trial &&trial) {
    if (argc > 1) trials = std::atoi(argv[1]);
    // NOLINTNEXTLINE(misc-const-correctness): what a trial does with it is known only when it is instantiated.
    Random random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
    int done = 0;
    try {
        for (; done < trials; ++done) trial(random);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s, trial %d: %s\n", name, done, error.what());
        return 1;
    }
    std::printf("%s: %d trials\n", name, done);
    return rejected_paths().empty() ? 0 : 1;  // which says so itself
}

}  // namespace radixrt::test
