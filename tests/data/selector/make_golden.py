#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Writes golden.json: what PyTorch's selector makes of made-up weights and inputs, in double precision, with weights as they are
and of 4 bits. Inputs of which some number lies in the middle between two bytes, where the last bit decides, are left out.

    make_golden.py > golden.json

Weights and inputs are a function of a tensor's name and of the place in it, which tests/selector/made_up_tensors.hpp has, too."""

import itertools
import json
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../examples/nde"))
from selector import SCALARS, STATES, Layer, Selector, quantise  # noqa: E402

TARGET_HIDDEN, DRAFT_HIDDEN, INPUTS, EVERY = 1100, 40, 20, 9
MASK = 2**64 - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def made_up(name, shape):
    """Numbers between -1 and 1, or what their tensor wants in place of them."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK
    count = torch.Size(shape).numel()
    x = torch.tensor([(mix(key + i) >> 40) / 2**23 - 1 for i in range(count)], dtype=torch.float64)
    if name.endswith(".deviation"):
        x = 1 + x / 2
    elif name.endswith(".norm.weight"):
        x = 1 + x / 4
    elif len(shape) == 2:
        x = x * (3 / shape[1]) ** 0.5
    return x.float().reshape(shape)


def scores(model, number):
    sizes = (TARGET_HIDDEN, DRAFT_HIDDEN, DRAFT_HIDDEN)
    states = [4 * made_up(f"{number} {name}", (n,))[None].double() for name, n in zip(STATES, sizes)]
    with torch.no_grad():
        return model(states, 4 * made_up(f"{number} scalars", (len(SCALARS),))[None].double())[0]


def watch(model):
    """A list that takes how near to the middle between two bytes the inputs of each layer come."""
    margins = []

    def look(_, inputs):
        _, scale = quantise(inputs[0], Layer.MOST_INPUT)
        steps = inputs[0] / scale
        margins.append(((steps - steps.floor()) - 0.5).abs().min().item())

    for layer in (m for m in model.modules() if isinstance(m, Layer)):
        layer.register_forward_pre_hook(look)
    return margins


def main():
    torch.set_num_threads(1)
    models = {kind: Selector(TARGET_HIDDEN, DRAFT_HIDDEN, float32=kind == "float32").eval() for kind in ("float32", "int4")}
    for model in models.values():
        for name, values in model.tensors().items():
            values.data.copy_(made_up(name, values.shape))
        model.double()
    margins = watch(models["int4"])
    out = {"target_hidden": TARGET_HIDDEN, "draft_hidden": DRAFT_HIDDEN, "every": EVERY, "rows": []}
    for number in itertools.count():
        row = {"input": number}
        margins.clear()
        for kind, model in models.items():
            found = scores(model, number)
            row[kind] = [round(x, 6) for x in found[::EVERY].tolist()]
            row[kind + "_choice"] = int(found.argmax())
        if min(margins) > 1e-4:
            out["rows"].append(row)
        if len(out["rows"]) == INPUTS:
            break
    print(json.dumps(out).replace(", {", ",\n{"))


if __name__ == "__main__":
    main()
