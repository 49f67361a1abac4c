#include "radixrt/thread_pool.h"

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <sched.h>
#endif

namespace radixrt {

namespace {

constexpr int kMaxThreads = 1024;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr std::uint64_t kField = ThreadPool::kMaxTasks;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Wait until ready() or the time is over; tells which.
template <class F>
bool spin(F &&ready) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 64; ++i) {
            if (ready()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return ready();
}

std::uint32_t generation_of(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket >> 40); }

int usable_cpus() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
    return static_cast<int>(std::thread::hardware_concurrency());
}

void check_count(int count) {
    if (count < 1 || count > kMaxThreads)
        throw std::invalid_argument("[thread_pool] " + std::to_string(count) + " threads are not in [1, " + std::to_string(kMaxThreads) + "]");
}

std::mutex pool_mutex;
// Never destroyed: at the end of the process its threads may be gone already, in the child of a fork they never were there.
std::atomic<ThreadPool *> current_pool{nullptr};

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
    check_count(num_threads);
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
    stopping_.store(true, std::memory_order_seq_cst);
    wake_.fetch_add(1, std::memory_order_seq_cst);
    wake_.notify_all();
    for (std::thread &worker : workers_) worker.join();
}

void ThreadPool::run_tasks(int tasks, Call call, void *context) {
    if (tasks > kMaxTasks) throw std::invalid_argument("[thread_pool] too many tasks");
    std::unique_lock lock(busy_, std::defer_lock);
    if (tasks <= 1 || workers_.empty() || !lock.try_lock()) {
        for (int task = 0; task < tasks; ++task) call(context, task);
        return;
    }
    call_ = call;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    const std::uint32_t generation = (generation_of(ticket_.load(std::memory_order_relaxed)) + 1) & 0xFFFFFF;
    ticket_.store(std::uint64_t{generation} << 40 | static_cast<std::uint64_t>(tasks) << 20, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        wake_.fetch_add(1, std::memory_order_seq_cst);
        wake_.notify_all();
    }
    while (take(generation)) {
    }
    const auto finished = [&] { return done_.load(std::memory_order_acquire) == tasks; };
    while (!spin(finished)) std::this_thread::yield();
}

bool ThreadPool::take(std::uint32_t generation) {
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
        if (generation_of(ticket) != generation || (ticket & kField) >= (ticket >> 20 & kField)) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    call_(context_, static_cast<int>(ticket & kField));
    done_.fetch_add(1, std::memory_order_acq_rel);
    return true;
}

void ThreadPool::work() {
    std::uint32_t seen = 0;
    const auto has_work = [&] {
        return generation_of(ticket_.load(std::memory_order_seq_cst)) != seen || stopping_.load(std::memory_order_seq_cst);
    };
    for (;;) {
        const std::uint32_t woken = wake_.load(std::memory_order_seq_cst);
        if (!spin(has_work)) {
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            if (!has_work()) wake_.wait(woken, std::memory_order_seq_cst);
            sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        }
        if (stopping_.load(std::memory_order_seq_cst)) return;
        seen = generation_of(ticket_.load(std::memory_order_acquire));
        while (take(seen)) {
        }
    }
}

int num_kernel_threads() {
    if (ThreadPool *now = current_pool.load(std::memory_order_acquire)) return now->num_threads();
    if (const char *asked = std::getenv("RADIXRT_NUM_THREADS"); asked != nullptr && *asked != '\0') {
        char *end = nullptr;
        const long count = std::strtol(asked, &end, 10);
        if (*end != '\0' || count < 1 || count > kMaxThreads) throw std::invalid_argument("[thread_pool] RADIXRT_NUM_THREADS is no count of threads");
        return static_cast<int>(count);
    }
    const int cpus = usable_cpus();
    return cpus < 1 ? 1 : cpus > kMaxThreads ? kMaxThreads : cpus;
}

ThreadPool &thread_pool() {
    if (ThreadPool *now = current_pool.load(std::memory_order_acquire)) return *now;
    const std::lock_guard lock(pool_mutex);
    if (current_pool.load(std::memory_order_relaxed) == nullptr)
        current_pool.store(new ThreadPool(num_kernel_threads()), std::memory_order_release);
    return *current_pool.load(std::memory_order_relaxed);
}

void set_num_kernel_threads(int num_threads) {
    check_count(num_threads);
    const std::lock_guard lock(pool_mutex);
    delete current_pool.exchange(nullptr, std::memory_order_acq_rel);
    current_pool.store(new ThreadPool(num_threads), std::memory_order_release);
}

}  // namespace radixrt
