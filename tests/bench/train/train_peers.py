# SPDX-License-Identifier: Apache-2.0
"""Trains the same models with plain PyTorch, Terrace, DeepSpeed, Accelerate and torchtune, side by side on this
machine, and says which of Terrace's bars hold.

Contenders take turns, each a process of its own in a memory cgroup of its own (ours with a private terraced in it).
Peers are installed with pip into build/peers, once. A row that cannot be measured is said by name to be missing, and
counts as short. Losses are compared with plain PyTorch's bit for bit. The last line is

  train_peers: rows=N short=N losses_equal=true

rows: those that were asked for. short: those whose bar does not hold, or that are missing. The exit status is 1 if
losses differ, and says nothing of times. In full it takes an hour or two. The model of 1.0 billion parameters, which
--quick trains too while all others are small then, needs 20 GiB of disk.

Each row is printed as soon as it is there. A run that is interrupted says which rows it has not measured, and draws the
others; --resume FILE, with what its --json wrote, goes on with those.
"""

import argparse
import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import memory_room
import suites_billion
import suites_offload
import suites_other
import suites_precision
from contender import Place
from peers import prepare
from report import Report, measured_before
from rows import Missing, Row
from run import Declared, Run
from sizes import FULL, QUICK

ROOT = pathlib.Path(__file__).resolve().parents[3]
PR_SET_CHILD_SUBREAPER = 36
FOLDER = "train_peers."
FULL_NAME = "full, 4"  # another one whenever sizes.FULL changes: rows of other sizes are not to be resumed with

BLOCK_SMALL = suites_offload.block_rows("85m")
BLOCK_MEDIUM = suites_offload.block_rows("350m")
SUITES: list[tuple[list[Declared], str]] = [
    ([suites_other.LOSSES], "losses"),
    ([suites_offload.FITS, *suites_offload.DRAM], "dram"),
    (BLOCK_SMALL, "block_85m"),
    (BLOCK_MEDIUM, "block_350m"),
    (suites_other.ACTIVATIONS, "activations"),
    ([suites_other.FORWARD], "forward"),
    ([suites_billion.TRAINS, suites_billion.EQUAL], "billion"),
    (suites_billion.CHECKPOINT, "checkpoint"),
    ([suites_precision.MASTERS], "masters"),
    (suites_precision.BYTES, "bytes"),
    (suites_precision.HOST_STEP, "host_step"),
    ([suites_precision.ADAPTERS], "qlora"),
    ([suites_precision.AUTO], "auto"),
    (suites_offload.BLOCK_MASTERS, "block_350m_masters"),
    (suites_billion.MASTERS, "billion_masters"),
]


def row_names() -> list[str]:
    """All rows, by name."""
    return [declared.bench for rows, _ in SUITES for declared in rows]


def wanted_suites(names: str | None) -> set[str]:
    """The suites that rows of --rows belong to: names of rows, with or without "train.", or what they begin with."""
    if names is None:
        return {suite for _, suite in SUITES}
    found = set()
    for name in names.split(","):
        full = name if name.startswith("train.") else f"train.{name}"
        of = {suite for rows, suite in SUITES for row in rows if row.bench == full or row.bench.startswith(f"{full}.")}
        if not of:
            raise ValueError(f"there is no row '{name}'; there are {', '.join(row_names())}")
        found |= of
    return found


def rows_of(wanted: set[str]) -> list[Declared]:
    """The rows of suites."""
    return [declared for rows, suite in SUITES if suite in wanted for declared in rows]


def run_suites(run: Run, report: Report, wanted: set[str]) -> None:
    """Those of the suites that are wanted whose rows are not all there. A suite that fails leaves its rows missing."""
    sizes = run.sizes
    wanted = {suite for suite in wanted if not all(report.has(row.bench) for row in rows_of({suite}))}
    ways = {"losses": lambda: suites_other.matrix(run),
            "dram": lambda: suites_offload.in_memory(run),
            "block_85m": lambda: suites_offload.on_block(run, "85m", sizes.small, sizes.rounds),
            "block_350m": lambda: suites_offload.on_block(run, "350m", sizes.medium, sizes.rounds_medium),
            "activations": lambda: suites_other.activations(run),
            "forward": lambda: suites_other.forward(run),
            "billion": lambda: suites_billion.billion(run, "checkpoint" in wanted, True),
            "checkpoint": lambda: None if "billion" in wanted else suites_billion.billion(run, True, False),
            "masters": lambda: suites_precision.masters(run),
            "bytes": lambda: suites_precision.moved_bytes(run),
            "host_step": lambda: suites_precision.host_step(run),
            "qlora": lambda: suites_precision.adapters(run),
            "auto": lambda: suites_precision.auto(run),
            "block_350m_masters": lambda: suites_offload.on_block_with_masters(run),
            "billion_masters": lambda: suites_billion.masters(run)}
    for declared, suite in SUITES:
        if suite in wanted:
            run.say(f"=== {suite}")
            run.losses.clear()
            why = "what it is measured with failed before it"
            try:
                ways[suite]()
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            for row in declared:
                if not report.has(row.bench):
                    run.missing(row, why)


