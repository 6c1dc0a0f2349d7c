# SPDX-License-Identifier: Apache-2.0
"""Terrace beside what users have today to put tensors on a disk: the same bytes, disk, machine and run.

  python3 tests/bench/peers.py [--folder FOLDER] [--rounds N] [--quick] [--json] [--plot PNG]

The first run makes build/disk-peers/venv (1.5 GiB) of deploy/requirements-peers.txt; DeepSpeed's operator is compiled there. The
daemon is build/release/terraced, or $TERRACED. Rounds take turns: every library, Terrace, every library again in the opposite
order; figures are medians, every byte that comes back is compared, and what is written goes with the run.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / "build/disk-peers"
PYTHON = HOME / "venv/bin/python"
LISTS = [ROOT / "deploy" / name for name in ("requirements.txt", "requirements-peers.txt")]
MIB = 1 << 20
GIB = 1 << 30
DRAWS = 2000
PROCESS_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "DS_SKIP_CUDA_CHECK": "1"}


@dataclasses.dataclass(frozen=True)
class Work:
    """What is moved, and how."""
    name: str
    count: int
    bytes: int
    shuffled: bool  # it comes back in random order


WORKS = (Work("64 MiB tensors", 4, 64 * MIB, False), Work("1 MiB tensors, random order", 256, MIB, True),
         Work("64 KiB tensors, random order", 256, 64 << 10, True))
QUICK_WORKS = (Work("64 MiB tensors", 1, 64 * MIB, False), Work("1 MiB tensors, random order", 32, MIB, True),
               Work("64 KiB tensors, random order", 32, 64 << 10, True))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """Its compilers' output stays under build/, and no accelerator is looked for."""
    path = f"{PYTHON.parent}:{os.environ.get('PATH', '')}"  # ninja
    return os.environ | PROCESS_ENVIRONMENT | {"PATH": path, "TORCH_EXTENSIONS_DIR": str(HOME / "extensions")}


def make_environment() -> None:
    """build/disk-peers/venv, once for each change of the lists."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in LISTS)).hexdigest()
    stamp = HOME / "venv/lists"
    if stamp.exists() and stamp.read_text() == digest:
        return
    say("making build/disk-peers/venv: several minutes, once")
    HOME.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", HOME / "venv"], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lines = [line for path in LISTS for line in path.read_text().splitlines() if line and line[0] != "#"]
    last = [line for line in lines if line.startswith("deepspeed=")]
    subprocess.run([*pip, *(line for line in lines if line not in last)], check=True)
    subprocess.run([*pip, "--no-build-isolation", *last], check=True, env=environment())
    subprocess.run([*pip, "--no-index", "--no-deps", "--no-build-isolation",
                    f"--config-settings=build-dir={HOME / 'client'}", ROOT / "client/python"], check=True)
    stamp.write_text(digest)


def make_folder(parent: str) -> pathlib.Path:
    """A folder of this run's own; those of runs that were killed go."""
    for left in pathlib.Path(parent).glob("peers-work-*"):
        if not pathlib.Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return pathlib.Path(tempfile.mkdtemp(prefix=f"peers-work-{os.getpid()}-", dir=parent)).resolve()


def tune_deepspeed(folder: pathlib.Path, content: Any) -> dict[str, Any]:
    """The fastest of what DeepSpeed's own tuning guide has one vary, by one pass out and in of each."""
    import peers_ways

    found: list[tuple[float, dict[str, Any]]] = []
    for block in (MIB, 8 * MIB):
        for depth in (8, 32, 128):
            for threads in sorted({1, os.cpu_count() or 1, 4}):
                settings = {"block": block, "depth": depth, "single_submit": False, "overlap": True,
                            "threads": threads}
                way = peers_ways.DeepSpeed(folder / "tuning", content, **settings)
                try:
                    way.prepare()
                    seconds = timed(way.out) + timed(way.sync) + timed(lambda: way.bring(range(content.count)))
                finally:
                    way.close()
                    shutil.rmtree(folder / "tuning")
                found.append((seconds, settings))
    return min(found, key=lambda each: each[0])[1]


def timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@dataclasses.dataclass
class Passes:
    """What the rounds gave of one way and one direction."""
    gib_per_second: list[float] = dataclasses.field(default_factory=list)
    cpu_seconds_per_gib: list[float] = dataclasses.field(default_factory=list)
    disk_bytes_per_byte: list[float] = dataclasses.field(default_factory=list)
    wrong_bytes: int = 0


