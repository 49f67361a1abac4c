// Powers of 2 against std::exp2: every fraction under some exponents, and what is not a number, or has no power that is one.
#include "check.h"
#include "radixrt/simd_portable.h"
//
#include "radixrt/simd_exp2.h"

namespace {

using namespace radixrt;
using namespace radixrt::test;

// Of x = -2 i / kExp2Scale, so far as a float holds that.
void try_exponents(std::int64_t first, std::int64_t last, std::int64_t step) {
    for (std::int64_t i = first; i < last; i += step) {
        float x[kLanes], found[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) x[lane] = -2.0f * static_cast<float>(i + lane);
        Simd::store(found, exp2_of(Simd::load(x)));
        for (int lane = 0; lane < kLanes; ++lane) {
            const double expected = std::exp2(double{x[lane]} / double{kExp2Scale});
            expect(near(found[lane] / expected, 1.0, 2.2e-7), "a power is off");
        }
    }
}

void trial(Random &random) {
    constexpr std::int64_t one = 1 << 23;
    try_exponents(0, one, kLanes);
    try_exponents(random.below(100) * one, 126 * one - kLanes, 1009 + random.below(100));
    for (float x = -126.0f; x >= -130.0f; x -= 0x1p-10f) {
        const float power = exp2_of(x * kExp2Scale);
        expect(x > -128.0f ? power >= 0.0f && power <= 0x1p-126f : power == 0.0f, "a power is not between 0 and the least normal number");
    }
    for (int n = 0; n > -128; --n) expect(exp2_of(static_cast<float>(n) * kExp2Scale) == std::ldexp(1.0f, n), "a power is not exact");
    for (const float x : {-0x1p100f, -INFINITY, NAN, -NAN}) expect(exp2_of(x) == 0.0f, "a power is not 0");
}

}  // namespace

int main(int argc, char **argv) { return run_trials("exp2_test", argc, argv, 1, trial); }
