// SPDX-License-Identifier: Apache-2.0
// A million tensors: what one costs to create, to acquire and to evict against a thousand, and what memory the daemon
// has for it.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/bytes.h"
#include "bench/contents.h"
#include "bench/counters.h"
#include "bench/mappings.h"
#include "bench/scale_start.h"
#include "bench/suite.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kTensorBytes = 4 * kKiB;
constexpr std::size_t kFew = 1'000;
constexpr std::size_t kSet = 500;  // created, acquired and evicted at a time, in one request each
constexpr int kSetsOfRound = 8;
constexpr Place kDevice = Place::device(0);

// A daemon with so many tensors in DRAM.
struct Populated {
  std::optional<PrivateDaemon> daemon;
  std::optional<Client> client;
  std::vector<Tensor> tensors;
  std::uint64_t name_bytes = 0;
  std::uint64_t created = 0;  // ever, for names
  std::mt19937_64 random{1};

  Result<std::vector<Tensor>> create(std::size_t count) {
    std::vector<TensorSpec> specs(count);
    for (TensorSpec& spec : specs) spec = {.name = fmt::format("t{}", created++), .bytes = kTensorBytes};
    return client->create(specs);
  }

  Result<void> add(std::size_t count) {
    auto more = create(count);
    if (!more) return std::unexpected(more.error());
    for (const Tensor& tensor : *more) name_bytes += tensor.name().size();
    tensors.insert(tensors.end(), more->begin(), more->end());
    return {};
  }
};

Result<Populated> start(Bench& bench, std::size_t count) {
  // A slot's use for a set that comes and goes, and room for what is not packed.
  const std::uint64_t slots = count + 2 * kSet;
  Populated populated;
  // Supervised, as in service: it has a catalog then, which its successor goes on with.
  auto daemon = bench.start_daemon({.device_bytes = 32 * kMiB,
                                    .memory_bytes = align_up(slots * kTensorBytes + 64 * kMiB, 32 * kMiB),
                                    .limits = fmt::format("tensors_per_session_max = {}", slots),
                                    .supervised = true});
  if (!daemon) return std::unexpected(daemon.error());
  populated.daemon.emplace(std::move(*daemon));
  auto client = populated.daemon->connect();
  if (!client) return std::unexpected(client.error());
  populated.client.emplace(std::move(*client));
  if (const auto added = populated.add(kFew); !added) return std::unexpected(added.error());
  return populated;
}

// As many requests as a session's rings hold: afterwards every page of theirs counts.
Result<void> go_around_rings(Populated& populated) {
  constexpr int kMoreThanEntries = 2048;
  if (auto lease = populated.client->acquire(populated.tensors[0], {.mode = Mode::kOverwrite}); !lease)
    return std::unexpected(lease.error());
  for (int i = 0; i < kMoreThanEntries; ++i)
    if (const auto done = populated.client->swap_out({&populated.tensors[0], 1}, Place::host()); !done) return done;
  return {};
}

// Nanoseconds a tensor, of the client and daemon together; the daemon's CPU of it.
struct Costs {
  double create = 0;
  double acquire = 0;
  double evict = 0;
  double create_cpu = 0;
  double acquire_cpu = 0;
  double evict_cpu = 0;
};

// A set of random tensors that stay.
std::vector<Tensor> draw(Populated& populated) {
  std::vector<std::size_t> drawn;
  while (drawn.size() < kSet) {
    const std::size_t which = populated.random() % populated.tensors.size();
    if (std::ranges::find(drawn, which) == drawn.end()) drawn.push_back(which);
  }
  std::vector<Tensor> set;
  for (const std::size_t which : drawn) set.push_back(populated.tensors[which]);
  return set;
}

// Gives every tensor from this one on its content, by way of the device: afterwards the daemon has seen every page, and
// the tensor in every tier.
Result<void> warm(Populated& populated, std::size_t first = 0) {
  const std::span<const Tensor> all(populated.tensors);
  for (std::size_t at = first; at < all.size(); at += kSet) {
    const auto set = all.subspan(at, std::min(kSet, all.size() - at));
    auto leases = populated.client->acquire(set, {.place = kDevice, .mode = Mode::kOverwrite});
    if (!leases) return std::unexpected(leases.error());
    for (Lease& lease : *leases) fill(lease.writable_bytes(), lease.tensor().handle(), 1);
    leases->clear();
    if (const auto down = populated.client->swap_out(set, Place::host()); !down) return down;
  }
  return {};
}

// That every tensor has its bytes still.
Result<void> check_all(Populated& populated) {
  const std::span<const Tensor> all(populated.tensors);
  for (std::size_t at = 0; at < all.size(); at += kSet) {
    const auto leases = populated.client->acquire(all.subspan(at, std::min(kSet, all.size() - at)));
    if (!leases) return std::unexpected(leases.error());
    for (const Lease& lease : *leases)
      if (const auto right = check(lease.bytes(), lease.tensor().handle(), 1); !right) return right;
  }
  return {};
}

