# SPDX-License-Identifier: Apache-2.0
"""What the rules of deploy/prometheus and the dashboards of deploy/grafana ask for: the names in an expression, and which
of them neither docs/reference/metrics.md nor a recording rule has."""

import dataclasses
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus"
DASHBOARDS = ROOT / "deploy/grafana"
PAGE = ROOT / "docs/reference/metrics.md"

# What Prometheus itself gives.
PROMETHEUS_METRICS = {"up", "ALERTS"}
PROMETHEUS_LABELS = {"job", "instance", "le", "alertname", "alertstate", "severity"}
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}  # of PromQL, where a metric might stand
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

ROW = re.compile(r"\| (`[a-z].*?) \| (counter|gauge|histogram) \| (.*?) \|")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
MATCHERS = re.compile(r"\{([^{}]*)\}")
NAME = re.compile(r"(?<![\w:$.])[a-zA-Z_:][\w:]*\b(?!\s*\()")


def rules(file: str) -> list[dict]:
    """The rules of one file, in order."""
    return [rule for group in yaml.safe_load((RULES / file).read_text())["groups"] for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules("records.yml")}


def documented() -> tuple[set[str], set[str]]:
    """The series that the reference has, by name, and the labels that it has for them."""
    series, labels = set(), set()
    for names, kind, has in ROW.findall(PAGE.read_text()):
        series |= {name + suffix for name in re.findall(r"`(\w+)`", names) for suffix in SUFFIXES[kind]}
        labels |= {label.strip() for label in has.split(",") if label.strip()}
    return series, labels


def named(expression: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that an expression of PromQL names."""
    bare = STRING.sub('""', expression)
    inside = MATCHERS.findall(bare) + GROUPING.findall(bare)
    labels = {label for text in inside for label in re.findall(r"[a-zA-Z_]\w*", text)}
    rest = re.sub(r"\[[^\]]*\]", "", MATCHERS.sub("", GROUPING.sub("", bare)))
    metrics = {name for name in NAME.findall(rest) if name.lower() not in WORDS}
    return metrics, labels


def unknown(expression: str) -> set[str]:
    """What an expression names, and nothing has."""
    series, known_labels = documented()
    metrics, labels = named(expression)
    return (metrics - series - recorded() - PROMETHEUS_METRICS) | (labels - known_labels - PROMETHEUS_LABELS)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A query of a panel."""
    panel: str
    expression: str
    now: bool  # and not over the dashboard's time


def asked(page: dict) -> list[Asked]:
    """What the panels of a dashboard ask Prometheus, in order."""
    return [Asked(panel["title"], target["expr"], target["instant"]) for panel in page["panels"]
            for target in panel.get("targets", [])]


def variables(page: dict) -> list[dict]:
    """The variables of a dashboard that stand for a label's values, in order."""
    return [one for one in page["templating"]["list"] if one["type"] == "query"]
