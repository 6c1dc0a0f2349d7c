# SPDX-License-Identifier: Apache-2.0
"""Shows that each house rule finds the fault it is for, and leaves a good tree alone."""

import pathlib
import tempfile
import unittest

import house_rules

GOOD_HEADER = "// SPDX-License-Identifier: Apache-2.0\n// A thing.\n#pragma once\n"
FAULTS = {
    "spdx": ("daemon/base/a.h", "// A thing.\n#pragma once\nint a;\n"),
    "lines": ("daemon/base/a.h", GOOD_HEADER + "\n" * 500),
    "unfinished": ("daemon/base/a.h", GOOD_HEADER + "// TO" "DO: later\n"),
    "names": ("daemon/base/string_utils.h", GOOD_HEADER),
    "once": ("daemon/base/a.h", "// SPDX-License-Identifier: Apache-2.0\n// A thing.\n"),
    "comments": ("tests/unit/a_test.cc", "// SPDX-License-Identifier: Apache-2.0\n#include <x>\n"),
    "fields": ("proto/a.proto", GOOD_HEADER + "message A {\n  uint64 bytes = 1;\n}\n"),
    "packages": ("proto/a.proto", 'option go_package = "a";\noption csharp_namespace = "A";\n'),
    "usings": ("daemon/base/a.cc", "// SPDX-License-Identifier: Apache-2.0\nusing ::testing::HasSubstr;\nint a;\n"),
    "layers": ("daemon/tier/a.h", GOOD_HEADER + '#include "engine/engine.h"\n'),
    "links": ("docs/a.md", "# A page\nSee [itself](a.md#a-page), [below](#a-page) and [b](b.md).\n"),
    "words": ("docs/a.md", "# A page\nThe GPU tier is HBM; `GPU tier` is code.\n"),
    "length": ("docs/a.md", "# A page\n" + "word " * 2200),
    "complete": ("daemon/metrics/a.cc", 'counter("terrace_new_total");\n'),
    "private": ("client/python/src/terrace/torch/_model/a.py", "import torch\npush = torch._C._autograd.push\n"),
    "snippets": ("docs/guides/a.md", "# A guide\n```text\nsaid\n```\n```sh\nrm -rf everything\n```\n"),
}


