# SPDX-License-Identifier: BSL-1.0
"""FlashInfer's attention with the mask of a tree over the shapes of measure_attention: one call with a mask over prefix
and tree, and its cascade, in which the prefix has no mask and the tree has one."""

import flashinfer
import torch

import torch_inputs
import torch_timing


def main():
    chosen = torch_timing.arguments(__doc__)
    generator = torch.Generator().manual_seed(3)
    heads, kv_heads, size = (32, 8, 128) if not chosen.tiny else (4, 2, 64)
    on = torch_timing.device()
    race = torch_timing.Race(chosen.repetitions)
    for prefix in (2048, 16384) if not chosen.tiny else (64,):
        for n in (64, 256, 1024) if not chosen.tiny else (8,):
            number = torch.bfloat16
            q = torch.randn(n, heads, size, device=on, dtype=number)
            k = torch.randn(prefix + n, kv_heads, size, device=on, dtype=number)
            v = torch.randn(prefix + n, kv_heads, size, device=on, dtype=number)
            allowed = torch_inputs.tree_mask(n, prefix, generator).to(on)
            # The mask bits are prepared before, and that time is not counted.
            packed = flashinfer.quantization.packbits(allowed.reshape(-1), bitorder="little")
            of_tree = flashinfer.quantization.packbits(allowed[:, prefix:].reshape(-1), bitorder="little")

            def single(q=q, k=k, v=v, packed=packed):
                return flashinfer.single_prefill_with_kv_cache(q, k, v, packed_custom_mask=packed)

            def cascade(q=q, k=k, v=v, of_tree=of_tree, prefix=prefix):
                first = flashinfer.single_prefill_with_kv_cache(
                    q, k[:prefix], v[:prefix], causal=False, return_lse=True
                )
                second = flashinfer.single_prefill_with_kv_cache(
                    q, k[prefix:], v[prefix:], packed_custom_mask=of_tree, return_lse=True
                )
                return flashinfer.merge_state(*first, *second)[0]

            expected = torch.nn.functional.scaled_dot_product_attention(
                q.float().transpose(0, 1)[None],
                k.float().transpose(0, 1)[None],
                v.float().transpose(0, 1)[None],
                attn_mask=allowed,
                enable_gqa=True,
            )[0].transpose(0, 1)

            def check(attended, expected=expected):
                difference = float((attended.float() - expected).norm() / expected.norm())
                assert difference < 0.02, f"it differs by {difference:.3f}"

            for name, work in (("one call", single), ("cascade", cascade)):
                note = f"{name}, the mask as bits"
                race.try_add(
                    f"attention.{prefix}.{n}", f"FlashInfer, prefix {prefix}, {n} nodes: {note}", work, check, note
                )
    race.finish(chosen.json)


if __name__ == "__main__":
    main()
