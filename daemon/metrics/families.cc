// SPDX-License-Identifier: Apache-2.0
#include "metrics/families.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "mover/link_name.h"

namespace terrace::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

MetricFamily family(std::string name, std::string help, MetricType type) {
  return {std::move(name), std::move(help), type, {}};
}

void add(MetricFamily& family, Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (family.type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(std::move(metric));
}

void add(MetricFamily& family, Labels labels, std::uint64_t value) {
  add(family, std::move(labels), static_cast<double>(value));
}

void add(MetricFamily& family, Labels labels, const engine::Histogram& histogram) {
  ClientMetric metric;
  metric.label = std::move(labels);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < engine::Histogram::kBuckets; ++i) {
    sum += histogram.counts[i];
    const bool last = i + 1 == engine::Histogram::kBuckets;
    const double bound = last ? std::numeric_limits<double>::infinity() : engine::Histogram::upper_bound_seconds(i);
    metric.histogram.bucket.push_back({sum, bound});
  }
  metric.histogram.sample_count = sum;
  metric.histogram.sample_sum = histogram.sum_seconds;
  family.metric.push_back(std::move(metric));
}

using Families = std::vector<MetricFamily>;

void add_tiers(const engine::Status& status, Families& out) {
  using Tier = engine::TierStatus;
  const auto bytes = [&](std::string name, std::string help, std::uint64_t Tier::* member) {
    MetricFamily& one = out.emplace_back(family(std::move(name), std::move(help), MetricType::Gauge));
    for (const Tier& tier : status.tiers) add(one, {{"tier", tier.name}}, tier.*member);
  };
  bytes("terrace_tier_capacity_bytes", "Size of the tier as configured.", &Tier::capacity_bytes);
  bytes("terrace_tier_used_bytes", "Bytes of tensors' copies and reserved homes in the tier.", &Tier::used_bytes);
  bytes("terrace_tier_segment_bytes", "Bytes that the tier has taken from the system.", &Tier::segment_bytes);
  bytes("terrace_tier_guaranteed_bytes", "Bytes that sessions have a right to or have mapped.",
        &Tier::guaranteed_bytes);
  bytes("terrace_tier_largest_free_bytes", "Largest single extent that could be given out.", &Tier::largest_free_bytes);
  bytes("terrace_tier_stitched_bytes", "Bytes of copies whose pages lie apart, mapped side by side.",
        &Tier::stitched_bytes);
  bytes("terrace_retired_bytes", "Bytes taken out of use after device errors.", &Tier::retired_bytes);

  MetricFamily& serving =
      out.emplace_back(family("terrace_tier_serving",
                              "1; 0: it does not, for the reason in the status: a lost GPU, or block files that a "
                              "former daemon still holds.",
                              MetricType::Gauge));
  for (const Tier& tier : status.tiers) add(serving, {{"tier", tier.name}}, tier.failure.empty() ? 1.0 : 0.0);

  MetricFamily& writable = out.emplace_back(
      family("terrace_tier_writable",
             "1; 0: nothing is written to it for now, for a reason that is not a region's, which the status names.",
             MetricType::Gauge));
  for (const Tier& tier : status.tiers)
    if (tier.kind == tier::Kind::kBlock) add(writable, {{"tier", tier.name}}, tier.write_failure.empty() ? 1.0 : 0.0);

  MetricFamily& fragmentation =
      out.emplace_back(family("terrace_tier_fragmentation_ratio",
                              "0: all free space is in one piece; towards 1: in many small ones.", MetricType::Gauge));
  for (const Tier& tier : status.tiers) add(fragmentation, {{"tier", tier.name}}, tier.fragmentation);

  MetricFamily contexts =
      family("terrace_gpu_context_bytes",
             "GPU memory that the daemon takes itself, beside the tier, where it is known.", MetricType::Gauge);
  for (const Tier& tier : status.tiers)
    if (tier.context_bytes != 0) add(contexts, {{"tier", tier.name}}, tier.context_bytes);
  if (!contexts.metric.empty()) out.push_back(std::move(contexts));

  for (const Tier& tier : status.tiers) {  // only the block tier has one
    if (tier.write_budget_bytes_per_day == 0) continue;
    MetricFamily& budget = out.emplace_back(
        family("terrace_write_budget_left_bytes",
               "Until nothing is written to the tier ahead of need, so that its drives last; negative: owed.",
               MetricType::Gauge));
    add(budget, {{"tier", tier.name}}, static_cast<double>(tier.write_budget_left_bytes));
  }

  const auto count = [&](std::string name, std::string help, std::uint64_t Tier::* member) {
    MetricFamily& one = out.emplace_back(family(std::move(name), std::move(help), MetricType::Counter));
    for (const Tier& tier : status.tiers) add(one, {{"tier", tier.name}}, tier.*member);
  };
  count("terrace_checksum_failures_total", "Chunks that did not come back as they went out.", &Tier::checksum_failures);
  count("terrace_lost_tensors_total", "Tensors whose only bytes went with memory of the tier (a GPU that failed).",
        &Tier::lost_tensors);
  count("terrace_write_outages_total",
        "Times that nothing was written to the tier, for a reason that is not a region's.", &Tier::write_outages);
  count("terrace_io_errors_total", "Transfers that the tier's device failed.", &Tier::io_errors);

  constexpr std::pair<engine::EvictionReason, const char*> kReasons[] = {
      {engine::EvictionReason::kDemand, "demand"},
      {engine::EvictionReason::kPrefetch, "prefetch"},
      {engine::EvictionReason::kHint, "hint"},
      {engine::EvictionReason::kMove, "move"},
      {engine::EvictionReason::kTakenBack, "taken_back"},
  };
  static_assert(std::size(kReasons) == engine::kEvictionReasons);
  MetricFamily& evictions = out.emplace_back(
      family("terrace_evictions_total", "Copies evicted from the tier, by what for.", MetricType::Counter));
  for (const Tier& tier : status.tiers)
    for (const auto& [reason, label] : kReasons)
      add(evictions, {{"tier", tier.name}, {"reason", label}}, tier.evictions[static_cast<std::size_t>(reason)]);
}