class HouseRules(unittest.TestCase):
    def check(self, rule, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            if rule == "machine":
                pathlib.Path(folder, "a.md").write_text(f"see {folder}/x\n")
            return house_rules.complaints(rule, folder)[0]

    def test_each_rule_finds_its_fault(self):
        self.assertEqual(set(house_rules.RULES), {*FAULTS, "machine"}, "a rule without a fault here")
        for rule, (name, text) in FAULTS.items():
            with self.subTest(rule):
                found = self.check(rule, {name: text})
                self.assertEqual(1, len(found), found)
                self.assertIn(name, found[0])

    def test_arrows_of_the_python_package_go_down(self):
        """An import that runs back up is found wherever it stands, and so is a circle within one room."""
        torch = "client/python/src/terrace/torch/"
        upward = {"at the top": "from .._model.modules import attach\n",
                  "for a type checker": "if TYPE_CHECKING:\n    from .._model.modules import Uses\n",
                  "in a function": "def late():\n    import terrace.torch._model.modules\n",
                  "of a module": "from .._model import modules\n",
                  "of the face": "from .. import offload\n"}
        for where, text in upward.items():
            with self.subTest(where):
                found = self.check("layers", {torch + "_leased/a.py": text, torch + "_model/modules.py": "",
                                              torch + "__init__.py": ""})
                self.assertEqual(1, len(found), found)
                self.assertIn("_leased/a.py", found[0])
        self.assertEqual([], self.check("layers", {torch + "_model/a.py": "from .._leased import b\nfrom ..._errors import E\n",
                                                   torch + "_leased/b.py": "from .c import d\n", torch + "_leased/c.py": "",
                                                   torch + "__init__.py": "from ._model.a import e\n"}))
        self.assertEqual(1, len(self.check("layers", {"client/python/src/terrace/_errors.py": "from .torch import offload\n"})))
        self.assertEqual(1, len(self.check("layers", {torch + "_misplaced/a.py": ""})))
        self.assertEqual(2, len(self.check("layers", {torch + "_leased/a.py": "from .b import c\n",
                                                      torch + "_leased/b.py": "from . import a\n"})))
        self.assertEqual(1, len(self.check("layers", {"docs/internals/torch.md": "| `_leased` | x |\n| `_pytorch` | y |\n"})))

    def test_a_path_of_the_machine_is_found(self):
        self.assertEqual(1, len(self.check("machine", {})))

    def test_what_else_the_rules_for_pages_find(self):
        for rule, name, text, count in (("complete", "deploy/terraced.toml", "[limits]\nnew_max = 1\n# other = 2\n", 2),
                                        ("complete", "proto/include/terrace/error.h", "  kNew = 99,\n", 1),
                                        ("complete", "client/include/terrace/client.h",
                                         "  Result<void> again(int a);\n  Pending<void> again_async(int a);\n", 2),
                                        ("complete", "client/python/src/terrace/_client.py",
                                         "class Client:\n  def new(self):\n    pass\n  def _own(self):\n    pass\n", 1),
                                        ("words", "daemon/a.cc", 'fail("no room in RAM");  // RAM\n', 1),
                                        ("words", "docs/a.md", "Of what is there some goes.\n- Who asks waits.\n", 2),
                                        ("links", "docs/a.md", "# One\n[two](#two) `[three](three.md)`\n", 1),
                                        ("links", "tests/e2e/a.py", "# docs/was.md says how\n", 1),
                                        ("private", "client/python/src/terrace/torch/_model/a.py", "torch.cuda.Event()\n", 1),
                                        ("snippets", "README.md", "# It\n```python\nrun()\n```\n", 1)):
            with self.subTest(text):
                self.assertEqual(count, len(self.check(rule, {name: text})))

    def test_layers_within_a_layer_have_walls_too(self):
        for folder, included, count in (("front/gateway", "front/sessions/session.h", 1),
                                        ("front/sessions", "front/gateway/gateway.h", 0),
                                        ("front/sessions", "front/host.h", 1),
                                        ("front", "front/sessions/session.h", 0),
                                        ("metrics", "front/host.h", 1),
                                        ("front/unheard_of", "base/fd.h", 1),
                                        ("mover", "tier/block/block_file.h", 0)):
            with self.subTest(folder=folder, included=included):
                text = GOOD_HEADER + f'#include "{included}"\n'
                self.assertEqual(count, len(self.check("layers", {f"daemon/{folder}/a.h": text})))

    def test_a_good_file_passes_every_rule(self):
        good = {"daemon/engine/a.cc": "// SPDX-License-Identifier: Apache-2.0\nusing std::max;\nint a = max(1, 2);\n",
                "daemon/engine/a.h": GOOD_HEADER + '#include "tier/tier.h"\n#include "base/fd.h"\n',
                "docs/lab/a.md": "# A run\nOf what was run, some paged in from the disk tier.\n" + "word " * 2201,
                "docs/a.md": "# A page\nThe block tier. Who reads this? See [the run](lab/a.md#a-run).\n",
                "proto/a.proto": "// SPDX-License-Identifier: Apache-2.0\noption go_package = \"a/v1;av1\";\n"
                                 "option java_package = \"a.v1\";\noption csharp_namespace = \"A.V1\";\n"
                                 "message A { bytes token = 1; }\nmessage B {\n"
                                 "  uint64 bytes = 1;  // of all\n  // By number.\n  map<uint32, A> named = 2;\n}\n"}
        for rule in set(house_rules.RULES) - {"machine"}:
            with self.subTest(rule):
                self.assertEqual([], self.check(rule, good))


if __name__ == "__main__":
    unittest.main()
