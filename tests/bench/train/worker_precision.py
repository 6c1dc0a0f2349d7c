# SPDX-License-Identifier: Apache-2.0
"""Jobs of the rows on precision: the optimizer's step beside a copy of its bytes, and adapters over a quantized model."""

import os
import time

import torch
from worker_training import Served, make_model

# Of an element. Its gradient is read in bfloat16, its master and two moments in float32; these three are written, and the weight.
COPIED_BYTES = 14
PIECE_BYTES = 64 << 20


class HostStep(Served):
    """AdamW's step on the host, with masters that are all in the memory tier; and a copy of as many bytes by the same
    threads."""

    def make(self):
        import terrace.torch

        self.client = self.serve()
        self.model = make_model(self.shape, self.recipe.seed, self.dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        terrace.torch.offload(self.model, self.optimizer, client=self.client, what="all", masters=torch.float32, step="host")
        self.loss(0).backward()  # the gradients stay
        self.optimizer.step()
        self._bytes = COPIED_BYTES * sum(one.numel() for one in self.model.parameters())
        self._pair = [torch.ones(PIECE_BYTES, dtype=torch.uint8) for _ in range(2)]

    def run(self, threads, fused):
        """Seconds of a step, and of the copy."""
        torch.set_num_threads(threads)
        for group in self.optimizer.param_groups:
            group["fused"] = fused
        try:
            return {"step": self._timed(self._step), "copy": self._timed(self._copy), "bytes": self._bytes}
        finally:
            torch.set_num_threads(self.spec["threads"])

    def _step(self):
        self.optimizer.step()
        len(self.optimizer.state)  # waits for its end

    def _copy(self):
        for _ in range(self._bytes // PIECE_BYTES):
            self._pair[1].copy_(self._pair[0])

    @staticmethod
    def _timed(what):
        begin = time.perf_counter()
        what()
        return time.perf_counter() - begin


class Adapters(Served):
    """QLoRA: a Llama in four bits (bitsandbytes) with PEFT's adapters. memory: in Terrace, with such a tier; without: in
    memory."""

    def make(self):
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        self.client = None
        self.model = self._built(self.spec["adapted"])
        self.optimizer = self.recipe.optimizer([one for one in self.model.parameters() if one.requires_grad])
        if "memory" in self.spec:
            import terrace.torch

            self.client = self.serve()
            terrace.torch.offload(self.model, self.optimizer, client=self.client, what="all")

    def _built(self, shape):
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
        from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(self.recipe.seed)
        folder = os.path.join(self.spec["folder"], "base")
        LlamaForCausalLM(LlamaConfig(
            vocab_size=256, hidden_size=shape["width"], intermediate_size=shape["inner"], num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"])).save_pretrained(folder)
        how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                 bnb_4bit_compute_dtype=torch.float32)
        base = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu", quantization_config=how)
        base = prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
        lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
        return get_peft_model(base, lora).train()

    def step(self, number):
        text, _ = self.batch(number)
        loss = self.model(input_ids=text, labels=text).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def moved(self):
        return (0, 0) if self.client is None else super().moved()

    def rest(self):
        if self.client is not None:
            super().rest()
