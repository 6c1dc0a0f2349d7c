# SPDX-License-Identifier: Apache-2.0
"""Shows that a session may lease its guaranteed bytes in any order and any grouping, whatever was leased before and is
held still, while other sessions have all of the rest; and that what is leased so holds the bytes that were put there."""

import contextlib
import random

import numpy
import pytest
from python_fixtures import MIB, disk  # noqa: F401 (a fixture)

import terrace

PAGE = 4096
SIZES = (MIB, MIB // 2, 3 * MIB // 8, MIB // 16, 5 * PAGE, 1000)
STEPS = 150
SECONDS = 60


class Trainer:
    """Leases random sets within its guarantee, and knows what each tensor holds."""

    def __init__(self, client, place: str, guarantee: int, rng: random.Random):
        self.client, self.place, self.guarantee, self.rng = client, place, guarantee, rng
        sizes = [rng.choice(SIZES) for _ in range(20)] + [rng.randrange(1, MIB) for _ in range(8)]
        self.tensors = client.create_many([(f"tensor {at}", [size], "u1") for at, size in enumerate(sizes)])
        self.pages = [-(-size // PAGE) * PAGE for size in sizes]
        self.values: dict[int, int] = {}
        self.held: list[tuple[list[int], contextlib.ExitStack]] = []

    def lease(self) -> None:
        """One more set of what the guarantee has left."""
        left = self.guarantee - sum(self.pages[one] for members, _ in self.held for one in members)
        free = [one for one in range(len(self.tensors)) if all(one not in members for members, _ in self.held)]
        members = []
        for one in self.rng.sample(free, min(len(free), self.rng.randint(1, 6))):
            if self.pages[one] <= left:
                members.append(one)
                left -= self.pages[one]
        if not members:
            return
        modes = ["write" if one in self.values else "overwrite" for one in members]
        stack = contextlib.ExitStack()
        leases = stack.enter_context(self.client.acquire([self.tensors[one] for one in members], mode=modes,
                                                         place=self.place, timeout=SECONDS))
        for one, lease in zip(members, leases, strict=True):
            array = lease.numpy()
            assert one not in self.values or (array == self.values[one]).all(), f"{self.tensors[one].name} is another's"
            self.values[one] = self.rng.randrange(256)
            array[:] = self.values[one]
        self.held.append((members, stack))

    def release(self) -> None:
        """One of the sets, whichever."""
        _, stack = self.held.pop(self.rng.randrange(len(self.held)))
        stack.close()


@pytest.mark.parametrize("place", ["host", "device:0"])
@pytest.mark.parametrize("sessions", [2, 3, 4])
def test_any_order_and_any_grouping(disk, place, sessions):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    guarantee = 2 * MIB
    all_of_it = f"{sessions * guarantee >> 20}MiB"
    tiers = {"memory": all_of_it} if place == "host" else {"memory": "64MiB", "device": all_of_it}
    guarantees = {"host": guarantee, place: guarantee}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(terrace.serve(block=f"{disk}:256MiB", metrics=False, guarantees=guarantees, **tiers))
        clients = [first] + [stack.enter_context(terrace.Client(first.socket, guarantees=guarantees))
                             for _ in range(sessions - 1)]
        trainers = [Trainer(client, place, guarantee, rng) for client in clients]
        for _ in range(STEPS):
            trainer = rng.choice(trainers)
            if trainer.held and rng.random() < 0.45:
                trainer.release()
            else:
                trainer.lease()
        for trainer in trainers:
            while trainer.held:
                trainer.release()
            for one, value in trainer.values.items():
                with trainer.tensors[one].read(timeout=SECONDS) as lease:
                    assert (lease.numpy() == numpy.uint8(value)).all()
