# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT through a daemon that is killed again and again, at random moments, until it was killed as often as
asked for; then trains it once more, in memory, without any daemon, for as many steps, and compares the losses bit for bit.

The model is that of client/python/examples, with every parameter, gradient and moment in Terrace, in tiers that are too
small for them. What each kill fell into is what the successor finds in the catalog: transfers that were queued or
running, and requests that were taken and not answered. The last line is

  kills=N in_flight=N resubmitted=N block_read_bytes=N losses_equal=true

in_flight: kills that fell into at least one transfer or request. resubmitted and block_read_bytes: the daemons' own
counters, read every 20 ms, the last reading of each life; what a daemon counted after that is missing. Should fewer than
half of the kills be in flight, there are more of them, up to three times as many. The exit status is 0 if the losses are
equal, at least half of the kills were in flight, and every tier carried traffic.
"""

import argparse
import multiprocessing
import os
import pathlib
import random
import statistics
import struct
import sys
import time
from multiprocessing.connection import Connection

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python/examples"))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads leave the cores to the daemon while they wait

import torch
from gpt_leased import LeasedModel, train_leased
from gpt_model import Recipe, Shape, Text, make_deterministic, train_in_memory
from supervised import LIMIT_SECONDS, Lives, Supervised

import terrace

SHAPE = Shape(blocks=4, width=256, heads=4, context=16, batch=1)
TIERS = [("device", "16MiB"), ("memory", "8MiB"), ("block", "128MiB")]  # for 51 MiB of state
PAUSE_SECONDS_MAX = 1.2  # from the first reading of a daemon's numbers to its death
KILLS_FACTOR_MAX = 3  # more kills than asked for, where too few of them were in flight
COMING_BACK_SECONDS = 0.2  # or that long after its predecessor's death
THREADS = 2
TRAINING_LIMIT_SECONDS = 600


def train(socket: str, parent: Connection) -> None:
    """The trainer's process: trains until the parent says stop; tells it "begun", then the losses, then those of as many
    steps in memory."""
    make_deterministic(THREADS)
    recipe, text, cpu = Recipe(), Text(1 << 20), torch.device("cpu")
    losses = []
    with terrace.Client(socket, label="kill_training", reconnect_timeout=LIMIT_SECONDS) as client:
        parent.send("begun")
        model = LeasedModel(client, SHAPE, recipe, "device:0", cpu)
        for step in train_leased(model, client, text, sys.maxsize):
            losses.append(step.loss)
            if parent.poll():
                break
        parent.send((losses, client.reconnects))
    parent.send([step.loss for step in train_in_memory(SHAPE, recipe, text, len(losses), cpu)])


def receive(trainer: Connection):
    """What the trainer says next."""
    if not trainer.poll(TRAINING_LIMIT_SECONDS):
        raise RuntimeError(f"the trainer said nothing for {TRAINING_LIMIT_SECONDS} s")
    try:
        return trainer.recv()
    except EOFError:
        raise RuntimeError("the trainer has ended: see above") from None


def kill_again_and_again(supervised: Supervised, lives: Lives, chance: random.Random, kills: int,
                         trainer: Connection) -> list[float]:
    """Kills the daemon so often, at random moments: mostly while it serves, now and then while it comes back. How long
    nobody served after each kill, in seconds, of those after which somebody served before the next one."""
    killed = {}
    for kill in range(1, KILLS_FACTOR_MAX * kills + 1):
        if chance.random() < 0.9:
            lives.wait_for_reading()
            time.sleep(chance.uniform(0, PAUSE_SECONDS_MAX))
        else:
            time.sleep(chance.uniform(0, COMING_BACK_SECONDS))
        if trainer.poll():
            receive(trainer)  # it has failed
            raise RuntimeError("the trainer ended before the kills did")
        killed[lives.life + 1] = time.monotonic()
        supervised.kill()
        lives.next()
        if kill % 20 == 0:
            print(f"{kill} kills", flush=True)
        if kill < kills:
            continue
        lives.wait_for_reading()
        if 2 * in_flight(supervised) >= kill:
            break
    return [lives.begun[life] - moment for life, moment in killed.items() if life in lives.begun]


def in_flight(supervised: Supervised) -> int:
    """How many kills fell into a transfer or a request."""
    return sum(end.unanswered + end.transfers > 0 for end in supervised.went_on())


def bits(losses: list[float]) -> bytes:
    return struct.pack(f"{len(losses)}d", *losses)


def report(supervised: Supervised, lives: Lives, away: list[float], losses: list[float],
           reference: list[float]) -> bool:
    """Prints what the run came to; whether it is as promised."""
    ends = supervised.went_on()
    kills, into = lives.life, in_flight(supervised)
    carried = {link: lives.sum("terrace_transfer_bytes_total", link=f"{link}*")
               for link in ("host_to_device", "device_to_host", "block_read", "block_write")}
    print(f"{sum(end.transfers > 0 for end in ends)} kills fell into transfers ({sum(end.transfers for end in ends)}), "
          f"{sum(end.unanswered > 0 for end in ends)} into requests ({sum(end.unanswered for end in ends)}), "
          f"{kills - len(ends)} into a daemon that had not come back yet")
    print("carried:", ", ".join(f"{link} {count:,} bytes" for link, count in carried.items()))
    print(f"{lives.sum('terrace_plans_total')} plans came into force")
    if away:
        print(f"nobody served for {statistics.median(away) * 1e3:.0f} ms after a kill (median; longest "
              f"{max(away) * 1e3:.0f} ms)")
    equal = bits(losses) == bits(reference)
    if not equal:
        first = next(step for step, (a, b) in enumerate(zip(losses, reference)) if bits([a]) != bits([b]))
        print(f"the losses differ from step {first} on: {losses[first]!r}, in memory {reference[first]!r}")
    print(f"kills={kills} in_flight={into} resubmitted={lives.sum('terrace_resubmitted_requests_total')} "
          f"block_read_bytes={carried['block_read']} losses_equal={'true' if equal else 'false'}")
    return equal and 2 * into >= kills and all(carried.values())


def run(arguments: argparse.Namespace) -> bool:
    chance = random.Random(arguments.seed)
    context = multiprocessing.get_context("spawn")
    begun = time.monotonic()
    with (Supervised(arguments.terraced, TIERS, arguments.disk, arguments.policy) as supervised,
          Lives(supervised.metrics_url) as lives):
        ours, theirs = context.Pipe()
        trainer = context.Process(target=train, args=(supervised.socket, theirs), daemon=True)
        supervised.wait_for_socket()
        trainer.start()
        theirs.close()
        try:
            receive(ours)
            away = kill_again_and_again(supervised, lives, chance, arguments.kills, ours)
            ours.send("stop")
            losses, reconnects = receive(ours)
            killed_seconds = time.monotonic() - begun
            reference = receive(ours)
        except BaseException:
            print(supervised.log()[-5000:])
            raise
        finally:
            trainer.join(LIMIT_SECONDS)
        print(f"{len(losses)} steps in {killed_seconds:.0f} s, loss {losses[0]:.3f} to {losses[-1]:.3f}; the trainer "
              f"connected again {reconnects} times; with the run in memory {time.monotonic() - begun:.0f} s")
        return report(supervised, lives, away, losses, reference)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how often (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the moments (default: another each time)")
    parser.add_argument("--terraced", type=pathlib.Path, default=ROOT / "build/release/terraced",
                        help="the daemon's binary (%(default)s)")
    parser.add_argument("--disk", type=pathlib.Path, default=ROOT / "build", help="folder for the block file (%(default)s)")
    parser.add_argument("--policy", choices=["lru", "s3-fifo", "next-use"], default="lru",
                        help="the daemon's (%(default)s); a plan is lost with the daemon, and made anew by the next")
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error("--kills is 1 or more")
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().getrandbits(32)
    print(f"seed {arguments.seed}", flush=True)
    return 0 if run(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
