# SPDX-License-Identifier: Apache-2.0
"""Parameters, gradients and optimizer states: in memory and on the block tier, against plain PyTorch and DeepSpeed."""

from collections.abc import Callable

from contender import Contender
from link import Link, NoLink
from rounds import Measured, last_losses, take_turns
from rows import Count, Row
from run import Declared, Run
from sizes import MIB, Model, room_bytes, tier_bytes

PLAIN, TERRACE, DEEPSPEED = "plain", "terrace", "deepspeed"

# Each is tried with each model; the fastest one is DeepSpeed's contender.
SETTINGS: list[dict[str, object]] = [
    {},
    {"sub_group_size": 64 << 20},
    {"sub_group_size": 1_000_000_000},
    {"pipeline": False, "sub_group_size": 1_000_000_000},
    {"intra_op_parallelism": 2, "queue_depth": 64},
    {"pin_memory": True},
]

FITS = Declared("train.fits_dram", "step time, everything fits DRAM, against plain PyTorch", 1.05)
DRAM = [Declared("train.dram", "step time, offloaded to DRAM, against DeepSpeed ZeRO-3 CPU offload", 0.8),
        Declared("train.dram.memory", "peak memory of all processes, the same", 1.0)]


BLOCK_MASTERS = [
    Declared("train.block_350m_masters", "step time in bf16 with fp32 masters on the block tier, against DeepSpeed ZeRO-3 NVMe "
             "offload in bf16", 0.45),
    Declared("train.block_350m_masters.memory", "peak memory of all processes, the same", 1.0)]


def block_rows(size: str) -> list[Declared]:
    """The rows of one model on the block tier."""
    return [Declared(f"train.block_{size}", "step time, parameters and states on the block tier, against DeepSpeed "
                     "ZeRO-3 NVMe offload", 0.5),
            Declared(f"train.block_{size}.memory", "peak memory of all processes, the same", 1.0),
            Declared(f"train.block_{size}.bound", "step time, the same, against the larger of compute and bytes / link "
                     "speed", 1.25),
            Declared(f"train.block_{size}.beside_disk", "step time, the same, against plain PyTorch while the disk carries "
                     "as much", 1.25)]


def _counts(of: Measured, peer: Measured | None) -> list[Count]:
    """What moved, and the memory, of a step; and what both have learnt."""
    steps = max(1, of.steps)
    found = [Count("MiB read a step", of.read_bytes / steps / MIB),
             Count("MiB written a step", of.written_bytes / steps / MIB),
             Count("peak memory, MiB", of.peak_bytes / MIB)]
    if peer is not None:
        steps = max(1, peer.steps)
        found += [Count("the reference: MiB read a step", peer.read_bytes / steps / MIB),
                  Count("the reference: MiB written a step", peer.written_bytes / steps / MIB),
                  Count("the reference: peak memory, MiB", peer.peak_bytes / MIB), *last_losses(of, peer)]
    return found


def add_step_row(run: Run, declared: Declared, ours: Measured, reference: Measured, words: str) -> None:
    """A row of step times."""
    if ours.failed or reference.failed:
        run.missing(declared, str(ours.failed or f"{reference.failed} ({words})"))
        return
    run.add(Row(declared.bench, declared.what, ours.seconds, "seconds a step", declared.bar, words, reference.seconds,
                interval=reference.interval, counts=_counts(ours, reference)))


def _memory_row(run: Run, declared: Declared, ours: Measured, reference: Measured, words: str) -> None:
    if ours.failed or reference.failed:
        run.missing(declared, str(ours.failed or f"{reference.failed} ({words})"))
        return
    run.add(Row(declared.bench, declared.what, ours.peak_bytes / MIB, "MiB", declared.bar, words,
                reference.peak_bytes / MIB))


