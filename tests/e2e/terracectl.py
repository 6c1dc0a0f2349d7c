# SPDX-License-Identifier: Apache-2.0
"""Shows terracectl against a live daemon: each command as text and as JSON, and one clear line for each failure."""

import json
import os
import re
import subprocess

import grpc
import pytest
from grpc_fixtures import (BUILD, DEVICE, LIMIT_SECONDS, MIB, Session, daemon, refused, run_daemon,  # noqa: F401
                           session, v1, wait_until)


def terracectl(*arguments: str, code: int = 0, **environment: str) -> str:
    """Its output, or, where it is to fail, its error."""
    done = subprocess.run([BUILD / "terracectl", *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS,
                          check=False, env={"PATH": os.environ["PATH"], **environment})
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stderr if code else done.stdout


@pytest.fixture
def busy(session):  # noqa: F811
    tensor = session.create("layers.0.weight", 0, dtype=v1.DATA_TYPE_FLOAT32, shape=[512, 256])
    session.write(tensor, b"w" * 512 * 1024)
    session.call("Pin", place=DEVICE, tensors=[tensor])
    session.call("MarkStep")
    return tensor


def test_status(daemon, busy):  # noqa: F811
    socket = ("--socket", str(daemon.admin))
    text = terracectl("status", *socket)
    assert re.search(r"^device:0 +8 MiB +512 KiB", text, re.M) and re.search(r"^host_to_device:0 ", text, re.M), text
    for arguments in (("--json", "status", *socket), ("status", "--json", *socket), (*socket, "status", "--json")):
        status = json.loads(terracectl(*arguments))
        assert [tier["capacity_bytes"] for tier in status["tiers"]] == [8 * MIB, 16 * MIB, 64 * MIB]
        assert status["places"][0]["place"] in ("host", "device:0") and status["draining"] is False
        links = {link["name"]: link for link in status["links"]}
        assert links["host_to_device:0"]["bytes"] == 512 * 1024
        assert sum(links["host_to_device:0"]["duration"]["counts"]) == links["host_to_device:0"]["transfers"]


def test_sessions_and_tensors(daemon, session, busy):  # noqa: F811
    where = {"TERRACE_ADMIN_SOCKET": str(daemon.admin)}
    text = terracectl("sessions", **where)
    assert re.search(rf"^ *{session.opened.session}  default  +\d+ +{os.getpid()}  test +1 ", text, re.M), text
    one = json.loads(terracectl("sessions", "--json", **where))["sessions"][0]
    assert (one["tenant"], one["pid"], one["tensors"], one["step"]) == ("default", os.getpid(), 1, 1)
    text = terracectl("tensors", **where)
    assert re.search(r"layers\.0\.weight +float32 +\[512, 256\] +512 KiB +device:0 +\w+, pinned", text), text
    number = str(session.opened.session)
    listed = json.loads(terracectl("tensors", "--session", number, "--json", **where))["sessions"][0]
    assert listed["tensors"][0]["spec"]["shape"] == [512, 256] and listed["tensors"][0]["placement"]["place"] == "device:0"
    assert terracectl("tensors", "--prefix", "nothing", **where) == "no tensors\n"
    assert "no open session 77" in terracectl("tensors", "--session", "77", code=1, **where)


@pytest.fixture
def learning():
    yield from run_daemon(policy="next-use")


def test_how_sure_it_is_of_what_a_session_does(learning):
    with learning.connect() as channel, Session(channel, label="test") as session:  # noqa: F811
        tensors = [session.create(name, 0, dtype=v1.DATA_TYPE_FLOAT32, shape=[512, 256]) for name in "ab"]
        for tensor in tensors:
            session.write(tensor, b"w" * 512 * 1024)
        assert "template" not in terracectl("status", "--socket", str(learning.admin))

        def step():
            session.call("MarkStep")
            for tensor in tensors:
                session.read(tensor)
            return learning.sessions()[0].foresight

        wait_until(lambda: step().foreseen_uses >= 4, "a plan that foresees a step")
        foresight = step()
        assert foresight.template > 0 and (foresight.template_uses, foresight.matched_uses) == (2, 2)
        text = terracectl("status", "--socket", str(learning.admin))
        assert re.search(rf"^session {session.opened.session} follows template \d+ of its train steps, 2 uses, of which "
                         r"the last one matched 100\.0%; foreseen: [\d.]+% of its uses, \S+ of the bytes brought", text, re.M), text


def test_a_declared_step_is_foreseen_before_it_was_ever_seen(learning):
    with learning.connect() as channel, Session(channel, label="test") as session:  # noqa: F811
        tensors = [session.create(name, 0, dtype=v1.DATA_TYPE_FLOAT32, shape=[512, 256]) for name in "ab"]
        sets = [v1.DeclareStepRequest.Set(tensors=[tensor], place=DEVICE, mode=v1.LEASE_MODE_READ, compute_us=1000)
                for tensor in tensors]
        session.call("DeclareStep", sets=sets)
        session.call("MarkStep")
        wait_until(lambda: learning.sessions()[0].foresight.template_uses == 2, "a plan of the first step")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "tensors is empty"):
            session.call("DeclareStep", sets=[v1.DeclareStepRequest.Set(place=DEVICE, mode=v1.LEASE_MODE_READ)])


