# SPDX-License-Identifier: Apache-2.0
"""The equality matrix, activations, and forward passes of a model that memory does not hold."""

from contender import Contender, Ended
from rounds import Measured, last_losses, take_turns
from rows import Count, Losses, Row
from run import Declared, Run
from sizes import GIB, MIB

LOSSES = Declared("train.losses", "combinations of what is offloaded, precision, checkpointing and accumulation whose "
                  "losses are not plain PyTorch's, bit for bit", 0)
ACTIVATIONS = [
    Declared("train.activations.memory", "peak memory of activations of a deep narrow model, against without", 0.3),
    Declared("train.activations.time", "step time, against without while the disk carries as many bytes: what the link "
             "allows", 1.10),
    Declared("train.activations.save_on_cpu", "the worse of step time and memory of activations, against save_on_cpu, "
             "by the better of two keep_bytes", 1.0),
    Declared("train.activations.torchtune", "the worse of step time and memory of activations, against torchtune's "
             "OffloadActivations, by the better of two keep_bytes", 1.0),
    Declared("train.activations.beside", "step time, where PyTorch leaves a processor to the daemon, against without, "
             "which leaves it, too", 1.10)]
FORWARD = Declared("train.forward", "forward passes of a model larger than memory, against Accelerate's disk_offload",
                   0.5)


def matrix(run: Run) -> None:
    """Each combination in turn; one process does them all."""
    wrong = []
    try:
        with run.contender("matrix", "matrix", run.sizes.matrix, memory=4 * MIB, block=GIB,
                           steps=run.sizes.matrix_steps) as one:
            number = int(one.ready["combinations"])
            for index in range(number):
                said = one.ask(do="run", index=index)
                run.say(f"losses {index + 1} of {number}: {said['words']}: "
                        f"{'equal' if said['differs'] is None else 'DIFFER from step ' + str(said['differs'])}")
                run.losses.append(Losses(said["words"], said["steps"], said["differs"]))
                if said["differs"] is not None:
                    wrong.append(said["words"])
    except Ended as error:
        run.missing(LOSSES, str(error))
        return
    run.add(Row(LOSSES.bench, LOSSES.what + (f": {'; '.join(wrong)}" if wrong else ""), len(wrong),
                f"combinations of {number} that differ", LOSSES.bar,
                counts=[Count("steps of each", run.sizes.matrix_steps, run.sizes.matrix_steps, "higher")]))


def activations(run: Run) -> None:
    """What autograd saves: kept, saved on the CPU, offloaded by torchtune, and in Terrace with a small tier: as little
    memory as the bar leaves, and, for the peers, which have most of it in memory, as little time as theirs leaves too."""
    model, sizes = run.sizes.narrow, run.sizes
    if (why := run.short_of_disk(8 * GIB)) is not None:
        for declared in ACTIVATIONS:
            run.missing(declared, why)
        return
    references = [run.contender(where, "activations", model, where=where)
                  for where in ("here", "save_on_cpu", "torchtune")]
    kept = {"terrace": sizes.narrow_keep_bytes, "terrace, most of it kept": sizes.narrow_keep_most_bytes}
    subjects = [run.contender(name, "activations", model, where="terrace", memory=sizes.narrow_memory_bytes,
                              block=6 * GIB, all_guaranteed=True, keep_bytes=keep) for name, keep in kept.items()]
    for one in (*references, *subjects):
        one.expected_bytes += 5 * GIB // 2
    limit = run.limit([*references, *subjects])
    found = take_turns(references, subjects, sizes.rounds, sizes.turn_steps, run.say)
    plain, ours = found["here"], found["terrace"]
    for name in kept:
        run.compare(f"activations, {name}", found[name], plain)
    if plain.failed or ours.failed:
        for declared in ACTIVATIONS:
            run.missing(declared, str(ours.failed or plain.failed))
        return
    # What is no activation, of plain PyTorch: the process with its weights, then gradients and moments.
    with run.contender("resting", "activations", model, where="here") as one:
        resting_bytes = one.room.now_bytes() + 3 * 4 * int(one.ready["parameters"])

    def of(measured: Measured) -> float:
        return max(1.0, measured.peak_bytes - resting_bytes) / MIB

    limit += f"; ours: a memory tier of {sizes.narrow_memory_bytes // MIB} MiB, keep_bytes of "
    words = f"without, {model.blocks} blocks of width {model.width}, {limit}{kept['terrace'] // MIB} MiB"
    counts = [Count("MiB read a step", ours.read_bytes / ours.steps / MIB),
              Count("MiB written a step", ours.written_bytes / ours.steps / MIB)]
    run.add(Row(ACTIVATIONS[0].bench, ACTIVATIONS[0].what, of(ours), "MiB", ACTIVATIONS[0].bar, words, of(plain),
                counts=counts))
    _activations_time(run, [*counts, Count("memory, of that without", of(ours) / of(plain), 0.3),
                            Count("step time, of that without", ours.seconds / plain.seconds),
                            Count("the same while nothing is carried, against itself, from", plain.interval[0]),
                            Count("to", plain.interval[1])], ours)
    for declared, name in zip(ACTIVATIONS[2:4], ("save_on_cpu", "torchtune"), strict=True):
        peer = found[name]
        if peer.failed:
            run.missing(declared, run.peers.missing.get(name) or peer.failed)
            continue
        worse = {one: max(found[one].seconds / peer.seconds, of(found[one]) / of(peer))
                 for one in kept if not found[one].failed}
        best = min(worse, key=worse.__getitem__)
        counts = [Count(f"{what} with keep_bytes of {kept[one] // MIB} MiB, of the peer's", value)
                  for one in worse for what, value in (("step time", found[one].seconds / peer.seconds),
                                                       ("memory", of(found[one]) / of(peer)))]
        run.add(Row(declared.bench, declared.what, worse[best], "times", declared.bar,
                    f"{name}, {limit}{kept[best] // MIB} MiB", 1.0, interval=peer.interval,
                    counts=[*counts, *last_losses(found[best], peer)]))
    _activations_beside(run, resting_bytes)


