// SPDX-License-Identifier: Apache-2.0
// The block tier's return (DESIGN decision 8). A daemon that was killed holds its block files until the last read and
// write that it had begun are done, however long its disk takes for them. Its successor serves everything else
// meanwhile, looks for the locks now and then, and serves the block tier once it has them all.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "front/host.h"

namespace terrace::front {
namespace {

constexpr Duration kLookPeriod = std::chrono::milliseconds(20);
constexpr Duration kBlockPatienceAfresh = std::chrono::seconds(2);
constexpr Duration kBlockPatience = std::chrono::seconds(60);  // then it is said once more, and waited on

constexpr const char* kServing = "STATUS=serving";
constexpr const char* kServingWithout =
    "STATUS=serving all but the block tier, whose files a former daemon still holds";

}  // namespace

// Before the engine is made. A daemon that goes on for another has sessions to serve, whoever holds the files; one that
// begins afresh has none, and would wait in vain for somebody who lives and works with them, perhaps where it cannot
// see that: it ends, and whoever started it may try again.
Result<void> Host::expect_block(bool goes_on) {
  node_.options.former_at_work = node_.block && !node_.block->owned();
  if (!node_.options.former_at_work) return {};
  if (!goes_on) {
    const Time end = now() + kBlockPatienceAfresh;
    while (!node_.block->held_by_the_living() && now() < end) {
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
  block_awaited_.emplace(now());
  spdlog::info("the block tier is not served yet, everything else is: {} holds its files", node_.block->holder());
  return {};
}

void Host::begin_serving() {
  if (node_.block && !block_awaited_) node_.block->keep();
  notify_.send(fmt::format("READY=1\n{}", block_awaited_ ? kServingWithout : kServing));
}

// How long the reactor may sleep.
Duration Host::until_next_look(Duration longest) const {
  return block_awaited_ ? std::min(longest, kLookPeriod) : longest;
}

void Host::look_for_block() {
  if (!block_awaited_ || now() - block_awaited_->looked < kLookPeriod) return;
  block_awaited_->looked = now();
  const Duration waited = now() - block_awaited_->since;
  const auto taken = node_.block->take();
  if (!taken && taken.error().message != block_awaited_->trouble) {
    block_awaited_->trouble = taken.error().message;
    spdlog::error("the block tier is not served: {}", taken.error().message);
  }
  if (waited >= kBlockPatience && !std::exchange(block_awaited_->told, true))
    spdlog::error(
        "the block tier has not been served for {} s: {} holds its files; its disk does not answer, or "
        "another daemon uses them; this one goes on waiting for them",
        std::chrono::duration_cast<std::chrono::seconds>(waited).count(), node_.block->holder());
  if (!taken || !*taken) return;
  block_awaited_.reset();
  node_.block->keep();
  engine_->former_ended(now());
  notify_.send(kServing);
  spdlog::info("the block tier is served, {} ms after the rest",
               std::chrono::duration_cast<std::chrono::milliseconds>(waited).count());
  pump();
}

}  // namespace terrace::front
