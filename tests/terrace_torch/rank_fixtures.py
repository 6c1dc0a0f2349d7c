# SPDX-License-Identifier: Apache-2.0
"""What the tests with several ranks share: two processes over gloo, each a client of one daemon, that run the same
check of a test's file."""

import os
import pathlib
import signal

import forked_ranks
import terrace
from model_fixtures import Restless
from torch import distributed

RANKS = 2


class Checks(forked_ranks.Checks):
    """What each rank of a test does, by name, with a client of its own."""

    def be_a_rank(self, name, rank, folder, socket):
        """Joins the other, and checks."""
        distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
                                       world_size=RANKS)
        with Restless(socket, guarantees={"host": 8 << 20}) as client:
            client.metrics_url = os.environ["METRICS_URL"]
            self[name](client, pathlib.Path(folder))
            if not distributed.is_initialized():
                return  # it goes on alone
            distributed.barrier()
        distributed.destroy_process_group()


def run_ranks(file, name, disk, dies=None):
    """Runs a check of a file as both ranks. dies: the rank that kills itself."""
    with terrace.serve("32MiB", block=f"{disk}:256MiB", guarantees={"host": 0}) as served:
        ended, said = forked_ranks.run_forks(file, [(name, rank, disk, served.socket) for rank in range(RANKS)],
                                             {"METRICS_URL": served.metrics_url, "TERRACE_ADMIN_SOCKET": served.admin_socket})
    assert ended == [-signal.SIGKILL if number == dies else 0 for number in range(RANKS)], "\n".join(said)
