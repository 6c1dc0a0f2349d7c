# SPDX-License-Identifier: Apache-2.0
"""The rooms of the Python package, from the ground up, and the imports that run back up between them."""

import ast
import functools
import re

import tree

PACKAGE = ("client", "python", "src", "terrace")
PAGE = "docs/internals/torch.md"

# terrace.torch's rooms: each imports from those before it. Its face, torch/__init__.py, stands on all of them.
ROOMS = ("_pytorch", "_device", "_leased", "_tensors", "_parameters", "_ranks", "_model", "_optimizer", "_activations",
         "_files", "_buffers", "_offload", "_reports")
CLIENT, FACE = -1, len(ROOMS)  # terrace itself lies below them all
PRIVATE, PRIVATE_IN = re.compile(r"torch(?:\.[A-Za-z]\w*)*\._[A-Za-z]|\bf_code\b|__code__"), "_pytorch/private.py"
ROW = re.compile(r"\| `(_\w+)` \|")


def floor(module):
    """On which floor a module lies, named by its parts from terrace on; None: in no room that is known here."""
    if module[:1] != ("torch",):
        return CLIENT
    if len(module) < 2:
        return FACE
    return ROOMS.index(module[1]) if module[1] in ROOMS else None


def module_of(path):
    """What a file's module is called, from terrace on."""
    parts = path.parts[len(PACKAGE):]
    return (*parts[:-1], *([] if path.stem == "__init__" else [path.stem]))


def is_module(path):
    return path.suffix == ".py" and path.parts[:len(PACKAGE)] == PACKAGE


def imports(path, text):
    """The modules of the package that a file imports, wherever it does so (for type checkers alone as well), with the
    line: (line, module). A name that is taken from a package may be a module of it."""
    return _imports(tree.ROOT, path, text)


@functools.cache
def _imports(root, path, text):
    package, found = path.parts[len(PACKAGE) - 1:-1], {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "terrace":
                    found.setdefault(tuple(name.name.split(".")[1:]), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else ()
            whole = (*base, *(node.module or "").split(".")) if node.module else base
            if whole[:1] == ("terrace",):
                for name in node.names:
                    inner = root.joinpath(*PACKAGE, *whole[1:], name.name)
                    is_module = inner.is_dir() or inner.with_suffix(".py").exists() or inner.with_suffix(".pyi").exists()
                    found.setdefault((*whole[1:], name.name) if is_module else whole[1:], node.lineno)
    return [(line, module) for module, line in found.items()]


def python_layers(path, lines):
    """The package's rooms import only what lies below them, and no two modules import each other, however far round."""
    if str(path) == PAGE:
        shown = [row[1] for line in lines if (row := ROW.match(line))]
        if shown != list(ROOMS):
            yield 1, f"its table of rooms has {shown}, and tests/style/arrows.py {list(ROOMS)}: from the ground up"
    if not is_module(path):
        return
    module, text = module_of(path), "\n".join(lines)
    here = floor(module)
    if here is None:
        yield 1, f"'{module[1]}' is no room that tests/style/arrows.py knows; say there above which it stands"
        return
    for number, other in imports(path, text):
        there = floor(other)
        if there is None or there > here:
            yield number, f"{'.'.join(module)} imports {'.'.join(other)}, which does not lie below it"
        elif other != module and module in _reached(other):
            yield number, f"{'.'.join(module)} imports {'.'.join(other)}, and that comes round to it again"


def private(path, lines):
    """What PyTorch is asked privately stands in one file, so that the next PyTorch is that file's work; and what a GPU is
    asked in one room."""
    if is_module(path) and path.parts[len(PACKAGE):][:1] == ("torch",) and not str(path).endswith(PRIVATE_IN):
        for number, line in enumerate(lines, 1):
            if PRIVATE.search(line):
                yield number, f"a private name of PyTorch's, or a frame: name it in {PRIVATE_IN}, with the reason"
            elif "torch.cuda" in line and "_device" not in path.parts:
                yield number, "what a device is asked stands in _device"


def _reached(module):
    """What a module imports, and what is imported by that."""
    found, waiting = set(), [module]
    while waiting:
        path = tree.ROOT.joinpath(*PACKAGE, *waiting.pop())
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            new = {other for _, other in imports(file.relative_to(tree.ROOT), file.read_text())} - found
            found |= new
            waiting += new
    return found