def in_memory(run: Run) -> None:
    """Everything in DRAM: plain PyTorch, Terrace, DeepSpeed's CPU offload."""
    model = run.sizes.small
    references = [run.contender(PLAIN, "plain", model)]
    without = run.peers.missing.get("deepspeed")
    if without is None:
        references.append(run.contender(DEEPSPEED, "deepspeed", model, device="cpu"))
    subjects = [run.contender(TERRACE, "terrace", model, memory=room_bytes(model), block=0, all_guaranteed=True)]
    of = f"{model.words}, {run.limit([*references, *subjects])}"
    found = take_turns(references, subjects, run.sizes.rounds, run.sizes.turn_steps, run.say)
    found.setdefault(DEEPSPEED, Measured(failed=f"DeepSpeed cannot be had: {without}"))
    run.compare("everything in DRAM", found[TERRACE], found[PLAIN])
    add_step_row(run, FITS, found[TERRACE], found[PLAIN], f"plain PyTorch, {of}")
    add_step_row(run, DRAM[0], found[TERRACE], found[DEEPSPEED], f"DeepSpeed ZeRO-3 CPU offload, {of}")
    _memory_row(run, DRAM[1], found[TERRACE], found[DEEPSPEED], f"DeepSpeed ZeRO-3 CPU offload, {of}")


def _named(settings: dict[str, object]) -> str:
    """Settings, for people."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as first tried"


def _tried(run: Run, model: Model, number: int, **options: object) -> Measured:
    """What three steps with one of DeepSpeed's settings come to: some fail in the second one."""
    name = f"deepspeed-settings-{number}"
    one = run.contender(name, "deepspeed", model, device="nvme", settings=SETTINGS[number], **options)
    run.limit([one])
    return take_turns([], [one], 1, 3, run.say)[name]


def _deepspeed(run: Run, model: Model, **options: object) -> Contender:
    """DeepSpeed with its fastest settings for a model; where these fail in a turn, with the next ones."""
    works: list[dict[str, object]] = SETTINGS
    failed: list[tuple[dict[str, object], str]] = []
    if run.sizes.tuned:
        tried = [_tried(run, model, number, **options) for number in range(len(SETTINGS))]
        order = sorted((one.seconds, number) for number, one in enumerate(tried) if one.failed is None)
        works = [SETTINGS[number] for _, number in order] or SETTINGS[:1]
        failed = [(SETTINGS[number], one.failed) for number, one in enumerate(tried) if one.failed is not None]
    run.say(f"DeepSpeed's settings: {_named(works[0])}")
    found = run.contender(DEEPSPEED, "deepspeed", model, device="nvme", settings=works[0],
                          otherwise=[{"settings": settings} for settings in works[1:]], **options)
    found.given_up += [({"settings": settings}, why) for settings, why in failed]
    return found


def _settings_words(of: Contender) -> str:
    """With which settings it ended, and which ones failed, and how."""
    return "; ".join([f"settings: {_named(of.options['settings'])}",
                      *(f"failed: {_named(options['settings'])}: {why[-200:]}" for options, why in of.given_up)])


def on_block(run: Run, size: str, model: Model, rounds: int) -> None:
    """Parameters and states on the block tier: Terrace, DeepSpeed's NVMe offload, and the bound."""
    against_peer, memory, bound, beside_disk = block_rows(size)
    needed = 3 * model.state_bytes
    if (why := run.short_of_disk(needed)) is not None:
        for declared in (against_peer, memory, bound, beside_disk):
            run.missing(declared, why)
        return
    references = [run.contender(PLAIN, "plain", model)]
    without = run.peers.missing.get("deepspeed")
    if without is None:
        references.append(_deepspeed(run, model))
    subject = _block_subject(run, TERRACE, model)
    of = f"{model.words}, {run.limit([*references, subject])}"
    link = Link(run.place.folder)
    found: dict[str, Measured] = {}
    why_no_link = None

    def say(text: str) -> None:
        run.say(f"{size}: {text}")

    def measure_link() -> None:
        nonlocal why_no_link
        try:
            link.measure(1, 1)
        except NoLink as error:
            why_no_link = str(error)

    found = take_turns(references, [subject], rounds, run.sizes.turn_steps, say, measure_link)
    found.setdefault(DEEPSPEED, Measured(failed=f"DeepSpeed cannot be had: {without}"))
    ours, plain = found[TERRACE], found[PLAIN]
    run.compare(f"on the block tier, {model.words}", ours, plain)
    words = f"DeepSpeed ZeRO-3 NVMe offload, {of}" + "".join(f", {_settings_words(one)}" for one in references[1:])
    add_step_row(run, against_peer, ours, found[DEEPSPEED], words)
    _memory_row(run, memory, ours, found[DEEPSPEED], words)
    if ours.failed or plain.failed or why_no_link:
        run.missing(bound, str(ours.failed or plain.failed or why_no_link))
    else:
        add_bound_row(run, bound, ours, plain.seconds, plain.interval, link, model, of, [])
    _beside_disk_row(run, beside_disk, ours, model, rounds, say)


