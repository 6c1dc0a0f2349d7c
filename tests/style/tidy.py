# SPDX-License-Identifier: Apache-2.0
"""Shows that clang-tidy-19 finds nothing in any source that is built: tidy.py BUILD_FOLDER [SOURCE...]

A source that passed is not looked at again until it, a header that it includes, its command or .clang-tidy changes:
what passed is remembered in BUILD_FOLDER/tidy by a hash of the preprocessed source. The tests' own sources are
formatted and compiled with all warnings, but not read by clang-tidy: GoogleTest's macros trip too many of its checks.
"""

import hashlib
import pathlib
import shlex
import subprocess
import sys
import time

import tree

build = pathlib.Path(sys.argv[1])
passed = build / "tidy"
passed.mkdir(exist_ok=True)
settings = (tree.ROOT / ".clang-tidy").read_bytes()


def project_sources() -> dict[pathlib.Path, dict]:
    """The build's commands by source, for sources of the daemon and the client that are not generated."""
    found = {}
    for entry in tree.commands(build):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(tree.ROOT) and not path.is_relative_to(build.resolve()):
            relative = path.relative_to(tree.ROOT)
            if relative.parts[0] in ("daemon", "client", "proto"):
                found.setdefault(relative, entry)
    return found


def fingerprint(entry: dict) -> str:
    """A hash of all that clang-tidy's answer depends on: what the compiler sees, its command, the settings."""
    words = shlex.split(entry["command"])
    if words[0].endswith("ccache"):
        words = words[1:]
    output = words.index("-o")
    del words[output : output + 2]
    seen = subprocess.run([*words, "-E", "-C"], cwd=entry["directory"], capture_output=True, check=False).stdout
    return hashlib.sha256(settings + entry["command"].encode() + seen).hexdigest()


sources = project_sources()
wanted = [pathlib.Path(name).resolve().relative_to(tree.ROOT) for name in sys.argv[2:]] or sorted(sources)


def check(source: pathlib.Path) -> str:
    """What clang-tidy says about the source."""
    if source not in sources:
        return f"{source}: not in compile_commands.json"
    mark = passed / fingerprint(sources[source])
    if mark.exists():
        return ""
    folder = sources[source]["directory"]  # CMake writes compile_commands.json where its commands run
    begin = time.monotonic()
    result = subprocess.run(["clang-tidy-19", "-p", folder, "--quiet", source], cwd=tree.ROOT, capture_output=True,
                            text=True, check=False)
    print(f"{time.monotonic() - begin:5.1f} s  {source}", flush=True)
    if result.returncode:
        return f"{source}:\n{result.stdout}\n{result.stderr}"
    mark.touch()
    return ""


tree.exit_with(tree.on_every_core(check, wanted), len(wanted))
