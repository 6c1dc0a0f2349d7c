# SPDX-License-Identifier: Apache-2.0
"""Shows that every shell script passes shellcheck."""

import subprocess

import tree

scripts = tree.scripts()
result = subprocess.run(["shellcheck", "-x", *scripts], cwd=tree.ROOT, check=False)
tree.exit_with(result.returncode, len(scripts))
