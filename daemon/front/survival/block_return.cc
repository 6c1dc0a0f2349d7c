// SPDX-License-Identifier: Apache-2.0
#include "front/survival/block_return.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace terrace::front {
namespace {

constexpr Duration kLookPeriod = std::chrono::milliseconds(20);
constexpr Duration kBlockPatienceAfresh = std::chrono::seconds(2);
constexpr Duration kBlockPatience = std::chrono::seconds(60);  // then it is said once more, and waited on

constexpr const char* kServing = "STATUS=serving";
constexpr const char* kServingWithout =
    "STATUS=serving all but the block tier, whose files a former daemon still holds";

}  // namespace

Result<void> BlockReturn::expect(bool goes_on) {
  node_.options.former_at_work = node_.block && !node_.block->owned();
  if (!node_.options.former_at_work) return {};
  if (!goes_on) {
    const Time end = loop_.now() + kBlockPatienceAfresh;
    while (!node_.block->held_by_the_living() && loop_.now() < end) {
      const auto taken = node_.block->take();
      if (!taken) return std::unexpected(taken.error());
      node_.options.former_at_work = !*taken;
      if (*taken && node_.block->in_place()) return {};
      if (*taken)
        return fail(ErrorCode::kUnavailable,
                    "the block tier: the daemon that held its files removed them as it ended; start this one again");
      std::this_thread::sleep_for(kLookPeriod);
    }
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("the block tier: {} holds its files; stop that daemon or give this one another path",
                            node_.block->holder()),
                EWOULDBLOCK);
  }
  awaited_.emplace(loop_.now());
  spdlog::info("the block tier is not served yet, everything else is: {} holds its files", node_.block->holder());
  return {};
}

void BlockReturn::begin_serving() {
  if (node_.block && !awaited_) node_.block->keep();
  notify_.send(fmt::format("READY=1\n{}", awaited_ ? kServingWithout : kServing));
}

Duration BlockReturn::until_next_look(Duration longest) const {
  return awaited_ ? std::min(longest, kLookPeriod) : longest;
}

void BlockReturn::look() {
  if (!awaited_ || loop_.now() - awaited_->looked < kLookPeriod) return;
  awaited_->looked = loop_.now();
  const Duration waited = loop_.now() - awaited_->since;
  const auto taken = node_.block->take();
  if (!taken && taken.error().message != awaited_->trouble) {
    awaited_->trouble = taken.error().message;
    spdlog::error("the block tier is not served: {}", taken.error().message);
  }
  if (waited >= kBlockPatience && !std::exchange(awaited_->told, true))
    spdlog::error(
        "the block tier has not been served for {} s: {} holds its files; its disk does not answer, or "
        "another daemon uses them; this one goes on waiting for them",
        std::chrono::duration_cast<std::chrono::seconds>(waited).count(), node_.block->holder());
  if (!taken || !*taken) return;
  awaited_.reset();
  node_.block->keep();
  loop_.engine().former_ended(loop_.now());
  notify_.send(kServing);
  spdlog::info("the block tier is served, {} ms after the rest",
               std::chrono::duration_cast<std::chrono::milliseconds>(waited).count());
  loop_.pump();
}

}  // namespace terrace::front
