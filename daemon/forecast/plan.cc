// SPDX-License-Identifier: Apache-2.0
#include "forecast/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "forecast/dram_sizes.h"

namespace terrace::forecast {
namespace {

// Uses of tensors in all repetitions that are rehearsed without being asked for: some seconds, or tens of them where
// much is waited for.
constexpr std::uint64_t kUsesRehearsedMax = 300'000;
constexpr double kMicroBatchesTimesMax = 1024;  // more is no advice
constexpr std::uint64_t kDrivesUnlimited = 4;   // where the block tier has no end

class Planning {
 public:
  explicit Planning(const PlanOptions& options) : options_(options) {}

  Result<Plan> plan() {
    auto made = workload::generate(options_.recipe);
    if (!made) return std::unexpected(made.error());
    plan_.recipe = options_.recipe;
    plan_.made = *std::move(made);
    plan_.peak_bytes = peak_content_bytes(plan_.made.workload);
    if (const auto seated = seat(); !seated) return std::unexpected(seated.error());
    plan_.drives = drives();
    if (const auto housed = check_homes(); !housed) return std::unexpected(housed.error());
    const std::uint64_t dram = workload::whole(plan_.node).host_bytes;
    draw_curve(dram);
    plan_.own = find_or_look(dram);
    if (!plan_.own.outlook) return std::unexpected(does_not_run(plan_.own.outlook.error()));
    spare_drives();
    return std::move(plan_);
  }

