// Memory in large pages, where the system has them: weights and K/V are read from end to end or all over, and with small pages a
// processor spends much of that time looking up where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace radixrt {

// Aligned to 64 bytes, not initialised, and shared with other allocations of the process: a region goes back to the system when the
// last of those in it is gone.  Throws std::bad_alloc.
std::shared_ptr<std::uint8_t[]> allocate_weights(std::size_t bytes);

// Ask for large pages for memory that belongs to somebody else and was not used yet; an advice, which nothing depends on.
void advise_huge_pages(void *memory, std::size_t bytes);

// Have the system commit memory now instead of when it is first written; what it holds stays, whoever writes meanwhile.  Does nothing
// where the system cannot.
void commit_pages(void *memory, std::size_t bytes);

}  // namespace radixrt
