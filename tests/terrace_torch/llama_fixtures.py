# SPDX-License-Identifier: Apache-2.0
"""What the tests of libraries around Transformers share: a small Llama, its words, and texts, all made in memory; and a
process that asks no network for anything."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
               "TRANSFORMERS_VERBOSITY": "error", "DISABLE_SAFETENSORS_CONVERSION": "1"}

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = 96
WORDS = ["<pad>", "<end>", *(f"w{number}" for number in range(2, VOCABULARY))]


def llama(seed=1, **options):
    """The same one each time."""
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": 1, "pad_token_id": 0, **options}))


def tokenizer():
    """Each word is a token."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def tokens(seed, *shape):
    return torch.randint(2, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def text(seed, count=8):
    return " ".join(WORDS[number] for number in tokens(seed, count))
