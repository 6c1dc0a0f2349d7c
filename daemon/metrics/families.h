// SPDX-License-Identifier: Apache-2.0
// From the engine's status to Prometheus's metric families. Pure. docs/reference/metrics.md lists them; names and
// labels are an interface: dashboards and alerts stand on them.
#pragma once

#include <prometheus/metric_family.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "engine/values/status.h"

namespace terrace::metrics {

// `tenant_names`: by Tenant::socket. Labels are tier, link, place, reason, result, outcome and tenant; never a tensor,
// a process or a user.
std::vector<prometheus::MetricFamily> families(const engine::Status& status, std::span<const std::string> tenant_names);

// terrace_tenant_quota_bytes, of those tenants that have a quota; nothing where none has one.
std::vector<prometheus::MetricFamily> quota_families(std::span<const config::TenantConfig> tenants);

// terrace_up and terrace_build_info: what is served also when the engine does not answer.
std::vector<prometheus::MetricFamily> vital_families(bool up, std::string_view version);

}  // namespace terrace::metrics
