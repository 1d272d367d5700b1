# SPDX-License-Identifier: BSL-1.0
"""Measures a pass of Qwen3-8B's shape with random weights by transformers, as a CUDA graph over a static cache, for the
sizes of measure_forward."""

import torch
import transformers

import torch_inputs
import torch_timing


def main():
    chosen = torch_timing.arguments(__doc__)
    full = not chosen.tiny
    prefix, sizes = (2048, (1, 16, 64, 256)) if full else (40, (1, 8))
    config = transformers.Qwen3Config(
        vocab_size=151936 if full else 512,
        hidden_size=4096 if full else 128,
        num_hidden_layers=36 if full else 2,
        num_attention_heads=32 if full else 4,
        num_key_value_heads=8 if full else 2,
        head_dim=128 if full else 64,
        intermediate_size=12288 if full else 256,
        max_position_embeddings=40960,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    on = torch_timing.device()
    torch.set_default_dtype(torch.bfloat16)
    with on:
        model = transformers.Qwen3ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(3)
    race = torch_timing.Race(max(1, chosen.repetitions // 5))
    number = torch.bfloat16
    for n in sizes:
        context = prefix + sizes[-1]
        cache = transformers.StaticCache(
            config=config, max_batch_size=1, max_cache_len=context, device=on, dtype=number
        )
        # Each call adds its rows to the lengths that the layers of the cache keep: they are views of one array, which the
        # next call sets back.
        lengths = torch.full((config.num_hidden_layers,), prefix, dtype=torch.long, device=on)
        for layer, length in zip(cache.layers, lengths):
            layer.cumulative_length = length
        tokens = torch.randint(0, config.vocab_size, (1, n), generator=generator).to(on)
        places = torch.arange(prefix, prefix + n, device=on)
        allowed = torch.zeros(n, context, dtype=torch.bool)
        allowed[:, : prefix + n] = torch_inputs.tree_mask(n, prefix, generator)
        mask = torch.zeros(1, 1, n, context, dtype=number).masked_fill_(~allowed, float("-inf")).to(on)

        @torch.inference_mode()
        def work(tokens=tokens, places=places, mask=mask, cache=cache, lengths=lengths):
            lengths.fill_(prefix)
            return model(
                input_ids=tokens,
                position_ids=places[None],
                cache_position=places,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            ).logits

        assert bool(torch.isfinite(work().float()).all())
        race.add(
            f"forward.{n}",
            f"a pass of {n} rows after {prefix} tokens, Qwen3-8B's shape, a static cache",
            work,
            graph=True,
            note="a static cache, a mask, as a graph",
        )
    race.finish(chosen.json)


if __name__ == "__main__":
    main()
