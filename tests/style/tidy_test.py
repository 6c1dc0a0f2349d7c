# SPDX-License-Identifier: Apache-2.0
"""Shows that tidy.py finds a fault in whatever it reads together with others: in a source of a unity build, in one that another
command compiles, and in a header; that it says which; and that what passed is not read again until it changes."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
GOOD = "int {name}() {{ return 0; }}\n"
FAULT = "int* {name}() {{ return 0; }}\n"  # modernize-use-nullptr


class Tidy(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.build = self.root / "build/release"
        for folder in ("daemon", "client", "tests/style", "build/release/Unity"):
            (self.root / folder).mkdir(parents=True)
        shutil.copy(HERE.parents[1] / ".clang-tidy", self.root)
        for name in ("tidy.py", "tree.py"):
            shutil.copy(HERE / name, self.root / "tests/style")
        (self.root / "daemon/shared.h").write_text("#pragma once\ninline " + GOOD.format(name="shared"))
        self.sources = {name: self.root / "daemon" / f"{name}.cc" for name in ("one", "two", "three")}
        for name, path in self.sources.items():
            path.write_text('#include "shared.h"\n' + GOOD.format(name=name))
        unity = self.build / "Unity/unity_0.cxx"
        unity.write_text("".join(f'#include "{self.sources[name]}"\n' for name in ("one", "two")))
        units = (unity, self.sources["three"])
        (self.build / "compile_commands.json").write_text(json.dumps([
            {"directory": str(self.build), "file": str(unit), "command": f"/usr/bin/c++ -I{self.root}/daemon -std=c++23 -c {unit}"}
            for unit in units]))
        (self.root / "build/python").mkdir()
        (self.root / "build/python/compile_commands.json").write_text("[]")

    def tidy(self):
        ended = subprocess.run([sys.executable, "-B", self.root / "tests/style/tidy.py", self.build], capture_output=True,
                               text=True, check=False)
        return ended.returncode, ended.stdout

    def test_a_fault_is_found_wherever_it_is(self):
        status, said = self.tidy()
        self.assertEqual(status, 0, said)
        self.assertEqual(said.count(" s  "), 1, "both commands are read together")
        self.assertNotIn(" s  ", self.tidy()[1], "what passed is not read again")
        for path in (*self.sources.values(), self.root / "daemon/shared.h"):
            good = path.read_text()
            path.write_text(good + ("inline " if path.suffix == ".h" else "") + FAULT.format(name="planted"))
            status, said = self.tidy()
            self.assertEqual(status, 1, path)
            self.assertRegex(said, rf"{path.name}:\d+:\d+: error: use nullptr")
            path.write_text(good)
        self.assertEqual(self.tidy()[0], 0)

    def test_sources_that_do_not_agree_are_read_by_themselves(self):
        self.sources["one"].write_text("static " + GOOD.format(name="same") + "int one() { return same(); }\n")
        self.sources["three"].write_text("static " + GOOD.format(name="same") + "int three() { return same(); }\n")
        status, said = self.tidy()
        self.assertEqual((status, said.count(" s  ")), (0, 3), said)


if __name__ == "__main__":
    unittest.main()
