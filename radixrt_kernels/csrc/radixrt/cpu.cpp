#include "radixrt/cpu.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <stdexcept>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace radixrt {

namespace {

#if defined(__x86_64__)
constexpr const char *kNames[] = {"portable", "avx2", "avx512"};
#elif defined(__aarch64__)
constexpr const char *kNames[] = {"portable", "neon", "dotprod"};
#else
constexpr const char *kNames[] = {"portable"};
#endif

void check_offered(Isa isa) {
    if (isa > detected_isa())
        throw std::invalid_argument(std::string("[cpu] this processor has no ") + isa_name(isa) + ", only " + isa_name(detected_isa()));
}

Isa initial_isa() {
    const char *asked = std::getenv("RADIXRT_CPU_ISA");
    if (asked == nullptr || *asked == '\0') return detected_isa();
    const Isa isa = isa_of(asked);
    check_offered(isa);
    return isa;
}

std::atomic<Isa> &current() {
    static std::atomic<Isa> isa{initial_isa()};
    return isa;
}

std::mutex rejected_mutex;

std::vector<std::string> &rejected() {
    static std::vector<std::string> paths;
    return paths;
}

}  // namespace

std::vector<std::string> isa_names() { return {std::begin(kNames), std::end(kNames)}; }

const char *isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

Isa isa_of(std::string_view name) {
    std::string known;
    for (int level = 0; level < static_cast<int>(std::size(kNames)); ++level) {
        if (name == kNames[level]) return static_cast<Isa>(level);
        known += (level == 0 ? "" : ", ") + std::string(kNames[level]);
    }
    throw std::invalid_argument("[cpu] " + std::string(name) + " is not one of " + known);
}

Isa detected_isa() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    static const Isa isa = [] {
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return Isa::portable;
        const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
        return wide ? Isa::avx512 : Isa::avx2;
    }();
    return isa;
#elif defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? Isa::dotprod : Isa::neon;
#elif defined(__ARM_FEATURE_DOTPROD)
    return Isa::dotprod;
#elif defined(__aarch64__)
    return Isa::neon;
#else
    return Isa::portable;
#endif
}

Isa cpu_isa() { return current().load(std::memory_order_relaxed); }

void set_cpu_isa(Isa isa) {
    check_offered(isa);
    current().store(isa, std::memory_order_relaxed);
}

std::vector<std::string> rejected_paths() {
    const std::lock_guard lock(rejected_mutex);
    return rejected();
}

void reject_path(const char *op, Isa isa) {
    const std::lock_guard lock(rejected_mutex);
    rejected().push_back(std::string(op) + ": " + isa_name(isa));
    std::fprintf(stderr, "radixrt: the %s path of %s differs from the portable one on this machine and is not used\n", isa_name(isa), op);
}

}  // namespace radixrt
