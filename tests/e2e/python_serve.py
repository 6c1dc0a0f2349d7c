# SPDX-License-Identifier: Apache-2.0
"""Shows that a private daemon comes up for one program and goes with everything it made, however the program ends, and
that what cannot work says why."""

import os
import pathlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from python_fixtures import LIMIT_SECONDS, disk, run_program, wait_until  # noqa: F401 (a fixture)

import terrace
from terrace._serve import find_terraced

SERVE = """
import sys, time, terrace
with terrace.serve("16MiB", block=sys.argv[1] + ":64MiB") as client:
    client.from_array("t", [1, 2, 3])
    print(client.daemon_pid, client.log.parent, flush=True)
"""

# A child, which has all that the program has open, lives until stdin ends, which is the test's.
FORK = SERVE.replace("    print", "    if os.fork() == 0: os._exit(len(os.read(0, 1)))\n    print").replace("sys", "os, sys", 1)


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_leaves_nothing_behind(disk):
    with terrace.serve("16MiB", block=f"{disk}:64MiB") as client:
        folder, pid = client.log.parent, client.daemon_pid
        assert runs(pid) and folder.stat().st_mode & 0o777 == 0o700
        assert [path.stat().st_uid for path in disk.iterdir()] == [os.getuid()]
        with urllib.request.urlopen(client.metrics_url, timeout=LIMIT_SECONDS) as answer:
            assert b"terrace_tier_capacity_bytes" in answer.read()
        with terrace.Client(client.socket) as other:
            assert other.session not in (0, client.session)
        url = client.metrics_url
    assert not runs(pid) and not folder.exists() and list(disk.iterdir()) == []
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=LIMIT_SECONDS)


def test_it_has_the_policy_that_it_is_told():
    with terrace.serve("16MiB", metrics=False, policy="next-use") as client:
        assert 'policy = "next-use"' in (client.log.parent / "terraced.toml").read_text()


