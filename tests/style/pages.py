# SPDX-License-Identifier: Apache-2.0
"""The rules for pages, as house_rules.py has them for sources: links that resolve, words with one meaning, pages that
are not too long, and snippets that a test runs. Each is a function of a file's path and its lines that yields (line
number, complaint)."""

import functools
import pathlib
import re

import tree

WORDS_MAX = 2000
NOTEBOOKS = ("lab", "decisions")  # folders of docs/ that keep what was written then
SNIPPET_LANGUAGES = {"python", "sh", "toml", "text", "diff", "cmake", "cpp", ""}

# What is not said, and what is said for it (docs/glossary.md has both).
BANNED = {
    r"VRAM|GPU RAM|video memory": "HBM",
    r"RAM|main memory|system memory": "DRAM",
    r"(?:disk|SSD|NVMe) tiers?": "block tier",
    r"(?:GPU|HBM) tiers?": "device tier",
    r"(?:CPU|DRAM|host) tiers?": "memory tier",
    r"spill(?:s|ed|ing)?|paged out|flush(?:es|ed)? out": "write back, or evict",
    r"paged in|faulted in": "fetch",
    r"borrow(?:s|ed)? (?:a |the )?(?:tensor|copy|bytes)|check(?:s|ed)? out (?:a |the )?tensor": "lease",
    r"reservations?": "home, or guarantee",
    r"minimum guarantee|guaranteed minimum": "guarantee",
    r"agent|server process": "daemon",
    r"worker process(?:es)?": "trainer, or rank",
    r"corrupt tensors?": "lost, or torn",
}
BANNED_WORD = re.compile("|".join(rf"(?P<b{i}>\b(?:{words})\b)" for i, words in enumerate(BANNED)))
TURNED = re.compile(r"(?:^|[.:;] |^- |^\d+\. |\*\* )(?:Of|Who) [a-z][^.?!]*[.!]")  # a sentence that does not begin with its subject
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
LINK = re.compile(r"\]\(([^()\s]+)\)")
NAMED = re.compile(r"\bdocs/[\w/-]+\.md\b")
FENCE = re.compile(r"^\s*```")

# Which test runs the Python of a page: one script for each, in the page's order. The test names the page.
PYTHON_OF = {
    "README.md": "tests/e2e/python_demo.py",
    "docs/start.md": "tests/e2e/python_docs.py",
    "docs/guides/activations.md": "tests/terrace_torch/activations/activations_test.py",
    "docs/guides/coming-from.md": "tests/e2e/python_docs.py",
    "docs/guides/gpus.md": "tests/e2e/python_docs.py",
    "docs/guides/huggingface.md": "tests/terrace_torch/jobs/huggingface_test.py",
    "docs/guides/autocast.md": "tests/terrace_torch/jobs/docs_test.py",
    "docs/guides/install.md": "tests/deploy/wheel_programs.py",
    "docs/guides/masters.md": "tests/terrace_torch/jobs/docs_test.py",
    "docs/guides/qlora.md": "tests/terrace_torch/jobs/qlora_test.py",
    "docs/guides/pytorch.md": "tests/terrace_torch/jobs/docs_test.py",
    "docs/guides/ranks.md": "tests/e2e/python_docs.py",
    "docs/guides/size-a-node.md": "tests/terrace_torch/reports/estimate_test.py",
    "docs/guides/recipes.md": "tests/terrace_torch/jobs/recipes_test.py",
}

# The commands of pages by how they begin: the test that covers them, and why python_docs.py does not run them itself.
COMMANDS = {
    "git clone ": ("tests/deploy/next_steps_test.py", "the tree under test is what would be cloned"),
    "./deploy/demo": ("tests/deploy/next_steps_test.py", "it takes minutes"),
    "./deploy/bootstrap ": ("tests/deploy/bootstrap_test.py", "it installs packages as root"),
    "cmake --preset release": ("deploy/test", "it is what built the tests"),
    "./deploy/wheel": ("tests/deploy/wheel", "it takes minutes, and that tests what it made"),
    "python3 -m venv ": ("tests/deploy/wheel", "it makes an environment of its own"),
    "pip install ": ("tests/deploy/wheel", "it installs into an environment"),
    "terraced --version": ("tests/deploy/commands_test.py", "it says a version, and nothing of a daemon"),
    "./deploy/venv": ("deploy/test", "it is what made the tests' Python"),
    "source build/venv/": ("tests/e2e/python.cmake", "the tests run by that Python"),
    "GLIBC_TUNABLES=": ("tests/terrace_torch/activations/heap_test.py", "it sets a process's environment, and is read from the page"),
    "python client/python/examples/two_ranks.py": ("tests/terrace_torch/ranks/ranks_test.py", "it takes a minute, and is killed there"),
    "systemctl ": ("tests/faults/systemd_daemon", "it needs a systemd as process 1"),
    "terraced supervise": ("tests/unit/supervise", "it runs until it is told to end"),
    "terracectl upgrade": ("tests/e2e/upgrade_test.cc", "it needs a supervisor and another program"),
    "terracectl drain": ("tests/e2e/terracectl.py", "it ends a daemon's use"),
    "terracectl plan": ("tests/e2e/terracectl_plan.py", "it takes tens of seconds"),
    "terracectl doctor": ("tests/e2e/terracectl_first_steps.py", "its status is its verdict on the machine"),
    "terracectl init": ("tests/e2e/terracectl_first_steps.py", "it writes to the system's folder"),
    "terraced --check-config": ("tests/e2e/python_docs.py", ""),
    "terracectl ": ("tests/e2e/python_docs.py", ""),
    "curl ": ("tests/e2e/python_docs.py", ""),
}
# Blocks without a language, which are recipes that their own test reads from the page.
RECIPES = {"README.md": "tests/faults/systemd_daemon"}


