// SPDX-License-Identifier: Apache-2.0
#include "workload/items.h"

#include <algorithm>
#include <tuple>

namespace terrace::workload {
namespace {

// What one run does with one tensor: it reads, then writes, then frees.
struct Use {
  std::size_t run = 0;
  bool inside = false;
  bool read = false;
  bool write = false;
  bool free = false;
};

using Uses = std::vector<Use>;

std::vector<Uses> uses_by_tensor(const Workload& workload, LinkName link) {
  std::vector<Uses> all(workload.tensors.size());
  for (std::size_t index = 0; index < workload.runs.size(); ++index) {
    const Run& run = workload.runs[index];
    const auto use = [&](TensorId id) -> Use& {
      Uses& uses = all[id];
      if (uses.empty() || uses.back().run != index) uses.push_back({.run = index, .inside = inside(link, run)});
      return uses.back();
    };
    for (const TensorId id : run.read) use(id).read = true;
    for (const TensorId id : run.write) use(id).write = true;
    for (const TensorId id : run.free) use(id).free = true;
  }
  return all;
}

// The runs strictly between two of `count`, the later of which may be in the next repetition, or be the same run.
std::size_t runs_between(std::size_t from, std::size_t to, std::size_t count) {
  return (to + count - from - 1) % count;
}

void add_item(Choices& choices, std::size_t from, std::size_t to, std::uint64_t bytes) {
  const std::size_t count = choices.taken_bytes.size();
  const std::size_t runs = runs_between(from, to, count);
  if (runs > 0) choices.items.push_back({.first = (from + 1) % count, .runs = runs, .bytes = bytes});
}

Choices nothing_chosen(const Workload& workload, LinkName link) {
  Choices choices;
  choices.taken_bytes.reserve(workload.runs.size());
  for (const Run& run : workload.runs) {
    choices.taken_bytes.push_back(inside(link, run) ? leased_bytes(workload, run) : 0);
  }
  return choices;
}

// Where in memory the bytes that use `at` reads there were last; nothing where they were last written elsewhere.
const Use* last_inside(const Uses& uses, std::size_t at) {
  for (std::size_t back = 1; back <= uses.size(); ++back) {
    const Use& before = uses[(at + uses.size() - back) % uses.size()];
    if (before.inside && (before.read || before.write)) return &before;
    if (before.write) break;
  }
  return nullptr;
}

// The bytes that use `at` reads in memory can have been kept from where they were last, or must come in.
void choose_inward(const Uses& uses, std::size_t at, std::uint64_t bytes, Choices& choices) {
  if (const Use* before = last_inside(uses, at)) return add_item(choices, before->run, uses[at].run, bytes);
  choices.always_bytes += bytes;
}

// What becomes of the version that use `at` writes.
struct Fate {
  std::size_t reads = 0;      // uses from `at` to the one that reads it last; 0: none does
  bool read_outside = false;  // by any of them
};

Fate fate(const Uses& uses, std::size_t at) {
  Fate fate;
  if (uses[at].free) return fate;
  for (std::size_t ahead = 1; ahead <= uses.size(); ++ahead) {
    const Use& after = uses[(at + ahead) % uses.size()];
    if (after.read) fate.reads = ahead;
    if (after.read && !after.inside) fate.read_outside = true;
    if (after.write || after.free) break;
  }
  return fate;
}

void choose_outward(const Uses& uses, std::size_t at, std::uint64_t bytes, Choices& choices) {
  const Fate fate_of = fate(uses, at);
  if (fate_of.reads == 0) return;
  if (fate_of.read_outside) {
    choices.always_bytes += bytes;
    return;
  }
  add_item(choices, uses[at].run, uses[(at + fate_of.reads) % uses.size()].run, bytes);
  for (std::size_t ahead = 1; ahead < fate_of.reads; ++ahead) {
    const Use& past = uses[(at + ahead) % uses.size()];
    if (past.inside && (past.read || past.write)) choices.taken_bytes[past.run] -= bytes;
  }
}

template <typename Choose>
Choices choices_of(const Workload& workload, LinkName link, bool Use::* which, Choose choose) {
  Choices choices = nothing_chosen(workload, link);
  const std::vector<Uses> all = uses_by_tensor(workload, link);
  for (std::size_t id = 0; id < all.size(); ++id) {
    for (std::size_t at = 0; at < all[id].size(); ++at) {
      const Use& use = all[id][at];
      if (use.inside && use.*which) choose(all[id], at, workload.tensors[id].bytes, choices);
    }
  }
  return choices;
}

}  // namespace

Choices inward(const Workload& workload, LinkName link) {
  return choices_of(workload, link, &Use::read, choose_inward);
}

Choices outward(const Workload& workload, LinkName link) {
  return choices_of(workload, link, &Use::write, choose_outward);
}

namespace {

template <typename Demands>
std::vector<Demand> demands_of(const Workload& workload, LinkName link, bool Use::* which, Demands add) {
  std::vector<Demand> demands;
  const std::vector<Uses> all = uses_by_tensor(workload, link);
  for (std::size_t id = 0; id < all.size(); ++id) {
    for (std::size_t at = 0; at < all[id].size(); ++at) {
      const Use& use = all[id][at];
      if (use.inside && use.*which) add(all[id], at, workload.tensors[id].bytes, demands);
    }
  }
  std::ranges::sort(
      demands, {}, [](const Demand& demand) { return std::tie(demand.run, demand.begins, demand.ends, demand.bytes); });
  return demands;
}

}  // namespace

std::vector<Demand> owed(const Workload& workload, LinkName link) {
  const std::size_t count = workload.runs.size();
  return demands_of(workload, link, &Use::write, [&](const Uses& uses, std::size_t at, auto bytes, auto& demands) {
    const Fate fate_of = fate(uses, at);
    if (fate_of.reads == 0) return;
    const std::size_t last = uses[(at + fate_of.reads) % uses.size()].run;
    const std::size_t ends = runs_between(uses[at].run, last, count) + 1;
    demands.push_back({.run = uses[at].run, .begins = count, .ends = ends, .bytes = bytes});
  });
}

std::vector<Demand> wanted(const Workload& workload, LinkName link) {
  const std::size_t count = workload.runs.size();
  return demands_of(workload, link, &Use::read, [&](const Uses& uses, std::size_t at, auto bytes, auto& demands) {
    const Use* before = last_inside(uses, at);
    const std::size_t begins = before == nullptr ? count : runs_between(before->run, uses[at].run, count) + 1;
    demands.push_back({.run = uses[at].run, .begins = begins, .ends = count, .bytes = bytes});
  });
}

}  // namespace terrace::workload
