// SPDX-License-Identifier: Apache-2.0
#include "gpu/fake_cuda/turns.h"

#include <algorithm>
#include <array>

#include "gpu/fake_cuda/state.h"

namespace terrace::fake_cuda {
namespace {

// Between looks at what other processes change.
constexpr std::chrono::milliseconds kLook{2};

Turns*& the_turns() {
  static Turns* the = nullptr;
  return the;
}

}  // namespace

Turns* Turns::taken() { return the_turns(); }

void Turns::take(std::uint64_t seed, std::chrono::microseconds patience) {
  if (the_turns() == nullptr) the_turns() = new Turns(seed, patience);
}

Turns::Turns(std::uint64_t seed, std::chrono::microseconds patience) : random_(seed), patience_(patience) {
  std::thread([this] { run(); }).detach();
}

void Turns::start_over(std::uint64_t seed, std::chrono::microseconds patience) {
  const std::lock_guard lock(mutex_);
  random_.seed(seed);
  patience_ = patience;
}

void Turns::add(StreamState* stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void Turns::remove(StreamState* stream) {
  std::unique_lock lock(mutex_);
  std::erase(streams_, stream);
  done_.wait(lock, [&] { return running_ != stream; });
}

void Turns::note() {
  const std::lock_guard lock(mutex_);
  last_ = std::chrono::steady_clock::now();
  if (idle_ || !waits_.empty()) changed_.notify_all();
}

void Turns::wait(const StreamState* wanted, const Holds& holds) {
  constexpr std::array kMoods = {Mood::kWanted, Mood::kWanted, Mood::kWanted, Mood::kAny, Mood::kAny, Mood::kOthers};
  std::unique_lock lock(mutex_);
  if (holds()) return;
  Wait wait{.wanted = wanted, .holds = &holds, .mood = kMoods[random_() % kMoods.size()]};
  waits_.push_back(&wait);
  changed_.notify_all();
  done_.wait(lock, [&] { return wait.done; });
  last_ = std::chrono::steady_clock::now();
}

void Turns::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    settle();
    StreamState* const next = waits_.empty() && !is_quiet() ? nullptr : choose();
    if (next == nullptr) {
      idle_ = std::ranges::all_of(streams_, &StreamState::drained) && waits_.empty();
      if (idle_)
        changed_.wait(lock);
      else
        changed_.wait_for(lock, kLook);
      idle_ = false;
      continue;
    }
    running_ = next;
    lock.unlock();
    next->run_first();
    lock.lock();
    running_ = nullptr;
    done_.notify_all();
  }
}

bool Turns::is_quiet() const { return std::chrono::steady_clock::now() - last_ >= patience_; }

// Lets go whoever has what he waited for.
void Turns::settle() {
  for (Wait* const wait : waits_) wait->done = (*wait->holds)();
  if (std::erase_if(waits_, [](const Wait* wait) { return wait->done; }) > 0) done_.notify_all();
}

StreamState* Turns::choose() {
  std::vector<StreamState*> ready;
  std::ranges::copy_if(streams_, std::back_inserter(ready), [](const StreamState* each) { return each->is_ready(); });
  if (ready.empty()) return nullptr;
  StreamState* const drawn = ready[random_() % ready.size()];
  if (waits_.empty() || waits_.front()->mood == Mood::kAny) return drawn;
  StreamState* const wanted = first_for(waits_.front()->wanted);
  if (waits_.front()->mood == Mood::kWanted) return wanted != nullptr ? wanted : drawn;
  std::erase(ready, wanted);
  return ready.empty() ? wanted : ready[random_() % ready.size()];
}

// The stream that has to run next for another one to get on: itself, or one whose event it awaits. Null: none is ready.
StreamState* Turns::first_for(const StreamState* wanted) const {
  for (std::size_t looks = 0; looks <= streams_.size(); ++looks) {
    const auto found = std::ranges::find(streams_, wanted);
    if (found == streams_.end()) return nullptr;
    const auto event = (*found)->awaited();
    if (event == nullptr) return (*found)->is_ready() ? *found : nullptr;
    const std::lock_guard lock(event->mutex);
    wanted = event->stream;
  }
  return nullptr;
}

}  // namespace terrace::fake_cuda
