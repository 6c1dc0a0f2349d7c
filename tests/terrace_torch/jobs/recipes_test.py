# SPDX-License-Identifier: Apache-2.0
"""Shows that every recipe of docs/guides/recipes.md runs, comes to the numbers of the same script without its lines of Terrace,
bit for bit, and has in Terrace what the page's table says."""

import gc
import os
import re

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
               "TRANSFORMERS_VERBOSITY": "error", "DISABLE_SAFETENSORS_CONVERSION": "1"}

import pytest
import terrace.torch
import torch
from python_fixtures import ROOT
from quantized_fixtures import state_bits
from terrace.torch._leased import default_client

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries', about each other
PAGE = (ROOT / "docs/guides/recipes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)  # of which the first makes the small model
TITLES = re.findall(r"^## (.*)$", PAGE.partition("## The small model here\n")[2].partition("## Tested with")[0], re.MULTILINE)
BYTES_MIN = 4096  # of what offload() moves
OF_TIMES = re.compile("runtime|per_second|time|flos|mfu")


def without(block):
    """The same script without Terrace."""
    return "\n".join(line for line in block.splitlines() if "# the line" not in line) + "\n"


def models_of(names):
    """The model that a recipe trains, and the one that it only runs."""
    trainer = names.get("trainer")
    return getattr(trainer, "model", names["model"] if "model" in names else None), getattr(trainer, "ref_model", None)


def said(names):
    """What a recipe came to: losses, what its trainer logged but for times, and the bits of its weights."""
    trainer = names.get("trainer")
    logged = [{key: value for key, value in entry.items() if not OF_TIMES.search(key)}
              for entry in getattr(getattr(trainer, "state", None), "log_history", [])]
    last = {key: value.item() for key, value in getattr(trainer, "callback_metrics", {}).items()}
    generated = names["said"].tolist() if "said" in names else None
    return names.get("losses"), logged, last, generated, state_bits(models_of(names)[0])


def in_terrace(names):
    """Of each model: the bytes that it has in Terrace, and those of its frozen and of its trained parameters."""
    assert default_client._opened[1].leased_bytes == 0
    return [(terrace.torch.summary(model).nbytes,
             *(sum(one.nbytes for one in model.parameters() if one.requires_grad == trained and one.nbytes >= BYTES_MIN)
               for trained in (False, True))) for model in models_of(names) if model is not None]


def run(blocks, look=lambda names: None):
    """What each recipe comes to, as one script; and what is seen after each."""
    names, found = {}, []
    for number, block in enumerate(blocks):
        for name in ("losses", "trainer", "model", "said"):
            names.pop(name, None)
        exec(block, names)
        if number:
            found.append((said(names), look(names)))
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What the recipes come to, without Terrace and with it, by title: with less memory than a model takes with its states."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("plain"))
        plain = run(map(without, BLOCKS))
        patch.chdir(tmp_path_factory.mktemp("ours"))
        patch.setenv("LOCAL_WORLD_SIZE", "2")  # serve()'s session is one, and the one that the page opens the other
        with terrace.serve("16MiB", block=f"{os.environ['TERRACE_BUILD']}:512MiB", metrics=False) as served:
            patch.setenv("TERRACE_SOCKET", served.socket)
            try:
                ours = run(BLOCKS, in_terrace)
            finally:
                gc.collect()
                if default_client._opened is not None:
                    default_client._opened[1].close()
        yield {title: (one, other) for title, one, other in zip(TITLES, plain, ours, strict=True)}


@pytest.mark.parametrize("title", TITLES)
def test_the_same_bits(both, title):
    (plain, _), (ours, _) = both[title]
    assert ours == plain
    assert any(ours[:3]), "it says nothing of its losses"


@pytest.mark.parametrize("title", TITLES)
def test_what_is_in_terrace(both, title):
    """Frozen weights as they are; of each trained one the gradient and two states as well, and casts. Quantized states are
    less. What LoRA's adapters had is there until it is needed, though they were merged."""
    _, (_, seen) = both[title]
    of_trained = 2 if "QLoRA" in title else 4
    for held, frozen, trained in seen:
        least = frozen + of_trained * trained
        assert least <= held <= 1.01 * (frozen + 4 * trained) + (frozen + trained) / 2
    assert len(seen) == (2 if "reference model" in title else 1)


def test_each_recipe_is_in_the_table():
    table = PAGE.partition("## Choose yours")[2].partition("## The small model here")[0]
    assert len(BLOCKS) == len(TITLES) + 1 == PAGE.count("```") // 2
    assert all(f"](#{title.lower().replace(' ', '-').replace(',', '')})" in table for title in TITLES)
    assert all("# the line" in block for block in BLOCKS[1:])
