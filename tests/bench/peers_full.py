# SPDX-License-Identifier: Apache-2.0
"""Each library on a file system without room: it writes 128 MiB where 70 MiB are free, and reads them back.

  peers_full.py FOLDER                      runs every case, prints one JSON object a line
  peers_full.py FOLDER --no-mount           the same as where nothing may be mounted
  peers_full.py FOLDER --cases A,B          these alone

The file system is a small ext4 in a loop device, mounted in a mount namespace of this process alone, so that the kernel
takes both away when the process ends, however it ends. Where that needs rights that are not there, RLIMIT_FSIZE stands in
for it: then writes beyond it are EFBIG instead of ENOSPC. Terrace's daemon, which makes its file in full before anything is
written, is put under that limit once it serves, so that its writes fail, too.
"""

import argparse
import atexit
import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import torch

import peers_ways

MIB = 1 << 20
BYTES = 128 * MIB
ROOM = 70 * MIB
PART = 48 * MIB  # of a tensor that a block tier made in that room takes
IMAGE_BYTES = 96 * MIB
NAMESPACED = "PEERS_FULL_NAMESPACED"
LIMIT_SECONDS = 120.0


def main() -> int:
    options = _arguments()
    if options.case:
        return _try(CASES[options.room][options.case](options.folder))
    if not options.no_mount and NAMESPACED not in os.environ:
        return _with_own_mounts()
    room = "ext4" if not options.no_mount and _mounted(options.folder) else "limit"
    if unknown := set(options.cases or ()) - set(CASES[room]):
        raise SystemExit(f"peers_full.py: there is no case {min(unknown)}; there are {', '.join(CASES[room])}")
    for case in options.cases or CASES[room]:
        print(json.dumps({"way": case, "room": room} | _outcome(options.folder, case, room)), flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="an empty one, which is filled and emptied")
    parser.add_argument("--no-mount", action="store_true", help="a limit on the size of files, also where ext4 can be had")
    parser.add_argument("--cases", type=lambda names: names.split(","), help="some alone, with commas between")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one, in this process, which it may end
    parser.add_argument("--room", choices=tuple(CASES), help=argparse.SUPPRESS)
    return parser.parse_args()


def _with_own_mounts() -> int:
    """This script once more, where it may mount without anybody seeing it."""
    again = [sys.executable, *sys.argv]
    own = ["unshare", "--mount", "--propagation", "private"]
    can = shutil.which("unshare") and subprocess.run([*own, "true"], capture_output=True).returncode == 0
    return subprocess.run([*own, *again] if can else again, env=os.environ | {NAMESPACED: "1"}).returncode


def _mounted(folder: pathlib.Path) -> bool:
    """Whether the folder now is a file system of its own, of little more than ROOM."""
    image = folder.with_suffix(".ext4")
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if mkfs is None:
        return False
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    commands = ([mkfs, "-q", "-F", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(folder)])
    done = all(subprocess.run(command, capture_output=True).returncode == 0 for command in commands)
    image.unlink()  # the mount holds it
    return done


def _empty(folder: pathlib.Path) -> None:
    for path in folder.iterdir():
        if path.name == "lost+found":
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _leave_room(folder: pathlib.Path) -> None:
    """Takes what is free beyond ROOM."""
    os.sync()
    state = os.statvfs(folder)
    over = state.f_bavail * state.f_bsize - ROOM
    with open(folder / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, over)


def _outcome(folder: pathlib.Path, case: str, room: str) -> dict[str, Any]:
    """What becomes of a child that tries. What it says last shows how far it came."""
    _empty(folder)
    if room == "ext4":
        _leave_room(folder)
    before = _limited if room == "limit" and case != "terrace" else None  # its daemon is, by _terrace_limited
    command = [sys.executable, "-B", __file__, str(folder), "--room", room, "--case", case]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)
    try:
        said, last_words = child.communicate(timeout=LIMIT_SECONDS)
        end = "" if child.returncode == 0 else f"the process ended by {_ended_by(child.returncode)}"
    except subprocess.TimeoutExpired:
        child.kill()
        said, last_words = child.communicate()
        end = f"no end within {LIMIT_SECONDS:.0f} s"
    outcome: dict[str, Any] = {"write": "nothing", "read": "not tried", "wrong_bytes": None}
    for line in said.splitlines():
        outcome |= json.loads(line) if line.startswith("{") else {}
    if end:
        outcome["read" if outcome["write"] == "success" else "write"] = end
        last = [line for line in last_words.splitlines() if line.strip()]
        outcome["last_words"] = last[-1][-300:] if last else ""
    # The truth is an error from the write, or else all the bytes from the read.
    refused = outcome["write"].startswith("error")
    outcome["told"] = refused or (outcome["write"] == "success" and outcome["wrong_bytes"] == 0)
    return outcome


