# SPDX-License-Identifier: BSL-1.0
"""torch.topk and torch.logsumexp over the rows of measure_top_k."""

import math
import os

import torch

import torch_timing


def main():
    chosen = torch_timing.arguments(__doc__)
    n_rows, vocab = (15, 151936) if not chosen.tiny else (2, 4096)
    path = chosen.inputs and os.path.join(chosen.inputs, "top_k.logits.f32")
    if path and os.path.exists(path):
        rows = torch.from_file(path, size=os.path.getsize(path) // 4, dtype=torch.float32).reshape(n_rows, -1)
    else:
        # A bell, and 30 tokens a row that stand out of it, as in measure_top_k.
        torch.manual_seed(7)
        rows = 2.5 * torch.randn(n_rows, vocab)
        rows.scatter_(1, torch.randint(vocab, (n_rows, 30)), 10 + 10 * torch.rand(n_rows, 30))
    race = torch_timing.Race(chosen.repetitions)
    for name, number in (("float", torch.float32), ("half", torch.float16), ("bfloat16", torch.bfloat16)):
        logits = rows.to(device=torch_timing.device(), dtype=number)
        for k in (64, 512):
            k = min(k, logits.shape[1])

            def work(logits=logits, k=k):
                top = torch.topk(logits, k, dim=1)
                return top, torch.logsumexp(logits.float(), dim=1)

            values = work()[0].values
            assert math.isfinite(float(values.float().sum()))
            race.add(f"top_k.{name}.{k}", f"torch.topk and logsumexp, {n_rows} rows of {name}, k = {k}, as a graph", work, graph=True)
    race.measure()
    torch_timing.write(chosen.json, "top_k_torch.py", race.figures())


if __name__ == "__main__":
    main()
