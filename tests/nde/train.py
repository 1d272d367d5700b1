#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains a selector on made-up traces in which scalars tell which tree is best. Without torch it exits with 77: skipped."""

import contextlib
import io
import json
import math
import os
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
try:
    import torch
except ImportError:
    sys.exit(77)

sys.path[0] = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "nde")
import train  # noqa: E402
from selector import ACTIONS, write_safetensors  # noqa: E402

PROMPTS, ROOTS = 60, 4
COSTS = {
    "target": "large",
    "draft": "small",
    "opening_seconds": 0.0,
    "draft_pass": {"rows": [1, 2], "contexts": [0], "seconds": [5e-5, 5e-5]},
    "target_pass": {"rows": [1, 2], "contexts": [0], "seconds": [1e-3, 1.001e-3]},
}


def write_traces(folder):
    """At half of the roots every drafted token is accepted, at the others none: the entropies tell which."""
    torch.manual_seed(1)
    chain = torch.tensor([trunk + length for _, trunk, length in ACTIONS]).float()
    nodes = torch.tensor([trunk + paths * length for paths, trunk, length in ACTIONS]).float()
    for i in range(PROMPTS):
        good = (torch.rand(ROOTS, 1) < 0.5).float()
        scalars = torch.rand(ROOTS, 9)
        scalars[:, :3] = 3 * (1 - good) + 0.1 * torch.rand(ROOTS, 3)
        scalars[:, 6:] = torch.tensor([100.0, 1.0, 1.0])
        rows = torch.where(chain > 0, 1.0, 0.0).expand(ROOTS, -1)
        tensors = {
            "target_hidden": torch.randn(ROOTS, 8),
            "draft_hidden_prev": torch.randn(ROOTS, 8),
            "draft_hidden_root": torch.randn(ROOTS, 8),
            "scalars": scalars,
            "efficiency": (1 + good * chain)[:, None].clamp_min(1),
            "nodes": nodes.expand(ROOTS, -1),
            "draft_rows": rows,
        }
        metadata = {"format": "espalier-nde-traces 1", "target": "large", "draft": "small", "vocab": "16"}
        metadata |= {"verifiers": "specinfer", "prompt": f"prompt {i}", "domain": "made up"}
        write_safetensors(os.path.join(folder, f"trace-{i:05}.safetensors"), metadata, tensors)


def run(*arguments):
    sys.argv = ["train.py", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        train.main()
    return said.getvalue()


def gain(text):
    """Over the best undelayed tree."""
    (line,) = (line for line in text.splitlines() if line.startswith("| best undelayed"))
    return float(line.split("|")[2])


with tempfile.TemporaryDirectory() as folder:
    traces, costs, out = (os.path.join(folder, name) for name in ("traces", "costs.json", "selector.safetensors"))
    os.mkdir(traces)
    write_traces(traces)
    with open(costs, "w") as f:
        json.dump(COSTS, f)
    common = ("--traces", traces, "--costs", costs)
    learning = ("--verifier", "specinfer", "--epochs", "6", "--warm", "3", "--seeds", "1")
    learnt = gain(run("train", *common, *learning, "--out", out))
    # Eight drafted tokens take 0.4 ms of 1.4, which is lost at half of the roots: 1.08, and more where 16 are chosen.
    assert 1.05 < learnt < 2, learnt
    assert not [name for name in os.listdir(folder) if "checkpoint" in name or "partial" in name]
    evaluated = gain(run("evaluate", *common, "--selector", out))
    assert math.isclose(evaluated, learnt), (evaluated, learnt)
    elsewhere = os.path.join(folder, "price.json")
    with open(elsewhere, "w") as f:
        json.dump(COSTS | {"target": "another target"}, f)
    assert gain(run("evaluate", "--traces", traces, "--price", elsewhere, "--selector", out)) == evaluated
    try:
        run("evaluate", "--traces", traces, "--costs", elsewhere, "--selector", out)
        raise AssertionError("costs of other models were taken")
    except SystemExit as refused:
        assert 'the costs of the target "another target", but' in str(refused), refused
    slower = gain(run("evaluate", *common, "--selector", out, "--choosing", "1e-3"))
    assert slower < 0.8 * learnt, slower
