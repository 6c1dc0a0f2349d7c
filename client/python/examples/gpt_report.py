# SPDX-License-Identifier: Apache-2.0
"""What train_gpt.py shows: progress as it goes, the daemon's own numbers, a table and a picture at the end."""

import dataclasses
import re
import sys
import threading
import time
import urllib.request

from gpt_model import Step

SAMPLE_SECONDS = 0.25
SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """One reading of the daemon's /metrics."""

    def __init__(self, url: str):
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        self.series = [(name, dict(LABEL.findall(labels or "")), float(value))
                       for name, labels, value in SERIES.findall(text)]

    def sum(self, name: str, **labels: str) -> float:
        """The sum of a name's series that have these labels; a value that ends in * matches what begins so."""
        return sum(value for found, has, value in self.series if found == name and all(
            has.get(key, "").startswith(wanted[:-1]) if wanted.endswith("*") else has.get(key) == wanted
            for key, wanted in labels.items()))

    def by(self, name: str, label: str) -> dict[str, float]:
        """A name's values by one label."""
        return {has[label]: value for found, has, value in self.series if found == name and label in has}


@dataclasses.dataclass
class Traffic:
    """What the daemon did between two readings."""

    h2d_bytes: int
    d2h_bytes: int
    block_read_bytes: int
    block_write_bytes: int
    checksum_failures: int
    hits: int
    waits: int
    wait_seconds: float

    @staticmethod
    def between(before: Metrics, after: Metrics) -> "Traffic":
        def grown(name: str, **labels: str) -> float:
            return after.sum(name, **labels) - before.sum(name, **labels)

        def over(link: str) -> int:
            return int(grown("terrace_transfer_bytes_total", link=link))

        return Traffic(over("host_to_device*"), over("device_to_host*"), over("block_read*"), over("block_write*"),
                       int(grown("terrace_checksum_failures_total")),
                       int(grown("terrace_acquires_total", result="hit")),
                       int(grown("terrace_acquires_total", result="wait")),
                       grown("terrace_acquire_wait_seconds_sum"))

    @property
    def hit_ratio(self) -> float:
        """Leases that were granted without a wait, of all that were granted."""
        return self.hits / max(1, self.hits + self.waits)


class Occupancy:
    """Samples how full each tier is, on a thread of its own, while it is entered."""

    def __init__(self, url: str):
        self.samples: list[tuple[float, dict[str, float]]] = []
        self.capacity = Metrics(url).by("terrace_tier_capacity_bytes", "tier")
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        begin = time.monotonic()
        while not self._over.is_set():
            self.samples.append((time.monotonic() - begin, Metrics(self._url).by("terrace_tier_used_bytes", "tier")))
            self._over.wait(SAMPLE_SECONDS)

    def __enter__(self) -> "Occupancy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Progress:
    """A bar with loss and step time: redrawn on a terminal, a line every few steps elsewhere."""

    WIDTH = 30

    def __init__(self, title: str, steps: int):
        self._title = title
        self._steps = steps
        self._terminal = sys.stdout.isatty()
        self._begin = time.monotonic()

    def show(self, step: Step) -> None:
        done = step.number + 1
        spent = time.monotonic() - self._begin
        filled = self.WIDTH * done // self._steps
        line = (f"{self._title} [{'#' * filled}{'.' * (self.WIDTH - filled)}] {done}/{self._steps}"
                f"  loss {step.loss:.4f}  {step.seconds:.2f} s/step  {spent * (self._steps - done) / done:.0f} s left")
        if self._terminal:
            print(f"\r{line}\x1b[K", end="\n" if done == self._steps else "", flush=True)
        elif done == self._steps or done == 1 or done % max(1, self._steps // 10) == 0:
            print(line, flush=True)


def print_table(rows: list[tuple[str, str]]) -> None:
    """Names and values in two columns."""
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    rule = f"+-{'-' * widths[0]}-+-{'-' * widths[1]}-+"
    print(rule)
    for name, value in rows:
        print(f"| {name:<{widths[0]}} | {value:>{widths[1]}} |")
    print(rule, flush=True)


def mebibytes(count: float) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def draw(path: str, losses: list[float], reference: list[float], occupancy: Occupancy) -> None:
    """The picture: loss by step of both runs, and how full each tier was over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 8), constrained_layout=True)
    above.plot(range(1, len(reference) + 1), reference, color="0.6", linewidth=5, label="everything in memory")
    above.plot(range(1, len(losses) + 1), losses, color="tab:red", linewidth=1.5, label="through Terrace")
    above.set(title="Loss", xlabel="step", ylabel="nats a byte")
    above.xaxis.get_major_locator().set_params(integer=True)
    above.legend()
    times = [seconds for seconds, _ in occupancy.samples]
    for tier, capacity in occupancy.capacity.items():
        used = [sample.get(tier, 0) / (1 << 20) for _, sample in occupancy.samples]
        below.plot(times, used, label=f"{tier} (of {mebibytes(capacity)})")
    below.set(title="Tiers", xlabel="seconds", ylabel="MiB in use", ylim=(0, None))
    below.legend()
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
