# SPDX-License-Identifier: Apache-2.0
"""Shows that clang-tidy-19 finds nothing in any source that is built: tidy.py BUILD_FOLDER [SOURCE...]

Headers of the system are most of the work, and are read once for all sources that are read together: for several of the
build's commands, which are in a unity build several sources each. Where a bundle of them has a fault, or cannot be read
in one piece, each command's sources are read by themselves. What passed is not looked at again until one of its sources, a
header that it includes, its command or .clang-tidy changes: it is remembered in BUILD_FOLDER/tidy by a hash of the
preprocessed sources. The tests' own sources are formatted and compiled with all warnings, but not read by clang-tidy:
GoogleTest's macros trip too many of its checks.
"""

import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time

import tree

build = pathlib.Path(sys.argv[1])
passed = build / "tidy"
passed.mkdir(exist_ok=True)
settings = (tree.ROOT / ".clang-tidy").read_bytes()


INCLUDED = re.compile(r'^#include "(/.*)"', re.MULTILINE)
READ = ("daemon", "client", "proto")


def sources_of(unit: pathlib.Path) -> list[pathlib.Path]:
    """The project's sources in what one command compiles, relative to the root."""
    paths = [unit] if not unit.parent.name == "Unity" else map(pathlib.Path, INCLUDED.findall(unit.read_text()))
    inside = [path.resolve() for path in paths if path.resolve().is_relative_to(tree.ROOT)]
    return [path.relative_to(tree.ROOT) for path in inside
            if not path.is_relative_to(build.resolve()) and path.relative_to(tree.ROOT).parts[0] in READ]


def units() -> dict[pathlib.Path, dict]:
    """The build's commands by what they compile, with the names of the project's sources in it."""
    found, seen = {}, set()
    for entry in tree.commands(build):
        unit = pathlib.Path(entry["directory"], entry["file"])
        sources = dict.fromkeys(source for source in sources_of(unit) if source not in seen)
        if sources:  # what is compiled twice, with other definitions, is read once
            found[unit] = {**entry, "sources": sources}
            seen |= sources.keys()
    return found


COMPILER = re.compile(r"\+\+(-\d+)?$")
SOURCES_MAX = 40  # in a bundle: more are no faster to read, and leave a core idle


def arguments_of(entry: dict) -> list[str]:
    """What one command says of language, definitions and include folders."""
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if COMPILER.search(word)) + 1 :]  # a launcher may come before it
    found = []
    for i, word in enumerate(words):
        if word.startswith(("-I", "-D", "-std")):
            found.append(word)
        elif word == "-isystem":
            found.append(f"-isystem{words[i + 1]}")
    return found


def agree(one: list[str], other: list[str]) -> bool:
    """Whether no name is defined as two things."""
    values = {}
    return all(values.setdefault(word.split("=")[0], word) == word for word in (*one, *other) if word.startswith("-D"))


def tree_of(unit: pathlib.Path) -> str:
    """The daemon with what it shares, whose parts' names are distinct; the client's units are each by themselves."""
    first = next(iter(all_units[unit]["sources"]))
    return str(unit) if first.parts[0] == "client" else "daemon"


def bundles(units: list[pathlib.Path]) -> list[list[pathlib.Path]]:
    """Units that are read together: neighbours in the build, which include much the same."""
    found = []
    for unit in units:
        for bundle in found:
            whole = {word: None for member in bundle for word in arguments_of(all_units[member])}
            sources = sum(len(all_units[member]["sources"]) for member in (*bundle, unit))
            if tree_of(bundle[0]) == tree_of(unit) and sources <= SOURCES_MAX and agree(list(whole), arguments_of(all_units[unit])):
                bundle.append(unit)
                break
        else:
            found.append([unit])
    return found


class Read:
    """Some units as one: a source that includes them, and the command that compiles it."""

    def __init__(self, units: list[pathlib.Path]):
        self.names = ", ".join(sorted(str(source) for unit in units for source in all_units[unit]["sources"]))
        self.folder = passed / "read" / hashlib.sha256(self.names.encode()).hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.source = self.folder / "read.cc"
        self.source.write_text("".join(f'#include "{tree.ROOT / source}"\n' for unit in units
                                       for source in all_units[unit]["sources"]))
        arguments = dict.fromkeys(word for unit in units for word in arguments_of(all_units[unit]))
        self.command = ["c++", *arguments, "-c", str(self.source.resolve())]
        where = {"directory": str(build.resolve()), "file": str(self.source.resolve()), "arguments": self.command}
        (self.folder / "compile_commands.json").write_text(json.dumps([where]))

    def mark(self) -> pathlib.Path:
        """The file that says that it passed: named by all that clang-tidy's answer depends on."""
        seen = subprocess.run([*self.command, "-E", "-C"], cwd=build, capture_output=True, check=False).stdout
        return passed / hashlib.sha256(settings + " ".join(self.command).encode() + seen).hexdigest()

    def complaint(self) -> str:
        """What clang-tidy says about it."""
        mark = self.mark()
        if mark.exists():
            return ""
        begin = time.monotonic()
        result = subprocess.run(["clang-tidy-19", "-p", self.folder, "--quiet", f"--config-file={tree.ROOT / '.clang-tidy'}",
                                 self.source], cwd=tree.ROOT, capture_output=True, text=True, check=False)
        print(f"{time.monotonic() - begin:5.1f} s  {self.names}", flush=True)
        if result.returncode:
            return f"{self.names}:\n{result.stdout}\n{result.stderr}"
        mark.touch()
        return ""


all_units = units()
wanted = {pathlib.Path(name).resolve().relative_to(tree.ROOT) for name in sys.argv[2:]}
unknown = wanted - set().union(*(entry["sources"] for entry in all_units.values()))
for name in sorted(unknown):
    print(f"{name}: not in compile_commands.json")


def check(bundle: list[pathlib.Path]) -> str:
    """What clang-tidy says about the bundle's units."""
    if len(bundle) > 1 and not Read(bundle).complaint():
        return ""
    return "".join(Read([unit]).complaint() for unit in bundle)


chosen = [unit for unit, entry in all_units.items() if not sys.argv[2:] or entry["sources"].keys() & wanted]
together = sorted(bundles(chosen) if not wanted else [[unit] for unit in chosen],
                  key=lambda bundle: -sum(len(all_units[unit]["sources"]) for unit in bundle))  # the last one is a small one
tree.exit_with(tree.on_every_core(check, together) + len(unknown), len(chosen))
