# SPDX-License-Identifier: Apache-2.0
"""The table of optimizers in docs/reference/optimizers.md: each class of a library on a small model, in plain PyTorch and in
Terrace. It is offloaded and comes to the same bits, or is refused and why."""

import contextlib
import dataclasses
import importlib
import inspect
import io
import random
import re
import warnings

import numpy
import terrace.torch
import torch
from terrace.torch._optimizer.optimizer import inner_of, managed_optimizer
from torch import nn

STEPS = 5
SAME = "the same bits"
LIBRARIES = {"torch.optim": "torch.optim", "pytorch_optimizer": "pytorch_optimizer", "torchao": "torchao.optim",
             "bitsandbytes": "bitsandbytes.optim"}
DISTRIBUTIONS = {"torch.optim": "torch", "pytorch_optimizer": "pytorch_optimizer", "torchao": "torchao",
                 "bitsandbytes": "bitsandbytes"}
# How those are made that a model's parameters do not make.
_OF_MATRICES = {"Muon", "AdaGO", "AdaMuon", "DistributedMuon", "MuonClip", "NorMuon"}
_ONLY_MATRICES = {("torch.optim", "Muon"), ("pytorch_optimizer", "SpectralSphere")}
_OF_MODEL = {"AdaLOMO", "LOMO", "AdamMini"}
_WRAPPERS = {"Lookahead", "OrthoGrad", "PCGrad", "ScheduleFreeWrapper", "TRAC", "SafeFP16Optimizer"}
_OF_CLASS = {"SAM", "GSAM", "WSAM", "LookSAM", "FriendlySAM"}
_OPTIONS = {"BSAM": {"num_data": 8}, "Ranger21": {"num_iterations": 100}} | {
    name: {"momentum": 0.9} for name in ("LARS", "LARS8bit", "LARS32bit", "PytorchLARS", "SGD", "SGD8bit", "SGD32bit")}


@dataclasses.dataclass
class Row:
    """What became of one class."""

    library: str
    name: str
    verdict: str  # "the same bits", "refused", "other numbers", or "not run"
    why: str = ""


def section(rows):
    """What the page says of a library."""
    same = [row.name for row in rows if row.verdict == SAME]
    lines = [f"**The same bits** ({len(same)}): {', '.join(same)}."]
    others = [f"| `{row.name}` | {row.verdict} | {row.why} |" for row in rows if row.verdict != SAME]
    return "\n".join([*lines, "", "| class | | why |", "|---|---|---|", *others] if others else lines)


def classes(library):
    """Its optimizers, by name."""
    module = importlib.import_module(LIBRARIES[library])
    found = {name: one for name, one in vars(module).items() if isinstance(one, type) and not name.startswith("_")
             and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer}
    if library != "torch.optim":  # what they only hand on stands under its own library
        found = {name: one for name, one in found.items() if not one.__module__.startswith("torch.")}
    return dict(sorted((name, one) for name, one in found.items() if not name.endswith("State") and name not in (
        "Optimizer1State", "Optimizer2State", "BaseOptimizer")))


def model_for(library, name):
    torch.manual_seed(1)
    if (library, name) in _ONLY_MATRICES:
        return nn.Sequential(nn.Linear(64, 96, bias=False), nn.Tanh(), nn.Linear(96, 64, bias=False))
    if name == "SparseAdam":
        return nn.Sequential(nn.Embedding(96, 64, sparse=True))
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.LayerNorm(96), nn.Linear(96, 64))


def made(library, kind, model):
    """An optimizer of a class over a model's parameters."""
    name, parameters = kind.__name__, list(model.parameters())
    options = dict(_OPTIONS.get(name, {})) if library != "torch.optim" else {}
    if name in _WRAPPERS:
        return kind(torch.optim.AdamW(parameters, lr=1e-3))
    if name in _OF_CLASS:
        return kind(parameters, torch.optim.AdamW, lr=1e-3)
    if name in _OF_MODEL:
        return kind(model)
    if library == "pytorch_optimizer" and name in _OF_MATRICES:
        matrices, others = ([one for one in parameters if (one.dim() > 1) == wanted] for wanted in (True, False))
        parameters = [{"params": matrices, "use_muon": True}, {"params": others, "use_muon": False}]
    if "lr" in inspect.signature(kind).parameters:
        options["lr"] = 1e-3
    return kind(parameters, **options)


def trained(model, optimizer, closures):
    """Losses and weights. closures: the step is given what runs the model."""
    losses = []
    for step in range(STEPS):
        chance = torch.Generator().manual_seed(step)
        torch.manual_seed(step)
        numpy.random.seed(step)  # which some draw from
        random.seed(step)
        if isinstance(model[0], nn.Embedding):
            source = torch.randint(0, 96, (4, 8), generator=chance)
        else:
            source = torch.randn(4, 64, generator=chance)


        def closure(source=source):
            optimizer.zero_grad()
            loss = model(source).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        if closures:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        optimizer.zero_grad()
    return losses, {name: value.detach().clone().flatten().view(torch.uint8).numpy().tobytes()
                    for name, value in model.state_dict().items()}


def row(library, kind, client):
    """What becomes of one class."""
    name = kind.__name__
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            model, optimizer = pair(library, kind)
        except Exception as error:
            return Row(library, name, "not run", f"it cannot be built here: {_short(error)}")
        try:
            terrace.torch.offload(model, optimizer, client=client, tensor_bytes_min=1024)
        except terrace.InvalidArgument as error:
            refused = _why(str(error))
            failed, _ = without(library, kind) if "copy of it failed" in refused and "does not require grad" not in refused else ("", ())
            return (Row(library, name, "not run", f"its step fails without Terrace: {failed}") if failed else
                    Row(library, name, "refused", refused))
        failed, wanted = without(library, kind)
        if failed:
            return Row(library, name, "not run", f"its step fails without Terrace: {failed}")
        for one in (optimizer, *inner_of(optimizer)):
            managed_optimizer(one).batch_bytes = 1  # a batch for each parameter
        losses, closures = wanted
        return Row(library, name, SAME if trained(model, optimizer, closures) == losses else "other numbers")


def pair(library, kind):
    """A model and its optimizer."""
    model = model_for(library, kind.__name__)
    optimizer = made(library, kind, model)
    if hasattr(optimizer, "train"):  # of a schedule-free one
        optimizer.train()
    return model, optimizer


def without(library, kind):
    """Of plain PyTorch: why it fails, empty where it does not; and what it comes to, and whether with closures."""
    why = ""
    for closures in (False, True):
        try:
            return "", (trained(*pair(library, kind), closures), closures)
        except Exception as error:
            why = why or _short(error)
    return why, ()


def _short(error):
    words = " ".join(str(error).split()).replace("|", "/")
    return re.sub(r"0x[0-9a-f]+", "...", f"{type(error).__name__}: {words}"[:140])


def _why(said):
    """A refusal's reason, without what is said of all."""
    for pattern in (r"one by one, since (.*?): ", r"cannot be tried: (.*?)\. If what becomes", r"stepped them together \((.*)\): use"):
        found = re.search(pattern, said, re.DOTALL)
        if found:
            return " ".join(re.sub(r"[-+]?[0-9]+\.[0-9e+-]+", "...", found[1]).split()).replace("|", "/")[:160].strip()
    return said.split(": ", 1)[-1].partition(";")[0]
