# SPDX-License-Identifier: Apache-2.0
"""The ranks of a test, as forks of a process that has imported what they need: importing PyTorch takes longer than most of
what ranks show."""

import importlib
import multiprocessing
import os
import pathlib
import sys
import tempfile
from unittest import mock

from python_fixtures import LIMIT_SECONDS

COMPILER = "torch._dynamo"  # 2 s of CPU: an optimizer's first step imports it
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


class Checks(dict):
    """What each rank of a test does, by name."""

    def check(self, function):
        """Adds a function."""
        self[function.__name__] = function
        return function


def be_a_rank(module, said, environment, arguments):
    """In the fork: does what the rank is to check, with what it says in a file."""
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    importlib.import_module(module).CHECKS.be_a_rank(*arguments)
    # What FSDP and meshes still hold of the group has threads of gloo's own, which abort now and then when they give up a
    # tensor as the interpreter ends (pytorch/pytorch#179291): it does not come to that.
    sys.stdout.flush()
    os._exit(0)


def run_forks(file, ranks, environment, imported=None):
    """Runs `CHECKS.be_a_rank(*arguments)` of a file for each rank's arguments, until all have ended. Returns their exit codes,
    and what they said. imported: the modules to import before a fork; None: the file itself, which may start no thread."""
    module = pathlib.Path(file).stem
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*(imported or [module]), COMPILER])
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, ENVIRONMENT):
        said = [pathlib.Path(folder, str(number)) for number in range(len(ranks))]
        forks = [context.Process(target=be_a_rank, args=(module, path, environment, arguments))
                 for path, arguments in zip(said, ranks, strict=True)]
        try:
            for fork in forks:
                fork.start()
            for fork in forks:
                fork.join(2 * LIMIT_SECONDS)
            ended = [fork.exitcode for fork in forks]
        finally:
            for fork in forks:
                if fork.pid:
                    fork.kill()
                    fork.join()
        return ended, [path.read_text(errors="replace") if path.exists() else "" for path in said]
