# SPDX-License-Identifier: BSL-1.0
"""flashinfer.top_k and torch.logsumexp over the rows of measure_top_k."""

import sys

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

                try:
                    values, _ = work()[0]
                    assert torch.equal(
                        values.float().sort(dim=1).values,
                        torch.topk(logits, k, dim=1).values.float().sort(dim=1).values,
                    )
                    race.add(
                        f"top_k.{name}.{k}",
                        f"flashinfer.top_k (unsorted) and {normaliser_name}, {len(rows)} rows of {name}, k = {k}",
                        work,
                        graph=True,
                        note=f"unsorted, {normaliser_name}",
                    )
                except (RuntimeError, TypeError, AttributeError, AssertionError) as error:
                    print(
                        f"  {name}, k = {k}, {normaliser_name} does not work: {str(error).splitlines()[:1]}",
                        file=sys.stderr,
                    )
    race.measure()
    torch_timing.write(chosen.json, "top_k_flashinfer.py", race.figures())


if __name__ == "__main__":
    main()
