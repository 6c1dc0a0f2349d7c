// SPDX-License-Identifier: Apache-2.0
#include "foresight/run_through.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

namespace terrace::foresight {
namespace {

constexpr std::int64_t kLongAgo = std::numeric_limits<std::int64_t>::min() / 2;

template <class T>
using FirstOf = std::priority_queue<T, std::vector<T>, std::greater<>>;

template <class T, class Key>
std::vector<std::uint32_t> in_order(const std::vector<T>& all, const Key& key) {
  std::vector<std::uint32_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return std::pair(key(all[a]), a) < std::pair(key(all[b]), b); });
  return order;
}

// One way of the link. Of what may begin, that goes first which is needed first.
class Way {
 public:
  struct Job {
    std::int64_t earliest_ns = 0;
    std::uint32_t group = 0;  // that needs it
    std::uint32_t which = 0;
    std::int64_t work_ns = 0;
    auto operator<=>(const Job&) const = default;
  };

  explicit Way(std::uint32_t groups) : open_(groups, 0) {}

  void add(const Job& job) {
    ++open_[job.group];
    later_.push(job);
  }
  // What the other way takes of its time.
  void lose(std::int64_t time_ns) { now_ns_ += time_ns; }

  // Until all is done that the group needs. `done`: gets each job, and when it was.
  template <class Done>
  void run(std::uint32_t group, const Done& done) {
    while (open_[group] > 0) {
      if (ready_.empty()) now_ns_ = std::max(now_ns_, later_.top().earliest_ns);
      for (; !later_.empty() && later_.top().earliest_ns <= now_ns_; later_.pop())
        ready_.emplace(later_.top().group, later_.top().which, later_.top().work_ns);
      const auto [needs, which, work_ns] = ready_.top();
      ready_.pop();
      --open_[needs];
      now_ns_ += work_ns;
      done(which, work_ns, now_ns_);
    }
  }

 private:
  std::int64_t now_ns_ = kLongAgo;
  std::vector<std::uint32_t> open_;  // jobs, by group
  FirstOf<Job> later_;
  FirstOf<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>> ready_;  // group, which, work
};

class Runner {
 public:
  explicit Runner(const Transfers& transfers)
      : transfers_(transfers),
        groups_(static_cast<std::uint32_t>(transfers.group_begin_ns.size() - 1)),
        in_(groups_),
        out_(groups_),
        over_ns_(groups_, 0),
        gone_ns_(transfers.goings.size(), kLongAgo) {}

  std::vector<std::int64_t> run() {
    const std::vector<std::uint32_t> comings =
        in_order(transfers_.comings, [](const Coming& coming) { return coming.group; });
    const std::vector<std::uint32_t> writes =
        in_order(transfers_.goings, [](const Going& going) { return going.released; });
    std::vector<std::int64_t> waits(groups_, 0);
    std::size_t coming = 0;
    std::uint32_t going = 0;
    std::size_t write = 0;
    std::int64_t now = transfers_.group_begin_ns[0];
    for (std::uint32_t group = 0; group < groups_; ++group) {
      out_.run(group, [&](std::uint32_t which, std::int64_t work_ns, std::int64_t done_ns) {
        gone_ns_[which] = done_ns + transfers_.latency_out_ns;
        in_.lose(toll(work_ns));
      });
      for (; going < transfers_.goings.size() && transfers_.goings[going].group == group; ++going) leave(going);
      std::int64_t begin = now;
      for (; coming < comings.size() && transfers_.comings[comings[coming]].group == group; ++coming)
        begin = std::max(begin, take_room(comings[coming]));
      in_.run(group, [&](std::uint32_t, std::int64_t work_ns, std::int64_t done_ns) {
        begin = std::max(begin, done_ns + transfers_.latency_in_ns);
        out_.lose(toll(work_ns));
      });
      waits[group] = begin - now;
      now = begin + transfers_.group_begin_ns[group + 1] - transfers_.group_begin_ns[group];
      over_ns_[group] = now;
      for (; write < writes.size() && transfers_.goings[writes[write]].released == group; ++write)
        release(writes[write]);
    }
    return waits;
  }

 private:
  void release(std::uint32_t which) {
    const Going& going = transfers_.goings[which];
    if (going.work_ns > 0 && going.group < groups_)
      out_.add({over_ns_[going.released], going.group, which, going.work_ns});
  }

  void leave(std::uint32_t which) {
    const Going& going = transfers_.goings[which];
    gone_ns_[which] = std::max(gone_ns_[which], over_ns_[going.used]);
    free_.emplace(gone_ns_[which], going.bytes);
  }

  // Since when it has its room, in the order of the groups; what is brought has the link to wait for then.
  std::int64_t take_room(std::uint32_t which) {
    const Coming& coming = transfers_.comings[which];
    taken_bytes_ += coming.bytes;
    for (; taken_bytes_ > transfers_.capacity_bytes + freed_bytes_ && !free_.empty(); free_.pop()) {
      room_ns_ = std::max(room_ns_, free_.top().first);
      freed_bytes_ += free_.top().second;
    }
    if (coming.work_ns > 0) in_.add({std::max(room_ns_, gone_ns_[coming.after]), coming.group, which, coming.work_ns});
    return room_ns_;
  }

  std::int64_t toll(std::int64_t work_ns) const {
    return static_cast<std::int64_t>(static_cast<double>(work_ns) * transfers_.toll);
  }

  const Transfers& transfers_;
  std::uint32_t groups_;
  Way in_;
  Way out_;
  std::vector<std::int64_t> over_ns_;                     // by group: when it was
  std::vector<std::int64_t> gone_ns_;                     // by going: when its room was free
  FirstOf<std::pair<std::int64_t, std::uint64_t>> free_;  // since when, and how many bytes
  std::int64_t room_ns_ = kLongAgo;                       // since when what came last has its room
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t freed_bytes_ = 0;
};

}  // namespace

std::vector<std::int64_t> run_through(const Transfers& transfers) { return Runner(transfers).run(); }

}  // namespace terrace::foresight