def one_pass(way: Any, number: int, order: list[int], out: Passes, back: Passes, kept: bool) -> None:
    """Out and back in, once. Not kept: a warm-up, which makes the files."""
    content = way.content
    content.stamp(number)
    content.poison()
    way.prepare()
    gib = content.bytes / GIB
    figures: list[tuple[float, float, float]] = []
    for work in (lambda: (way.out(), way.sync()), lambda: way.bring(order)):
        if figures:
            way.cool()
        cpu, disk = way.cpu_seconds(), way.disk_read_bytes()
        seconds = timed(work)
        figures.append((gib / seconds, (way.cpu_seconds() - cpu) / gib,
                        (way.disk_read_bytes() - disk) / content.bytes))
    back.wrong_bytes += way.wrong_bytes()
    for passes, (speed, cpu, disk) in zip((out, back), figures, strict=True):
        if kept:
            passes.gib_per_second.append(speed)
            passes.cpu_seconds_per_gib.append(cpu)
            passes.disk_bytes_per_byte.append(disk)


def median(figures: list[float]) -> float:
    ordered, middle = sorted(figures), len(figures) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def against_itself(figures: list[float]) -> list[float]:
    """95 of a hundred ratios of its medians, with the two figures of a round in either place: as terrace-bench."""
    pairs = list(zip(figures[::2], figures[1::2], strict=True))
    draw = random.Random(1)
    ratios = []
    for _ in range(DRAWS):
        drawn = [draw.choice(pairs) for _ in pairs]
        drawn = [pair if draw.random() < 0.5 else pair[::-1] for pair in drawn]
        ratios.append(median([a for a, _ in drawn]) / median([b for _, b in drawn]))
    ratios.sort()
    return [ratios[DRAWS // 40], ratios[-(DRAWS // 40)]]


def row(work: Work, direction: str, name: str, ours: Passes, theirs: Passes) -> dict[str, Any]:
    """As terrace-bench's: bench, value, unit, reference, reference_value, ratio, bar, better, interval, counts, by."""
    value, reference = median(ours.gib_per_second), median(theirs.gib_per_second)
    interval = against_itself(theirs.gib_per_second)
    counts = [count("CPU seconds a GiB", median(ours.cpu_seconds_per_gib), median(theirs.cpu_seconds_per_gib)),
              count("CPU seconds a GiB, reference", median(theirs.cpu_seconds_per_gib), None),
              count("wrong bytes", ours.wrong_bytes, 0), count("wrong bytes, reference", theirs.wrong_bytes, None)]
    if direction == "in":
        counts.append(count("bytes read from the disk a byte", median(ours.disk_bytes_per_byte), 1.0, "higher"))
        counts.append(count("bytes read from the disk a byte, reference", median(theirs.disk_bytes_per_byte), None))
    ratio = value / reference
    steady = interval[0] <= ratio <= interval[1] and all(held(each) for each in counts)
    return {"bench": f"peers.{work.name}.{direction}.{name}", "value": value, "unit": "GiB/s", "reference": name,
            "reference_value": reference, "ratio": ratio, "bar": 1.0, "better": "higher", "interval": interval,
            "counts": counts, "by": "ratio" if ratio >= 1 else "interval" if steady else None}


def count(name: str, value: float, limit: float | None, better: str = "lower") -> dict[str, Any]:
    return {"name": name, "value": value, "limit": limit, "better": better}


def held(of: dict[str, Any]) -> bool:
    if of["limit"] is None:
        return True
    return of["value"] <= of["limit"] if of["better"] == "lower" else of["value"] >= of["limit"]


def measure(work: Work, folder: pathlib.Path, rounds: int) -> Iterator[dict[str, Any]]:
    import peers_ways

    content = peers_ways.Content(work.count, work.bytes, 1)
    settings = tune_deepspeed(folder, content)
    say(f"{work.name}: DeepSpeed tuned is {settings}")
    makers: dict[str, Callable[[], Any]] = {
        "deepspeed": lambda: peers_ways.DeepSpeed(folder / "defaults", content),
        "deepspeed tuned": lambda: peers_ways.DeepSpeed(folder / "tuned", content, **settings),
        **{way.name: lambda way=way: way(folder / way.name.replace(" ", "-"), content)
           for way in peers_ways.PAGE_CACHE_WAYS},
    }
    ways: dict[str, Any] = {}
    try:
        for name, make in makers.items():
            ways[name] = make()
        ways["terrace"] = peers_ways.Terrace(folder / "terrace", content)
        out, back = ({name: Passes() for name in ways} for _ in range(2))
        order = list(range(work.count))
        number = 0
        for turn in range(rounds + 1):  # the first one warms up
            turns = [*makers, "terrace", *reversed(makers)]
            if work.shuffled:
                random.Random(turn).shuffle(order)
            for name in turns:
                number += 1
                one_pass(ways[name], number, order, out[name], back[name], turn > 0)
            say(f"{work.name}: round {turn} of {rounds}")
        for name in makers:
            yield row(work, "out", name, out["terrace"], out[name])
            yield row(work, "in", name, back["terrace"], back[name])
    finally:
        for way in ways.values():
            way.close()
        for path in folder.iterdir():
            shutil.rmtree(path)


def full(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """What each does on a file system without room. A library that is told of it, or gives all bytes back, has 1."""
    say("a file system with 70 MiB of room for 128 MiB")
    inner = folder / "full"
    inner.mkdir()
    done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("peers_full.py"), inner],
                          stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        outcome = json.loads(line)
        told = int(outcome.pop("told"))
        yield {"bench": f"peers.full.{outcome['way']}", "value": told, "unit": "told the truth", "reference": None,
               "reference_value": None, "ratio": told, "bar": 1, "better": "higher", "interval": None, "counts": [],
               "by": "ratio" if told else None, "outcome": outcome}
    if done.returncode != 0:
        raise SystemExit(f"peers.py: peers_full.py ended with status {done.returncode}; what came before it stands")


ROOMS = {"ext4": "128 MiB where there is room for 70 MiB",
         "limit": "128 MiB where files may have 70 MiB (nothing could be mounted)"}


def speeds_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in rows if each["unit"] == "GiB/s"]


def show(rows: list[dict[str, Any]]) -> None:
    """A Markdown table of each part that there is."""
    if speeds := speeds_of(rows):
        show_speeds(speeds)
    if outcomes := [each["outcome"] for each in rows if "outcome" in each]:
        show_outcomes(outcomes)


def show_speeds(speeds: list[dict[str, Any]]) -> None:
    print("| work | beside | Terrace / it | it against itself | CPU a GiB, Terrace / it | wrong bytes |")
    print("|---|---|---|---|---|---|")
    for each in speeds:
        _, work, direction, name = each["bench"].split(".", 3)
        counts = {one["name"]: one["value"] for one in each["counts"]}
        low, high = each["interval"]
        cpu, other = counts["CPU seconds a GiB"], counts["CPU seconds a GiB, reference"]
        print(f"| {work}, {direction} | {name} | {each['ratio']:.2f} | {low:.2f} to {high:.2f} | "
              f"{cpu / other if other else float('nan'):.2f} | {counts['wrong bytes']}, {counts['wrong bytes, reference']} |")


def show_outcomes(outcomes: list[dict[str, Any]]) -> None:
    print(f"\n| {ROOMS[outcomes[0]['room']]} | to write | to read |\n|---|---|---|")
    for outcome in outcomes:
        wrong = f", {outcome['wrong_bytes']} bytes wrong" if outcome["wrong_bytes"] else ""
        print(f"| {outcome['way']} | {outcome['write']} | {outcome['read']}{wrong} |")


def plot(rows: list[dict[str, Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    speeds = speeds_of(rows)
    figure, axes = pyplot.subplots(figsize=(9, 0.3 * len(speeds) + 1.2), layout="constrained")
    places = range(len(speeds))
    axes.barh(places, [each["ratio"] for each in speeds], color="tab:blue")
    axes.barh(places, [each["interval"][1] - each["interval"][0] for each in speeds],
              left=[each["interval"][0] for each in speeds], height=0.25, color="tab:gray", label="it against itself")
    axes.axvline(1, color="black", linewidth=1)
    axes.set(yticks=places, yticklabels=[each["bench"].removeprefix("peers.") for each in speeds], xscale="log",
             xlabel="Terrace's speed / the library's (log)")
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", default=str(HOME), help="on the disk to be measured (default: build/disk-peers)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default: 5)")
    parser.add_argument("--quick", action="store_true", help="two rounds of few bytes, to show that it runs")
    parser.add_argument("--json", action="store_true", help="one object a row instead of the tables")
    parser.add_argument("--plot", metavar="PNG", help="a picture of the ratios")
    return parser.parse_args()


def measure_all(options: argparse.Namespace, folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    for work in QUICK_WORKS if options.quick else WORKS:
        yield from measure(work, folder, 2 if options.quick else options.rounds)
    yield from full(folder)


def main() -> int:
    options = arguments()
    make_environment()
    if pathlib.Path(sys.prefix).resolve() != (HOME / "venv").resolve():
        os.execve(PYTHON, [str(PYTHON), *sys.argv], environment())
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries say things there too, while they are measured
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is below is cleaned up
    folder = make_folder(options.folder)
    rows = []
    try:
        for each in measure_all(options, folder):
            rows.append(each)
            if options.json:
                print(json.dumps(each), file=results, flush=True)
    finally:  # what was measured is shown, whatever came after it
        shutil.rmtree(folder)
        if not options.json:
            with contextlib.redirect_stdout(results):
                show(rows)
        results.close()
        if options.plot and speeds_of(rows):
            plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
