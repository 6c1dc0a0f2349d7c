# SPDX-License-Identifier: Apache-2.0
"""Keeps one terraced for terrace.serve(): a process of its own, so that the daemon and what it made go when the trainer
does, however that ends.

Run as: _keeper.py TRAINER FOLDERS -- COMMAND..., with TRAINER the number of a pidfd of the trainer, and FOLDERS a JSON
list. It starts COMMAND with its output in daemon.log of the first folder, writes "started PID" and, should the daemon end
by itself, "ended STATUS" to stdout, and waits until the trainer writes to stdin, or is gone. Then it stops the daemon and
removes the folders. The end of stdin may not come with the trainer's: what it has forked holds that open, too.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys

STOP_SECONDS = 10
PR_SET_PDEATHSIG = 1


IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)  # here: what the trainer does is the one way to stop


def before_exec() -> None:
    """In the daemon's process: what is ignored here is not ignored there, and SIGTERM comes when this process goes."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def say(line: str) -> None:
    try:
        os.write(1, line.encode() + b"\n")
    except OSError:  # the trainer is gone
        pass


def stop(daemon: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL if that was not enough."""
    if daemon.poll() is None:
        daemon.terminate()
        try:
            daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def keep(trainer: int, folders: list[str], command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    with open(os.path.join(folders[0], "daemon.log"), "wb") as log:
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                  preexec_fn=before_exec, cwd=folders[0])
    try:
        say(f"started {daemon.pid}")
        ended = os.pidfd_open(daemon.pid)
        waiting = select.poll()  # the trainer's number may be one that select() does not take
        for number in (0, trainer, ended):
            waiting.register(number, select.POLLIN)
        ready = [number for number, _ in waiting.poll()]
        if ended in ready:
            say(f"ended {daemon.wait()}")
            waiting.unregister(ended)
        if ready == [ended]:
            waiting.poll()
    finally:
        stop(daemon)


def main() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    folders = json.loads(sys.argv[2])
    try:
        keep(int(sys.argv[1]), folders, sys.argv[4:])
    except OSError as error:
        say(f"failed {error}")
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
