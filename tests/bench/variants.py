# SPDX-License-Identifier: Apache-2.0
"""Workloads whose bytes rest on the block tier, of three kinds, in sizes, counts and times that a seed draws.

    tests/bench/variants.py KIND SEED > workload.jsonl

`optimizer`: weights larger than HBM, streamed in each pass, with an optimizer on the host. `accumulate`: some
micro-batches with activations of their own, an optimizer on the host, an evaluation. `models`: the first of one to four
models generates, and then each trains with an optimizer on the host. Sizes are for the node `g10`: HBM of 40 GiB, host
memory of 128.
"""

import json
import random
import sys

MIB = 1 << 20
GIB = 1 << 30


class Made:
    """Records of a workload in the making."""

    def __init__(self, name):
        self.tensors, self.runs, self.name = [], [], name

    def tensor(self, size, kind, home):
        self.tensors.append({"tensor": len(self.tensors), "bytes": int(size), "class": kind, "home": home})
        return len(self.tensors) - 1

    def run(self, name, us, read, write, free=(), place="hbm"):
        self.runs.append({"run": name, "us": round(us, 3), "place": place, "read": list(read), "write": list(write),
                          "free": list(free)})

    def step(self, kind="train"):
        self.runs.append({"step": True, "kind": kind})

    def lines(self):
        header = {"workload": self.name, "version": 1, "source": "tests/bench/variants.py"}
        return [json.dumps(record) for record in [header, *self.tensors, *self.runs]]


class Model:
    """One model's weights, states and gradients, and its passes."""

    def __init__(self, made, draw, layers, layer_bytes, states, forward_us):
        self.made, self.draw, self.layers, self.forward_us = made, draw, layers, forward_us
        self.weights = [made.tensor(layer_bytes, "param", True) for _ in range(layers)]
        self.states = [made.tensor(states * layer_bytes, "optim", True) for _ in range(layers)]
        self.gradients = [made.tensor(layer_bytes, "grad", False) for _ in range(layers)]
        self.act_bytes = layer_bytes * draw.uniform(0.3, 0.9)

    def us(self, factor=1.0):
        return self.forward_us * factor * self.draw.uniform(0.92, 1.08)

    def train(self, first=True):
        """Forward and backward; the gradients are new, or are added to those that are there."""
        acts = [self.made.tensor(self.act_bytes * self.draw.uniform(0.8, 1.2), "act", False) for _ in range(self.layers + 1)]
        self.made.run("embed", self.us(0.3), [], [acts[0]])
        for layer in range(self.layers):
            self.made.run(f"fwd{layer}", self.us(), [self.weights[layer], acts[layer]], [acts[layer + 1]])
        for layer in reversed(range(self.layers)):
            gradient = self.gradients[layer]
            last = [acts[0]] if layer == 0 else []
            self.made.run(f"bwd{layer}", self.us(2), [self.weights[layer], acts[layer], acts[layer + 1], *([] if first else [gradient])],
                          [gradient], [acts[layer + 1], *last])

    def adam(self, us):
        for layer in range(self.layers):
            used = [self.weights[layer], self.states[layer]]
            self.made.run(f"adam{layer}", us * self.draw.uniform(0.95, 1.05), [*used, self.gradients[layer]], used,
                          [self.gradients[layer]], "host")

    def read(self, us, name):
        """A pass that keeps nothing but what the next layer reads."""
        act = self.made.tensor(self.act_bytes, "act", False)
        self.made.run("embed", us * 0.3, [], [act])
        for layer in range(self.layers):
            new = self.made.tensor(self.act_bytes, "act", False)
            self.made.run(f"{name}{layer}", us * self.draw.uniform(0.92, 1.08), [self.weights[layer], act], [new],
                          [act, new] if layer + 1 == self.layers else [act])
            act = new


def optimizer(draw, made):
    layers = draw.randint(24, 60)
    model = Model(made, draw, layers, draw.uniform(35, 62) * GIB / layers, draw.choice([4, 6]), draw.uniform(70e3, 160e3))
    model.act_bytes = draw.uniform(12, 26) * GIB / layers
    model.train()
    model.adam(draw.uniform(120e3, 240e3))
    made.step()


def accumulate(draw, made):
    layers = draw.randint(16, 40)
    model = Model(made, draw, layers, draw.uniform(16, 30) * GIB / layers, draw.choice([4, 6]), draw.uniform(60e3, 120e3))
    model.act_bytes = draw.uniform(12, 24) * GIB / layers
    batches = draw.randint(2, 6)
    for batch in range(batches):
        model.train(first=batch == 0)
        if batch + 1 < batches:
            made.step("accum")
    model.adam(draw.uniform(90e3, 180e3))
    made.step()
    model.read(model.forward_us / 2, "eval")
    made.step("eval")


def models(draw, made):
    count = draw.randint(1, 4)
    layers = [draw.randint(10, 30) for _ in range(count)]
    whole = draw.uniform(30, 55) * GIB / count
    several = [Model(made, draw, each, whole / each, draw.choice([4, 6]), draw.uniform(80e3, 160e3)) for each in layers]
    for _ in range(draw.randint(1, 4)):
        several[0].read(draw.uniform(20e3, 60e3), "gen")
    for model in reversed(several):
        model.act_bytes = draw.uniform(6, 14) * GIB / model.layers
        model.train()
        model.adam(draw.uniform(90e3, 160e3))
    made.step()


KINDS = {"optimizer": optimizer, "accumulate": accumulate, "models": models}


def lines(kind, seed):
    """Of the workload file; the same kind and seed give the same."""
    made = Made(f"{kind}-{seed}")
    KINDS[kind](random.Random(f"{kind} {seed}"), made)
    return made.lines()


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in KINDS or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    print("\n".join(lines(sys.argv[1], int(sys.argv[2]))))