Result<Costs> cost(Populated& populated) {
  Client& client = *populated.client;
  const pid_t daemon = populated.daemon->pid();
  const auto timed = [&](const auto& call, double& nanoseconds, double& cpu) -> Result<void> {
    const Counters before = counters_of_process(daemon);
    const auto begin = std::chrono::steady_clock::now();
    const Result<void> done = call();
    nanoseconds = seconds_since(begin) * 1e9 / kSet;
    cpu = static_cast<double>((counters_of_process(daemon) - before).cpu_ns) / kSet;
    return done;
  };
  const std::vector<Tensor> set = draw(populated);
  Costs costs;
  std::vector<Tensor> created;
  Result<void> done = timed(
      [&]() -> Result<void> {
        auto more = populated.create(kSet);
        if (!more) return std::unexpected(more.error());
        created = std::move(*more);
        return {};
      },
      costs.create, costs.create_cpu);
  std::vector<Lease> leases;
  if (done)
    done = timed(
        [&]() -> Result<void> {
          auto granted = client.acquire(set, {.place = kDevice});
          if (!granted) return std::unexpected(granted.error());
          leases = std::move(*granted);
          return {};
        },
        costs.acquire, costs.acquire_cpu);
  for (const Lease& lease : leases)
    if (done) done = check(lease.bytes(), lease.tensor().handle(), 1);
  leases.clear();
  if (done) done = timed([&] { return client.swap_out(set, Place::host()); }, costs.evict, costs.evict_cpu);
  if (done) done = client.destroy(created);
  if (!done) return std::unexpected(done.error());
  return costs;
}

// Medians over several sets: one takes about a millisecond, of which whatever else runs makes a multiple.
Result<Costs> costs_of_round(Populated& populated) {
  std::vector<Costs> each;
  for (int i = 0; i < kSetsOfRound; ++i) {
    const auto costs = cost(populated);
    if (!costs) return std::unexpected(costs.error());
    each.push_back(*costs);
  }
  Costs middle;
  for (const auto figure :
       {&Costs::create, &Costs::acquire, &Costs::evict, &Costs::create_cpu, &Costs::acquire_cpu, &Costs::evict_cpu}) {
    std::vector<double> figures;
    for (const Costs& costs : each) figures.push_back(costs.*figure);
    middle.*figure = median(std::move(figures));
  }
  return middle;
}

struct Taken {
  std::vector<Costs> few;
  std::vector<Costs> few_again;
  std::vector<Costs> many;
};

void add_costs(Bench& bench, const Taken& taken, std::size_t count) {
  const auto add = [&](const char* name, const char* what, double Costs::* wall, double Costs::* cpu) {
    std::vector<Round> rounds;
    std::vector<double> few_cpu;
    std::vector<double> many_cpu;
    for (std::size_t i = 0; i < taken.many.size(); ++i) {
      rounds.push_back({taken.few[i].*wall, taken.many[i].*wall, taken.few_again[i].*wall});
      few_cpu.push_back(taken.few[i].*cpu);
      many_cpu.push_back(taken.many[i].*cpu);
    }
    bench.add(
        with({.bench = name,
              .path = fmt::format("{} tensors: cost of one {}", count, what),
              .unit = "ns",
              .reference = fmt::format("the same at {} tensors", kFew),
              .bar = 2,
              .better = Better::kLower,
              .counts = {{.name = "times the daemon's CPU", .value = median(many_cpu) / median(few_cpu), .limit = 2},
                         {.name = "ns of the daemon's CPU", .value = median(many_cpu)}}},
             rounds));
  };
  add("scale.create", "create", &Costs::create, &Costs::create_cpu);
  add("scale.acquire", "acquire (a miss, in sets)", &Costs::acquire, &Costs::acquire_cpu);
  add("scale.evict", "evict (in sets)", &Costs::evict, &Costs::evict_cpu);
}

void add_size(Bench& bench, const char* name, std::string path, double bytes, double bar, std::vector<Count> counts) {
  bench.add({.bench = name,
             .path = std::move(path),
             .value = bytes,
             .unit = "bytes",
             .ratio_of = RatioOf::kValue,
             .bar = bar,
             .better = Better::kLower,
             .counts = std::move(counts)});
}

