# SPDX-License-Identifier: Apache-2.0
"""What the tests with several ranks on the test device share: two processes over its collectives, or as many as are asked for,
on one device or on several, that run the same check of a test's file."""

import os

import fakegpu
import forked_ranks
import terrace
import torch
from device_fixtures import DEVICES, serve
from torch import distributed

RANKS = 2
IMPORTED = ["torch.distributed.fsdp", "torch.distributed.tensor", "terrace.torch", "pytest"]  # and not the driver: it has threads


class Checks(forked_ranks.Checks):
    """What each rank of a test does, by name. It is given the rank's number and the daemon's socket."""

    def be_a_rank(self, name: str, rank: int, folder: object, socket: str, device: int) -> None:
        """Joins the other, and checks."""
        distributed.init_process_group(fakegpu.register_collectives(), init_method=f"file://{folder}/{name}{os.environ['RANKS']}",
                                       rank=rank, world_size=int(os.environ["RANKS"]))
        fakegpu.native.exchange_device(device)
        self[name](rank, socket)
        distributed.barrier()
        distributed.destroy_process_group()


def client_of_rank(socket: str, hbm: int = 2 << 20) -> terrace.Client:
    """A session that is guaranteed a part of the rank's own device."""
    own, tiers = torch.accelerator.current_device_index(), int(os.environ["TIERS"])
    return terrace.Client(socket, guarantees={"host": 4 << 20, **{f"device:{number}": hbm * (number == own)
                                                                  for number in range(tiers)}})


def run_ranks(file: str, name: str, disk: object, devices: int = 1, hbm: str = "8MiB", count: int = RANKS) -> None:
    """Runs a file as all ranks, with arguments for be_a_rank(). devices: that they have, together. hbm: of each."""
    tiers, gpu = (1, "cuda:0") if devices == 1 else (DEVICES, "cuda:all")
    nothing = dict.fromkeys(["host", *(f"device:{number}" for number in range(tiers))], 0)  # the ranks have all of it
    with serve(hbm, "16MiB", f"{disk}:64MiB", gpu, nothing) as served:
        ended, said = forked_ranks.run_forks(file, [(name, rank, disk, served.socket, rank % devices) for rank in range(count)],
                                             {"TIERS": str(tiers), "RANKS": str(count), "FOLDER": str(disk)}, IMPORTED)
    assert ended == [0] * count, "\n".join(said)
    print("".join(said))
