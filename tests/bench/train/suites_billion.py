# SPDX-License-Identifier: Apache-2.0
"""Models of 1.0 billion parameters in float32, and of 1.5 in bfloat16 with masters, in a memory cgroup of 2 GiB for trainer
and daemon together: training, and saving."""

import dataclasses
import statistics

from contender import Contender, Ended
from link import Link, NoLink
from rounds import AVAILABLE_PART, Measured, available_bytes, take_turns
from rows import Count, Row, against_itself
from run import Declared, Run
from sizes import GIB, MIB, Model
from suites_offload import add_bound_row

TRAINS = Declared("train.billion", "step time of 1.0 billion parameters within 2 GiB, against the larger of compute "
                  "and bytes / link speed", 1.3)
EQUAL = Declared("train.billion.losses", "steps whose loss is not that of an unlimited run", 0)
MASTERS = [Declared("train.billion_masters", "step time of 1.5 billion parameters in bf16 with fp32 masters within 2 GiB, "
                    "against the larger of compute and bytes / link speed", 1.3),
           Declared("train.billion_masters.losses", "steps whose loss is not that of plain PyTorch with its masters and "
                    "moments in mapped files", 0)]
CHECKPOINT = [Declared("train.checkpoint", "saving the model of 1.0 billion, streamed, against torch.save from memory",
                       1.2),
              Declared("train.checkpoint.memory", "memory that saving takes beside what training had, MiB", 256)]
SAMPLES = (2, 4)  # blocks of the models whose step times tell what a block computes
GROWTH_BYTES = GIB  # what a step's activations and gradients at hand take, about


def _compute(run: Run, model: Model, **options: object) -> tuple[float, tuple[float, float] | None]:
    """Seconds that a step computes: by the step times of plain models of the same width and fewer blocks, which step in
    the backward pass as ours does; and how that varies between rounds."""
    few = [run.contender(f"plain-{blocks}-blocks", "plain", dataclasses.replace(model, blocks=blocks),
                         step_in_backward=True, **options) for blocks in SAMPLES]
    found = take_turns(few, [], 1 if run.sizes.quick else 3, 3, run.say)
    for measured in found.values():
        if measured.failed:
            raise Ended(measured.failed)
    smaller, larger = (found[one.name].turns for one in few)
    whole = [a + (b - a) / (SAMPLES[1] - SAMPLES[0]) * (model.blocks - SAMPLES[0])
             for a, b in zip(smaller, larger, strict=True)]
    return statistics.median(whole), against_itself(list(zip(whole[::2], whole[1::2])))


def _killed(run: Run) -> float:
    """Whether plain PyTorch is killed under the same limit: 1 or 0."""
    plain = run.contender("plain-limited", "plain", run.sizes.billion, limit_bytes=run.sizes.billion_limit_bytes)
    try:
        with plain:
            plain.turn(1)
    except Ended as error:
        run.say(str(error))
        return float("killed for want of memory" in str(error))
    return 0.0


