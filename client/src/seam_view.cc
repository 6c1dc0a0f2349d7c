// SPDX-License-Identifier: Apache-2.0
#include "seam_view.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace terrace::client {

Result<std::unique_ptr<SeamView>> SeamView::reserve(std::uint64_t bytes) {
  void* const found = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) {
    return fail(ErrorCode::kResourceExhausted,
                "no " + std::to_string(bytes) + " bytes of address space for a tensor: raise RLIMIT_AS (ulimit -v)",
                ENOMEM);
  }
  return std::unique_ptr<SeamView>(new SeamView(static_cast<std::byte*>(found), bytes));
}

SeamView::~SeamView() {
  pins_.remove(memory_, bytes_);
  ::munmap(memory_, bytes_);
}

// A shared mapping of which nothing is moved is mapped a second time (mremap(2), old_size 0).
Result<void> SeamView::show(std::uint64_t at, std::byte* segment, std::uint64_t bytes) {
  if (::mremap(segment, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory_ + at) == MAP_FAILED) {
    const int error = errno;
    // It may have unmapped what was there: the addresses stay this seam's.
    static_cast<void>(
        ::mmap(memory_ + at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
    return fail(ErrorCode::kResourceExhausted,
                "mapping " + std::to_string(bytes) + " bytes of a tensor once more failed: " + std::strerror(error) +
                    " (vm.max_map_count limits how many mappings a process has)",
                error);
  }
  ::madvise(memory_ + at, bytes, MADV_DONTFORK);
  ::madvise(memory_ + at, bytes, MADV_DONTDUMP);
  return {};
}

std::byte* SeamView::address(const std::shared_ptr<Gpu>& gpu, bool read_only) {
  if (gpu != nullptr) pins_.pin(gpu, memory_, bytes_, read_only);
  return memory_;
}

}  // namespace terrace::client
