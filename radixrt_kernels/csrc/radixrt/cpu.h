// Which instruction set the kernels use, and the choice among the paths of an op.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace radixrt {

// Each architecture has levels of its own: AVX2 includes FMA and F16C, AVX-512 BW, DQ, VL, VNNI and BF16; NEON is that of 64-bit ARM.
enum class Isa : int { portable = 0, avx2 = 1, avx512 = 2, neon = 1, dotprod = 2 };

// Those that this program was compiled for, narrowest first: "portable", and "avx2" and "avx512" or "neon" and "dotprod".
std::vector<std::string> isa_names();
const char *isa_name(Isa isa);
// Throws std::invalid_argument for another name.
Isa isa_of(std::string_view name);

// The widest set that this processor and its operating system offer.
Isa detected_isa();

// The set in use: detected_isa(), or what RADIXRT_CPU_ISA names, read once.  Throws std::invalid_argument when that is no set or
// one that the processor lacks.
Isa cpu_isa();
// Change the set in use, for tests; not while a kernel runs.  Throws std::invalid_argument for one that the processor lacks.
void set_cpu_isa(Isa isa);

// Paths that did not agree with the portable one on this machine, and are not used.
std::vector<std::string> rejected_paths();
void reject_path(const char *op, Isa isa);

// The paths of one op: a table of functions for each instruction set.  A wider path is used only after it gave what the portable
// one gives on small data, which is tried when it is first asked for.
template <class Table>
class Paths {
public:
    // A path that was not compiled is null; agrees(path, portable) compares one with the other.
    Paths(const char *op, const Table &portable, const Table *wide, const Table *widest, bool (*agrees)(const Table &, const Table &)) noexcept
        : op_(op), tables_{&portable, wide, widest}, agrees_(agrees) {}

    const Table &operator()() { return at(cpu_isa()); }

    // The widest usable path up to a set.
    const Table &at(Isa isa) {
        for (int level = static_cast<int>(isa); level > 0; --level)
            if (usable(level)) return *tables_[level];
        return *tables_[0];
    }

private:
    enum State : int { untried, good, bad };

    bool usable(int level) {
        if (tables_[level] == nullptr) return false;
        int state = states_[level].load(std::memory_order_acquire);
        if (state == untried) {
            // Two threads may both try: they find the same.
            state = agrees_(*tables_[level], *tables_[0]) ? good : bad;
            if (states_[level].exchange(state, std::memory_order_acq_rel) == untried && state == bad)
                reject_path(op_, static_cast<Isa>(level));
        }
        return state == good;
    }

    const char *op_;
    const Table *tables_[3];
    bool (*agrees_)(const Table &, const Table &);
    std::atomic<int> states_[3] = {good, untried, untried};
};

}  // namespace radixrt
