// SPDX-License-Identifier: Apache-2.0
#include "ctl/views.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "ctl/json.h"
#include "ctl/table.h"
#include "terrace/v1/terrace.pb.h"

namespace terrace::ctl {
namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

std::string headline(const v1::NodeStatus& status) {
  return fmt::format("terraced {}: {} session{}, {} steps, {} requests waiting{}\n", status.version(),
                     status.sessions_size(), status.sessions_size() == 1 ? "" : "s", status.steps(),
                     status.requests_waiting(), status.draining() ? ", DRAINING" : "");
}

// For which leases a session's guarantee is kept.
std::string guarantees(const v1::TierStatus& tier) {
  if (tier.guaranteed_bytes() == 0) return "-";
  return tier.guarantees_any_order() ? "any order" : "one set";
}

std::string tiers_text(const v1::NodeStatus& status) {
  Table table({"TIER", ">CAPACITY", ">USED", ">USED%", "", ">SEGMENTS", ">LARGEST FREE", ">FRAG", ">STITCHED",
               "GUARANTEES", ">RETIRED", ">CHECKSUM ERRORS", ">IO ERRORS"});
  for (const auto& tier : status.tiers()) {
    const double share = tier.capacity_bytes() == 0
                             ? 0
                             : static_cast<double>(tier.used_bytes()) / static_cast<double>(tier.capacity_bytes());
    table.add({tier.name(), format_bytes(tier.capacity_bytes()), format_bytes(tier.used_bytes()),
               percent(tier.used_bytes(), tier.capacity_bytes()), bar(share, 20), format_bytes(tier.segment_bytes()),
               format_bytes(tier.largest_free_bytes()), fmt::format("{:.2f}", tier.fragmentation_ratio()),
               format_bytes(tier.stitched_bytes()), guarantees(tier), format_bytes(tier.retired_bytes()),
               number(tier.checksum_failures()), number(tier.io_errors())});
  }
  std::string text = table.text();
  for (const auto& tier : status.tiers())
    if (tier.context_bytes() != 0)
      text += fmt::format("{}: the daemon's context takes {} of the GPU's memory beside it\n", tier.name(),
                          format_bytes(tier.context_bytes()));
  for (const auto& tier : status.tiers())
    if (!tier.failure().empty()) text += fmt::format("{} NOT SERVING: {}\n", tier.name(), tier.failure());
  for (const auto& tier : status.tiers())
    if (!tier.write_failure().empty()) text += fmt::format("{} NOT WRITTEN: {}\n", tier.name(), tier.write_failure());
  return text;
}

// What a link moved, or, with `seconds`, what it moves each second.
std::string links_text(const v1::NodeStatus& now, const v1::NodeStatus& before, double seconds) {
  const bool rates = seconds > 0 && before.links_size() == now.links_size();
  Table table({"LINK", rates ? ">BYTES/S" : ">BYTES", rates ? ">TRANSFERS/S" : ">TRANSFERS", ">MEAN MS", ">FAILED",
               ">QUEUED", ">RUNNING"});
  for (int i = 0; i < now.links_size(); ++i) {
    const auto& link = now.links(i);
    std::uint64_t bytes = link.bytes();
    std::uint64_t transfers = link.transfers();
    double sum_seconds = link.duration().sum_seconds();
    if (rates) {
      bytes -= before.links(i).bytes();
      transfers -= before.links(i).transfers();
      sum_seconds -= before.links(i).duration().sum_seconds();
    }
    const std::string mean =
        transfers == 0 ? "-" : fmt::format("{:.2f}", 1000 * sum_seconds / static_cast<double>(transfers));
    const double each = rates ? seconds : 1;
    const auto per = [each](std::uint64_t count) {
      return static_cast<std::uint64_t>(static_cast<double>(count) / each);
    };
    table.add({link.name(), format_bytes(per(bytes)), number(per(transfers)), mean, number(link.failures()),
               number(link.queued()), number(link.in_flight())});
  }
  return table.text();
}

std::string places_text(const v1::NodeStatus& status) {
  Table table({"PLACE", ">HITS", ">WAITS", ">ERRORS", ">HIT%", ">MEAN WAIT MS"});
  for (const auto& place : status.places()) {
    const std::uint64_t waits = place.waits();
    const std::string mean =
        waits == 0 ? "-" : fmt::format("{:.2f}", 1000 * place.wait().sum_seconds() / static_cast<double>(waits));
    table.add({place_name(place.place()), number(place.hits()), number(waits), number(place.errors()),
               percent(place.hits(), place.hits() + waits + place.errors()), mean});
  }
  return table.text();
}

// How sure the daemon is of what a session does.
std::string foresight_text(const v1::SessionStatus& session) {
  constexpr std::array kKinds = {"train", "accumulate", "eval"};
  const auto& foresight = session.foresight();
  const std::uint64_t expected = foresight.matched_uses() + foresight.missed_uses() + foresight.added_uses();
  const std::string template_text =
      foresight.template_() == 0
          ? "follows no template"
          : fmt::format("follows template {} of its {} steps, {} uses, of which the last one matched {}",
                        foresight.template_(), kKinds.at(std::min<std::size_t>(foresight.step_kind(), 2)),
                        foresight.template_uses(), percent(foresight.matched_uses(), expected));
  return fmt::format("session {} {}; foreseen: {} of its uses, {} of the bytes brought for it\n", session.session(),
                     template_text,
                     percent(foresight.foreseen_uses(), foresight.foreseen_uses() + foresight.stray_uses()),
                     percent(foresight.planned_bytes(), foresight.planned_bytes() + foresight.demanded_bytes()));
}

std::string shape_text(const v1::TensorSpec& spec) { return fmt::format("[{}]", fmt::join(spec.shape(), ", ")); }

std::string dtype_text(v1::DataType dtype) {
  std::string name = v1::DataType_Name(dtype);
  name.erase(0, std::min(name.size(), std::string("DATA_TYPE_").size()));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

}  // namespace

std::string sessions_text(const google::protobuf::RepeatedPtrField<v1::SessionStatus>& sessions) {
  if (sessions.empty()) return "no open sessions\n";
  Table table({">SESSION", "TENANT", ">UID", ">PID", "LABEL", ">TENSORS", ">BYTES", ">LEASES", ">LEASED", ">STEP",
               "GUARANTEES"});
  for (const auto& session : sessions) {
    std::string guarantees;
    for (const auto& place : session.places())
      guarantees += fmt::format("{}{} {}", guarantees.empty() ? "" : ", ", place_name(place.place()),
                                format_bytes(place.guarantee_bytes()));
    table.add({number(session.session()), session.tenant(), number(session.uid()),
               session.pid() == 0 ? "-" : std::to_string(session.pid()),
               session.members().empty() ? session.label() : "share " + session.label(), number(session.tensors()),
               format_bytes(session.tensor_bytes()), number(session.leases()), format_bytes(session.leased_bytes()),
               number(session.step()), guarantees});
    for (const auto& member : session.members())
      table.add(
          {number(member.session()), session.tenant(), number(session.uid()), std::to_string(member.pid()),
           fmt::format("in {}{}{}", session.label(), member.writes() ? ", writes: " : ", reads: ", member.label()), "-",
           "-", number(member.leases()), "-", "-", "-"});
  }
  return table.text();
}

std::string status_text(const v1::NodeStatus& status) {
  const auto& prefetches = status.prefetches();
  std::string out = headline(status) + '\n' + tiers_text(status) + '\n' + links_text(status, {}, 0) + '\n' +
                    places_text(status) + '\n' +
                    fmt::format("prefetches: {} used, {} late, {} wasted, {} refused\n", prefetches.used(),
                                prefetches.late(), prefetches.wasted(), prefetches.refused());
  for (const auto& session : status.sessions())
    if (session.has_foresight()) out += foresight_text(session);
  for (const std::string& lack : status.lacks()) out += "lacks " + lack + '\n';
  return out;
}

std::string tensors_text(const v1::AdminListTensorsResponse& tensors) {
  Table table({">SESSION", "NAME", "DTYPE", "SHAPE", ">BYTES", "PLACE", "STATE", ">READERS", ">WRITERS"});
  for (const auto& session : tensors.sessions()) {
    for (const auto& tensor : session.tensors()) {
      const std::string state =
          fmt::format("{}{}", tensor.dirty() ? "dirty" : "clean", tensor.pinned() ? ", pinned" : "");
      table.add({number(session.session()), tensor.spec().name(), dtype_text(tensor.spec().dtype()),
                 shape_text(tensor.spec()), format_bytes(tensor.spec().bytes()), place_name(tensor.placement().place()),
                 state, number(tensor.readers()), number(tensor.writers())});
    }
  }
  return table.empty() ? "no tensors\n" : table.text();
}

std::string top_text(const v1::NodeStatus& now, const v1::NodeStatus& before, double seconds) {
  return headline(now) + '\n' + tiers_text(now) + '\n' + links_text(now, before, seconds) + '\n' + places_text(now) +
         '\n' + sessions_text(now.sessions());
}

}  // namespace terrace::ctl
