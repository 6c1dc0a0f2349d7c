#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level Llama, made from its configuration, with Hugging Face's Trainer, and keeps it in Terrace by one
callback. `--model` takes a folder that save_pretrained() wrote instead, read straight into Terrace. `--plain` leaves
Terrace out; the losses are the same. Needs `pip install transformers accelerate`; nothing is downloaded."""

import argparse
import contextlib
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from gpt_model import VOCABULARY, Shape, Text
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import terrace.torch


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="without Terrace")
    parser.add_argument("--model", help="a folder with a causal language model of bytes, or of more tokens")
    parser.add_argument("--steps", type=int, default=10, help="steps of training (%(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="the depth of a new model (%(default)s)")
    parser.add_argument("--width", type=int, default=384, help=f"the width of a new model, a multiple of {Shape.heads} (%(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step (%(default)s)")
    parser.add_argument("--memory", default="128MiB", help="size of the memory tier (%(default)s)")
    parser.add_argument("--block", default="/var/tmp:4GiB", help="folder and size of the block tier (%(default)s)")
    parser.add_argument("--output", default="finetuned", help="folder for the model afterwards (%(default)s)")
    arguments = parser.parse_args()
    Shape(width=arguments.width)  # checks it
    return arguments


class Rows(torch.utils.data.Dataset):
    """The sources of Python's standard library, in pieces."""

    def __init__(self, count: int):
        self._text, self._shape, self._count = Text(), Shape(batch=1), count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        row = self._text.batch(self._shape, 1, number)[0][0]
        return {"input_ids": row, "labels": row}


def make_model(arguments: argparse.Namespace) -> torch.nn.Module:
    torch.manual_seed(1)
    if arguments.model:
        return AutoModelForCausalLM.from_pretrained(arguments.model)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=arguments.width, intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers, num_attention_heads=Shape.heads, num_key_value_heads=Shape.heads, bos_token_id=None,
        eos_token_id=None))


def main() -> None:
    arguments = parse_arguments()
    with contextlib.ExitStack() as daemon:
        callbacks = []
        if arguments.plain:
            model = make_model(arguments)
        else:
            client = daemon.enter_context(terrace.serve(memory=arguments.memory, block=arguments.block))
            with terrace.torch.init(client=client):
                model = make_model(arguments)
            callbacks.append(terrace.torch.TerraceCallback(client=client))  # the line
        trainer = Trainer(
            model,
            TrainingArguments(output_dir=arguments.output, max_steps=arguments.steps, use_cpu=True, report_to=[],
                              per_device_train_batch_size=arguments.batch, learning_rate=3e-4, logging_steps=1,
                              save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False),
            train_dataset=Rows(arguments.steps * arguments.batch), callbacks=callbacks)
        trainer.train()
        for step, said in enumerate(trainer.state.log_history[:-1], 1):
            print(f"step {step:3}  loss {said['loss']!r}  gradients {said['grad_norm']!r}")
        model.config.save_pretrained(arguments.output)
        terrace.torch.save(os.path.join(arguments.output, "model.safetensors"), model)
        if not arguments.plain:
            print(terrace.torch.summary(model))


if __name__ == "__main__":
    main()
