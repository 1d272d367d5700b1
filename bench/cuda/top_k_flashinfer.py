# SPDX-License-Identifier: BSL-1.0
"""Measures flashinfer.top_k and torch.logsumexp over the rows of measure_top_k."""

import flashinfer
import torch

import torch_inputs
import torch_timing


def main():
    chosen = torch_timing.arguments(__doc__)
    rows = torch_inputs.top_k_rows(chosen)
    race = torch_timing.Race(chosen.repetitions)
    compiled = torch.compile(lambda x: torch.logsumexp(x.float(), dim=1))
    for name, number in (("float", torch.float32), ("half", torch.float16), ("bfloat16", torch.bfloat16)):
        logits = rows.to(device=torch_timing.device(), dtype=number)
        for normaliser_name, normaliser in (
            ("logsumexp", lambda x: torch.logsumexp(x.float(), dim=1)),
            ("compiled logsumexp", compiled),
        ):
            for k in (64, 512):

                def work(logits=logits, k=k, normaliser=normaliser):
                    return flashinfer.top_k(logits, k), normaliser(logits)

                def check(result, logits=logits, k=k):
                    largest = torch.topk(logits, k, dim=1).values.float()
                    assert torch.equal(result[0][0].float().sort(dim=1).values, largest.sort(dim=1).values), (
                        "its values are not the largest"
                    )

                race.try_add(
                    f"top_k.{name}.{k}",
                    f"flashinfer.top_k (unsorted) and {normaliser_name}, {len(rows)} rows of {name}, k = {k}",
                    work,
                    check,
                    note=f"unsorted, {normaliser_name}",
                )
    race.finish(chosen.json)


if __name__ == "__main__":
    main()
