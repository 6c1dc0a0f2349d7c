# SPDX-License-Identifier: Apache-2.0
"""Shows that every panel of the dashboards of deploy/grafana gets data: Debian's own Prometheus scrapes a live daemon under
load, and is asked each panel's query through its API, with the variables put in as Grafana does."""

import json
import math
import re
import sys

import pytest
from grpc_fixtures import BLOCK, HOST, MIB, ROOT, Daemon, Session, run_daemon, wait_until
from live_prometheus import Prometheus, needs, work

sys.path.insert(0, str(ROOT / "tests/deploy"))
import watched  # noqa: E402

PAGES = ("fleet.json", "node.json")
# Panels of what this daemon does not have, with the reason.
WITHOUT_DATA = {
    "Alerts that fire, by node": "nothing is wrong, so no alert fires; the number beside it says 0",
    "Alerts of this node": "nothing is wrong, so no alert fires",
    "The daemon's own GPU memory": "the daemon has no GPU",
}
GRAFANAS_OWN = {"__rate_interval": "60s", "__range": "3h"}  # with its usual scrape interval of 15 s
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
GROUPED = re.compile(r"([\\^$.*+?()\[\]{}|])")
TENSORS = 12  # of 1 MiB; with the 8 MiB of a session's part of memory, so that something is always evicted
SECONDS_SHOWN = 60


@pytest.fixture
def daemon(monkeypatch):
    monkeypatch.setattr(Daemon, "block_keys", 'write_budget = "1TB/day"')
    yield from run_daemon()


def escaped(value: str) -> str:
    """A value in a regular expression in a string of PromQL."""
    return GROUPED.sub(r"\\\\\1", value)


def chosen(prometheus: Prometheus, variable: dict, before: dict[str, str]) -> list[str]:
    """What a variable can be, as Grafana asks for it."""
    series, label = LABEL_VALUES.fullmatch(variable["query"]).groups()
    values = prometheus.ask(f"label/{label}/values", **{"match[]": filled(series, before)})
    assert values, f"{variable['name']} has no values"
    return values


def filled(expression: str, values: dict[str, str]) -> str:
    """An expression with the variables put in."""
    for name, value in {**GRAFANAS_OWN, **values}.items():
        expression = re.sub(rf"\${name}\b", lambda _, value=value: value, expression)
    assert "$" not in expression, expression
    return expression


def choices(prometheus: Prometheus, page: dict) -> list[dict[str, str]]:
    """What the variables of a dashboard stand for: with all of each that allows several, and with each one by name."""
    everything, named = {}, {}
    for variable in watched.variables(page):
        values = chosen(prometheus, variable, everything)
        name = variable["name"]
        if variable["multi"]:
            everything[name] = variable["allValue"]
            named[name] = "(" + "|".join(map(escaped, values)) + ")" if len(values) > 1 else escaped(values[0])
        else:
            everything[name] = named[name] = values[0]
    return [everything, named]


def has_data(prometheus: Prometheus, one: watched.Asked, values: dict[str, str]) -> bool:
    """Whether a query gets a number at least."""
    expression = filled(one.expression, values)
    if one.now:
        found = [series["value"][1] for series in prometheus.query(expression)]
    else:
        found = [value for series in prometheus.query_range(expression, SECONDS_SHOWN) for _, value in series["values"]]
    return any(math.isfinite(float(value)) for value in found)


def step(session: Session, tensors: list[int]) -> None:
    """A step that needs more than fits in memory, with hints for some of it."""
    for tensor in tensors[:3]:
        session.call("SwapOut", place=BLOCK, tensors=[tensor])
        session.call("Prefetch", place=HOST, tensors=[tensor])
        session.read(tensor)
    for tensor in tensors:
        session.read(tensor)
    work(session, tensors[:1])


@needs("prometheus")
def test_every_panel_gets_data(daemon, tmp_path):
    pages = {name: json.loads((watched.DASHBOARDS / name).read_text()) for name in PAGES}
    with daemon.connect() as channel, Session(channel, label="test") as session, \
            Prometheus(tmp_path, daemon.metrics_address()) as prometheus:
        tensors = [session.create(f"t{index}", MIB) for index in range(TENSORS)]
        for tensor in tensors:
            session.write(tensor, b"x" * MIB)
        wait_until(lambda: step(session, tensors) or prometheus.query("terrace_up"), "the first scrape")
        open_queries = {(name, index, one, tuple(values.items()))
                        for name, page in pages.items() for index, values in enumerate(choices(prometheus, page))
                        for one in watched.asked(page) if one.panel not in WITHOUT_DATA}

        def all_answered() -> bool:
            step(session, tensors)
            open_queries.difference_update([query for query in open_queries
                                            if has_data(prometheus, query[2], dict(query[3]))])
            return not open_queries
        try:
            wait_until(all_answered, "data for every panel")
        except AssertionError as error:
            raise AssertionError("\n".join(sorted(f"{name}: {one.panel}: {filled(one.expression, dict(values))}"
                                                  for name, _, one, values in open_queries))) from error
        asked = [one for page in pages.values() for one in watched.asked(page)]
        assert {one.panel for one in asked} >= set(WITHOUT_DATA)
        for one in asked:
            if one.panel in WITHOUT_DATA:  # they can be asked all the same
                prometheus.query(filled(one.expression, choices(prometheus, pages["node.json"])[0]))


@needs("prometheus")
def test_a_panel_without_data_would_have_been_found(daemon, tmp_path):
    with Prometheus(tmp_path, daemon.metrics_address()) as prometheus:
        wait_until(lambda: prometheus.query("terrace_up"), "the first scrape")
        assert has_data(prometheus, watched.Asked("up", 'terrace_up{instance=~"$instance"}', True), {"instance": ".+"})
        for wrong in ("terrace_upp", 'terrace_tier_used_bytes{tier="$tier"}', "0 * terrace_up / 0"):
            assert not has_data(prometheus, watched.Asked("wrong", wrong, False), {"tier": "nothing"})
