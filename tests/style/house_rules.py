# SPDX-License-Identifier: Apache-2.0
"""Shows that the tree keeps the house's rules that no other tool checks: house_rules.py RULE [ROOT]

Each rule is a function of a file's path and its lines that yields (line number, complaint).
"""

import pathlib
import re
import sys

import arrows
import complete
import pages
import tree

LINES_MAX = 500
CODE = (".h", ".cc", ".cu", ".py", ".pyi", ".proto", ".sh", ".cmake")
BANNED_NAMES = re.compile(r"(?:^|_)(?:utils?|helpers?|common|managers?|misc)(?:_|$)")
BANNED_TYPES = re.compile(r"\b(?:class|struct|namespace)\s+\w*(?:Util|Utils|Helper|Helpers|Manager|utils|helpers)\b")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|not impl" r"emented|unimpl" r"emented)\b")

# What the upper folders of the front see of the rest of the daemon.
FRONT_SEES = {"base", "service", "tier", "mover", "foresight", "engine", "config", "topology"}
# What each layer of the daemon may include, itself aside; a layer's name stands for its rooms, too. `tier` and all others see base, shm and the client's error.h.
RESIDENCY_SEES = {"base", "tier", "mover", "foresight", "engine/policy", "engine/values", "engine/catalog", "engine/links"}
ADMISSION_SEES = RESIDENCY_SEES | {"engine/requests", "engine/residency", "engine/budget", "engine/steps", "engine/space"}
BELOW = {
    "base": set(),
    "log": {"base"},
    "service": {"base"},
    "supervise": {"base", "service"},
    "tier": {"base"},
    "mover": {"base", "tier"},
    "foresight": {"base"},
    "engine/policy": {"base"},
    "engine/values": {"base", "tier", "mover", "foresight", "engine/policy"},
    "engine/catalog": {"base", "tier", "engine/values"},
    "engine/links": {"base", "mover", "engine/values"},
    "engine/requests": {"base", "engine/values"},
    "engine/residency": RESIDENCY_SEES,
    "engine/budget": RESIDENCY_SEES | {"engine/residency"},
    "engine/steps": RESIDENCY_SEES | {"engine/residency"},
    "engine/space": RESIDENCY_SEES | {"engine/residency", "engine/budget", "engine/steps"},
    "engine/admission": ADMISSION_SEES,
    "engine": ADMISSION_SEES | {"engine/admission"},
    "config": {"base", "tier", "topology"},
    "topology": {"base"},
    "workload": {"base", "config", "topology"},
    "metrics": {"base", "tier", "mover", "engine", "front/gateway", "config"},
    "front/gateway": {"base", "engine"},
    "front/reactor": {"base", "service", "mover", "engine", "front/gateway"},
    "front/doors": {"base", "config", "front/gateway", "front/reactor"},
    "front/node": {"base", "config", "tier", "mover", "engine"},
    "front/survival": FRONT_SEES | {"front/gateway", "front/reactor", "front/node"},
    "front/sessions": FRONT_SEES | {"front/gateway", "front/reactor", "front/node", "front/survival"},
    "front/restore": FRONT_SEES | {"front/gateway", "front/reactor", "front/node", "front/survival", "front/sessions"},
    "front/training": FRONT_SEES | {"front/gateway", "front/reactor", "front/sessions"},
    "front/http2": {"base", "front/gateway"},
    "front/grpc": {"base", "mover", "engine", "front/gateway", "front/http2"},
    "front/holding": {"base", "config", "engine", "front/gateway", "front/reactor", "front/doors", "front/grpc"},
    "front": FRONT_SEES | {"front/gateway", "front/reactor", "front/doors", "front/node", "front/survival",
                           "front/sessions", "front/restore", "front/training"},
    "rehearsal": {"base", "config", "tier", "mover", "foresight", "engine", "workload"},
    "timetable": {"base", "foresight", "workload"},
    "picture": {"base"},
    "doctor": {"base", "config", "tier", "topology"},
    "proposal": {"base", "config", "tier", "topology"},
    "forecast": {"base", "mover", "rehearsal", "workload"},
    "sim": {"base", "tier", "mover", "foresight", "engine", "rehearsal", "timetable", "picture", "forecast", "config",
            "topology", "workload"},
}
PROTO_FIELD = re.compile(r"[\w.>]\s+(\w+)\s*=\s*\d+\s*;")
# Where the generators of other languages put what they make of a .proto; without them they want a flag for each file.
PROTO_PACKAGES = ("go_package", "java_package", "csharp_namespace")
USING = re.compile(r"\s*using\s+[\w:]*::(\w+);")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z0-9_/]+)/')


def is_code(path):
    return path.suffix in CODE or path.name == "CMakeLists.txt" or path in SCRIPTS


def spdx(path, lines):
    """Every file of ours that can hold a comment names its licence in its first lines."""
    if is_code(path) or path.suffix in (".toml", ".yml", ".yaml", ".service", ".socket", ".conf"):
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
            yield 1, "no SPDX-License-Identifier: Apache-2.0 in the first three lines"


def lines(path, lines):
    """Small rooms: no source is longer than LINES_MAX."""
    if is_code(path) and len(lines) > LINES_MAX:
        yield LINES_MAX, f"{len(lines)} lines; split it by concept, nothing is longer than {LINES_MAX}"


