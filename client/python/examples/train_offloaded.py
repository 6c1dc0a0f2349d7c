#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An ordinary training script with one more line: a byte-level GPT whose parameters, gradients and optimizer states
live in Terrace. `--plain` leaves the line out; the losses are the same."""

import argparse
import contextlib
import time

import torch
from gpt_model import Recipe, Shape, Text, loss_of, make_layer
from torch import nn

import terrace.torch


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="without Terrace")
    parser.add_argument("--steps", type=int, default=10, help="steps of training (%(default)s)")
    parser.add_argument("--blocks", type=int, default=Shape.blocks, help="the model's depth (%(default)s)")
    parser.add_argument("--width", type=int, default=Shape.width, help="the model's width (%(default)s)")
    parser.add_argument("--batch", type=int, default=Shape.batch, help="sequences a step (%(default)s)")
    parser.add_argument("--memory", default="128MiB", help="size of the memory tier (%(default)s)")
    parser.add_argument("--block", default="/var/tmp:4GiB", help="folder and size of the block tier (%(default)s)")
    parser.add_argument("--save", help="write the model to this safetensors file, and the optimizer beside it")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    with contextlib.ExitStack() as daemon:
        train(arguments, daemon)


def train(arguments: argparse.Namespace, daemon: contextlib.ExitStack) -> None:
    shape = Shape(blocks=arguments.blocks, width=arguments.width, batch=arguments.batch)
    recipe = Recipe()
    text = Text()
    model = nn.Sequential(*(make_layer(shape, index, recipe.seed) for index in range(shape.layers)))
    optimizer = recipe.optimizer(list(model.parameters()))
    if not arguments.plain:
        client = daemon.enter_context(terrace.serve(memory=arguments.memory, block=arguments.block))
        model, optimizer = terrace.torch.offload(model, optimizer, client=client, what="all")  # the line
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    for step in range(arguments.steps):
        begin = time.perf_counter()
        source, target = text.batch(shape, recipe.seed, step)
        loss = loss_of(model(source), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"step {step + 1:3}  loss {loss.item():.6f}  {time.perf_counter() - begin:.2f} s")
    if arguments.save:
        terrace.torch.save(arguments.save, model, optimizer)
    if not arguments.plain:
        print(terrace.torch.summary(model))


if __name__ == "__main__":
    main()