def _unlimited(run: Run, steps: int) -> Measured | str:
    """The losses of plain PyTorch where the machine has room for it; else why not."""
    model = run.sizes.billion
    have = AVAILABLE_PART * available_bytes()
    for options, needed in (({}, model.state_bytes), ({"step_in_backward": True}, model.state_bytes * 3 // 4)):
        if needed + GROWTH_BYTES <= have:
            run.say(f"the unlimited run: plain PyTorch {options or ''}")
            return take_turns([], [run.contender("plain-unlimited", "plain", model, **options)], 1, steps,
                              run.say)["plain-unlimited"]
    least = (model.state_bytes * 3 // 4 + GROWTH_BYTES) / GIB
    return (f"an unlimited run needs {least:.1f} GiB of memory even when it steps in the backward pass; it can have "
            f"{have / GIB:.1f} GiB here")


def _save(run: Run, ours: Contender) -> None:
    """torch.save and our streamed one in turn, to the same disk."""
    model = run.sizes.billion
    plain = run.contender("torch-save", "plain", model, weights_only=True)
    if 4 * model.parameters + GIB > AVAILABLE_PART * available_bytes():
        for declared in CHECKPOINT:
            run.missing(declared, f"torch.save from memory needs {(4 * model.parameters + GIB) / GIB:.1f} GiB")
        return
    pairs, taken, extra = [], [], 0
    with plain:
        for _ in range(1 if run.sizes.quick else 3):
            before = _saved(run, plain)
            resting = ours.room.now_bytes()
            ours.room.reset_peak()
            taken.append(_saved(run, ours))
            extra = max(extra, ours.room.peak_bytes - resting)
            pairs.append((before, _saved(run, plain)))
            run.say(f"saved in {taken[-1]:.1f} s; torch.save: {pairs[-1][0]:.1f} and {pairs[-1][1]:.1f} s")
    run.add(Row(CHECKPOINT[0].bench, CHECKPOINT[0].what, statistics.median(taken), "seconds", CHECKPOINT[0].bar,
                "torch.save of the weights in memory, to the same disk; without a limit, which the weights alone pass",
                statistics.median(one for pair in pairs for one in pair), interval=against_itself(pairs),
                counts=[Count("memory it takes beside, MiB", extra / MIB, 256)]))
    run.add(Row(CHECKPOINT[1].bench, CHECKPOINT[1].what, extra / MIB, "MiB", CHECKPOINT[1].bar))


def _saved(run: Run, one: Contender) -> float:
    path = run.place.folder / "checkpoint"
    try:
        return float(one.ask(do="save", path=str(path))["seconds"])
    finally:
        path.unlink(missing_ok=True)


def _lacks(run: Run, declared: list[Declared], disk_bytes: int) -> bool:
    """Whether the rows cannot be measured here, for want of disk or of a limit; if so, they are said to be missing."""
    why = run.short_of_disk(disk_bytes)
    if run.place.cgroups[1] is None:
        why = "needs a memory cgroup, which cannot be made here (as root it can)"
    for one in declared if why is not None else ():
        run.missing(one, str(why))
    return why is not None


def billion(run: Run, save_too: bool, train_too: bool) -> None:
    """Trains it; then saves it, while the job is still there."""
    sizes, model = run.sizes, run.sizes.billion
    declared = [*([TRAINS, EQUAL] if train_too else []), *(CHECKPOINT if save_too else [])]
    if _lacks(run, declared, model.state_bytes * 7 // 8 + 4 * model.parameters):
        return
    ours = run.contender("terrace-billion", "terrace", model, limit_bytes=sizes.billion_limit_bytes,
                         memory=sizes.billion_limit_bytes * 7 // 16, block=model.state_bytes * 7 // 8,
                         all_guaranteed=True, step_in_backward=True, init=True)
    ours.expected_bytes = sizes.billion_limit_bytes
    saved = False

    def save(one: Contender) -> None:
        nonlocal saved
        if save_too:
            saved = True
            try:
                _save(run, one)
            except Ended as error:  # what was trained counts
                for missing in CHECKPOINT:
                    run.missing(missing, str(error))

    found = take_turns([], [ours], 1, sizes.billion_steps if train_too else 1, run.say, at_the_end=save)[ours.name]
    if found.failed:
        for one in declared if not saved else declared[:2]:
            run.missing(one, found.failed)
        return
    if train_too:
        _trained(run, found)


def _trained(run: Run, found: Measured) -> None:
    link, model = Link(run.place.folder), run.sizes.billion
    try:
        for _ in range(3):
            link.measure(found.read_bytes, found.written_bytes)
        compute, interval = _compute(run, model)
        add_bound_row(run, TRAINS, found, compute, interval, link, model,
                      f"{model.words}, {run.sizes.billion_limit_bytes / MIB:.0f} MiB of memory",
                      [Count("steps", found.steps),
                       Count("plain PyTorch under the same limit is killed", _killed(run), 1, "higher", True)])
    except (Ended, NoLink) as error:
        run.missing(TRAINS, str(error))
    unlimited = _unlimited(run, found.steps)
    if isinstance(unlimited, str) or unlimited.failed:
        run.missing(EQUAL, unlimited if isinstance(unlimited, str) else str(unlimited.failed))
        return
    _equal(run, EQUAL, found, unlimited, model)


def _equal(run: Run, declared: Declared, found: Measured, unlimited: Measured, model: Model) -> None:
    run.compare(model.words, found, unlimited)
    differ = [step for step, loss in found.losses.items() if unlimited.losses.get(step) != loss]
    run.add(Row(declared.bench, declared.what, len(differ), f"steps of {len(found.losses)}", declared.bar))


def masters(run: Run) -> None:
    """The same in bfloat16 with masters, stepped in the backward pass."""
    sizes, model = run.sizes, run.sizes.billion_masters
    # Its own files, with the weights' gradients never there; and those that the reference maps.
    if _lacks(run, MASTERS, model.state_bytes * 15 // 16 + 12 * model.parameters):
        return
    limit = sizes.masters_limit_bytes
    ours = run.contender("terrace-billion", "terrace", model, limit_bytes=limit, memory=limit * 7 // 16,
                         block=model.state_bytes * 15 // 16, all_guaranteed=True, step_in_backward=True, init=True, masters=True)
    ours.expected_bytes = limit
    found = take_turns([], [ours], 1, sizes.masters_steps, run.say)[ours.name]
    if found.failed:
        for one in MASTERS:
            run.missing(one, found.failed)
        return
    link = Link(run.place.folder)
    try:
        for _ in range(3):
            link.measure(found.read_bytes, found.written_bytes)
        compute, interval = _compute(run, model, masters=True)
        add_bound_row(run, MASTERS[0], found, compute, interval, link, model,
                      f"{model.words} in bf16, {limit / MIB:.0f} MiB of memory", [Count("steps", found.steps)])
    except (Ended, NoLink) as error:
        run.missing(MASTERS[0], str(error))
    reference = run.contender("plain-mapped", "plain", model, masters=True, step_in_backward=True, mapped=True)
    reference.expected_bytes = 4 * model.parameters + GROWTH_BYTES
    unlimited = take_turns([], [reference], 1, found.steps, run.say)[reference.name]
    if unlimited.failed:
        run.missing(MASTERS[1], unlimited.failed)
        return
    _equal(run, MASTERS[1], found, unlimited, model)
