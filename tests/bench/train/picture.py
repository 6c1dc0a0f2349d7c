# SPDX-License-Identifier: Apache-2.0
"""The picture: each row's ratio as a part of its bar."""

import pathlib
from collections.abc import Sequence

from rows import Missing, Row, figure


def draw(path: pathlib.Path, rows: Sequence[Row | Missing]) -> None:
    """Draws a bar a row into a PNG: green where the bar holds, red where not; what is missing is named."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = list(reversed(rows))
    figure_, axes = pyplot.subplots(figsize=(10, 1.2 + 0.42 * len(shown)), constrained_layout=True)
    for place, row in enumerate(shown):
        if isinstance(row, Missing):
            axes.text(0.02, place, "missing", va="center", color="0.4")
            continue
        part = row.ratio / row.bar if row.bar else float(row.ratio > 0) * 2
        axes.barh(place, min(part, 3.0), color="tab:green" if row.by else "tab:red", height=0.6)
        axes.text(min(part, 3.0) + 0.02, place, f"{figure(row.ratio)} (bar {figure(row.bar)})", va="center", fontsize=8)
    axes.axvline(1.0, color="0.2", linewidth=1)
    axes.set_yticks(range(len(shown)), [row.bench for row in shown], fontsize=8)
    axes.set(xlabel="of the bar (less is better)", xlim=(0, 3.6), title="Training, side by side")
    axes.grid(axis="x", alpha=0.3)
    figure_.savefig(path, dpi=110)
    pyplot.close(figure_)
