# SPDX-License-Identifier: Apache-2.0
"""The job that trains with DeepSpeed's ZeRO-3, its states and parameters offloaded to memory or to files."""

import os
import socket

from worker_training import Job, make_model

ALIGNMENT = 1 << 20  # elements that sizes of buffers are rounded up to


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def configuration(spec, recipe, largest, folder):
    """What deepspeed.initialize is given. SPEC's device is "cpu" or "nvme"; its settings (all have defaults):

    block_size, queue_depth, intra_op_parallelism: of its asynchronous I/O.
    parameter_buffers, optimizer_buffers: how many; a parameter's is as large as the largest one.
    pipeline: the next states are read, and the last ones written, while it computes.
    sub_group_size: parameters that are stepped together.

    SPEC's masters: weights and gradients in bfloat16, and masters in float32.
    """
    settings = spec.get("settings", {})
    device = {"device": spec["device"], "pin_memory": bool(settings.get("pin_memory", False))}
    parameters, optimizer = dict(device), dict(device)
    if spec["device"] == "nvme":
        # What is read ahead takes every buffer there is. With 5, which is DeepSpeed's default, a model of 28 blocks
        # has none left in its second step for a parameter that was not read ahead, and it asserts.
        parameters |= {"nvme_path": folder, "buffer_count": settings.get("parameter_buffers", 12),
                       "buffer_size": -(-largest // ALIGNMENT) * ALIGNMENT, "max_in_cpu": 0}
        pipeline = bool(settings.get("pipeline", True))
        # Of three sub groups at a time, one read, one stepped and one written, four tensors each: with fewer it asserts.
        optimizer |= {"nvme_path": folder, "buffer_count": settings.get("optimizer_buffers", 12 if pipeline else 5),
                      "pipeline_read": pipeline, "pipeline_write": pipeline}
    return {
        "train_micro_batch_size_per_gpu": spec["shape"]["batch"],
        "gradient_accumulation_steps": 1,
        "steps_per_print": 1 << 30,
        "bf16": {"enabled": bool(spec.get("masters"))},
        "optimizer": {"type": "AdamW", "params": {"lr": recipe.learning_rate, "betas": list(recipe.betas),
                                                  "eps": recipe.epsilon, "weight_decay": recipe.weight_decay}},
        "zero_optimization": {
            "stage": 3, "offload_param": parameters, "offload_optimizer": optimizer,
            "sub_group_size": settings.get("sub_group_size", 16 << 20),
            "contiguous_gradients": True, "overlap_comm": bool(settings.get("overlap_comm", False)),
            "reduce_bucket_size": settings.get("reduce_bucket_size", 16 << 20),
            "stage3_prefetch_bucket_size": settings.get("prefetch_bucket_size", 2 * largest),
            "stage3_max_live_parameters": settings.get("live_parameters", 8 * largest),
            "stage3_max_reuse_distance": settings.get("live_parameters", 8 * largest),
        },
        "aio": {"block_size": settings.get("block_size", 1 << 20), "queue_depth": settings.get("queue_depth", 32),
                "intra_op_parallelism": settings.get("intra_op_parallelism", 1), "single_submit": False,
                "overlap_events": True},
    }


def mend():
    """Works around two mistakes of 0.19.8, with which it does not train this model on files of parameters."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.swap_tensor.partitioned_param_swapper import AsyncPartitionedParameterSwapper

    # On a CPU that cannot compute in fp16 such parameters are taken for bfloat16 (Init._set_dtype).
    get_accelerator().is_fp16_supported = lambda: True
    # What forward uses last and backward first is asked for twice at a time (__prefetch_nvme_param_partitions).
    swap_in = AsyncPartitionedParameterSwapper.swap_in
    AsyncPartitionedParameterSwapper.swap_in = lambda swapper, params, *how, **options: swap_in(
        swapper, list({id(one): one for one in params}.values()), *how, **options)


class DeepSpeed(Job):
    """See configuration()."""

    def make(self):
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(_free_port())}
        import deepspeed

        mend()
        model = make_model(self.shape, self.recipe.seed)
        largest = max(parameter.numel() for parameter in model.parameters())
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), dist_init_required=True,
            config=configuration(self.spec, self.recipe, largest, self.spec["folder"]))

    def describe(self):
        return {"parameters": self.parameters}

    def step(self, number):
        from gpt_model import loss_of

        source, target = self.batch(number)
        loss = loss_of(self.engine(source), target)
        self.engine.backward(loss)
        self.engine.step()
        return loss.item()