def _ended_by(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def _limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """Raises what it is told."""
    write: Callable[[torch.Tensor], Any]
    read: Callable[[], torch.Tensor]
    bytes: int = BYTES


def _try(case: Case) -> int:
    """Writes and reads; a Python exception is an error that was told."""
    tensor = torch.from_numpy(numpy.random.default_rng(1).integers(0, 256, case.bytes, dtype=numpy.uint8))
    try:
        case.write(tensor)
        _say(write="success")
    except Exception as error:
        _say(write=f"error: {type(error).__name__}: {str(error)[:300]}")
        return 0
    try:
        back = case.read()
        wrong = int(torch.count_nonzero(back != tensor)) if back.numel() == case.bytes else case.bytes
        _say(read="success", wrong_bytes=wrong)
    except Exception as error:
        _say(read=f"error: {type(error).__name__}: {str(error)[:300]}")
    return 0


def _deepspeed(folder: pathlib.Path) -> Case:
    handle = peers_ways.deepspeed_handle(MIB, 8, False, True, 1)
    path = str(folder / "tensor")
    pinned = handle.new_cpu_locked_tensor(BYTES, torch.empty(0, dtype=torch.uint8))

    def write(tensor: torch.Tensor) -> None:
        pinned.copy_(tensor)
        ended = handle.sync_pwrite(pinned, path)
        if ended != 1:
            raise OSError(f"sync_pwrite returned {ended}")

    def read() -> torch.Tensor:
        pinned.fill_(peers_ways.POISON)
        ended = handle.sync_pread(pinned, path)
        if ended != 1:
            raise OSError(f"sync_pread returned {ended}")
        return pinned

    return Case(write, read)


def _of_way(make: Callable[[pathlib.Path, peers_ways.Content], peers_ways.Way]) -> Callable[[pathlib.Path], Case]:
    """The files' ways, as they are timed."""
    def case(folder: pathlib.Path) -> Case:
        content = peers_ways.Content(1, BYTES, 1)
        way = make(folder / "files", content)

        def write(tensor: torch.Tensor) -> None:
            content.source[0].copy_(tensor)
            way.prepare()
            way.out()
            way.sync()

        def read() -> torch.Tensor:
            way.cool()
            way.bring([0])
            return content.target[0]

        return Case(write, read)

    return case


def _terrace(folder: pathlib.Path) -> Case:
    """A block tier of 64 MiB fits, and the tensor does not; one of 128 MiB does not fit, and the daemon says so."""
    import terrace

    def write(tensor: torch.Tensor) -> None:
        refusals = []
        for capacity in ("128MiB", "64MiB"):
            try:
                with terrace.serve(memory="192MiB", block=f"{folder}:{capacity}") as client:
                    made = client.from_array("tensor", tensor)
                    client.swap_out([made])
            except terrace.Error as error:
                refusals.append(f"a block tier of {capacity}: {type(error).__name__}: {error}")
        if len(refusals) == 2:
            raise OSError("; ".join(refusals))

    def read() -> torch.Tensor:
        raise OSError("nothing was written")

    return Case(write, read)


def _terrace_before(folder: pathlib.Path) -> Case:
    """A block tier that fitted, on a file system that others have filled since."""
    def fill(_daemon: int) -> None:
        state = os.statvfs(folder)
        if state.f_blocks * state.f_frsize > IMAGE_BYTES:
            raise SystemExit(f"peers_full.py: {folder} is no file system of this test's own")
        with open(folder / "others", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(MIB)):
                pass

    return _terrace_once_it_serves(folder, "64MiB", PART, fill)


def _terrace_limited(folder: pathlib.Path) -> Case:
    """A block tier that may be written up to ROOM."""
    def limit(daemon: int) -> None:
        resource.prlimit(daemon, resource.RLIMIT_FSIZE, (ROOM, ROOM))

    return _terrace_once_it_serves(folder, "160MiB", BYTES, limit)


def _terrace_once_it_serves(folder: pathlib.Path, capacity: str, size: int, then: Callable[[int], None]) -> Case:
    """`then` has the daemon's process, before anything is written. The daemon ends with this process."""
    import terrace

    serving = terrace.serve(memory="192MiB", block=f"{folder}:{capacity}")
    client = serving.__enter__()
    atexit.register(serving.__exit__, None, None, None)

    def write(tensor: torch.Tensor) -> None:
        made = client.from_array("tensor", tensor)
        then(client.daemon_pid)
        client.swap_out([made])

    def read() -> torch.Tensor:
        with client.tensors()["tensor"].read() as lease:
            return torch.from_numpy(lease.numpy().copy())

    return Case(write, read, size)


PEERS: dict[str, Callable[[pathlib.Path], Case]] = {
    "deepspeed": _deepspeed, **{way.name: _of_way(way) for way in peers_ways.PAGE_CACHE_WAYS}}
CASES: dict[str, dict[str, Callable[[pathlib.Path], Case]]] = {
    "ext4": {"terrace": _terrace, "terrace: 48 MiB to a file made before": _terrace_before} | PEERS,
    "limit": {"terrace": _terrace_limited} | PEERS}


if __name__ == "__main__":
    sys.exit(main())
