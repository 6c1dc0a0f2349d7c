# SPDX-License-Identifier: Apache-2.0
"""Shows terracectl doctor and terracectl init on this machine: the verdict and its status, JSON, bad input; and that a daemon
runs with the configuration that init wrote."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import tomllib

import pytest
from refused_starts import forbid_io_uring, lock_little

BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])
LIMIT_SECONDS = 60
NOBODY = 65534
VERDICTS = ["does not apply", "ok", "warning", "failure"]
CHECKS = ["config", "sockets", "io_uring", "block_path", "block_room", "memlock", "open_files", "cgroup_memory", "cgroup_cpu",
          "huge_pages", "transparent_huge_pages", "swap", "numa_balancing", "clock_source", "pcie_link", "power_state",
          "nvidia_driver", "nvidia_persistence"]
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/doctor.md"


def terracectl(*arguments, **options):
    return subprocess.run([BUILD / "terracectl", *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS,
                          check=False, **options)


def doctor(configuration, **options):
    """What it found, by its JSON; its status is that of its verdict."""
    done = terracectl("doctor", "--config", configuration, "--json", **options)
    found = json.loads(done.stdout)
    assert found["version"] == 1 and found["configuration"] == str(configuration)
    verdicts = [VERDICTS.index(finding["verdict"]) for finding in found["findings"]]
    assert found["verdict"] == VERDICTS[max(verdicts)]
    assert done.returncode == max(0, max(verdicts) - 1), done
    return found


def of_check(found, name):
    return [finding for finding in found["findings"] if finding["check"] == name]


@pytest.fixture
def sockets():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-"))  # sockets: a short path
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def disk():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="first-", dir=BUILD))  # has O_DIRECT
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def written(disk, sockets):
    """A configuration of init's, with small tiers."""
    file = disk / "terraced.toml"
    done = terracectl("init", "--output", file, "--memory", "32MiB", "--block", disk, "--block-capacity", "64MiB",
                      "--sockets", sockets, "--metrics", "")
    assert done.returncode == 0, done.stderr
    assert f"terracectl doctor --config {file}" in done.stdout
    return file


def test_what_init_wrote_runs_a_daemon(written, sockets, disk):
    config = tomllib.loads(written.read_text())
    assert [(tier["kind"], tier["capacity"]) for tier in config["tier"] if tier["kind"] != "device"] == [
        ("memory", "32MiB"), ("block", "64MiB")]
    found = doctor(written)
    assert [finding["verdict"] for finding in of_check(found, "config")] == ["ok"], found
    assert [finding["verdict"] for finding in of_check(found, "sockets")] == ["ok"], found
    for finding in of_check(found, "block_path"):
        assert "1 MiB were written with O_DIRECT" in finding["reason"] and finding["subject"] == f"{disk}/terrace.block"
    assert sorted(path.name for path in disk.iterdir()) == ["terraced.toml"], "looking left something"
    with (disk / "log").open("wb") as log:
        daemon = subprocess.Popen([BUILD / "terraced", "--config", written], stdout=log, stderr=log)
    try:
        end = time.monotonic() + LIMIT_SECONDS
        while (done := terracectl("status", "--json", "--socket", sockets / "admin.sock")).returncode != 0:
            assert daemon.poll() is None and time.monotonic() < end, (disk / "log").read_text()
            time.sleep(0.05)
        capacities = {tier["name"]: tier["capacity_bytes"] for tier in json.loads(done.stdout)["tiers"]}
        assert capacities["memory"] == 32 << 20 and capacities["block"] == 64 << 20, capacities
        assert of_check(doctor(written), "config")[0]["verdict"] == "ok", "beside a daemon that serves"
    finally:
        daemon.terminate()
        assert daemon.wait(LIMIT_SECONDS) == 0, (disk / "log").read_text()


def test_init_replaces_nothing_unasked(written):
    before = written.read_text()
    refused = terracectl("init", "--output", written, "--memory", "64MiB")
    assert refused.returncode == 1 and "--force replaces it" in refused.stderr and written.read_text() == before
    assert terracectl("init", "--output", written, "--memory", "64MiB", "--force").returncode == 0
    assert 'capacity = "64MiB"' in written.read_text()


def test_init_by_itself_says_why_each_value():
    done = terracectl("init")
    assert done.returncode == 0, done.stderr
    tomllib.loads(done.stdout)
    lines = done.stdout.splitlines()
    for above, line in zip(lines, lines[1:]):
        if line.startswith("capacity"):
            assert above.startswith("# "), done.stdout
    told = json.loads(terracectl("init", "--json").stdout)
    assert told["output"] is None and tomllib.loads(told["configuration"])