def _ours(run: Run, name: str, **options: object) -> Contender:
    return run.contender(name, "activations", run.sizes.narrow, where="terrace", memory=run.sizes.narrow_memory_bytes,
                         block=6 * GIB, all_guaranteed=True, keep_bytes=run.sizes.narrow_keep_bytes, **options)


def _activations_time(run: Run, counts: list[Count], before: Measured) -> None:
    """Against a step without while fio has the disk carry as many bytes a second as ours did before: moving them takes
    memory's bandwidth, interrupts and, of a virtual machine, the host's processors from any step."""
    declared, sizes = ACTIVATIONS[1], run.sizes
    carried = before.carried
    plain = run.contender("here, beside the disk", "activations", sizes.narrow, where="here", carried=carried)
    ours = _ours(run, "terrace, timed")
    for one in (plain, ours):
        one.expected_bytes += 5 * GIB // 2
    limit = run.limit([plain, ours])
    found = take_turns([plain], [ours], sizes.rounds, sizes.turn_steps, run.say)
    reference, measured = found[plain.name], found[ours.name]
    run.compare("activations, timed", measured, reference)
    if reference.failed or measured.failed:
        run.missing(declared, str(measured.failed or reference.failed))
        return
    run.add(Row(declared.bench, declared.what, measured.seconds, "seconds a step", declared.bar,
                f"without, while fio reads {carried[0] / MIB:.0f} and writes {carried[1] / MIB:.0f} MiB/s, {limit}",
                reference.seconds, interval=reference.interval, counts=counts))


def _activations_beside(run: Run, resting_bytes: float) -> None:
    """The same with a processor that PyTorch does not compute on, as where a GPU computes: what is left is what the
    training itself does and waits for, and not that the daemon computes on the same processors."""
    declared, sizes, threads = ACTIVATIONS[4], run.sizes, run.place.threads - 1
    if threads < 1:
        run.missing(declared, "PyTorch has one thread; --threads 2 or more")
        return
    plain = run.contender("here, beside", "activations", sizes.narrow, where="here", threads=threads)
    ours = _ours(run, "terrace, beside", threads=threads)
    for one in (plain, ours):
        one.expected_bytes += 5 * GIB // 2
    limit = run.limit([plain, ours])
    found = take_turns([plain], [ours], sizes.rounds, sizes.turn_steps, run.say)
    reference, measured = found[plain.name], found[ours.name]
    run.compare("activations, beside", measured, reference)
    if reference.failed or measured.failed:
        run.missing(declared, str(measured.failed or reference.failed))
        return
    memory = (measured.peak_bytes - resting_bytes) / max(1.0, reference.peak_bytes - resting_bytes)
    run.add(Row(declared.bench, declared.what, measured.seconds, "seconds a step", declared.bar,
                f"without, {threads} threads each, {limit}", reference.seconds, interval=reference.interval,
                counts=[Count("memory, of that without", memory, 0.3)]))


def forward(run: Run) -> None:
    """Both under one limit that the model's weights are larger than."""
    model, sizes = run.sizes.passes, run.sizes
    weights = 4 * model.parameters
    if (why := run.peers.missing.get("accelerate")) is not None:
        run.missing(FORWARD, f"Accelerate cannot be had: {why}")
        return
    if (why := run.short_of_disk(3 * weights)) is not None:
        run.missing(FORWARD, why)
        return
    if run.place.cgroups[1] is None:
        run.missing(FORWARD, "needs a memory cgroup, which cannot be made here (as root it can)")
        return
    limit = sizes.passes_limit_bytes
    accelerate = run.contender("accelerate", "forward_accelerate", model, limit_bytes=limit)
    ours = run.contender("terrace", "forward_terrace", model, limit_bytes=limit, memory=sizes.passes_memory_bytes,
                         block=weights * 5 // 4, all_guaranteed=True)
    found = take_turns([accelerate], [ours], sizes.rounds, sizes.turn_steps, run.say)
    plain = take_turns([], [run.contender("plain", "forward_plain", model)], 1, sizes.turn_steps, run.say)["plain"]
    run.compare("forward passes", found["terrace"], plain)
    subject, peer = found["terrace"], found["accelerate"]
    if subject.failed or peer.failed:
        run.missing(FORWARD, str(subject.failed or peer.failed))
        return
    run.add(Row(
        FORWARD.bench, FORWARD.what, subject.seconds, "seconds a pass", FORWARD.bar,
        f"Accelerate's disk_offload, {weights / MIB:.0f} MiB of weights, {limit / MIB:.0f} MiB of memory for each",
        peer.seconds, interval=peer.interval,
        counts=[Count("MiB read a pass", subject.read_bytes / subject.steps / MIB),
                Count("peak memory, MiB", subject.peak_bytes / MIB),
                Count("the reference: peak memory, MiB", peer.peak_bytes / MIB), *last_losses(subject, peer)]))
