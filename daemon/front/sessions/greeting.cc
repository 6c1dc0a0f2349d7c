// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/greeting.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace terrace::front {

Result<engine::OpenSession> to_open(const shm::Hello& hello) {
  if (hello.guarantee_count > hello.guarantees.size())
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} guarantees; there are at most {} places",
                                                         hello.guarantee_count, hello.guarantees.size()));
  engine::OpenSession open;
  open.local_world_size = std::max<std::uint32_t>(hello.local_world_size, 1);
  open.label = printable({hello.label.begin(), std::ranges::find(hello.label, '\0')});
  open.maps_segments = true;
  if (hello.share_use > static_cast<std::uint32_t>(shm::ShareUse::kCreate))
    return fail(ErrorCode::kInvalidArgument, fmt::format("there is no use {} of a share", hello.share_use));
  const auto use = static_cast<shm::ShareUse>(hello.share_use);
  if (use != shm::ShareUse::kNone)
    open.share = engine::ShareAccess{.name = {hello.share.begin(), std::ranges::find(hello.share, '\0')},
                                     .create = use == shm::ShareUse::kCreate,
                                     .write = use != shm::ShareUse::kRead};
  for (std::uint32_t i = 0; i < hello.guarantee_count; ++i)
    open.guarantees.push_back({hello.guarantees[i].place, hello.guarantees[i].bytes});
  return open;
}

}  // namespace terrace::front
