# SPDX-License-Identifier: BSL-1.0
"""Measures torch.topk and torch.logsumexp over the rows of measure_top_k."""

import math

import torch

import torch_inputs
import torch_timing


def main():
    chosen = torch_timing.arguments(__doc__)
    rows = torch_inputs.top_k_rows(chosen)
    race = torch_timing.Race(chosen.repetitions)
    for name, number in (("float", torch.float32), ("half", torch.float16), ("bfloat16", torch.bfloat16)):
        logits = rows.to(device=torch_timing.device(), dtype=number)
        for k in (64, 512):

            def work(logits=logits, k=k):
                top = torch.topk(logits, k, dim=1)
                return top, torch.logsumexp(logits.float(), dim=1)

            values = work()[0].values
            assert math.isfinite(float(values.float().sum()))
            race.add(
                f"top_k.{name}.{k}",
                f"torch.topk and logsumexp, {len(rows)} rows of {name}, k = {k}, as a graph",
                work,
                graph=True,
            )
    race.finish(chosen.json)


if __name__ == "__main__":
    main()
