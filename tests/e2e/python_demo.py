# SPDX-License-Identifier: Apache-2.0
"""Shows that the demo trains through all tiers with losses equal to the in-memory run's, bit for bit, with one line or
with leases taken by hand; that one wrong byte makes them differ; and that the README's script runs as it stands."""

import json
import re
import subprocess
import sys

import pytest
from python_fixtures import MIB, ROOT, disk  # noqa: F401 (a fixture)

SCRIPT = ROOT / "client/python/examples/train_gpt.py"
LIMIT_SECONDS = 240


def demo(folder, *options):
    """Runs it for a few steps; its exit status, output and numbers."""
    ended = subprocess.run([sys.executable, "-B", SCRIPT, "--batch", "1", "--block-size", "1GiB", "--json",
                            folder / "result.json", "--png", folder / "training.png", *options],
                           capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    print(ended.stdout, ended.stderr)
    return ended, json.loads((folder / "result.json").read_text())


def test_losses_are_equal_bit_for_bit(disk):
    ended, result = demo(disk, "--steps", "3")
    assert ended.returncode == 0 and "all 3 losses are equal, bit for bit" in ended.stdout
    assert result["way"] == "offload"
    assert result["losses_equal"] is True and result["losses"] == result["reference_losses"]
    assert len(set(result["losses"])) == 3 and result["steps"] == 3
    assert result["parameters"] >= 20_000_000
    for link in ("h2d_bytes", "d2h_bytes", "block_read_bytes", "block_write_bytes"):
        assert result[link] > 100 * MIB, link
    assert result["checksum_failures"] == 0 and result["overhead"] > 0
    assert 0 < result["leased_bytes_max"] < result["upper_tiers_bytes"] == 192 * MIB
    assert (disk / "training.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in disk.iterdir()) == ["result.json", "training.png"]


def test_layers_can_be_leased_by_hand(disk):
    ended, result = demo(disk, "--steps", "2", "--way", "leases")
    assert ended.returncode == 0 and "all 2 losses are equal, bit for bit" in ended.stdout
    assert result["way"] == "leases" and result["losses"] == result["reference_losses"]
    for link in ("h2d_bytes", "d2h_bytes", "block_read_bytes", "block_write_bytes"):
        assert result[link] > 10 * MIB, link


@pytest.mark.parametrize("way", ["offload", "leases"])
def test_one_wrong_byte_shows(disk, way):
    ended, result = demo(disk, "--steps", "2", "--debug-corrupt", "--way", way)
    assert ended.returncode == 1 and "the losses DIFFER from step 2 on" in ended.stdout
    assert result["losses_equal"] is False
    assert result["losses"][0] == result["reference_losses"][0] and result["losses"][1] != result["reference_losses"][1]


def test_the_readmes_script_runs():
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 10
    ended = subprocess.run([sys.executable, "-"], input=blocks[0], capture_output=True, text=True,
                           timeout=LIMIT_SECONDS, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [f"layer{i} {2.0 * i}" for i in range(16)]


@pytest.mark.parametrize("option", [["--steps", "0"], ["--nonsense"], ["--way", "offload", "--gpu", "cuda:0"]])
def test_nonsense_is_refused(option):
    ended = subprocess.run([sys.executable, "-B", SCRIPT, *option], capture_output=True, text=True,
                           timeout=LIMIT_SECONDS, check=False)
    assert ended.returncode == 2 and "usage:" in ended.stderr