class Block:
    """A fenced block of a page: its language, the line that it begins at, and its text."""

    def __init__(self, language, number):
        self.language, self.number, self.text = language, number, ""


def blocks(lines):
    """The fenced blocks of a page, in order."""
    found, inside = [], None
    for number, line in enumerate(lines, 1):
        if FENCE.match(line):
            if inside is None:
                inside = Block(line.strip()[3:].split(" ")[0], number)
                found.append(inside)
            else:
                inside = None
        elif inside is not None:
            inside.text += line + "\n"
    return found


def prose(lines):
    """(line number, text) of what is no code: without fenced blocks, and without what stands in backquotes."""
    inside = False
    for number, line in enumerate(lines, 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, re.sub(r"`[^`]*`", "", line)


def kept_up(path):
    """Whether a page says what is, and not what was: all pages but the notebooks."""
    return path.suffix == ".md" and not (path.parts[0] == "docs" and path.parts[1] in NOTEBOOKS)


def slug(heading):
    """The anchor that GitHub makes of a heading."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


@functools.lru_cache(None)
def anchors(file):
    """The anchors of a page."""
    found, times, inside = set(), {}, False
    for line in pathlib.Path(file).read_text().splitlines():
        if FENCE.match(line):
            inside = not inside
        heading = None if inside else re.match(r"#+ (.*)", line)
        if heading:
            name = slug(heading[1])
            found.add(name if name not in times else f"{name}-{times[name]}")
            times[name] = times.get(name, 0) + 1
    return found


def links(path, lines):
    """Every relative link of a page, and every anchor, is there; and so is every page that another file names."""
    if path.suffix != ".md":
        if path.parts[:2] != ("tests", "style"):
            for number, line in enumerate(lines, 1):
                yield from ((number, f"'{name}' is not there") for name in NAMED.findall(line)
                            if not (tree.ROOT / name).exists())
        return
    for number, line in prose(lines):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (tree.ROOT / path.parent / name).resolve() if name else tree.ROOT / path
            if not file.exists():
                yield number, f"'{target}' leads nowhere"
            elif anchor and file.suffix == ".md" and anchor not in anchors(str(file)):
                yield number, f"'{target}': no heading of {file.name} has that anchor"


def words(path, lines):
    """A word has one meaning, on pages and in messages; and a page's sentences begin with their subject."""
    if kept_up(path) and path.name not in ("glossary.md", "CHANGELOG.md"):
        for number, line in prose(lines):
            yield from ((number, said) for said in banned_in(line))
            if TURNED.search(line):
                yield number, "a sentence begins with its subject: not with 'Of ...' or 'Who ...'"
    elif path.parts[0] in ("daemon", "client") and path.suffix in (".cc", ".h", ".py") and "examples" not in path.parts:
        for number, line in enumerate(lines, 1):
            for text in STRING.findall(line):
                yield from ((number, said) for said in banned_in(text))


def banned_in(text):
    for word in BANNED_WORD.finditer(text):
        yield f"'{word[0]}' is not said here; say {list(BANNED.values())[int(word.lastgroup[1:])]} (docs/glossary.md)"


def length(path, lines):
    """A page is read in one go: no page of docs/ but the notebooks' is longer than WORDS_MAX words."""
    if kept_up(path) and path.parts[0] == "docs":
        count = sum(1 for _, line in prose(lines) for word in line.split() if re.search(r"\w", word))
        if count > WORDS_MAX:
            yield 1, f"{count} words; a page has at most {WORDS_MAX}: split it by what its readers want to do"


def has_snippets_run(path):
    return str(path) in ("README.md", "docs/start.md") or path.parts[:2] == ("docs", "guides")


def snippets(path, lines):
    """Every snippet of README, start and guides is run by a test, which PYTHON_OF and COMMANDS name."""
    if not has_snippets_run(path) or path.suffix != ".md":
        return
    for block in blocks(lines):
        if block.language not in SNIPPET_LANGUAGES:
            yield block.number, f"no test is known to cover snippets in '{block.language}'"
        elif block.language == "python":
            yield from covered(block.number, str(path), PYTHON_OF.get(str(path)), str(path))
        elif block.language == "sh":
            for command in block.text.splitlines():
                test = next((test for begin, (test, _) in COMMANDS.items() if command.startswith(begin)), None)
                yield from covered(block.number, f"the command '{command}'", test)
        elif block.language == "":
            yield from covered(block.number, "a block without a language", RECIPES.get(str(path)), path.name)


def covered(number, what, test, named=None):
    if test is None:
        yield number, f"no test covers {what}: see tests/style/pages.py"
    elif not (tree.ROOT / test).exists():
        yield number, f"{test}, which is to cover {what}, is not there"
    elif named and named not in (tree.ROOT / test).read_text():
        yield number, f"{test}, which is to cover {what}, does not read {named}"


RULES = {rule.__name__: rule for rule in (links, words, length, snippets)}
