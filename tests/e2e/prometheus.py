# SPDX-License-Identifier: Apache-2.0
"""Shows /metrics of a live daemon: clean to promtool, true to what was done, and scraped by Debian's own Prometheus under
load, with the series there in its API."""

import pathlib
import subprocess
import urllib.request

from grpc_fixtures import LIMIT_SECONDS, MIB, daemon, session, wait_until  # noqa: F401
from live_prometheus import Prometheus, needs, work

SERIES = {
    'terrace_tier_capacity_bytes{tier="block"}': 64 * MIB,
    'terrace_tier_capacity_bytes{tier="device:0"}': 8 * MIB,
    'terrace_sessions{tenant="default"}': 1,
    'terrace_sessions{tenant="other"}': 0,
    'terrace_checksum_failures_total{tier="block"}': 0,
    'terrace_io_errors_total{tier="block"}': 0,
    'terrace_retired_bytes{tier="block"}': 0,
    "terrace_up": 1,
}
GROWING = (
    'terrace_transfer_bytes_total{link="block_write"}', 'terrace_transfer_bytes_total{link="block_read"}',
    'terrace_transfers_total{link="host_to_device:0"}', 'terrace_transfer_duration_seconds_count{link="block_read"}',
    'terrace_acquires_total{place="host",result="hit"}', 'terrace_acquires_total{place="host",result="wait"}',
    'terrace_acquire_wait_seconds_count{place="host"}', 'terrace_steps_total',
)


@needs("promtool")
def test_the_exposition_is_clean(daemon, session):  # noqa: F811
    work(session, [session.create("t", MIB)])
    with urllib.request.urlopen(f"http://{daemon.metrics_address()}/metrics", timeout=LIMIT_SECONDS) as answer:
        text = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=LIMIT_SECONDS,
                             check=False)
    assert checked.returncode == 0 and not checked.stdout + checked.stderr, checked.stdout + checked.stderr


def test_the_numbers_are_those_of_what_was_done(daemon, session):  # noqa: F811
    tensor = session.create("t", MIB)
    before = daemon.metrics()
    work(session, [tensor])
    after = daemon.metrics()

    def grew(series):
        return after[series] - before[series]
    assert grew('terrace_transfer_bytes_total{link="block_write"}') == MIB
    assert grew('terrace_transfer_bytes_total{link="block_read"}') == MIB
    assert grew('terrace_transfer_bytes_total{link="host_to_device:0"}') == MIB
    assert grew("terrace_steps_total") == 1
    assert after['terrace_tensors{tenant="default"}'] == 1 and after['terrace_leases{tenant="default"}'] == 0
    assert after['terrace_tensor_bytes{tenant="default"}'] == MIB
    for series, value in SERIES.items():
        assert after[series] == value, series


@needs("prometheus")
def test_prometheus_scrapes_it_under_load(daemon, session, tmp_path: pathlib.Path):  # noqa: F811
    tensors = [session.create(f"t{index}", MIB) for index in range(4)]
    with Prometheus(tmp_path, daemon.metrics_address()) as prometheus:
        def all_there() -> bool:
            work(session, tensors)
            rate = prometheus.query('rate(terrace_transfer_bytes_total{link="block_read"}[1m]) > 0')
            return rate and all(prometheus.query(f"{series} > 0") for series in GROWING)
        wait_until(all_there, "every series of the load in Prometheus")
        assert prometheus.query('up{job="terrace"}')[0]["value"][1] == "1"
        for series, value in SERIES.items():
            assert float(prometheus.query(series)[0]["value"][1]) == value, series
        forbidden = prometheus.query('{__name__=~"terrace_.*", pid!=""} or {__name__=~"terrace_.*", tensor!=""}')
        assert not forbidden