Result<void> run_tensors(Bench& bench) {
  const auto count = bench.either<std::size_t>(1'000'000, 100'000);
  auto few = start(bench, kFew);
  if (!few) return std::unexpected(few.error());
  auto many = start(bench, count);
  if (!many) return std::unexpected(many.error());
  // The first tenth also touches what there is once a session or tier, and of the arena as much as those that follow.
  if (const auto added = many->add(count / 10); !added) return added;
  if (const auto gone = go_around_rings(*many); !gone) return gone;
  const std::size_t tenth = many->tensors.size();
  if (const auto warmed = warm(*many); !warmed) return warmed;
  auto before = resident_by_name(many->daemon->pid());
  const std::uint64_t names_before = many->name_bytes;
  const auto more = static_cast<double>(count - many->tensors.size());
  for (std::size_t done = many->tensors.size(); done < count; done = many->tensors.size()) {
    if (const auto added = many->add(std::min(count - done, count / 10)); !added) return added;
    bench.say(fmt::format("scale: {} tensors", many->tensors.size()));
  }
  bench.say("scale: every tensor is written");
  if (const auto warmed = warm(*many, tenth); !warmed) return warmed;
  auto after = resident_by_name(many->daemon->pid());
  const auto grown = [&](const std::string& name) {
    return (static_cast<double>(after[name]) - static_cast<double>(before[name])) / more;
  };
  const double names = static_cast<double>(many->name_bytes - names_before) / more;

  if (const auto warmed = warm(*few); !warmed) return warmed;
  Taken taken;
  for (int round = 0; round <= bench.rounds(); ++round) {
    auto first = costs_of_round(*few);
    if (!first) return std::unexpected(first.error());
    auto value = costs_of_round(*many);
    if (!value) return std::unexpected(value.error());
    auto again = costs_of_round(*few);
    if (!again) return std::unexpected(again.error());
    if (round == 0) continue;  // memory is warm now
    taken.few.push_back(*first);
    taken.many.push_back(*value);
    taken.few_again.push_back(*again);
  }
  bench.say("scale: every tensor is checked");
  for (Populated* populated : {&*many, &*few})
    if (const auto right = check_all(*populated); !right) return right;
  add_costs(bench, taken, count);
  const double own = grown("");
  const double catalog = grown("terrace-catalog");
  add_size(bench, "scale.bytes_per_tensor",
           fmt::format("daemon memory per tensor at {}, name and session's table aside", count), own + catalog - names,
           256, {{.name = "bytes of heap", .value = own}, {.name = "bytes of catalog", .value = catalog}});
  add_size(bench, "scale.table_bytes_per_tensor", "the session's lease table, per tensor", grown("terrace-session"), 64,
           {});
  return {};
}

// The checksums' memory, from tensors that fill most of a block tier.
Result<void> run_checksums(Bench& bench) {
  const std::uint64_t content = bench.either(1 * kGiB, 128 * kMiB);
  const std::uint64_t each = 16 * kMiB;
  auto daemon = bench.start_daemon({.memory_bytes = 128 * kMiB, .block_bytes = content + content / 4});
  if (!daemon) return std::unexpected(daemon.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  const std::uint64_t before = resident_by_name(daemon->pid())["terrace-checksums"];
  std::vector<Tensor> tensors;
  for (std::uint64_t i = 0; i < content / each; ++i) {
    auto tensor = client->create({.name = fmt::format("content {}", i), .bytes = each});
    if (!tensor) return std::unexpected(tensor.error());
    auto lease = client->acquire(*tensor, {.mode = Mode::kOverwrite});
    if (!lease) return std::unexpected(lease.error());
    fill(lease->writable_bytes(), i, 1);
    if (const auto released = lease->release(); !released) return released;
    if (const auto down = client->swap_out({&*tensor, 1}); !down) return down;
    tensors.push_back(*tensor);
  }
  const std::uint64_t after = resident_by_name(daemon->pid())["terrace-checksums"];
  for (std::uint64_t i = 0; i < tensors.size(); ++i) {
    auto lease = client->acquire(tensors[i]);
    if (!lease) return std::unexpected(lease.error());
    if (const auto right = check(lease->bytes(), i, 1); !right) return right;
  }
  add_size(bench, "scale.checksum_bytes_per_mib", "checksums, per MiB of block content",
           static_cast<double>(after - before) / (static_cast<double>(content) / static_cast<double>(kMiB)), 8, {});
  return {};
}

Result<void> run(Bench& bench) {
  for (const auto part : {&run_tensors, &run_checksums, &run_start, &run_restart})
    if (const auto done = part(bench); !done) return done;
  return {};
}

}  // namespace

Suite scale_suite() {
  return {.name = "scale",
          .what = "a million tensors, a daemon's memory, and how soon one serves",
          .rows = {"scale.create", "scale.acquire", "scale.evict", "scale.bytes_per_tensor",
                   "scale.table_bytes_per_tensor", "scale.checksum_bytes_per_mib", "scale.start", "scale.restart"},
          .disk = {.full = 2 * kGiB, .quick = 256 * kMiB},
          .lacks = &lacks_memory,
          .run = run};
}

}  // namespace terrace::bench
