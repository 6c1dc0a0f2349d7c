# SPDX-License-Identifier: Apache-2.0
"""What the style tests share: which files are the project's, and running one check a file on every core."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED_FOLDERS = {".git", "build", "out", "__pycache__", ".venv"}


def files(*suffixes: str) -> list[pathlib.Path]:
    """The project's files with one of the suffixes (all of them without any), relative to the root, sorted.

    They are git's where the root is a checkout, so that what git ignores is not checked, and else all there are.
    """
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, check=True)
        found = [pathlib.Path(name) for name in listed.stdout.decode().split("\0") if name]
    else:
        found = [path.relative_to(ROOT) for path in ROOT.rglob("*")
                 if not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)]
    return sorted({path for path in found if (ROOT / path).is_file() and (not suffixes or path.suffix in suffixes)})


def scripts() -> list[pathlib.Path]:
    """The shell scripts: what starts with a shebang of bash or sh, and what they source."""
    found = []
    for path in files():
        if path.suffix not in ("", ".sh"):
            continue
        with open(ROOT / path, "rb") as file:
            first = file.readline()
        if path.suffix == ".sh" or (first.startswith(b"#!") and first.rstrip().endswith((b"bash", b"/sh"))):
            found.append(path)
    return found


def commands(build: pathlib.Path) -> list[dict]:
    """The compile commands of the build, and of the Python package's own build, which deploy/venv makes."""
    python = ROOT / "build/python/compile_commands.json"
    if (ROOT / "client/python").exists() and not python.exists():
        sys.exit(f"{python} is missing: run deploy/venv, which builds the Python package")
    return [entry for path in (build / "compile_commands.json", python) if path.exists()
            for entry in json.loads(path.read_text())]


def on_every_core(check, items) -> int:
    """Runs check(item) -> complaint for each item, prints every complaint, and returns how many there were."""
    items = list(items)
    complaints = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for complaint in pool.map(check, items):
            if complaint:
                complaints += 1
                print(complaint, flush=True)
    print(f"{len(items)} checked, {complaints} with complaints")
    return complaints


def exit_with(complaints: int, checked: int) -> None:
    """Ends the test: it fails for a complaint, and for having found nothing to check."""
    if not checked:
        print("nothing to check was found")
    sys.exit(1 if complaints or not checked else 0)
