#include "radixrt/huge_pages.h"

#include <algorithm>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace radixrt {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Most matrices are smaller than a large page: so many bytes are reserved for some of them together, and committed as they are used.
constexpr std::size_t kRegion = std::size_t{64} << 20;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Region {
    std::uint8_t *memory;
    std::size_t size, used = 0;

    explicit Region(std::size_t bytes)
        : memory(static_cast<std::uint8_t *>(::operator new[](bytes, std::align_val_t{kHugePage}))), size(bytes) {
        advise_huge_pages(memory, size);
    }
    ~Region() { ::operator delete[](memory, std::align_val_t{kHugePage}); }
    Region(const Region &) = delete;
    Region &operator=(const Region &) = delete;
};

std::mutex mutex;
// Where the next matrix goes while there is room; the matrices in it own it.
std::weak_ptr<Region> open_region;

}  // namespace

void advise_huge_pages([[maybe_unused]] void *memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const auto begin = rounded_up(reinterpret_cast<std::uintptr_t>(memory), kHugePage);
    const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / kHugePage * kHugePage;
    if (begin < end) madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

void commit_pages([[maybe_unused]] void *memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
    // MADV_POPULATE_WRITE, of Linux 5.14, which headers of older C libraries do not name.
    constexpr int kPopulateWrite = 23;
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(memory) / page * page, end = reinterpret_cast<std::uintptr_t>(memory) + bytes;
    if (bytes > 0) madvise(reinterpret_cast<void *>(begin), end - begin, kPopulateWrite);
#endif
}

std::shared_ptr<std::uint8_t[]> allocate_weights(std::size_t bytes) {
    if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
    bytes = rounded_up(bytes, kAlignment);
    const std::lock_guard lock(mutex);
    std::shared_ptr<Region> region = open_region.lock();
    if (region == nullptr || region->size - region->used < bytes) {
        region = std::make_shared<Region>(std::max(kRegion, rounded_up(bytes, kHugePage)));
        open_region = region;
    }
    std::uint8_t *place = region->memory + region->used;
    region->used += bytes;
    return {std::move(region), place};
}

}  // namespace radixrt
