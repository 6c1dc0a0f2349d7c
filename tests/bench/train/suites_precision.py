# SPDX-License-Identifier: Apache-2.0
"""bf16 with fp32 masters, casts under autocast, the optimizer's step by itself, adapters over a quantized model, and a job
that needs none of it."""

import dataclasses

from contender import Ended
from link import Link, NoLink
from rounds import Measured, take_turns
from rows import Count, Row, against_itself
from run import Declared, Run
from sizes import MIB, Model, room_bytes, tier_bytes
from suites_offload import add_step_row

MASTERS = Declared("train.masters", "step time in bf16 with fp32 masters, everything fits DRAM, against a plain loop with "
                   "masters", 1.03)
AUTO = Declared("train.auto", "step time of a job that fits, with what=\"auto\", against plain PyTorch", 1.02)
BYTES = [Declared("train.masters.bytes", "bytes over the disk's link in forward and backward in bf16 with masters, against "
                  "float32", 0.52),
         Declared("train.autocast.bytes", "the same of float32 weights under autocast", 0.52)]
HOST_STEP = [Declared(f"train.host_step.{threads}", "bytes a second of fused AdamW's step with masters, all in DRAM, against "
                      f"a copy of as many, {threads} thread{'s' * (threads > 1)}", 0.8) for threads in (1, 2)]
ADAPTERS = Declared("train.qlora", "step time of QLoRA in a quarter of the base's memory, against the larger of the same in "
                    "memory and bytes / link speed", 1.3)


def _against_plain(run: Run, declared: Declared, words: str, **options: object) -> None:
    """Everything in DRAM: plain PyTorch, and Terrace with these options."""
    model = run.sizes.small
    shared = {name: options.pop(name) for name in ("masters",) if name in options}
    plain = run.contender("plain", "plain", model, **shared)
    ours = run.contender("terrace", "terrace", model, memory=room_bytes(model), block=0, all_guaranteed=True, **shared,
                         **options)
    of = f"{words}, {model.words}, {run.limit([plain, ours])}"
    found = take_turns([plain], [ours], run.sizes.rounds, run.sizes.turn_steps, run.say)
    run.compare(declared.bench, found[ours.name], found[plain.name])
    add_step_row(run, declared, found[ours.name], found[plain.name], of)


def masters(run: Run) -> None:
    """bf16 with masters, where everything fits DRAM."""
    _against_plain(run, MASTERS, "a plain loop with masters", masters=True)


def auto(run: Run) -> None:
    """Whoever does not need it."""
    _against_plain(run, AUTO, "plain PyTorch", what="auto")


def moved_bytes(run: Run) -> None:
    """What a forward and a backward pass move, of weights that rest on the disk."""
    model = run.sizes.small
    ways = {"float32": {"what": ["parameters", "gradients"]}, "masters": {"masters": True, "what": "all"},
            "float32, weights": {"what": ["parameters"]}, "autocast": {"autocast": True, "what": ["parameters"]}}
    found = {}
    for name, options in ways.items():
        one = run.contender(name, "terrace", model, memory=tier_bytes(dataclasses.replace(model, blocks=model.blocks // 4)),
                            block=model.state_bytes * 5 // 4, all_guaranteed=True, **options)
        try:
            with one:
                one.turn(run.sizes.turn_steps)
                said = one.ask(do="run", number=0)
        except Ended as error:
            for declared in BYTES:
                run.missing(declared, str(error))
            return
        found[name] = float(said["read_bytes"] + said["written_bytes"])
        run.say(f"{name}: {found[name] / MIB:.0f} MiB in forward and backward")
    for declared, ours, reference in zip(BYTES, ("masters", "autocast"), ("float32", "float32, weights"), strict=True):
        run.add(Row(declared.bench, declared.what, found[ours] / MIB, "MiB", declared.bar, f"{reference}, {model.words}",
                    found[reference] / MIB))


def host_step(run: Run) -> None:
    """The step beside a copy, in turns, in one process."""
    model = run.sizes.small
    one = run.contender("host-step", "host_step", model, memory=room_bytes(model), block=0, all_guaranteed=True, masters=True)
    try:
        with one:
            for declared, threads in zip(HOST_STEP, (1, 2), strict=True):
                speeds = {}
                for fused in (False, True):
                    one.ask(do="run", threads=threads, fused=fused)
                    said = [one.ask(do="run", threads=threads, fused=fused) for _ in range(2 * run.sizes.rounds)]
                    speeds[fused] = {what: [each["bytes"] / each[what] / MIB for each in said] for what in ("step", "copy")}
                middle = {fused: {what: sorted(of)[len(of) // 2] for what, of in each.items()} for fused, each in speeds.items()}
                copies = speeds[True]["copy"]
                run.add(Row(declared.bench, declared.what, middle[True]["step"], "MiB/s", declared.bar, f"a copy, {model.words}",
                            middle[True]["copy"], "higher", against_itself(list(zip(copies[::2], copies[1::2], strict=True))),
                            [Count("default kernels, of a copy", middle[False]["step"] / middle[False]["copy"])]))
    except Ended as error:
        for declared in HOST_STEP:
            run.missing(declared, str(error))


def adapters(run: Run) -> None:
    """QLoRA, with all in memory and in Terrace."""
    shape = run.sizes.adapted
    model = Model(shape.layers, shape.width, shape.heads, shape.context, 1)  # for its batches
    memory = max(-(-shape.quantized_bytes // 4 // (4 * MIB)) * 4 * MIB, 16 * MIB)
    plain = run.contender("qlora, in memory", "adapters", model, adapted=dataclasses.asdict(shape))
    ours = run.contender("qlora", "adapters", model, adapted=dataclasses.asdict(shape), memory=memory,
                         block=4 * shape.quantized_bytes + 256 * MIB, all_guaranteed=True)
    found = take_turns([plain], [ours], run.sizes.rounds, run.sizes.turn_steps, run.say)
    reference, measured = found[plain.name], found[ours.name]
    run.compare("QLoRA", measured, reference)
    if reference.failed or measured.failed:
        run.missing(ADAPTERS, str(measured.failed or reference.failed))
        return
    link = Link(run.place.folder)
    try:
        link.measure(max(1, measured.read_bytes), measured.written_bytes)
    except NoLink as error:
        run.missing(ADAPTERS, str(error))
        return
    _against_bound(run, measured, reference, link.speeds[0], f"{shape.words}, a memory tier of {memory // MIB} MiB")


def _against_bound(run: Run, measured: Measured, reference: Measured, speed: float, of: str) -> None:
    moving = (measured.read_bytes + measured.written_bytes) / measured.steps / speed
    larger = "in memory" if reference.seconds >= moving else "bytes / link speed"
    run.add(Row(ADAPTERS.bench, ADAPTERS.what, measured.seconds, "seconds a step", ADAPTERS.bar, f"{larger}, {of}",
                max(reference.seconds, moving), interval=reference.interval,
                counts=[Count("MiB read a step", measured.read_bytes / measured.steps / MIB),
                        Count("in memory, seconds", reference.seconds), Count("bytes / link speed, seconds", moving)]))