void add_links(const engine::Status& status, Families& out) {
  using Link = engine::LinkStatus;
  const auto number = [&](std::string name, std::string help, MetricType type, std::uint64_t Link::* member) {
    MetricFamily& one = out.emplace_back(family(std::move(name), std::move(help), type));
    for (const Link& link : status.links) add(one, {{"link", mover::name(link.link)}}, link.*member);
  };
  number("terrace_transfer_bytes_total", "Bytes moved over the link.", MetricType::Counter, &Link::bytes);
  number("terrace_transfers_total", "Transfers that ended, failed ones included.", MetricType::Counter,
         &Link::transfers);
  number("terrace_transfer_failures_total", "Transfers that failed.", MetricType::Counter, &Link::failures);
  number("terrace_transfers_queued", "Transfers that wait for the link.", MetricType::Gauge, &Link::queued);
  number("terrace_transfers_in_flight", "Transfers that run on the link.", MetricType::Gauge, &Link::in_flight);
  MetricFamily& duration = out.emplace_back(
      family("terrace_transfer_duration_seconds", "How long transfers took, start to end.", MetricType::Histogram));
  for (const Link& link : status.links) add(duration, {{"link", mover::name(link.link)}}, link.duration);
}

void add_places(const engine::Status& status, Families& out) {
  MetricFamily& acquires = out.emplace_back(
      family("terrace_acquires_total", "Leases asked for: granted at once (hit), after a wait (wait), refused (error).",
             MetricType::Counter));
  for (const auto& place : status.places) {
    add(acquires, {{"place", place.name}, {"result", "hit"}}, place.hits);
    add(acquires, {{"place", place.name}, {"result", "wait"}}, place.waits);
    add(acquires, {{"place", place.name}, {"result", "error"}}, place.errors);
  }
  MetricFamily& wait = out.emplace_back(
      family("terrace_acquire_wait_seconds", "How long those that waited for a lease waited.", MetricType::Histogram));
  for (const auto& place : status.places) add(wait, {{"place", place.name}}, place.wait);
}

void add_tenants(const engine::Status& status, std::span<const std::string> names, Families& out) {
  struct Sum {
    std::uint64_t sessions = 0;
    std::uint64_t tensors = 0;
    std::uint64_t tensor_bytes = 0;
    std::uint64_t leases = 0;
    std::uint64_t user_bytes_max = 0;
  };
  std::vector<Sum> sums(names.size());
  std::map<Tenant, std::uint64_t> of_user;
  for (const auto& session : status.sessions) {
    if (session.tenant.socket >= sums.size()) continue;
    Sum& sum = sums[session.tenant.socket];
    sum.sessions += std::max<std::size_t>(session.members.size(), 1);  // of a share: all that have a part in it
    sum.tensors += session.tensors;
    sum.tensor_bytes += session.tensor_bytes;
    sum.leases += session.leases;
    sum.user_bytes_max = std::max(sum.user_bytes_max, of_user[session.tenant] += session.tensor_bytes);
  }
  const auto gauge = [&](std::string name, std::string help, std::uint64_t Sum::* member) {
    MetricFamily& one = out.emplace_back(family(std::move(name), std::move(help), MetricType::Gauge));
    for (std::size_t i = 0; i < names.size(); ++i) add(one, {{"tenant", names[i]}}, sums[i].*member);
  };
  gauge("terrace_sessions", "Open sessions.", &Sum::sessions);
  gauge("terrace_tensors", "Tensors of open sessions.", &Sum::tensors);
  gauge("terrace_tensor_bytes", "Bytes of the tensors of open sessions.", &Sum::tensor_bytes);
  gauge("terrace_user_tensor_bytes_max", "Bytes of the tensors of that user of the tenant's who has most.",
        &Sum::user_bytes_max);
  gauge("terrace_leases", "Leases held.", &Sum::leases);
}

