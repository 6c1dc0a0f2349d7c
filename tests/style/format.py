# SPDX-License-Identifier: Apache-2.0
"""Shows that every C++ file is as clang-format-19 would write it."""

import subprocess

import tree

sources = tree.files(".h", ".cc")
result = subprocess.run(["clang-format-19", "--dry-run", "-Werror", *sources], cwd=tree.ROOT, check=False)
tree.exit_with(result.returncode, len(sources))
