#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Exports a causal language model of Hugging Face as a TorchScript module that espalier::torch_backend runs.

    pip install torch transformers
    python export.py SmolLM2-135M-Instruct smollm2.pt        # a folder, or a name on the Hugging Face hub

Models whose layers cache keys and values for every token are taken: Llama, Mistral, Qwen, Gemma and their kin. The module
computes, for rows that are nodes of a tree, what the model computes for the path from the root to each:

    forward(tokens, positions, slots, seen, outputs, keys, values) -> logits

    tokens, positions, slots   [rows] int64        a row's token, its place in the text, and its cache slot
    seen                       [rows][columns] bool    whether the row sees the cache slot; columns > every slot
    outputs                    [n] int64           the rows whose logits are wanted
    keys, values               [layers][capacity][row_size]    the cache, row_size = n_kv_heads * head_dim
    logits                     [n][vocab_size] float
"""
import argparse
import json
import warnings

import torch
import transformers


class SlotCache(transformers.Cache):
    """Shows a layer's attention the first `columns` slots of a cache, after its new rows went to theirs."""

    def __init__(self, keys, values, slots, columns):
        super().__init__(layers=[])
        self.cache, self.slots, self.columns = (keys, values), slots, columns

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        return tuple(self.write(rows[layer_idx], states)
                     for rows, states in zip(self.cache, (key_states, value_states)))

    def write(self, rows, states):
        _, heads, n, head_dim = states.shape
        rows.index_copy_(0, self.slots, states[0].transpose(0, 1).reshape(n, heads * head_dim).to(rows.dtype))
        seen = rows.narrow(0, 0, self.columns).view(self.columns, heads, head_dim)
        return seen.transpose(0, 1).unsqueeze(0).to(states.dtype)

    def get_seq_length(self, layer_idx=0):
        return 0

    def get_max_cache_shape(self, layer_idx=0):
        return -1


class TreePass(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, positions, slots, seen, outputs, keys, values):
        number = self.model.get_input_embeddings().weight.dtype
        hidden = torch.zeros_like(seen, dtype=number).masked_fill(~seen, torch.finfo(number).min)
        written = self.model(
            input_ids=tokens.unsqueeze(0), position_ids=positions.unsqueeze(0), attention_mask=hidden[None, None],
            past_key_values=SlotCache(keys, values, slots, seen.shape[1]), use_cache=True, logits_to_keep=outputs)
        return written.logits[0].float()


def shape_of(model):
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {"vocab_size": config.vocab_size, "n_layers": config.num_hidden_layers, "row_size": heads * head_dim,
            "max_positions": config.max_position_embeddings}


def example_of(shape, n, prefix, device):
    """n rows that are a chain after `prefix` slots."""
    columns, capacity = prefix + n, prefix + n + 3
    places = torch.arange(prefix, columns)
    seen = torch.arange(columns)[None, :] <= places[:, None]
    cache = torch.zeros(shape["n_layers"], capacity, shape["row_size"])
    example = torch.arange(n) % shape["vocab_size"], places, places, seen, torch.arange(1, n), cache, cache.clone()
    return tuple(tensor.to(device) for tensor in example)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a folder with a model of Hugging Face, or its name on the hub")
    parser.add_argument("output", help="the TorchScript file to write")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32",
                        help="what the model computes in; the cache may be of another type [float32]")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa",
                        help="eager is plain operations, which PyTorch before 2.0 can run, too [sdpa]")
    parser.add_argument("--device", default="cpu", help="where it will run: cpu or cuda [cpu]")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        given.model, dtype=getattr(torch, given.dtype), attn_implementation=given.attention)
    if getattr(model.config.get_text_config(), "sliding_window", None):
        print("This model has a sliding window: texts must stay shorter than it.")
    shape = shape_of(model)
    tree_pass = TreePass(model.eval().to(given.device)).eval()
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(tree_pass, example_of(shape, 5, 4, given.device), check_trace=False)
        # What was traced must hold for other numbers of rows and slots.
        for n, prefix in ((1, 0), (3, 9)):
            expected, found = (run(*example_of(shape, n, prefix, given.device)) for run in (tree_pass, module))
            if expected.shape != found.shape or not torch.allclose(expected, found, rtol=1e-3, atol=1e-4):
                raise SystemExit(f"{given.model} cannot be traced: with {n} rows it computes something else.")
    torch.jit.save(module, given.output, _extra_files={"espalier.json": json.dumps(shape)})
    print(f"{given.output}: {shape}")


if __name__ == "__main__":
    main()
