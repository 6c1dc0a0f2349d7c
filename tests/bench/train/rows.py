# SPDX-License-Identifier: Apache-2.0
"""A row of the comparison: what was measured, against what, and whether its bar holds; as terrace-bench prints them."""

import dataclasses
import random
import statistics
from collections.abc import Sequence

DRAWS = 4000
SEED = 1979


@dataclasses.dataclass
class Count:
    """A figure that does not depend on the clock, and what it must not pass (None: shown only). required: where it passes
    its limit the row's bar does not hold, whatever the ratio is."""

    name: str
    value: float
    limit: float | None = None
    better: str = "lower"
    required: bool = False

    @property
    def kept(self) -> bool:
        """Whether it has a limit, and is within it."""
        return self.limit is not None and within(self.value, self.limit, self.better)


def within(value: float, limit: float, better: str) -> bool:
    """Whether a figure is on the good side of a limit, or on it."""
    return value >= limit if better == "higher" else value <= limit


@dataclasses.dataclass
class Row:
    """One measured row. The bar bounds value / reference_value, or the value itself where there is no reference."""

    bench: str
    what: str  # for people
    value: float
    unit: str
    bar: float
    reference: str | None = None
    reference_value: float | None = None
    better: str = "lower"
    interval: tuple[float, float] | None = None  # the reference against itself
    counts: list[Count] = dataclasses.field(default_factory=list)
    losses_equal: bool | None = None  # whether those behind it were plain PyTorch's; None: none were compared

    @property
    def ratio(self) -> float:
        """What the bar bounds."""
        return self.value if self.reference_value is None else self.value / self.reference_value

    @property
    def by(self) -> str | None:
        """By what the bar holds. "ratio": the ratio reaches it. "interval": the ratio is one that the reference had
        against itself, and the counts are all within their limits, of which there is one at least. None: short, as it
        is in any case where a required count is not within its limit."""
        if not all(count.kept for count in self.counts if count.required):
            return None
        if within(self.ratio, self.bar, self.better):
            return "ratio"
        limited = [count for count in self.counts if count.limit is not None]
        if (limited and self.interval is not None and self.interval[0] <= self.ratio <= self.interval[1]
                and all(count.kept for count in limited)):
            return "interval"
        return None

    def to_json(self) -> dict[str, object]:
        """The object that --json prints."""
        return {"bench": self.bench, "value": self.value, "unit": self.unit, "reference": self.reference,
                "reference_value": self.reference_value, "ratio": self.ratio, "bar": self.bar, "better": self.better,
                "interval": None if self.interval is None else list(self.interval),
                "counts": [dataclasses.asdict(count) for count in self.counts], "by": self.by, "what": self.what,
                "losses_equal": self.losses_equal}

    @classmethod
    def from_json(cls, said: dict[str, object]) -> "Row":
        """The row that to_json() gave an object of."""
        fields = {field.name: said[field.name] for field in dataclasses.fields(cls)}
        interval = said["interval"]
        return cls(**fields | {"interval": None if interval is None else tuple(interval),
                               "counts": [Count(**count) for count in said["counts"]]})


@dataclasses.dataclass
class Missing:
    """A row that could not be measured here, and why. Its bar does not hold."""

    bench: str
    what: str
    bar: float
    reason: str
    losses_equal: bool | None = None
    by = None

    def to_json(self) -> dict[str, object]:
        """The object that --json prints: what was not measured is null, and `missing` says why."""
        return {"bench": self.bench, "value": None, "unit": None, "reference": None, "reference_value": None,
                "ratio": None, "bar": self.bar, "better": "lower", "interval": None, "counts": [], "by": None,
                "what": self.what, "losses_equal": self.losses_equal, "missing": self.reason}


@dataclasses.dataclass
class Losses:
    """Losses of one contender against plain PyTorch's, by step."""

    who: str
    compared: int
    first_difference: int | None  # the step; None: all equal

    @property
    def equal(self) -> bool:
        """Whether all that both have are the same bits; there must be one."""
        return self.compared > 0 and self.first_difference is None


def compare_losses(who: str, ours: dict[int, str], plain: dict[int, str]) -> Losses:
    """Compares losses, by step, as float.hex() writes them."""
    both = sorted(ours.keys() & plain.keys())
    return Losses(who, len(both), next((step for step in both if ours[step] != plain[step]), None))


def against_itself(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Where 95 of a hundred ratios lie that as many rounds give when the reference stands in for what is measured:
    medians of rounds drawn with replacement (bootstrap; Efron 1979), a round's two measurements in either order."""
    chance = random.Random(SEED)
    ratios = []
    for _ in range(DRAWS):
        drawn = [chance.choice(pairs) if chance.random() < 0.5 else tuple(reversed(chance.choice(pairs)))
                 for _ in pairs]
        ratios.append(statistics.median(pair[0] for pair in drawn) / statistics.median(pair[1] for pair in drawn))
    ratios.sort()
    return ratios[DRAWS // 40], ratios[DRAWS - 1 - DRAWS // 40]


def figure(value: float) -> str:
    """With as many digits as say something: "0.973", "51.2", "1,234,567"."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def to_text(row: Row | Missing) -> list[str]:
    """The row's lines for people."""
    sign = "<=" if not isinstance(row, Row) or row.better == "lower" else ">="
    bar = f"{sign} {figure(row.bar)}"
    if isinstance(row, Missing):
        return [f"{row.bench:32} {'-':>9} {bar:>14}  missing", f"    {row.what}", f"    {row.reason}"]
    held = {"ratio": "holds", "interval": "holds by the interval", None: "SHORT"}[row.by]
    lines = [f"{row.bench:32} {figure(row.ratio):>9} {bar:>14}  {held}", f"    {row.what}"]
    if row.reference_value is not None:
        spread = "" if row.interval is None else f"; against itself {row.interval[0]:.3f} to {row.interval[1]:.3f}"
        lines.append(f"    {figure(row.value)} {row.unit}; {row.reference}: {figure(row.reference_value)} {row.unit}"
                     f"{spread}")
    for count in row.counts:
        limit = "" if count.limit is None else f" ({'<=' if count.better == 'lower' else '>='} {figure(count.limit)}"
        required = ", required" if count.required else ""
        lines.append(f"    {count.name}: {figure(count.value)}{limit and limit + required + ')'}")
    return lines


def last_line(rows: Sequence[Row | Missing]) -> str:
    """Counts everything. A row that is missing is short; losses that nobody compared are not equal."""
    compared = [row.losses_equal for row in rows if row.losses_equal is not None]
    equal = bool(compared) and all(compared)
    return (f"train_peers: rows={len(rows)} short={sum(row.by is None for row in rows)} "
            f"losses_equal={'true' if equal else 'false'}")
