// SPDX-License-Identifier: Apache-2.0
// io_uring, which the daemon cannot be without.
#include <fmt/format.h>

#include "doctor/checks.h"
#include "topology/text_file.h"

namespace terrace::doctor {
namespace {

constexpr const char* kAllowAll = "sysctl -w kernel.io_uring_disabled=0";

}  // namespace

Findings check_io_uring(const Node& node) {
  const topology::IoUring& ring = node.machine.io_uring;
  // io_uring_setup(2): 1 leaves it to those with CAP_SYS_ADMIN and to the group kernel.io_uring_group, 2 to nobody.
  const auto disabled = topology::read_number(node.root + "/proc/sys/kernel/io_uring_disabled").value_or(0);
  if (!ring.available)
    return {failure(fmt::format("a ring cannot be made, and the daemon runs on one: {}", ring.why_not),
                    disabled != 0 ? kAllowAll : "grep Seccomp /proc/self/status; sysctl kernel.io_uring_disabled")};
  if (disabled != 0)
    return {
        warning(fmt::format("kernel.io_uring_disabled is {}: this user could make a ring, and the daemon's user may "
                            "make one only as a member of the group kernel.io_uring_group",
                            disabled),
                kAllowAll)};
  if (!ring.has("read_fixed") || !ring.has("write_fixed"))
    return {warning("a ring was made, without fixed reads and writes: the kernel pins every transfer's pages anew",
                    "allow io_uring_register in the seccomp profile, or use a kernel of 5.6 or later")};
  if (!ring.has("defer_taskrun"))
    return {warning("a ring was made, without defer_taskrun: completions interrupt the daemon's loop",
                    "use a kernel of 6.1 or later")};
  return {ok("a ring was made, with fixed reads and writes and deferred completions")};
}

}  // namespace terrace::doctor
