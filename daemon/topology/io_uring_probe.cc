// SPDX-License-Identifier: Apache-2.0
#include "topology/io_uring_probe.h"

#include <fmt/format.h>
#include <liburing.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "topology/text_file.h"

namespace terrace::topology {
namespace {

constexpr unsigned kProbeEntries = 4;

// A ring for the length of a question.
class ProbeRing {
 public:
  explicit ProbeRing(unsigned flags) {
    parameters_.flags = flags;
    result_ = ::io_uring_queue_init_params(kProbeEntries, &ring_, &parameters_);
  }
  ProbeRing(const ProbeRing&) = delete;
  ProbeRing& operator=(const ProbeRing&) = delete;
  ~ProbeRing() {
    if (result_ == 0) ::io_uring_queue_exit(&ring_);
  }

  int result() const { return result_; }  // 0 or -errno
  unsigned features() const { return parameters_.features; }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  io_uring_params parameters_{};
  int result_;
};

std::string why_not(const std::string& root, int error) {
  const std::uint64_t disabled = read_number(root + "/proc/sys/kernel/io_uring_disabled").value_or(0);
  if (disabled != 0) {
    return fmt::format("kernel.io_uring_disabled is {}; set it to 0 (sysctl kernel.io_uring_disabled=0)", disabled);
  }
  if (error == ENOSYS || error == EPERM) {
    return fmt::format(
        "the system call is refused ({}); allow io_uring_setup, io_uring_enter and io_uring_register "
        "in the seccomp profile, or use a kernel with CONFIG_IO_URING",
        std::strerror(error));
  }
  if (error == ENOMEM) return "there is not enough lockable memory for a ring; raise RLIMIT_MEMLOCK";
  return fmt::format("a ring cannot be made: {}", std::strerror(error));
}

void list_operations(io_uring* ring, std::vector<std::string>& features) {
  const std::unique_ptr<io_uring_probe, decltype(&::io_uring_free_probe)> probe(::io_uring_get_probe_ring(ring),
                                                                                &::io_uring_free_probe);
  if (!probe) return;
  constexpr std::array<std::pair<int, const char*>, 4> kOperations = {{
      {IORING_OP_READ_FIXED, "read_fixed"},
      {IORING_OP_WRITE_FIXED, "write_fixed"},
      {IORING_OP_FALLOCATE, "fallocate"},
      {IORING_OP_MSG_RING, "msg_ring"},
  }};
  for (const auto& [operation, name] : kOperations) {
    if (::io_uring_opcode_supported(probe.get(), operation) != 0) features.emplace_back(name);
  }
}

// One part of it as often as it has such parts: what is locked counts each time, and only the part has to be backed.
// (Of a huge page it would count once.)
bool can_register_slice(io_uring* ring) {
  constexpr std::size_t kParts = 32;
  constexpr std::size_t kPartBytes = kRegisteredSliceBytes / kParts;
  void* memory =
      ::mmap(nullptr, kPartBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  (void)::madvise(memory, kPartBytes, MADV_NOHUGEPAGE);
  std::array<iovec, kParts> parts{};
  parts.fill({memory, kPartBytes});
  const bool registered = ::io_uring_register_buffers(ring, parts.data(), parts.size()) == 0;
  if (registered) ::io_uring_unregister_buffers(ring);
  ::munmap(memory, kPartBytes);
  return registered;
}

}  // namespace

IoUring probe_io_uring(const std::string& root) {
  IoUring found;
  ProbeRing ring(0);
  if (ring.result() != 0) {
    found.system_error = -ring.result();
    found.why_not = why_not(root, found.system_error);
    return found;
  }
  found.available = true;
  constexpr std::array<std::pair<unsigned, const char*>, 5> kFeatures = {{
      {IORING_FEAT_NODROP, "nodrop"},
      {IORING_FEAT_EXT_ARG, "ext_arg"},
      {IORING_FEAT_NATIVE_WORKERS, "native_workers"},
      {IORING_FEAT_RSRC_TAGS, "rsrc_tags"},
      {IORING_FEAT_CQE_SKIP, "cqe_skip"},
  }};
  for (const auto& [bit, name] : kFeatures) {
    if ((ring.features() & bit) != 0) found.features.emplace_back(name);
  }
  if (ProbeRing(IORING_SETUP_SINGLE_ISSUER).result() == 0) found.features.emplace_back("single_issuer");
  if (ProbeRing(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN).result() == 0) {
    found.features.emplace_back("defer_taskrun");
  }
  list_operations(ring.get(), found.features);
  found.registers_slice = can_register_slice(ring.get());
  return found;
}

}  // namespace terrace::topology
