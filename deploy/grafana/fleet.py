# SPDX-License-Identifier: Apache-2.0
"""The fleet view: which of many nodes needs somebody, and how much the fleet has, uses and waits for."""

from failures import grew, lost, out_of_use, refused
from panels import Graph, Number, Query, Row, Table, choice, page

NODES = 'instance=~"$instance"'
WORST = 10  # nodes that a graph of single nodes shows


def worst(expression: str) -> str:
    return f"topk({WORST}, {expression})"


FAILURES = Row("Failures and lost data", 6, (
    Number("Nodes down", "Daemons that Prometheus does not reach.", "short",
           f'sum(1 - up{{job="terrace", {NODES}}})', bad=True),
    Number("Engines silent", "Daemons whose engine did not answer the last scrape.", "short",
           f"sum(1 - terrace_up{{{NODES}}})", bad=True),
    *out_of_use(NODES),
    Number("Alerts that fire", "How many alerts of alerts.yml fire.", "short",
           f'count(ALERTS{{alertname=~"Terrace.+", alertstate="firing", {NODES}}}) or vector(0)', bad=True),
    *lost(NODES),
    Number("Failed transfers", "On any link.", "short", grew("terrace_transfer_failures_total", NODES), bad=True),
    Number("Retired bytes", "Out of use after device errors.", "bytes", f"sum(terrace_retired_bytes{{{NODES}}})", bad=True),
    Number("Leases refused", "Full, or over the guarantee.", "short",
           grew("terrace_acquires_total", f'result="error", {NODES}'), bad=True),
    Number("Restarts", "Daemons that started again.", "short",
           f"sum(resets(exposer_scrapes_total{{{NODES}}}[$__range]))", bad=True),
    refused(NODES),
    Number("Write outages", "Times that nothing was written.", "short", grew("terrace_write_outages_total", NODES), bad=True),
    Number("Nodes", "Daemons that Prometheus knows.", "short", f'count(up{{job="terrace", {NODES}}})'),
))
ALERTS = Row("Alerts", 1, (
    Table("Alerts that fire, by node", "docs/guides/runbook.md has a section for each.", "short",
          f'sum by (alertname, severity, instance) (ALERTS{{alertname=~"Terrace.+", alertstate="firing", {NODES}}})',
          "Series"),
))
MEMORY = Row("Memory", 3, (
    Graph("Homes: the fullest nodes", "The share of the last tier. At 1 no tensor can be created.", "percentunit",
          (Query(worst(f"instance_tier:terrace_home_used:ratio{{{NODES}}}"), "{{instance}} {{tier}}"),), of_nodes=True),
    Graph("Used, guaranteed and capacity by tier", "Over the fleet. Tiers above the last one are caches, and full by design.",
          "bytes",
          (Query(f"sum by (tier) (terrace_tier_used_bytes{{{NODES}}})", "{{tier}} used"),
           Query(f"sum by (tier) (terrace_tier_guaranteed_bytes{{{NODES}}})", "{{tier}} guaranteed"),
           Query(f"sum by (tier) (terrace_tier_capacity_bytes{{{NODES}}})", "{{tier}} capacity"))),
    Graph("Tensors by tenant", "Bytes of the tensors of open sessions.", "bytes",
          (Query(f'sum by (tenant) (terrace_tensor_bytes{{{NODES}, tenant=~"$tenant"}})', "{{tenant}}"),), stacked=True),
    Graph("Sessions by tenant", "Open sessions.", "short",
          (Query(f'sum by (tenant) (terrace_sessions{{{NODES}, tenant=~"$tenant"}})', "{{tenant}}"),), stacked=True),
    Graph("Quotas: the fullest tenants", "The share of it that the tenant's user with most has; tenants without one are not shown.", "percentunit",
          (Query(worst(f'instance_tenant:terrace_quota_used:ratio{{{NODES}, tenant=~"$tenant"}}'),
                 "{{instance}} {{tenant}}"),), of_nodes=True),
    Graph("Write budget left: the lowest nodes", "Below 0 nothing is written ahead of need.", "bytes",
          (Query(f"bottomk({WORST}, terrace_write_budget_left_bytes{{{NODES}}})", "{{instance}}"),), of_nodes=True),
    Graph("Written to drives: the most", "Bytes a day, at the present rate.", "bytes",
          (Query(worst(f'86400 * instance_link:terrace_transfer_bytes:rate5m{{link="block_write", {NODES}}}'),
                 "{{instance}}"),), of_nodes=True),
))
SPEED = Row("Speed", 3, (
    Graph("Seconds waited a step: the slowest nodes", "What trainers wait for leases, for each step that they mark.", "s",
          (Query(worst(f"instance:terrace_waited_seconds_per_step:rate5m{{{NODES}}}"), "{{instance}}"),), of_nodes=True),
    Graph("Misses: the most", "The share of granted leases that waited.", "percentunit",
          (Query(worst(f"instance_place:terrace_missed:ratio_rate5m{{{NODES}}}"), "{{instance}} {{place}}"),), of_nodes=True),
    Graph("Refusals: the most", "The share of leases that were refused.", "percentunit",
          (Query(worst(f"instance_place:terrace_refused:ratio_rate5m{{{NODES}}}"), "{{instance}} {{place}}"),), of_nodes=True),
    Graph("Late prefetches: the most", "The share of needed prefetches that came late.", "percentunit",
          (Query(worst(f"instance:terrace_prefetched_late:ratio_rate5m{{{NODES}}}"), "{{instance}}"),), of_nodes=True),
    Graph("Steps", "Training steps a second, over the fleet.", "short",
          (Query(f"sum(rate(terrace_steps_total{{{NODES}}}[$__rate_interval]))", "steps"),)),
    Graph("Evictions by reason", "Copies a second, over the fleet.", "short",
          (Query(f"sum by (reason) (rate(terrace_evictions_total{{{NODES}}}[$__rate_interval]))", "{{reason}}"),),
          stacked=True),
))
LINKS = Row("Links", 3, (
    Graph("Throughput by link", "Over the fleet.", "Bps",
          (Query(f"sum by (link) (instance_link:terrace_transfer_bytes:rate5m{{{NODES}}})", "{{link}}"),)),
    Graph("Slow transfers by link", "99 of 100 transfers of the fleet took less.", "s",
          (Query("histogram_quantile(0.99, sum by (link, le) "
                 f"(rate(terrace_transfer_duration_seconds_bucket{{{NODES}}}[$__rate_interval])))", "{{link}}"),)),
    Graph("Queues: the longest", "Transfers that wait for a link.", "short",
          (Query(worst(f"terrace_transfers_queued{{{NODES}}}"), "{{instance}} {{link}}"),), of_nodes=True),
))
BUILD = Row("Restarts, build and configuration", 3, (
    Graph("Restarts by node", "Within the hour.", "short",
          (Query(worst(f"instance:terrace_restarts:resets1h{{{NODES}}}"), "{{instance}}"),), of_nodes=True),
    Graph("Sessions that went on after a restart", "What the present daemons took over from former ones.", "short",
          (Query(worst(f"terrace_restored_sessions{{{NODES}}}"), "{{instance}}"),), of_nodes=True),
    Graph("Versions", "Nodes by the version that they run.", "short",
          (Query(f"count by (version) (terrace_build_info{{{NODES}}})", "{{version}}"),), stacked=True),
    Table("Configured tiers", "Nodes by the tiers and capacities that they have.", "short",
          f'count_values by (tier) ("capacity", terrace_tier_capacity_bytes{{{NODES}}})', "Nodes"),
    Number("Nodes that drain", "They open no new sessions.", "short", f"sum(terrace_draining{{{NODES}}})"),
))


def fleet():
    return page("Terrace fleet", "terrace-fleet", "All nodes that run terraced: which one needs somebody, and for what.",
                (choice("instance", "Node", "label_values(terrace_build_info, instance)", several=True),
                 choice("tenant", "Tenant", "label_values(terrace_sessions, tenant)", several=True)),
                (FAILURES, ALERTS, MEMORY, SPEED, LINKS, BUILD))
