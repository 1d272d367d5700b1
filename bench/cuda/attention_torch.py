# SPDX-License-Identifier: BSL-1.0
"""torch.nn.functional.scaled_dot_product_attention with a mask over the shapes of measure_attention."""

import contextlib

import torch
from torch.nn import functional

import torch_inputs
import torch_timing


def ways():
    """Measures every way that PyTorch has of computing attention; the quickest counts."""
    yield "PyTorch's choice", None
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return
    for backend in ("EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
        if hasattr(SDPBackend, backend):
            yield backend, (lambda b=getattr(SDPBackend, backend): sdpa_kernel(b))


def check(attended):
    assert bool(torch.isfinite(attended.float()).all()), "it is not finite"


def main():
    chosen = torch_timing.arguments(__doc__)
    generator = torch.Generator().manual_seed(3)
    heads, kv_heads, size = (32, 8, 128) if not chosen.tiny else (4, 2, 16)
    race = torch_timing.Race(chosen.repetitions)
    on = torch_timing.device()
    for prefix in (2048, 16384) if not chosen.tiny else (40,):
        for n in (64, 256, 1024) if not chosen.tiny else (8,):
            number = torch.bfloat16
            q = torch.randn(1, heads, n, size, device=on, dtype=number)
            k = torch.randn(1, kv_heads, prefix + n, size, device=on, dtype=number)
            v = torch.randn(1, kv_heads, prefix + n, size, device=on, dtype=number)
            # Keys and values are repeated for each query head before, and that time is not counted.
            wide_k, wide_v = (t.repeat_interleave(heads // kv_heads, dim=1).contiguous() for t in (k, v))
            allowed = torch_inputs.tree_mask(n, prefix, generator).to(on)
            # Both kinds of masks; its kernels take the additive kind without a conversion.
            additive = torch.zeros(n, prefix + n, device=on, dtype=number).masked_fill_(~allowed, float("-inf"))
            variants = []
            for mask_name, mask in (("bool", allowed), ("additive", additive)):

                def grouped(mask=mask):
                    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

                def repeated(mask=mask):
                    return functional.scaled_dot_product_attention(q, wide_k, wide_v, attn_mask=mask)

                variants.append((f"{mask_name} mask, grouped", grouped))
                variants.append((f"{mask_name} mask, repeated", repeated))
            for way, context in ways():
                for variant, call in variants:

                    def work(call=call, context=context):
                        with context() if context else contextlib.nullcontext():
                            return call()

                    note = f"{way}, {variant}"
                    race.try_add(
                        f"attention.{prefix}.{n}", f"SDPA, prefix {prefix}, {n} nodes: {note}", work, check, note
                    )
            race.measure()
    race.finish(chosen.json)


if __name__ == "__main__":
    main()