def unfinished(path, lines):
    """Nothing is left open in the tree; open work is an issue."""
    if is_code(path) or path.suffix == ".md":
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line):
                yield number, "left open; finish it, or take it out and file an issue"


def names(path, lines):
    """Names say what a thing is."""
    for part in path.parts:
        if BANNED_NAMES.search(part.split(".")[0].lower()):
            yield 1, f"'{part}' says nothing; name what it holds"
    if path.suffix in (".h", ".cc", ".py"):
        for number, line in enumerate(lines, 1):
            if BANNED_TYPES.search(line):
                yield number, "a type's name says what it is, not that it helps or manages"


def once(path, lines):
    """Every header is guarded by #pragma once."""
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield 1, "no #pragma once"


def comments(path, lines):
    """Headers, sources of tests and Python files open by saying what they hold or show."""
    tested = path.parts[0] == "tests" and path.name.endswith("_test.cc")
    if path.suffix == ".h" or tested:
        if not (len(lines) > 1 and lines[1].startswith("//")):
            yield 2, "the second line says what this file holds or shows: // ..."
    if path.suffix == ".py" and path.name != "__init__.py":
        if not any(line.startswith(('"""', "'''", 'r"""')) for line in lines[:4]):
            yield 2, 'the file opens with a docstring of what it holds or shows: """..."""'


def layer_of(folder):
    """The layer that a folder below daemon/ is or lies in: `tier` of tier/block, `front/grpc` of itself; or none.

    A folder of a layer that has others in it is one that BELOW knows, or none.
    """
    within, _, _ = folder.rpartition("/")
    divided = any(layer.startswith(f"{within}/") for layer in BELOW)
    return folder if folder in BELOW else layer_of(within) if within and not divided else None


def layers(path, lines):
    """The daemon's layers include only what lies below them, and the Python package's rooms import only that."""
    yield from arrows.python_layers(path, lines)
    if path.parts[0] != "daemon" or len(path.parts) < 3 or path.suffix not in (".h", ".cc"):
        return
    folder = "/".join(path.parts[1:-1])
    layer = layer_of(folder)
    if layer is None:
        yield 1, f"'{folder}' is no layer that tests/style/house_rules.py knows; say there what it may include"
        return
    for number, line in enumerate(lines, 1):
        included = INCLUDE.match(line)
        seen = included and layer_of(included[1])
        if seen and seen not in BELOW[layer] | {layer} and seen.partition("/")[0] not in BELOW[layer]:
            yield number, f"{layer}/ includes {seen}/, which does not lie below it"


def fields(path, lines):
    """Every field of a .proto says what it holds, behind it or on the line before. `token` is said once for all."""
    if path.suffix != ".proto":
        return
    for number, line in enumerate(lines, 1):
        code, _, said = line.partition("//")
        before = lines[number - 2].strip() if number > 1 else ""
        undocumented = [name for name in PROTO_FIELD.findall(code) if name != "token"]
        if undocumented and not said.strip() and not before.startswith("//"):
            yield number, f"nothing says what '{undocumented[0]}' holds, and its unit: FIELD;  // ..."


def packages(path, lines):
    """Every .proto of the API names its packages in Go, Java and C#."""
    if path.suffix == ".proto" and path.parts[0] == "proto":
        for name in PROTO_PACKAGES:
            if not any(re.match(rf'option {name} = ".+";', line) for line in lines):
                yield 1, f"no package for a generator: option {name} = ..."


def usings(path, lines):
    """Every name that a source takes over from a namespace is used there (clang-tidy does not look, in unity builds)."""
    if path.suffix != ".cc":
        return
    text = "\n".join(lines)
    for number, line in enumerate(lines, 1):
        taken = USING.match(line)
        if taken and len(re.findall(rf"\b{taken[1]}\b", text)) == 1:
            yield number, f"'{taken[1]}' is not used here"


def machine(path, lines):
    """No file names a folder of the machine that it was written on."""
    places = {str(tree.ROOT) + "/", str(pathlib.Path.home()) + "/"} - {"//"}
    for number, line in enumerate(lines, 1):
        if any(place in line for place in places):
            yield number, "a path of one machine"


RULES = {rule.__name__: rule for rule in (spdx, lines, unfinished, names, once, comments, layers, fields, packages, usings,
                                         machine)}
RULES |= pages.RULES | {"complete": complete.complete, "private": arrows.private}
SCRIPTS = set()


def complaints(rule, root=None):
    """All complaints of one rule about the tree, as 'path:line: text'."""
    if root is not None:
        tree.ROOT = pathlib.Path(root)
    SCRIPTS.clear()
    SCRIPTS.update(tree.scripts())
    checked = 0
    found = []
    for path in tree.files():
        try:
            text = (tree.ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        checked += 1
        found += [f"{path}:{number}: {complaint}" for number, complaint in RULES[rule](path, text.splitlines())]
    return found, checked


if __name__ == "__main__":
    broken, number_checked = complaints(*sys.argv[1:])
    for line in broken:
        print(line)
    tree.exit_with(len(broken), number_checked)
