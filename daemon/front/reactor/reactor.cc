// SPDX-License-Identifier: Apache-2.0
#include "front/reactor/reactor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "front/reactor/stop_signals.h"

namespace terrace::front {

Result<std::unique_ptr<Reactor>> Reactor::create(std::size_t jobs_max, unsigned polls_max) {
  std::unique_ptr<Reactor> reactor(new Reactor);
  auto mailbox = Mailbox::create(jobs_max);
  if (!mailbox) return std::unexpected(mailbox.error());
  reactor->mailbox_ = std::move(*mailbox);
  auto ring = mover::Ring::create({.polls_max = polls_max});
  if (!ring) return std::unexpected(ring.error());
  reactor->ring_ = std::move(*ring);
  auto signals = stop_signals();
  if (!signals) return std::unexpected(signals.error());
  reactor->signals_ = std::move(*signals);
  auto mail = reactor->watch(reactor->mailbox_->descriptor(), POLLIN,
                             [mailbox = reactor->mailbox_.get()](unsigned) { mailbox->run(); });
  if (!mail) return std::unexpected(mail.error());
  reactor->watches_.push_back(std::move(*mail));
  auto signal = reactor->watch(reactor->signals_.get(), POLLIN, [reactor = reactor.get()](unsigned) {
    signalfd_siginfo info{};
    if (read(reactor->signals_.get(), &info, sizeof info) == sizeof info) reactor->stopping_ = true;
  });
  if (!signal) return std::unexpected(signal.error());
  reactor->watches_.push_back(std::move(*signal));
  return reactor;
}

void Reactor::stop() {
  stopping_ = true;
  static_cast<void>(mailbox_->post([] {}));  // wakes it; a full mailbox has done so
}

Result<void> Reactor::wait(Duration longest) {
  const auto woken = ring_->run_once(longest);
  if (!woken) return std::unexpected(woken.error());
  return {};
}

void Reactor::bury() {
  spent_watches_.clear();
  spent_.clear();
}

void Reactor::turn_deaf() {
  watches_.clear();
  bury();
}

}  // namespace terrace::front