def take_over(before: list[Row], wanted: set[str], report: Report) -> None:
    """Takes the rows of an earlier run, of the suites that are wanted and were measured whole."""
    found = {row.bench: row for row in before}
    for declared, suite in SUITES:
        if suite in wanted and all(row.bench in found for row in declared):
            for row in declared:
                report.add(found[row.bench])


def remove_stale(disk: pathlib.Path) -> None:
    """Removes what runs that were killed have left."""
    for folder in disk.glob(f"{FOLDER}*"):
        number = folder.name.removeprefix(FOLDER)
        if number.isdecimal() and not os.path.exists(f"/proc/{number}"):
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="train_peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    parser.add_argument("--json", action="store_true", help="an object a row on stdout; the table goes to stderr")
    parser.add_argument("--plot", type=pathlib.Path, help="draw ratios and bars into this PNG")
    parser.add_argument("--rows", help="only these, by name or its beginning, separated by commas (all: --list)")
    parser.add_argument("--resume", type=pathlib.Path, metavar="FILE", help="a file that --json of an earlier run was "
                        "written to: what was measured there is taken from it")
    parser.add_argument("--list", action="store_true", help="name the rows and their bars, and end")
    parser.add_argument("--disk", type=pathlib.Path, default=ROOT / "build",
                        help="folder for block files (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="PyTorch's (%(default)s)")
    parser.add_argument("--terraced", default=str(ROOT / "build/release/terraced"), help="the daemon (%(default)s)")
    arguments = parser.parse_args()
    if arguments.list:
        for declared in (row for rows, _ in SUITES for row in rows):
            print(f"{declared.bench:32} <= {declared.bar:<6} {declared.what}")
        return 0
    sizes = "quick" if arguments.quick else FULL_NAME
    try:
        wanted = wanted_suites(arguments.rows)
        before = [] if arguments.resume is None else measured_before(arguments.resume, sizes)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if not os.access(arguments.terraced, os.X_OK):
        parser.error(f"{arguments.terraced} is not there: build it, or name one with --terraced")
    out = sys.stderr if arguments.json else sys.stdout
    report = Report(row_names(), sizes, out, sys.stdout if arguments.json else None)
    take_over(before, wanted, report)
    return compare(arguments, wanted, report, out)


@contextlib.contextmanager
def folder_on(disk: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder for contenders' files, until they are done."""
    remove_stale(disk)
    folder = disk.resolve() / f"{FOLDER}{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interrupt_on_signals() -> None:
    """Lets whatever ends a run end all that it has started."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job is started with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def compare(arguments: argparse.Namespace, wanted: set[str], report: Report, out: TextIO) -> int:
    """Runs what is wanted, and cleans up and reports whatever happens."""
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begun:6.0f} s] {text}", file=out, flush=True)

    interrupt_on_signals()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whatever a contender leaves behind is ours to end
    os.environ["TERRACED"] = os.path.abspath(arguments.terraced)
    interrupted = False
    try:
        with folder_on(arguments.disk) as folder:
            run_suites(prepared(arguments, folder, say, report), report, wanted)
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; everything that was started is ended")
        for declared in rows_of(wanted):
            if not report.has(declared.bench):
                report.add(Missing(declared.bench, declared.what, declared.bar, "interrupted before it was measured"))
    line = report.end(arguments.plot)
    print(line)
    return 130 if interrupted else 0 if line.endswith("=true") else 1


def prepared(arguments: argparse.Namespace, folder: pathlib.Path, say: Callable[[str], None], report: Report) -> Run:
    """The peers, and where contenders run."""
    cgroups = memory_room.find()
    memory_room.remove_stale(cgroups[1])
    peers = prepare(ROOT / "build/peers", say)
    counted = f"cgroups {cgroups[0]}" if cgroups[1] else "PSS, without limits: no memory cgroup can be made here"
    say(f"memory is counted by {counted}; {shutil.disk_usage(folder).free >> 30} GiB of disk are free; "
        f"{arguments.threads} threads; load {os.getloadavg()[0]:.1f}")
    place = Place(peers.python, folder, cgroups, arguments.threads)
    return Run(QUICK if arguments.quick else FULL, place, peers, say, report)


if __name__ == "__main__":
    sys.exit(main())