@pytest.mark.parametrize("arguments, says", [
    (("--memory", "lots"), "--memory: "),
    (("--memory", "900TiB"), "--memory: 900 TiB are more than"),
    (("--block", "/no/such/folder"), "--block: /no/such/folder is neither"),
    (("--block-capacity", "1kg"), "--block-capacity: "),
    (("--metrics", "nowhere"), "metrics_address"),
    (("--output", "/no/such/folder/t.toml"), "/no/such/folder/t.toml: cannot be made"),
])
def test_init_names_what_cannot_be(arguments, says):
    done = terracectl("init", *arguments)
    assert done.returncode == 1 and says in done.stderr, done


@pytest.mark.parametrize("arguments", [("doctor", "--config", ""), ("init", "--output", ""), ("init", "--sockets", ""),
                                       ("init", "--block", ""), ("init", "--memory", "")])
def test_an_empty_name_is_no_path(arguments):
    done = terracectl(*arguments)
    assert done.returncode > 100 and "is empty; name a" in done.stderr, done


def test_the_doctors_checks_are_those_of_its_page(written):
    found = doctor(written)
    assert list(dict.fromkeys(finding["check"] for finding in found["findings"])) == CHECKS
    page = PAGE.read_text()
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and line.split("`")[1] in CHECKS] == CHECKS
    for field in (*found, *(f"findings[].{name}" for name in found["findings"][0])):
        assert f"`{field}`" in page, field


def test_a_process_that_may_make_no_ring(written):
    found = doctor(written, preexec_fn=forbid_io_uring)
    assert found["verdict"] == "failure"
    (finding,) = of_check(found, "io_uring")
    assert finding["verdict"] == "failure" and "Operation not permitted" in finding["reason"]
    assert "io_uring" in of_check(found, "config")[0]["reason"], "the daemon would not start, and for that reason"


def test_a_process_that_may_lock_little(written):
    (finding,) = of_check(doctor(written, preexec_fn=lock_little), "memlock")
    assert finding["verdict"] == "warning" and "memlock is 64 KiB, and the memory tiers have 32 MiB" in finding["reason"]
    assert "LimitMEMLOCK=infinity" in finding["mend"]


def test_the_doctor_for_people(written):
    done = terracectl("doctor", "--config", written)
    *lines, last = done.stdout.splitlines()
    for name in CHECKS:
        assert any(f"  {name}  " in line for line in lines), done.stdout
    counted = sum(int(part.split()[0]) for part in last.split(", "))
    assert counted == sum(not line.strip().startswith("mend:") for line in lines), done.stdout


def test_a_bad_configuration_is_a_failure(disk):
    bad = disk / "bad.toml"
    bad.write_text('[[tier]]\nkind = "memory"\ncapacity = "900TiB"\n')
    found = doctor(bad)
    assert found["verdict"] == "failure"
    assert "tier[0].capacity" in of_check(found, "config")[0]["reason"]
    missing = doctor(disk / "missing.toml")
    assert "missing.toml" in of_check(missing, "config")[0]["reason"]


def test_an_answer_that_cannot_be_written_is_a_failure(written):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([BUILD / "terracectl", "doctor", "--config", written], stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 2 and "standard output: No space left on device" in done.stderr, done


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be somebody else")
def test_an_ordinary_user_is_told_what_needs_more_rights(sockets):
    """A service's folders are closed to others, so that their findings are warnings which name the command to look again."""
    os.chmod(sockets, 0o755)
    program = shutil.copy(BUILD / "terracectl", sockets / "terracectl")
    somebody_else = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
    try:
        subprocess.run([program, "--version"], capture_output=True, timeout=LIMIT_SECONDS, check=True, **somebody_else)
    except PermissionError:
        pytest.skip(f"the folder {sockets.parent} is closed to other users")
    closed = sockets / "closed"
    closed.mkdir(mode=0o700)
    file = sockets / "terraced.toml"
    done = terracectl("init", "--output", file, "--memory", "32MiB", "--block", closed, "--block-capacity", "64MiB",
                      "--sockets", closed, "--metrics", "")
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program, "doctor", "--json", "--config", file], capture_output=True, text=True,
                          timeout=LIMIT_SECONDS, check=False, **somebody_else)
    found = json.loads(done.stdout)
    for name in ("config", "sockets", "block_path"):
        for finding in of_check(found, name):
            assert finding["verdict"] == "warning" and f"sudo terracectl doctor --config {file}" == finding["mend"], finding
