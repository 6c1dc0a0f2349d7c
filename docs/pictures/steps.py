# SPDX-License-Identifier: Apache-2.0
"""Draws docs/pictures/steps.png, how long a step of training takes and in how much memory, from the first table of
docs/lab/2026-11-26-training.md: steps.py [OUT.png]. Needs matplotlib."""

import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
LAB = HERE.parent / "lab" / "2026-11-26-training.md"
OURS, OTHERS, PLAIN = "#1b7837", "#b0b0b0", "#707070"


def table() -> dict[str, list[str]]:
    """The first table's rows: what is ours and what is the reference, by the row's name."""
    rows = {}
    for line in LAB.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"`[\w.]+`", cells[0]) and len(cells) == 6:
            rows.setdefault(cells[0].strip("`"), cells)
    return rows


def number(text: str) -> float:
    """The first number of a cell."""
    return float(re.search(r"[\d,]+\.?\d*", text)[0].replace(",", ""))


def bars() -> list[tuple[str, float, str, str]]:
    """Label, seconds, what stands beside the bar, and its colour; the groups from the top."""
    rows = table()

    def pair(row: str) -> tuple[float, float]:
        return number(rows[row][3]), number(rows[row][4])

    def memory(row: str) -> tuple[str, str]:
        return tuple(f"{value / 1024:.1f} GiB" for value in pair(f"{row}.memory"))

    ours, plain = pair("fits_dram")
    _, cpu = pair("dram")
    tiered, nvme = pair("block_85m")
    in_dram, beside_dram = memory("dram")
    in_tiers, beside_nvme = memory("block_85m")
    return [("plain PyTorch", plain, "", PLAIN),
            ("Terrace, all in DRAM", ours, in_dram, OURS),
            ("DeepSpeed, CPU offload", cpu, beside_dram, OTHERS),
            ("Terrace, states on NVMe", tiered, in_tiers, OURS),
            ("DeepSpeed, NVMe offload", nvme, beside_nvme, OTHERS)]


def main() -> None:
    figure, axes = pyplot.subplots(figsize=(8, 2.6), dpi=130)
    for place, (label, seconds, beside, colour) in enumerate(reversed(bars())):
        axes.barh(place, seconds, color=colour, height=0.65)
        said = f"{seconds:.2f} s" + (f", {beside}" if beside else "")
        axes.text(seconds + 0.04, place, said, va="center", fontsize=9)
        axes.text(-0.04, place, label, va="center", ha="right", fontsize=9)
    axes.set_yticks([])
    axes.set_xlim(0, 5.2)
    axes.set_xlabel("seconds a step (less is better), and memory at most", fontsize=9)
    axes.set_title("A GPT of 85 million parameters with AdamW, two cores, one NVMe drive", fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else HERE / "steps.png")


if __name__ == "__main__":
    main()
