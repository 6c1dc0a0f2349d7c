# SPDX-License-Identifier: Apache-2.0
"""Shows that the package's type stub and its extension module name the same things, and that everything public is
documented."""

import ast
import inspect
import pathlib

import terrace
import terrace.torch
from terrace import _terrace

STUB = pathlib.Path(terrace.__file__).with_name("_terrace.pyi")


def test_stub_and_module_agree():
    stub = {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)}
    module = {name for name, value in vars(_terrace).items() if inspect.isclass(value)}
    assert set(stub) == module
    for name, node in stub.items():
        typed = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        real = set(vars(getattr(_terrace, name)))
        public = {key for key in real if not key.startswith("__")}
        assert {key for key in typed if not key.startswith("__")} == public, name
        assert typed <= real, name


def test_the_package_is_typed_and_documented():
    assert STUB.with_name("py.typed").exists()
    documented = {node.name for node in ast.walk(ast.parse(STUB.read_text()))
                  if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)}
    for name in terrace.__all__:
        value = getattr(terrace, name)
        assert value.__doc__ or name in documented, name
    for name, value in vars(terrace.Client).items():
        if not name.startswith("_"):
            assert value.__doc__ or name in documented, name


def test_what_is_for_pytorch_is_documented_too():
    for name in terrace.torch.__all__:
        assert getattr(terrace.torch, name).__doc__, name
        assert inspect.getdoc(getattr(terrace.torch, name)) != inspect.getdoc(object), name