def test_nor_when_the_program_raises(disk):
    with pytest.raises(ZeroDivisionError), terrace.serve("16MiB", block=f"{disk}:64MiB", metrics=False) as client:
        folder, pid = client.log.parent, client.daemon_pid
        assert client.metrics_url == ""
        1 / 0
    assert not runs(pid) and not folder.exists() and list(disk.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nor_when_the_program_is_killed(disk, number):
    program = subprocess.Popen([sys.executable, "-c", SERVE + "    time.sleep(1000)", str(disk)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pid, folder = program.stdout.readline().split()
    assert runs(int(pid))
    program.send_signal(number)
    program.communicate(timeout=LIMIT_SECONDS)
    wait_until(lambda: not runs(int(pid)), "the daemon goes")
    wait_until(lambda: not os.path.exists(folder) and list(disk.iterdir()) == [], "its files go")


@pytest.mark.parametrize("end", ["well", "killed"])
def test_a_forked_child_that_lives_on_holds_nothing_up(disk, end):
    """As a DataLoader's persistent workers, which a loader that is still referenced keeps."""
    program = subprocess.Popen([sys.executable, "-c", FORK + ("" if end == "well" else "    time.sleep(1000)"), str(disk)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        pid, folder = program.stdout.readline().split()
        if end == "killed":
            program.kill()
        assert program.wait(LIMIT_SECONDS) == (0 if end == "well" else -signal.SIGKILL)
        wait_until(lambda: not runs(int(pid)), "the daemon goes")
        wait_until(lambda: not os.path.exists(folder) and list(disk.iterdir()) == [], "its files go")
    finally:
        program.kill()
        program.communicate(timeout=LIMIT_SECONDS)  # ends the child


def test_what_cannot_be_configured_names_the_argument(disk, monkeypatch):
    sockets = disk / "run"
    sockets.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
    for said, arguments in (('memory: "a lot" is not a size', {"memory": "a lot"}),
                            ("memory: ", {"memory": "900TiB"}),
                            ('device: "much" is not a size', {"memory": "16MiB", "device": "much"}),
                            ("gpu: .*nothing", {"memory": "16MiB", "device": "8MiB", "gpu": "nothing"}),
                            ('block: "wide" is not a size', {"memory": "16MiB", "block": f"{disk}:wide"}),
                            ("policy: .*next-use", {"memory": "16MiB", "policy": "clairvoyance"}),
                            ("metrics is 99999; it is from 0 to 65535", {"memory": "16MiB", "metrics": 99999}),
                            ("memory is -1; it is from 0", {"memory": -1}),
                            ("block is .*FOLDER:SIZE", {"block": "wide"}),
                            ("timeout is -1; it is in seconds", {"timeout": -1}),
                            (r"guarantees\['host'\] is -1; it is from 0", {"guarantees": {"host": -1}})):
        with pytest.raises(terrace.InvalidArgument, match=f"terrace.serve: {said}") as refused:
            with terrace.serve(**arguments):
                pass
        assert ".toml" not in str(refused.value)  # nobody's to look into, and gone
    for said, arguments in (('memory is None; it is a size such as "4GiB"', {"memory": None}),
                            ("device is 1.5; it is a size", {"device": 1.5}), ("block is 5; it is a str", {"block": 5}),
                            ("metrics is 'x'; it is an integer", {"metrics": "x"}),
                            ("terraced is 5; it is a path", {"terraced": 5}), ("policy is 5; it", {"policy": 5}),
                            ("gpu is None; it is a str", {"device": "8MiB", "gpu": None}),
                            ("guarantees is 5; it is bytes by place", {"guarantees": 5}),
                            ("timeout is 'x'; it is a number of seconds", {"timeout": "x"})):
        with pytest.raises(TypeError, match=f"terrace.serve: {said}"), terrace.serve(**arguments):
            pass
    with pytest.raises(TypeError, match="terrace.Client: guarantees is 5; it is bytes by place"):
        terrace.Client(guarantees=5)
    assert list(disk.iterdir()) == [sockets] and list(sockets.iterdir()) == []


def test_what_cannot_work_says_why(disk, monkeypatch):
    with pytest.raises(terrace.InvalidArgument, match="FOLDER:SIZE"):
        with terrace.serve(block=f"{disk}/nowhere:1GiB"):
            pass
    monkeypatch.setenv("TERRACED", "/nowhere/terraced")
    with pytest.raises(terrace.Unavailable, match="/nowhere/terraced is not an executable"):
        with terrace.serve():
            pass
    monkeypatch.setenv("TERRACED", "/bin/false")
    with pytest.raises(terrace.Unavailable, match="ended with status 1"):
        with terrace.serve():
            pass


def program(path: pathlib.Path) -> str:
    """A file there that can be executed."""
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    return str(path)


def test_the_wheels_daemon_comes_before_the_paths(tmp_path, monkeypatch):
    monkeypatch.delenv("TERRACED")
    of_the_path = program(tmp_path / "path/terraced")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_terraced() == of_the_path
    of_the_wheel = program(tmp_path / "environment/bin/terraced")
    installed = tmp_path / "environment/lib/terrace-9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: terrace\nVersion: 9\n")
    (installed / "RECORD").write_text("../bin/terraced,,\n")
    monkeypatch.syspath_prepend(str(installed.parent))
    assert find_terraced() == of_the_wheel
    named = program(tmp_path / "named/terraced")
    monkeypatch.setenv("TERRACED", named)
    assert find_terraced() == named
    assert find_terraced(of_the_path) == of_the_path
    monkeypatch.delenv("TERRACED")
    os.remove(of_the_wheel)
    assert find_terraced() == of_the_path


def test_a_program_that_ends_well(disk):
    ended = run_program(SERVE, str(disk))
    assert (ended.returncode, ended.stderr) == (0, "")
    pid, folder = ended.stdout.split()
    assert not runs(int(pid)) and not os.path.exists(folder)