 private:
  // Which GPUs of which nodes run the job, and what each has of its node.
  Result<void> seat() {
    const std::uint64_t gpus = options_.recipe.gpus;
    const std::uint64_t there = options_.node.gpus;
    if (gpus > there && gpus % there != 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} GPUs do not fill nodes of {}; give --gpus as at most {} or a multiple of it", gpus,
                              there, there));
    }
    plan_.ranks = std::min(gpus, there);
    plan_.nodes = gpus / plan_.ranks;
    plan_.node = workload::share(workload::whole(options_.node), plan_.ranks);
    return {};
  }

  // What is reserved in the lowest tier: every tensor has its home there.
  std::uint64_t homes_bytes() const {
    std::uint64_t bytes = 0;
    for (const workload::Tensor& tensor : plan_.made.workload.tensors) bytes += tensor.bytes;
    return bytes;
  }

  Result<void> check_homes() const {
    const std::uint64_t bytes = homes_bytes();
    if (plan_.node.block_bytes == 0 || bytes <= plan_.node.block_bytes) return {};
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{} needs {:.0f} GB of NVMe in each node of {}, which has {:.0f}: every tensor has a home "
                            "there; take more GPUs in more nodes, a larger block tier, or fewer classes with --offload",
                            plan_.recipe.model.name, static_cast<double>(bytes * plan_.ranks) / 1e9, plan_.node.name,
                            static_cast<double>(workload::whole(plan_.node).block_bytes) / 1e9));
  }

  // Of a node. None where it has no block tier.
  Drives drives() const {
    Drives drives = options_.drives;
    const std::uint64_t bytes = workload::whole(plan_.node).block_bytes;
    if (bytes == 0) drives.count = 0;
    if (bytes == 0 || drives.count > 0) return drives;
    drives.count = bytes == workload::kUnlimited ? kDrivesUnlimited : drives_for(bytes, drives);
    return drives;
  }

  Source source(const workload::Workload& workload, std::uint64_t rehearsals) const {
    if (options_.source) return *options_.source;
    return uses_of(workload) * rehearsals <= kUsesRehearsedMax ? Source::kRehearsal : Source::kBound;
  }

  Point look(const workload::Workload& workload, std::uint64_t dram_bytes, Source source) const {
    workload::Node node = plan_.node;
    if (dram_bytes != workload::kUnlimited) node.host_bytes = dram_bytes / plan_.ranks;
    Point point{.dram_bytes = dram_bytes,
                .outlook = source == Source::kRehearsal ? rehearse(workload, node) : bounded_if_held(workload, node)};
    if (!point.outlook) return point;
    if (const auto bound = workload::lower_bound(workload, node)) point.bound = *bound;
    if (plan_.drives.count > 0) {
      const std::uint64_t written = point.outlook->traffic.block_bytes[1] * plan_.ranks;
      point.wear = wear(plan_.drives, written, point.outlook->step);
    }
    return point;
  }

  // The bound does not ask whether all of it has a place.
  Result<Outlook> bounded_if_held(const workload::Workload& workload, const workload::Node& node) const {
    if (node.block_bytes == 0 && node.host_bytes != workload::kUnlimited &&
        plan_.peak_bytes > node.hbm_bytes + node.host_bytes)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("a rank has {:.0f} GB of content at once, and {:.0f} GB of HBM and DRAM",
                              static_cast<double>(plan_.peak_bytes) / 1e9,
                              static_cast<double>(node.hbm_bytes + node.host_bytes) / 1e9));
    return bounded(workload, node);
  }

  void say(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  // What a rank's memory holds at most: without a block tier the home of every tensor, whenever it has content.
  std::uint64_t held_bytes() const {
    if (plan_.node.block_bytes > 0) return plan_.peak_bytes;
    std::uint64_t bytes = 0;
    for (const workload::Tensor& tensor : plan_.made.workload.tensors) bytes += tensor.bytes;
    return bytes;
  }

  // Smallest first, until more DRAM changes nothing any more.
  void draw_curve(std::uint64_t own_bytes) {
    if (own_bytes == 0) return;
    const std::vector<std::uint64_t> sizes = dram_sizes(options_.dram_bytes, own_bytes, held_bytes() * plan_.ranks);
    const Source by = source(plan_.made.workload, sizes.size());
    for (const std::uint64_t size : sizes) {
      if (options_.dram_bytes.empty() && size > own_bytes && needs_no_more()) break;
      say(fmt::format("{} of up to {} sizes of DRAM", plan_.curve.size() + 1, sizes.size()));
      plan_.curve.push_back(look(plan_.made.workload, size, by));
    }
  }

  bool needs_no_more() const {
    return !plan_.curve.empty() && plan_.curve.back().outlook &&
           plan_.curve.back().outlook->traffic.block_bytes == std::array<std::uint64_t, 2>{};
  }

  // The node itself is rehearsed if it can be done at all in the time.
  Point find_or_look(std::uint64_t dram_bytes) const {
    const Source by = source(plan_.made.workload, 1);
    const auto found = std::ranges::find(plan_.curve, dram_bytes, &Point::dram_bytes);
    if (found != plan_.curve.end() && (!found->outlook || found->outlook->source == by)) return *found;
    say("the node itself");
    return look(plan_.made.workload, dram_bytes, by);
  }

  Error does_not_run(const Error& why) const {
    Error error{ErrorCode::kResourceExhausted,
                fmt::format("{} does not run on {}: {}", plan_.recipe.model.name, plan_.node.name, why.message)};
    const auto runs = std::ranges::find_if(plan_.curve, [](const Point& point) { return point.outlook.has_value(); });
    if (runs != plan_.curve.end())
      error.message +=
          fmt::format("; with {:.0f} GB of DRAM in each node it does", static_cast<double>(runs->dram_bytes) / 1e9);
    return error;
  }

  void spare_drives() {
    if (!plan_.own.wear || plan_.own.wear->lasts(plan_.drives)) return;
    for (const Point& point : plan_.curve) {
      if (!point.wear || !point.wear->lasts(plan_.drives)) continue;
      plan_.sparing_dram_bytes = point.dram_bytes;
      break;
    }
    plan_.sparing_micro_batches = sparing_micro_batches();
  }

  // From a step of twice as many micro-batches follows what each adds to its time and to what is written.
  std::optional<std::uint64_t> sparing_micro_batches() const {
    workload::Recipe recipe = plan_.recipe;
    recipe.micro_batches *= 2;
    const auto made = workload::generate(recipe);
    if (!made) return std::nullopt;
    say("twice as many micro-batches");
    const Point twice = look(made->workload, plan_.own.dram_bytes, plan_.own.outlook->source);
    if (!twice.wear) return std::nullopt;
    const auto seconds = [](const Point& point) { return std::chrono::duration<double>(point.outlook->step).count(); };
    const auto written = [this](const Point& point) {
      return static_cast<double>(point.outlook->traffic.block_bytes[1] * plan_.ranks);
    };
    const double rate = plan_.drives.rated_bytes_per_s();
    const double over = written(plan_.own) - rate * seconds(plan_.own);
    const double under = rate * (seconds(twice) - seconds(plan_.own)) - (written(twice) - written(plan_.own));
    if (under <= 0) return std::nullopt;
    const double times = std::ceil(1 + over / under);
    return times > kMicroBatchesTimesMax
               ? std::nullopt
               : std::optional(plan_.recipe.micro_batches * static_cast<std::uint64_t>(times));
  }

  const PlanOptions& options_;
  Plan plan_{};
};

}  // namespace

Result<Plan> make_plan(const PlanOptions& options) { return Planning(options).plan(); }

std::uint64_t peak_content_bytes(const workload::Workload& workload) {
  std::vector<bool> there;
  std::uint64_t bytes = 0;
  for (const workload::Tensor& tensor : workload.tensors) {
    there.push_back(tensor.home);
    if (tensor.home) bytes += tensor.bytes;
  }
  std::uint64_t peak = bytes;
  for (const workload::Run& run : workload.runs) {
    for (const workload::TensorId id : run.write) {
      if (!there[id]) bytes += workload.tensors[id].bytes;
      there[id] = true;
    }
    peak = std::max(peak, bytes);
    for (const workload::TensorId id : run.free) {
      if (there[id]) bytes -= workload.tensors[id].bytes;
      there[id] = false;
    }
  }
  return peak;
}

}  // namespace terrace::forecast
