# SPDX-License-Identifier: Apache-2.0
"""Shows terracectl plan: the commands of docs/guides/size-a-node.md, its JSON, its picture, and one clear line for each mistake.
No daemon runs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])
LIMIT_SECONDS = 120
QUICK = ("--model", "gpt2-1.5b", "--node", "g10")


def plan(*arguments: str, code: int = 0) -> str:
    """Its output, or, where it is to fail, its error."""
    done = subprocess.run([BUILD / "terracectl", "plan", *arguments], capture_output=True, text=True,
                          timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stderr if code else done.stdout


def test_the_plan_of_the_docs():
    text = plan("--model", "llama3-70b", "--gpus", "8", "--recompute", "--node", "dgx-h100")
    for said in ("8 GPUs on 1 node", "a step takes ", "(by rehearsal)", "of DRAM cut the optimizer's NVMe traffic from ",
                 "its limit is ", "4 of 7.68 TB"):
        assert said in text, said


def test_json_says_the_same_and_adds_up():
    plan_of = json.loads(plan("--json", *QUICK, "--gpus", "1", "--dram", "8GB,16GB"))
    assert [point["dram_bytes"] for point in plan_of["curve"]] == [8 * 10**9, 16 * 10**9, 128 * 2**30]
    step = plan_of["step"]
    assert step["by"] == "rehearsal" and step["step_us"] >= step["lower_bound_us"] >= step["compute_us"] > 0
    held = {of_class["class"]: of_class for of_class in plan_of["classes"]}
    assert held["optim"]["held_bytes"] == 12 * plan_of["parameters"]
    assert abs(sum(held["optim"]["mean_bytes"].values()) - held["optim"]["held_bytes"]) < 10
    assert max(plan_of["busy_us"], key=plan_of["busy_us"].get) == plan_of["limit"]
    for point in plan_of["curve"]:
        assert point["step_us"] >= point["lower_bound_us"]


def test_the_bound_says_that_it_is_one():
    text = plan(*QUICK, "--by", "bound")
    assert "(by bound)" in text and "rehearsal\n" not in text
    assert json.loads(plan(*QUICK, "--by", "bound", "--json"))["classes"] == []


def test_drives_wear_by_what_is_written():
    drives = {}
    for count in ("4", "8"):
        plan_of = json.loads(plan("--json", "--model", "llama3-8b", "--node", "g10", "--dram", "64GB", "--by", "bound",
                                  "--batch", "2", "--drives", count, "--drive-capacity", "1TB",
                                  "--drive-writes-a-day", "0.5", "--drive-years", "3"))
        drives[count] = plan_of["drives"]
        assert drives[count]["capacity_bytes"] == 10**12 and drives[count]["rated_years"] == 3
    assert drives["4"]["bytes_a_day"] == drives["8"]["bytes_a_day"] > 0
    assert abs(drives["8"]["years"] / drives["4"]["years"] - 2) < 1e-9


def test_picture(tmp_path):
    picture = tmp_path / "dram.png"
    plan(*QUICK, "--plot", str(picture), "--python", sys.executable)
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("arguments, said", [
    (["--model", "llama9", "--node", "g10"], "llama3-70b"),
    (["--model", "gpt2-1.5b"], "--node is required"),
    (["--model", "gpt2-1.5b", "--node", "/no/such.toml"], "the nodes known by name are g10-2tier"),
    ([*QUICK, "--dram", "much"], "--dram: "), ([*QUICK, "--dram", "512,768"], "--dram: 512 has 512 bytes: give it a unit"),
    ([*QUICK, "--drive-capacity", "0"], "--drive-capacity: must be above 0"),
    ([*QUICK, "--drives", "0"], "--drives"), ([*QUICK, "--experts-active", "3"], "--experts-active requires --experts"),
    ([*QUICK, "--seed", "-5"], "--seed: "),
    ([*QUICK, "--drive-writes-a-day", "-1"], "--drive-writes-a-day"),
    ([*QUICK, "--offload", "weights"], "--offload"),
    ([*QUICK, "--gpus", "0"], "GPUs, batch, micro-batches and steps are from 1"),
    (["--model", "llama3-70b", "--node", "dgx-h100", "--gpus", "9"], "9 GPUs do not fill nodes of 8"),
    (["--model", "1t", "--node", "dgx-h100", "--gpus", "8"], "every tensor has a home there"),
    ([*QUICK, "--plot", "a.png", "--python", "/no/such/python"], "--plot needs a Python with matplotlib"),
    ([*QUICK, "--by", "bound", "--plot", "/no/such/folder/a.png", "--python", sys.executable],
     "--plot: /no/such/folder/a.png cannot be written: No such file or directory"),
])
def test_mistakes_get_a_clear_line(arguments, said):
    done = subprocess.run([BUILD / "terracectl", "plan", *arguments], capture_output=True, text=True,
                          timeout=LIMIT_SECONDS, check=False)
    assert done.returncode != 0 and done.stdout == "" and said in done.stderr, (done.stdout, done.stderr)


def test_a_node_file_needs_no_daemon(tmp_path):
    node = tmp_path / "node.toml"
    device = '[[tier]]\nkind = "device"\ncapacity = "16GB"\n'
    node.write_text(device * 2 + '[[tier]]\nkind = "memory"\ncapacity = "64GB"\n[links]\nhost_to_device = "20GB/s"\n')
    assert "links.device_to_host: is missing" in plan("--model", "gpt2-1.5b", "--node", str(node), code=1)
    node.write_text(node.read_text() + 'device_to_host = "20GB/s"\n')
    text = plan("--model", "gpt2-1.5b", "--gpus", "2", "--node", str(node))
    assert "2 GPUs on 1 node" in text and "drives" not in text.split("another amount")[0]
