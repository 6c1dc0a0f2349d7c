# SPDX-License-Identifier: Apache-2.0
"""Notes which lines of terrace.torch's functions run, in whatever thread, in each process that is started with this folder in
PYTHONPATH, and with TERRACE_TORCH_COVERAGE naming a folder: there each module has a file with a byte for each of its lines.

A module's source is changed as it is imported: before each statement of a function stands one that notes its line. Tracing
would not do, since it is a thread's own: autograd has threads that Python does not start. The files are shared by all
processes, so that nothing is lost of one that is killed.
"""

import ast
import importlib.abc
import importlib.machinery
import mmap
import os
import pathlib
import sys

PACKAGE = "terrace.torch"
_NOTES = "__terrace_lines__"


class _Noting(ast.NodeTransformer):
    """Puts a note before each statement of functions."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self._functions = 0

    def visit_FunctionDef(self, node):
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def generic_visit(self, node):
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if self._functions and isinstance(block, list) and not isinstance(node, ast.ClassDef):
                setattr(node, name, [one for each in block for one in self._noted(each)])
        return node

    def _noted(self, statement):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return [statement]  # a docstring, or nothing
        self.lines.append(statement.lineno)
        note = ast.parse(f"{_NOTES}[{statement.lineno}] = 1").body[0]
        for each in ast.walk(note):
            ast.copy_location(each, statement)
        return [note, statement]


def noted(source: bytes | str) -> tuple[ast.Module, list[int]]:
    """A module with its notes, and the lines that have one."""
    noting = _Noting()
    tree = noting.visit(ast.parse(source))
    return tree, sorted(set(noting.lines))


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        return compile(noted(self.get_data(self.path))[0], self.path, "exec")

    def exec_module(self, module):
        vars(module)[_NOTES] = _lines_of(module.__name__, self.get_data(self.path).count(b"\n") + 2)
        super().exec_module(module)


def _lines_of(name: str, count: int) -> mmap.mmap:
    with (pathlib.Path(os.environ["TERRACE_TORCH_COVERAGE"]) / name).open("ab+") as file:
        if os.fstat(file.fileno()).st_size < count:
            os.truncate(file.fileno(), count)
        return mmap.mmap(file.fileno(), count)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if not (fullname == PACKAGE or fullname.startswith(PACKAGE + ".")):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


if "TERRACE_TORCH_COVERAGE" in os.environ:
    sys.meta_path.insert(0, _Finder())