def test_topology(daemon):  # noqa: F811
    assert "tier 2" in terracectl("topology", "--socket", str(daemon.admin))
    assert "numa_nodes" in json.loads(terracectl("topology", "--json", "--socket", str(daemon.admin)))


def test_an_answer_that_cannot_be_written_is_a_failure(daemon):  # noqa: F811
    with open("/dev/full", "wb") as full:
        done = subprocess.run([BUILD / "terracectl", "status", "--socket", daemon.admin], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 1 and "standard output: No space left on device" in done.stderr, done


def test_top(daemon, busy):  # noqa: F811
    once = terracectl("top", "--once", "--socket", str(daemon.admin))
    assert "TIER" in once and "BYTES/S" not in once and "default" in once
    live = subprocess.Popen([BUILD / "terracectl", "top", "--interval", "0.1", "--socket", daemon.admin],
                            stdout=subprocess.PIPE, text=True)
    try:
        assert any("BYTES/S" in line for line in live.stdout)  # the second screen has rates
    finally:
        live.kill()
        live.wait()
        live.stdout.close()
    lines = subprocess.Popen([BUILD / "terracectl", "top", "--json", "--interval", "0.1", "--socket", daemon.admin],
                             stdout=subprocess.PIPE, text=True)
    try:
        assert [json.loads(lines.stdout.readline())["steps"] for _ in range(3)] == [1, 1, 1]
    finally:
        lines.kill()
        lines.wait()
        lines.stdout.close()


def test_drain(daemon, session):  # noqa: F811
    assert terracectl("drain", "--socket", str(daemon.admin)) == "draining: no new sessions; 1 still open\n"
    assert json.loads(terracectl("drain", "--json", "--socket", str(daemon.admin))) == {"sessions": 1}
    assert "DRAINING" in terracectl("status", "--socket", str(daemon.admin))


def test_failures_are_one_clear_line(daemon, tmp_path):  # noqa: F811
    nowhere = terracectl("status", code=1, XDG_RUNTIME_DIR=str(tmp_path))
    assert f"{tmp_path}/terrace/admin.sock" in nowhere and "systemctl start terraced" in nowhere
    missing = terracectl("status", "--json", "--socket", f"{tmp_path}/no.sock", code=1)
    assert f"no daemon at {tmp_path}/no.sock" in missing and "start one with" in missing
    wrong = terracectl("status", "--socket", str(daemon.grpc), code=1)  # the public socket has no Admin
    for said in (nowhere, missing, wrong):
        assert said.startswith("terracectl: ") and said.count("\n") == 1, said
