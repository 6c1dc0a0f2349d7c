# SPDX-License-Identifier: Apache-2.0
"""Each library on a file system without room: it writes 128 MiB where 70 MiB are free, and reads them back.

  peers_full.py FOLDER            runs every case, prints one JSON object a line
  peers_full.py FOLDER CASE       one case, in FOLDER, in this process, which it may end

The file system is a small ext4 in a loop device, mounted in a mount namespace of this process alone, so that the kernel
takes both away when the process ends, however it ends. Where that needs rights that are not there, RLIMIT_FSIZE stands in
for it: then writes beyond it are EFBIG instead of ENOSPC.
"""

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
IMAGE_BYTES = 96 * MIB
NAMESPACED = "PEERS_FULL_NAMESPACED"
LIMIT_SECONDS = 120.0


def main() -> int:
    if len(sys.argv) == 3:
        return _case(pathlib.Path(sys.argv[1]), sys.argv[2])
    folder = pathlib.Path(sys.argv[1])
    if NAMESPACED not in os.environ:
        return _with_own_mounts(folder)
    how = "ext4" if _mounted(folder) else "limit"
    for case in CASES:
        print(json.dumps({"way": case, "room": how} | _outcome(folder, case, how)), flush=True)
    return 0


def _with_own_mounts(folder: pathlib.Path) -> int:
    """This script once more, where it may mount without anybody seeing it."""
    again = [sys.executable, __file__, str(folder)]
    own = ["unshare", "--mount", "--propagation", "private", *again]
    can = shutil.which("unshare") and subprocess.run([*own[:-len(again)], "true"], capture_output=True).returncode == 0
    return subprocess.run(own if can else again, env=os.environ | {NAMESPACED: "1"}).returncode


def _mounted(folder: pathlib.Path) -> bool:
    """Whether the folder now is a file system with exactly ROOM free."""
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


def _leave_room(folder: pathlib.Path) -> None:
    """Takes what is free beyond ROOM."""
    for path in folder.iterdir():
        if path.name == "lost+found":
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()
    state = os.statvfs(folder)
    over = state.f_bavail * state.f_bsize - ROOM
    with open(folder / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, over)


def _outcome(folder: pathlib.Path, case: str, how: str) -> dict[str, Any]:
    """What becomes of a child that tries. Its last line says how far it came."""
    if how == "ext4":
        _leave_room(folder)
    else:
        for path in folder.iterdir():
            path.unlink()
    before = _limited if how == "limit" and case != "terrace" else None
    child = subprocess.run([sys.executable, __file__, str(folder), case], capture_output=True, text=True,
                           preexec_fn=before, timeout=LIMIT_SECONDS)
    said = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    outcome = {"write": "nothing", "read": "not tried", "wrong_bytes": None}
    for each in said:
        outcome |= each
    if child.returncode != 0:
        stage = "read" if outcome["write"] == "success" else "write"
        name = signal.Signals(-child.returncode).name if child.returncode < 0 else f"status {child.returncode}"
        last = [line for line in child.stderr.splitlines() if line.strip()]
        outcome[stage] = f"the process ended by {name}"
        outcome["last_words"] = last[-1][-300:] if last else ""
    # The truth is an error from the write, or else all the bytes from the read.
    refused = outcome["write"].startswith("error")
    outcome["told"] = refused or (outcome["write"] == "success" and outcome["wrong_bytes"] == 0)
    return outcome


def _limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _case(folder: pathlib.Path, case: str) -> int:
    """Writes and reads; a Python exception is an error that was told."""
    tensor = torch.from_numpy(numpy.random.default_rng(1).integers(0, 256, BYTES, dtype=numpy.uint8))
    write, read = CASES[case](folder)
    try:
        write(tensor)
        _say(write="success")
    except Exception as error:
        _say(write=f"error: {type(error).__name__}: {str(error)[:300]}")
        return 0
    try:
        back = read()
        wrong = int(torch.count_nonzero(back != tensor)) if back.numel() == BYTES else BYTES
        _say(read="success", wrong_bytes=wrong)
    except Exception as error:
        _say(read=f"error: {type(error).__name__}: {str(error)[:300]}")
    return 0


Case = tuple[Callable[[torch.Tensor], Any], Callable[[], torch.Tensor]]


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

    return write, read


def _of_way(make: Callable[[pathlib.Path, peers_ways.Content], peers_ways.Way]) -> Callable[[pathlib.Path], Case]:
    """The files' ways, as they are timed."""
    def case(folder: pathlib.Path) -> Case:
        content = peers_ways.Content(1, BYTES, 1)
        way = make(folder / "files", content)

        def write(tensor: torch.Tensor) -> None:
            content.source[0].copy_(tensor)
            way.prepare()
            way.out()

        def read() -> torch.Tensor:
            way.cool()
            way.bring([0])
            return content.target[0]

        return write, read

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

    return write, read


CASES: dict[str, Callable[[pathlib.Path], Case]] = {
    "terrace": _terrace, "deepspeed": _deepspeed,
    **{way.name: _of_way(way) for way in peers_ways.PAGE_CACHE_WAYS},
}


if __name__ == "__main__":
    sys.exit(main())
