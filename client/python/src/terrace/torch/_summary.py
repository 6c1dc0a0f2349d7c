# SPDX-License-Identifier: Apache-2.0
"""What an offloaded job has done so far, module by module, for people."""

import dataclasses

from torch import nn

from ._offload import job_of

_MIB = 1 << 20


@dataclasses.dataclass
class ModuleSummary:
    """One module's own tensors: parameters, their gradients and optimizer states."""

    name: str
    nbytes: int = 0
    leases: int = 0  # taken so far
    wait_seconds: float = 0.0  # in taking them
    kept_bytes: int = 0  # that something of the script keeps leased now


@dataclasses.dataclass
class Summary:
    """One job. As a string it is a table."""

    modules: list[ModuleSummary]
    left_alone: list[tuple[str, str]]  # parameters that stay in the process's memory, and why
    kept: list[str]  # tensors that something of the script keeps leased outside their modules
    nbytes: int
    guarantee_bytes: int
    leased_bytes: int

    def __str__(self) -> str:
        lines = [f"{'module':40} {'MiB':>10} {'leases':>8} {'waited s':>9} {'kept MiB':>9}"]
        lines += [f"{one.name or '(the model)':40} {one.nbytes / _MIB:10.2f} {one.leases:8} {one.wait_seconds:9.3f} "
                  f"{one.kept_bytes / _MIB:9.2f}" for one in self.modules]
        waited = sum(one.wait_seconds for one in self.modules)
        lines.append(f"{'all':40} {self.nbytes / _MIB:10.2f} {sum(one.leases for one in self.modules):8} {waited:9.3f} "
                     f"{sum(one.kept_bytes for one in self.modules) / _MIB:9.2f}")
        lines.append(f"guaranteed {self.guarantee_bytes / _MIB:.0f} MiB, leased now {self.leased_bytes / _MIB:.2f} MiB")
        if self.kept:
            lines.append(f"kept leased by references of the script: {', '.join(self.kept)}")
        if self.left_alone:
            lines.append(f"{len(self.left_alone)} parameters stay in the process's memory: "
                         f"{', '.join(f'{name} ({why})' for name, why in self.left_alone[:4])}"
                         f"{', ...' if len(self.left_alone) > 4 else ''}")
        return "\n".join(lines)


def summary(model: nn.Module) -> Summary:
    """What was leased for an offloaded model so far, where it waited, and what the script keeps leased.

    FailedPrecondition for a model that was not offloaded.
    """
    job = job_of(model)
    store = job.store
    modules: dict[str, ModuleSummary] = {}
    kept = []
    for slot in store.slots:
        one = modules.setdefault(slot.owner, ModuleSummary(slot.owner))
        one.nbytes += slot.nbytes
        one.leases += slot.uses
        one.wait_seconds += slot.wait_seconds
        in_use = slot.parameter is not None and slot.parameter.uses
        if slot.shown and not in_use:
            one.kept_bytes += slot.nbytes
            kept.append(slot.name)
    return Summary(list(modules.values()), list(store.left_alone), kept, store.bytes, store.guarantee_bytes,
                   store.client.leased_bytes)