def _block_subject(run: Run, name: str, model: Model, **options: object) -> Contender:
    return run.contender(name, "terrace", model, memory=tier_bytes(model), block=model.state_bytes * 5 // 4,
                         all_guaranteed=True, step_in_backward=True, **options)


def on_block_with_masters(run: Run) -> None:
    """bf16 with masters on the block tier: Terrace, and DeepSpeed's NVMe offload in bf16."""
    model, without = run.sizes.medium, run.peers.missing.get("deepspeed")
    why = f"DeepSpeed cannot be had: {without}" if without is not None else run.short_of_disk(3 * model.state_bytes)
    if why is not None:
        for declared in BLOCK_MASTERS:
            run.missing(declared, why)
        return
    peer, ours = _deepspeed(run, model, masters=True), _block_subject(run, TERRACE, model, masters=True)
    plain = run.contender(PLAIN, "plain", model, masters=True)
    of = f"{model.words}, {run.limit([plain, peer, ours])}"
    found = take_turns([plain, peer], [ours], run.sizes.rounds_medium, run.sizes.turn_steps, run.say)
    run.compare(f"with masters on the block tier, {model.words}", found[TERRACE], found[PLAIN])
    words = f"DeepSpeed ZeRO-3 NVMe offload in bf16, {of}, {_settings_words(peer)}"
    add_step_row(run, BLOCK_MASTERS[0], found[TERRACE], found[DEEPSPEED], words)
    _memory_row(run, BLOCK_MASTERS[1], found[TERRACE], found[DEEPSPEED], words)


def _beside_disk_row(run: Run, declared: Declared, before: Measured, model: Model, rounds: int,
                     say: Callable[[str], None]) -> None:
    """Against compute while fio has the disk carry as many bytes a second as ours did before: what that takes of the
    processors and of memory's bandwidth, of a virtual machine by its host too, it takes of any step."""
    if before.failed:
        run.missing(declared, before.failed)
        return
    carried = before.carried
    plain = run.contender("plain, beside the disk", "plain", model, carried=carried)
    ours = _block_subject(run, "terrace, timed", model)
    limit = run.limit([plain, ours])
    found = take_turns([plain], [ours], rounds, run.sizes.turn_steps, say)
    reference, measured = found[plain.name], found[ours.name]
    run.compare(f"on the block tier, timed, {model.words}", measured, reference)
    add_step_row(run, declared, measured, reference, f"plain PyTorch while fio reads {carried[0] / MIB:.0f} and writes "
         f"{carried[1] / MIB:.0f} MiB/s, {model.words}, {limit}")


def add_bound_row(run: Run, declared: Declared, ours: Measured, compute: float, interval: tuple[float, float] | None,
                  link: Link, model: Model, of: str, more: list[Count]) -> None:
    """A row against the larger of compute and bytes / link speed."""
    speed = sorted(link.speeds)[len(link.speeds) // 2]
    moving = (ours.read_bytes + ours.written_bytes) / max(1, ours.steps) / speed
    larger = f"compute ({compute:.2f} s)" if compute >= moving else f"bytes / link speed ({moving:.2f} s)"
    run.add(Row(
        declared.bench, declared.what, ours.seconds, "seconds a step", declared.bar, f"{larger}, {of}",
        max(compute, moving), interval=interval,
        counts=[*_counts(ours, None), Count("link, MiB/s", speed / MIB, better="higher"),
                Count("compute, seconds", compute), Count("bytes / link speed, seconds", moving),
                Count("bytes moved a step, times the state", (ours.read_bytes + ours.written_bytes)
                      / max(1, ours.steps) / model.state_bytes, limit=2.0, required=True), *more]))
