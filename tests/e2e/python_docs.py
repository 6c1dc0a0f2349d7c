# SPDX-License-Identifier: Apache-2.0
"""Shows that the snippets of README.md, docs/start.md and docs/guides/ run as they stand: the Python of each page as one
script, its configurations, and its commands against a live daemon. tests/style/pages.py says which page's Python another
test runs, and which commands another test covers."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from python_fixtures import LIMIT_SECONDS, ROOT, disk, under_torchrun  # noqa: F401 (a fixture)

import terrace

sys.path.insert(0, str(ROOT / "tests/style"))
import pages  # noqa: E402

BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])
HERE = "tests/e2e/python_docs.py"
WITH_SNIPPETS = ["README.md", "docs/start.md", *sorted(str(path.relative_to(ROOT)) for path in
                                                       (ROOT / "docs/guides").glob("*.md"))]


def snippets(page, language):
    """The texts of a page's blocks in a language."""
    return [block.text for block in pages.blocks((ROOT / page).read_text().splitlines()) if block.language == language]


def run(*command, folder, **environment):
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=4 * LIMIT_SECONDS, check=False,
                           env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def script(folder, name, *texts):
    """A program of these snippets, with its block files on the tests' disk."""
    (folder / name).write_text("\n".join(texts).replace("/var/tmp:", f"{folder}:"))
    return folder / name


def test_start(disk):
    """The lease, and a training whose losses are the same bits in memory, in Terrace, and once more in Terrace."""
    lease, plain, line, own = snippets("docs/start.md", "python")
    assert run(sys.executable, script(disk, "lease.py", lease), folder=disk) == "6.0\n"
    said = run(sys.executable, script(disk, "train.py", plain, line, own), folder=disk, TERRACE_WHAT="auto")
    assert "step" not in said  # where all fits
    said = run(sys.executable, script(disk, "train.py", plain, line, own), folder=disk, TERRACE_WHAT="all")
    in_memory, in_terrace = re.findall(r"^in (?:memory|Terrace): +([\d.]+)$", said, re.MULTILINE)
    assert in_memory == in_terrace
    assert len(re.findall(r"^.*step.*$", said, re.MULTILINE)) >= 5, said
    assert sorted(path.name for path in disk.iterdir()) == ["lease.py", "train.py"]


@under_torchrun
def test_ranks(disk):
    """Two ranks of torchrun share a daemon that the parent has started, and come to the losses that they have without."""
    parent, rank = snippets("docs/guides/ranks.md", "python")
    losses = {}
    for name, text in (("ours", rank), ("plain", re.sub(r"^.*terrace\.torch\.offload\(.*\n", "", rank, flags=re.M))):
        folder = disk / name
        folder.mkdir()
        script(folder, "rank.py", text)
        said = run(sys.executable, script(folder, "parent.py", parent), folder=folder,
                   TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        losses[name] = sorted(re.findall(r"rank \d: [\d.]+", said))
    assert len(losses["ours"]) == 2 and losses["ours"] == losses["plain"]


MODEL = """
import terrace, terrace.torch, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
model.cuda = lambda: model  # this machine may have no GPU: tests/gpu/python_gpu_training.py is for those that have
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
STEP = """
model(torch.randn(4, 64)).square().mean().backward()
optimizer.step()
assert terrace.torch.summary(model).nbytes > 0
"""


@pytest.mark.parametrize("page", ["docs/guides/coming-from.md", "docs/guides/gpus.md"])
def test_the_line(page, disk):
    """The line of a page, for a model of its reader's, by a daemon that is there already."""
    (line,) = snippets(page, "python")
    with terrace.serve("64MiB", metrics=False, guarantees={"host": 1 << 20}) as served:
        run(sys.executable, script(disk, "line.py", MODEL, line, STEP), folder=disk, TERRACE_SOCKET=served.socket)


def commands():
    return [command for page in WITH_SNIPPETS for text in snippets(page, "sh") for command in text.splitlines()]


def test_commands(disk):
    """Those that tests/style/pages.py has this test run: each succeeds as it stands, but for where the daemon is."""
    configuration = disk / "terraced.toml"
    configuration.write_text('[[tier]]\nkind = "memory"\ncapacity = "16MiB"\n')
    mine = [command for command in commands()
            if next(test for begin, (test, _) in pages.COMMANDS.items() if command.startswith(begin)) == HERE]
    assert len(mine) >= 6, mine
    with terrace.serve("16MiB") as served:
        for command in mine:
            told = command.replace("/etc/terrace/terraced.toml", str(configuration))
            told = told.replace("127.0.0.1:9464/metrics", served.metrics_url)
            said = run("bash", "-euo", "pipefail", "-c", told, folder=disk, TERRACE_ADMIN_SOCKET=served.admin_socket,
                       PATH=f"{BUILD}:{os.environ['PATH']}")
            assert said, command


def test_configurations(disk):
    """Each of a page's configurations is one, by terraced --check-config."""
    found = [text for page in WITH_SNIPPETS for text in snippets(page, "toml")]
    assert found
    for text in found:
        (disk / "terraced.toml").write_text(text)
        run(BUILD / "terraced", "--check-config", disk / "terraced.toml", folder=disk)


def test_the_picture_of_the_readme(disk):
    """It can be drawn anew from the figures that the lab has."""
    run(sys.executable, "-B", ROOT / "docs/pictures/steps.py", disk / "steps.png", folder=disk)
    assert (disk / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_the_line_of_the_readme():
    (line,) = snippets("README.md", "diff")
    assert line.removeprefix("+").strip() in "".join(snippets("docs/guides/coming-from.md", "python")).replace(
        ', what="all", step_in_backward=True', "")


def test_every_exception_is_needed():
    """No command is listed that no page has."""
    for begin in pages.COMMANDS:
        assert any(command.startswith(begin) for command in commands()), begin
