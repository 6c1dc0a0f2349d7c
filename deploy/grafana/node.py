# SPDX-License-Identifier: Apache-2.0
"""The node view: what one daemon does and why a step of its trainers waits."""

from failures import grew, lost, out_of_use, refused
from panels import NODE_UID, Graph, Number, Query, Row, Table, choice, page

NODE = 'instance="$instance"'
TIER = NODE + ', tier=~"$tier"'
TENANT = NODE + ', tenant=~"$tenant"'


def rate(counter: str, selected: str = NODE) -> str:
    return f"rate({counter}{{{selected}}}[$__rate_interval])"


def below(share: float, histogram: str, label: str) -> str:
    """The seconds that a share of what a histogram counts took at most."""
    return f"histogram_quantile({share}, sum by ({label}, le) ({rate(histogram + '_bucket')}))"


FAILURES = Row("Failures and lost data", 8, (
    Number("Down", "1: Prometheus does not reach the daemon.", "short", f'1 - up{{job="terrace", {NODE}}}', bad=True),
    Number("Engine silent", "1: the engine did not answer the last scrape.", "short", f"1 - terrace_up{{{NODE}}}", bad=True),
    *out_of_use(NODE),
    *lost(NODE),
    refused(NODE),
))
FAILURES_OVER_TIME = Row("Failures over time", 4, (
    Graph("Checksum failures and I/O errors by tier", "Within five minutes.", "short",
          (Query(f"increase(terrace_checksum_failures_total{{{TIER}}}[5m])", "{{tier}} checksum"),
           Query(f"increase(terrace_io_errors_total{{{TIER}}}[5m])", "{{tier}} I/O"))),
    Graph("Failed transfers by link", "Within five minutes.", "short",
          (Query(f"increase(terrace_transfer_failures_total{{{NODE}}}[5m])", "{{link}}"),)),
    Graph("Retired bytes by tier", "Out of use after device errors.", "bytes",
          (Query(f"terrace_retired_bytes{{{TIER}}}", "{{tier}}"),)),
    Table("Alerts of this node", "docs/guides/runbook.md has a section for each.", "short",
          f'sum by (alertname, severity) (ALERTS{{alertname=~"Terrace.+", alertstate="firing", {NODE}}})', "Series"),
))
MEMORY = Row("Memory by tier and tenant", 3, (
    Graph("Used, guaranteed and capacity by tier", "Tiers above the last one are caches, and full by design.", "bytes",
          (Query(f"terrace_tier_used_bytes{{{TIER}}}", "{{tier}} used"),
           Query(f"terrace_tier_guaranteed_bytes{{{TIER}}}", "{{tier}} guaranteed"),
           Query(f"terrace_tier_capacity_bytes{{{TIER}}}", "{{tier}} capacity"))),
    Graph("Used share by tier", "Of the capacity.", "percentunit",
          (Query(f"instance_tier:terrace_used:ratio{{{TIER}}}", "{{tier}}"),)),
    Graph("Homes", "The share of the last tier. At 1 no tensor can be created.", "percentunit",
          (Query(f"instance_tier:terrace_home_used:ratio{{{NODE}}}", "{{tier}}"),)),
    Graph("Tensors by tenant", "Bytes of the tensors of open sessions.", "bytes",
          (Query(f"terrace_tensor_bytes{{{TENANT}}}", "{{tenant}}"),), stacked=True),
    Graph("Sessions, tensors and leases by tenant", "Open, held.", "short",
          (Query(f"terrace_sessions{{{TENANT}}}", "{{tenant}} sessions"),
           Query(f"terrace_tensors{{{TENANT}}}", "{{tenant}} tensors"),
           Query(f"terrace_leases{{{TENANT}}}", "{{tenant}} leases"))),
    Graph("Quotas by tenant", "The share of it that the tenant's user with most has; tenants without a quota are not shown.", "percentunit",
          (Query(f"instance_tenant:terrace_quota_used:ratio{{{TENANT}}}", "{{tenant}}"),)),
    Graph("Taken from the system by tier", "Segments; none for block files.", "bytes",
          (Query(f"terrace_tier_segment_bytes{{{TIER}}}", "{{tier}}"),)),
    Graph("Fragmentation by tier", "0: free space in one piece; towards 1: in many.", "percentunit",
          (Query(f"terrace_tier_fragmentation_ratio{{{TIER}}}", "{{tier}}"),)),
    Graph("Largest free piece by tier", "What one tensor could still get.", "bytes",
          (Query(f"terrace_tier_largest_free_bytes{{{TIER}}}", "{{tier}}"),)),
    Graph("Stitched copies by tier", "Bytes whose pages lie apart.", "bytes",
          (Query(f"terrace_tier_stitched_bytes{{{TIER}}}", "{{tier}}"),)),
))
WAITS = Row("Leases: hits, misses and waits", 3, (
    Graph("Seconds waited a step", "What trainers wait for leases, for each step that they mark.", "s",
          (Query(f"instance:terrace_waited_seconds_per_step:rate5m{{{NODE}}}", "waited"),)),
    Graph("Hits, misses and refusals", "Leases a second: at once, after a wait, refused.", "short",
          (Query(f"sum by (place, result) ({rate('terrace_acquires_total')})", "{{place}} {{result}}"),)),
    Graph("Misses", "The share of granted leases that waited.", "percentunit",
          (Query(f"instance_place:terrace_missed:ratio_rate5m{{{NODE}}}", "{{place}}"),)),
    Graph("How long leases wait", "Half of those that waited, and 99 of 100, waited less.", "s",
          (Query(below(0.5, "terrace_acquire_wait_seconds", "place"), "{{place}} half"),
           Query(below(0.99, "terrace_acquire_wait_seconds", "place"), "{{place}} 99 %"))),
    Graph("Refusals", "The share of leases that were refused.", "percentunit",
          (Query(f"instance_place:terrace_refused:ratio_rate5m{{{NODE}}}", "{{place}}"),)),
    Graph("Steps and waiting requests", "Steps a second; requests without a reply.", "short",
          (Query(rate("terrace_steps_total"), "steps a second"), Query(f"terrace_requests_waiting{{{NODE}}}", "requests"))),
))
PLANS = Row("What was foreseen", 3, (
    Graph("Prefetches by outcome", "A second: used in time, late, never used, refused.", "short",
          (Query(rate("terrace_prefetches_total"), "{{outcome}}"),), stacked=True),
    Graph("Late prefetches", "The share of needed prefetches that came late.", "percentunit",
          (Query(f"instance:terrace_prefetched_late:ratio_rate5m{{{NODE}}}", "late"),)),
    Graph("Uses that a plan foresaw", "A second; stray: there was a plan, and it did not have them.", "short",
          (Query(rate("terrace_plan_uses_total"), "{{outcome}}"),), stacked=True),
    Graph("Fetched by plan and on demand", "Bytes a second that were brought to where they are leased.", "Bps",
          (Query(rate("terrace_fetched_bytes_total"), "{{by}}"),), stacked=True),
    Graph("Plans", "Plans a second that came into force.", "short", (Query(rate("terrace_plans_total"), "plans"),)),
    Graph("Evictions by tier and reason", "Copies a second.", "short",
          (Query(rate("terrace_evictions_total", TIER), "{{tier}} {{reason}}"),), stacked=True),
))
LINKS = Row("Links", 3, (
    Graph("Throughput by link", "Bytes a second.", "Bps",
          (Query(f"instance_link:terrace_transfer_bytes:rate5m{{{NODE}}}", "{{link}}"),)),
    Graph("How long transfers take", "Half of them, and 99 of 100, took less.", "s",
          (Query(below(0.5, "terrace_transfer_duration_seconds", "link"), "{{link}} half"),
           Query(below(0.99, "terrace_transfer_duration_seconds", "link"), "{{link}} 99 %"))),
    Graph("Queue and work in progress by link", "Transfers that wait, and that run.", "short",
          (Query(f"terrace_transfers_queued{{{NODE}}}", "{{link}} wait"),
           Query(f"terrace_transfers_in_flight{{{NODE}}}", "{{link}} run"))),
    Graph("Transfers by link", "A second.", "short", (Query(rate("terrace_transfers_total"), "{{link}}"),)),
    Graph("Bytes a transfer", "Small transfers keep a link from its speed.", "bytes",
          (Query(f"{rate('terrace_transfer_bytes_total')} / ({rate('terrace_transfers_total')} > 0)", "{{link}}"),)),
    Graph("Both directions of the drives", "Bytes a second, read and written.", "Bps",
          (Query(f"instance:terrace_block_bytes:rate5m{{{NODE}}}", "block files"),)),
))
WEAR = Row("Wear of the drives", 3, (
    Graph("Written a day", "Bytes, at the present rate.", "bytes",
          (Query(f'86400 * instance_link:terrace_transfer_bytes:rate5m{{link="block_write", {NODE}}}', "written"),)),
    Graph("Write budget left", "Below 0 nothing is written ahead of need.", "bytes",
          (Query(f"terrace_write_budget_left_bytes{{{NODE}}}", "{{tier}}"),)),
    Number("Written in this time", "Bytes to the block files.", "bytes",
           grew("terrace_transfer_bytes_total", NODE + ', link="block_write"')),
))
RESTARTS = Row("Restarts and what went on", 6, (
    Number("Restarts", "In this time.", "short", f"sum(resets(exposer_scrapes_total{{{NODE}}}[$__range]))", bad=True),
    Number("Sessions taken over", "From the former daemon.", "short", f"terrace_restored_sessions{{{NODE}}}"),
    Number("Tensors taken over", "Of those sessions.", "short", f"terrace_restored_tensors{{{NODE}}}"),
    Number("Requests it had not answered", "That daemon had taken them, and was killed.", "short",
           f"terrace_restored_unanswered_requests{{{NODE}}}"),
    Number("Transfers it broke off", "Queued or running as it was killed.", "short", f"terrace_restored_transfers{{{NODE}}}"),
    Number("Requests asked again", "By trainers, after the former daemon's end.", "short",
           f"terrace_resubmitted_requests_total{{{NODE}}}"),
))
BUILD = Row("Build and configuration", 4, (
    Table("Version", "What runs.", "short", f"terrace_build_info{{{NODE}}}", "Daemons"),
    Table("Capacity by tier", "As configured, in whole segments.", "bytes",
          f"sum by (tier) (terrace_tier_capacity_bytes{{{NODE}}})", "Capacity"),
    Graph("The daemon's own GPU memory", "Beside the tier; where it is known.", "bytes",
          (Query(f"terrace_gpu_context_bytes{{{NODE}}}", "{{tier}}"),)),
    Number("Draining", "1: no new session is opened.", "short", f"terrace_draining{{{NODE}}}"),
))


def node():
    return page("Terrace node", NODE_UID, "One node's terraced: what it holds, what its trainers wait for, and why.",
                (choice("instance", "Node", "label_values(terrace_build_info, instance)", several=False),
                 choice("tier", "Tier", 'label_values(terrace_tier_capacity_bytes{instance="$instance"}, tier)', several=True),
                 choice("tenant", "Tenant", 'label_values(terrace_sessions{instance="$instance"}, tenant)', several=True)),
                (FAILURES, FAILURES_OVER_TIME, MEMORY, WAITS, PLANS, LINKS, WEAR, RESTARTS, BUILD))
