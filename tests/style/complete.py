# SPDX-License-Identifier: Apache-2.0
"""The rule that the reference is complete: every metric, configuration key, error, check of a node, and public name of
Python stands on its page. A function of a file's path and its lines, as house_rules.py has them."""

import ast
import re
import tomllib

import tree

METRIC = re.compile(r'"(terrace_[a-z_]+)"')
ERROR = re.compile(r"^\s+(k[A-Z]\w+) = \d+,")
CALL = re.compile(r"^  (?:static )?(?:Result|Pending)<.*> (\w+?)(?:_async)?\(")
CHECK = re.compile(r'\bCheck\{"(\w+)"')
COMMENTED_KEY = re.compile(r"^# (\w+ = .*)")


def metrics(lines):
    for number, line in enumerate(lines, 1):
        yield from ((number, name) for name in METRIC.findall(line))


def checks(lines):
    """Checks of terracectl doctor."""
    for number, line in enumerate(lines, 1):
        yield from ((number, name) for name in CHECK.findall(line))


def errors(lines):
    for number, line in enumerate(lines, 1):
        yield from ((number, name) for name in ERROR.findall(line))


def calls(lines):
    """Calls of a C++ header; one that does not wait goes by the name of the one that does."""
    for number, line in enumerate(lines, 1):
        if line.startswith(" private:"):
            return
        yield from ((number, name) for name in CALL.findall(line))


def keys(lines):
    """Keys of the commented example, those that are commented out among them; of a section with its name."""
    example = "\n".join(COMMENTED_KEY.sub(r"\1", line) for line in lines)
    for name, value in tomllib.loads(example).items():
        if isinstance(value, dict):
            yield from ((1, f"{name}.{key}") for key in value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from ((1, key) for element in value for key in element)
        else:
            yield 1, name


def public(lines):
    """Public methods and properties of public classes, and what __all__ names."""
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.ClassDef) and node.name in ("Client", "Session", "Lease", "Tensor", "ServedClient"):
            for member in node.body:
                name = getattr(member, "name", None) or getattr(getattr(member, "target", None), "id", "_")
                if not name.startswith("_"):
                    yield member.lineno, name
        elif isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__all__" for name in node.targets):
            yield from ((node.lineno, name) for name in ast.literal_eval(node.value))


# Which files say what there is: by how their paths begin, the page that lists it, and how it is found there.
SAID = (
    ("daemon/metrics/", ".cc", "docs/reference/metrics.md", metrics),
    ("daemon/doctor/checks.cc", "", "docs/reference/doctor.md", checks),
    ("deploy/terraced.toml", "", "docs/reference/configuration.md", keys),
    ("proto/include/terrace/error.h", "", "docs/reference/errors.md", errors),
    ("client/include/terrace/client.h", "", "docs/reference/cpp.md", calls),
    ("client/include/terrace/lease.h", "", "docs/reference/cpp.md", calls),
    ("client/python/src/terrace/_client.py", "", "docs/reference/python.md", public),
    ("client/python/src/terrace/_serve.py", "", "docs/reference/python.md", public),
    ("client/python/src/terrace/_terrace.pyi", "", "docs/reference/python.md", public),
    ("client/python/src/terrace/torch/__init__.py", "", "docs/reference/torch.md", public),
)


def complete(path, lines):
    """What a file says there is, the reference's page lists."""
    for begin, end, page, names in SAID:
        if str(path).startswith(begin) and str(path).endswith(end):
            file = tree.ROOT / page
            said = set(re.findall(r"[\w.]+", file.read_text())) if file.exists() else set()
            said |= {word.rstrip(".") for word in said} | {part for word in said for part in word.split(".")}
            yield from ((number, f"'{name}' is not on {page}") for number, name in names(lines) if name not in said)
