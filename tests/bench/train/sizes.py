# SPDX-License-Identifier: Apache-2.0
"""How large everything is: models, tiers, limits, rounds; in full and with --quick."""

import dataclasses

MIB = 1 << 20
GIB = 1 << 30
STATE_BYTES = 16  # a trained parameter in fp32 with AdamW: itself, its gradient, two moments


@dataclasses.dataclass(frozen=True)
class Model:
    """A GPT of client/python/examples/gpt_model.py."""

    blocks: int
    width: int
    heads: int
    context: int
    batch: int

    @property
    def parameters(self) -> int:
        """About how many."""
        return 12 * self.blocks * self.width**2 + (512 + self.context) * self.width

    @property
    def state_bytes(self) -> int:
        """With gradients and AdamW's moments."""
        return STATE_BYTES * self.parameters

    @property
    def largest_bytes(self) -> int:
        """Of the largest weight with its gradient and moments."""
        return STATE_BYTES * max(4 * self.width**2, 256 * self.width)

    @property
    def words(self) -> str:
        """For people."""
        millions = self.parameters / 1e6
        return f"{millions / 1000:.1f} billion parameters" if millions >= 1000 else f"{millions:.0f} million parameters"


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A Llama whose linear layers are in four bits, with adapters over each."""

    layers: int
    width: int
    inner: int
    heads: int
    context: int

    @property
    def quantized_bytes(self) -> int:
        """Of the linear layers' weights, without scales."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.inner) // 2

    @property
    def words(self) -> str:
        """For people."""
        return f"a Llama of {self.quantized_bytes / MIB:.0f} MiB in 4 bits"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One set of everything."""

    small: Model = Model(12, 768, 12, 128, 4)
    medium: Model = Model(28, 1024, 16, 128, 4)
    billion: Model = Model(20, 2048, 16, 128, 1)
    billion_masters: Model = Model(30, 2048, 16, 128, 1)
    narrow: Model = Model(48, 256, 4, 128, 16)
    passes: Model = Model(28, 1024, 16, 128, 1)
    rounds: int = 5
    rounds_medium: int = 3
    turn_steps: int = 3
    billion_steps: int = 20
    masters_steps: int = 6
    matrix: Model = Model(4, 128, 2, 32, 2)
    matrix_steps: int = 50
    tuned: bool = True  # DeepSpeed's settings are searched for
    quick: bool = False
    billion_limit_bytes: int = 2 * GIB
    masters_limit_bytes: int = 2 * GIB
    adapted: Adapted = Adapted(8, 1024, 2816, 16, 128)
    passes_limit_bytes: int = 1 * GIB
    passes_memory_bytes: int = 320 * MIB
    narrow_memory_bytes: int = 160 * MIB
    narrow_keep_bytes: int = 416 * MIB
    narrow_keep_most_bytes: int = 1408 * MIB


FULL = Sizes()
QUICK = Sizes(small=Model(8, 256, 4, 64, 2), medium=Model(8, 384, 6, 64, 2), billion=Model(20, 2048, 16, 128, 1),
              billion_masters=Model(8, 512, 8, 64, 1), masters_steps=2, masters_limit_bytes=704 * MIB,
              adapted=Adapted(2, 256, 512, 4, 32),
              narrow=Model(16, 128, 4, 128, 8),
              passes=Model(28, 640, 10, 64, 1), rounds=2, rounds_medium=1, turn_steps=3, billion_steps=2,
              matrix=Model(2, 64, 2, 32, 2), matrix_steps=50, tuned=False, quick=True,
              passes_limit_bytes=704 * MIB, passes_memory_bytes=128 * MIB, narrow_memory_bytes=16 * MIB,
              narrow_keep_bytes=4 * MIB, narrow_keep_most_bytes=48 * MIB)


def tier_bytes(model: Model) -> int:
    """A memory tier that holds a quarter of a model's state, and what a step needs at once."""
    return _whole(max(model.state_bytes // 4, 2 * model.largest_bytes, 16 * MIB))


def room_bytes(model: Model) -> int:
    """A tier that holds all of it, and what alignment and fragments take."""
    return _whole(model.state_bytes * 9 // 8 + 64 * MIB)


def _whole(size: int) -> int:
    """A capacity of which the daemon uses all: a tier gives memory out in sixteenths, of whole 2 MiB."""
    unit = 32 * MIB if size > 32 * MIB else 4 * MIB
    return -(-size // unit) * unit