void add_node(const engine::Status& status, Families& out) {
  MetricFamily& prefetches =
      out.emplace_back(family("terrace_prefetches_total", "What became of prefetches.", MetricType::Counter));
  add(prefetches, {{"outcome", "used"}}, status.prefetches.used);
  add(prefetches, {{"outcome", "late"}}, status.prefetches.late);
  add(prefetches, {{"outcome", "wasted"}}, status.prefetches.wasted);
  add(prefetches, {{"outcome", "refused"}}, status.prefetches.refused);
  MetricFamily& uses = out.emplace_back(
      family("terrace_plan_uses_total", "Uses of tensors while there was a plan of the step.", MetricType::Counter));
  add(uses, {{"outcome", "foreseen"}}, status.foresight.matched);
  add(uses, {{"outcome", "stray"}}, status.foresight.strayed);
  MetricFamily& brought = out.emplace_back(
      family("terrace_fetched_bytes_total", "Bytes brought to where they are leased.", MetricType::Counter));
  add(brought, {{"by", "plan"}}, status.foresight.planned_bytes);
  add(brought, {{"by", "demand"}}, status.foresight.demanded_bytes);
  add(out.emplace_back(family("terrace_plans_total", "Plans of steps that came into force.", MetricType::Counter)), {},
      status.foresight.plans);
  add(out.emplace_back(family("terrace_steps_total", "Training steps marked.", MetricType::Counter)), {}, status.steps);
  add(out.emplace_back(family("terrace_requests_waiting", "Requests that wait for their reply.", MetricType::Gauge)),
      {}, status.requests_waiting);
  const auto number = [&out](std::string name, std::string help, MetricType type, std::uint64_t value) {
    add(out.emplace_back(family(std::move(name), std::move(help), type)), {}, value);
  };
  number("terrace_restored_sessions", "Sessions of a former daemon that this one went on with.", MetricType::Gauge,
         status.restored.sessions);
  number("terrace_restored_tensors", "Tensors of those sessions.", MetricType::Gauge, status.restored.tensors);
  number("terrace_restored_unanswered_requests", "Requests that the former daemon had taken and not answered.",
         MetricType::Gauge, status.restored.unanswered_requests);
  number("terrace_restored_transfers", "Transfers that the former daemon broke off.", MetricType::Gauge,
         status.restored.transfers);
  number("terrace_resubmitted_requests_total", "Requests that trainers asked again after a former daemon's end.",
         MetricType::Counter, status.resubmitted_requests);
  MetricFamily refusals =
      family("terrace_refused_connections_total",
             "Connections that were turned away, or closed for what came over them.", MetricType::Counter);
  for (const engine::RefusalStatus& refusal : status.refusals)
    add(refusals,
        {{"uid", refusal.uid == engine::RefusalStatus::kOthers ? "others" : std::to_string(refusal.uid)},
         {"reason", std::string(name(refusal.why))}},
        refusal.count);
  if (!refusals.metric.empty()) out.push_back(std::move(refusals));
  add(out.emplace_back(family("terrace_draining", "1 when no new session is opened.", MetricType::Gauge)), {},
      std::uint64_t{status.draining});
}

}  // namespace

std::vector<MetricFamily> families(const engine::Status& status, std::span<const std::string> tenant_names) {
  Families out;

  add_tiers(status, out);
  add_links(status, out);
  add_places(status, out);
  add_tenants(status, tenant_names, out);
  add_node(status, out);
  return out;
}

std::vector<MetricFamily> quota_families(std::span<const config::TenantConfig> tenants) {
  MetricFamily quotas =
      family("terrace_tenant_quota_bytes", "Bytes of homes that each user of the tenant's may have, as configured.",
             MetricType::Gauge);
  for (const config::TenantConfig& tenant : tenants)
    if (tenant.quota_bytes != 0) add(quotas, {{"tenant", tenant.name}}, tenant.quota_bytes);
  return quotas.metric.empty() ? Families{} : Families{std::move(quotas)};
}

std::vector<MetricFamily> vital_families(bool up, std::string_view version) {
  Families out;
  add(out.emplace_back(family("terrace_up", "1 when the engine answers.", MetricType::Gauge)), {}, std::uint64_t{up});
  add(out.emplace_back(family("terrace_build_info", "Always 1; the labels say what runs.", MetricType::Gauge)),
      {{"version", std::string(version)}}, std::uint64_t{1});
  return out;
}

}  // namespace terrace::metrics
