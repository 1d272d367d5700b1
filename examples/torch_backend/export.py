#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Exports a causal language model of Hugging Face as a TorchScript module that espalier::torch_backend runs.

    pip install torch transformers
    python export.py SmolLM2-135M-Instruct smollm2.pt        # a folder, or a name on the Hugging Face hub

Models whose layers cache keys and values for every token are taken: Llama, Mistral, Qwen, Gemma and their kin. The module
computes, for rows that are nodes of a tree, what the model computes for the path from the root to each:

    forward(tokens, positions, slots, seen, outputs, keys, values) -> logits, or (logits, states) with --hidden-layers

    tokens, positions, slots   [rows] int64        a row's token, its place in the text, and its cache slot
    seen                       [rows][columns] bool    whether the row sees the cache slot
    outputs                    [n] int64           the rows whose logits are wanted
    keys, values               [layers][capacity][row_size]    the cache, row_size = n_kv_heads * head_dim
    logits                     [n][vocab_size] float
    states                     [hidden layers][rows][width] float    the residual stream after these layers
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
    def __init__(self, model, hidden_layers):
        super().__init__()
        self.model, self.hidden_layers = model, hidden_layers

    def forward(self, tokens, positions, slots, seen, outputs, keys, values):
        number = self.model.get_input_embeddings().weight.dtype
        hidden = torch.zeros_like(seen, dtype=number).masked_fill(~seen, torch.finfo(number).min)
        written = self.model(
            input_ids=tokens.unsqueeze(0), position_ids=positions.unsqueeze(0), attention_mask=hidden[None, None],
            past_key_values=SlotCache(keys, values, slots, seen.shape[1]), use_cache=True, logits_to_keep=outputs,
            output_hidden_states=bool(self.hidden_layers))
        logits = written.logits[0].float()
        if not self.hidden_layers:
            return logits
        return logits, torch.stack([written.hidden_states[layer + 1][0].float() for layer in self.hidden_layers])


def shape_of(model, hidden_layers):
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # The module has neither windows nor rotary embeddings that change with the length of the text.
    positions = config.max_position_embeddings
    if getattr(config, "sliding_window", None):
        positions = min(positions, config.sliding_window)
        print(f"Layers have a sliding window: the module takes texts of up to {positions} tokens.")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "longrope" in str(rope) or "dynamic" in str(rope):
        positions = min(positions, rope.get("original_max_position_embeddings", positions))
        print(f"Rotary embeddings change with the text: the module takes texts of up to {positions} tokens.")
    return {"vocab_size": config.vocab_size, "n_layers": config.num_hidden_layers, "row_size": heads * head_dim,
            "max_positions": positions, "hidden_layers": hidden_layers}


def cache_of(shape, capacity):
    return [torch.zeros(shape["n_layers"], capacity, shape["row_size"]) for _ in range(2)]


def rows_of(tree, prefix, capacity, cache, device):
    """What the module is called with for a tree after `prefix` slots: (token, parent) by node, -1 for the last of the prefix."""
    paths = []
    for node, (_, parent) in enumerate(tree):
        paths.append((paths[parent] if parent >= 0 else []) + [node])
    seen = torch.zeros(len(tree), prefix + len(tree), dtype=torch.bool)
    seen[:, :prefix] = True
    for node, path in enumerate(paths):
        seen[node, [prefix + ancestor for ancestor in path]] = True
    tokens = torch.tensor([token for token, _ in tree])
    positions = torch.tensor([prefix + len(path) - 1 for path in paths])
    slots = torch.arange(prefix, prefix + len(tree))
    rows = (tokens, positions, slots, seen, torch.arange(len(tree)), *cache)
    return tuple(tensor.to(device) for tensor in rows), paths


def check(module, model, shape, device):
    """A tree after a text, row by row, against the model over each path alone; and one row alone."""
    text = [(token % shape["vocab_size"], node - 1) for node, token in enumerate((5, 17, 3, 29, 11))]
    tree = [(token % shape["vocab_size"], parent) for token, parent in ((7, -1), (21, 0), (2, 0), (9, 1), (30, 2), (4, 1))]
    cache = [tensor.to(device) for tensor in cache_of(shape, 16)]
    module(*rows_of(text, 0, 16, cache, device)[0])
    for part in (tree, tree[:1]):
        rows, paths = rows_of(part, len(text), 16, cache, device)
        found = module(*rows)
        found, states = found if shape["hidden_layers"] else (found, None)
        for node, path in enumerate(paths):
            tokens = [token for token, _ in text] + [part[ancestor][0] for ancestor in path]
            whole = model(torch.tensor([tokens], device=device), output_hidden_states=True)
            expected = [whole.logits] + [whole.hidden_states[layer + 1] for layer in shape["hidden_layers"]]
            for i, numbers in enumerate(expected):
                numbers, row = numbers[0, -1].float(), found[node] if i == 0 else states[i - 1][node]
                error = (row - numbers).abs().max() / numbers.abs().max()
                if not error < (1e-3 if model.dtype == torch.float32 else 5e-2):
                    raise SystemExit(f"This model cannot be exported: a row of a tree is not what the model says after its path "
                                     f"(off by {error:.2g} of the largest {'logit' if i == 0 else 'number of a state'}).")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a folder with a model of Hugging Face, or its name on the hub")
    parser.add_argument("output", help="the TorchScript file to write")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32",
                        help="what the model computes in; the cache may be of another type [float32]")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa",
                        help="eager is plain operations, which PyTorch before 2.0 can run, too [sdpa]")
    parser.add_argument("--hidden-layers", default="", metavar="N,...",
                        help="layers, from 0, after which the states are given, too, for a draft head that reads them: those "
                             "that keep_hidden() asks for; not the last one [none]")
    parser.add_argument("--device", default="cpu", help="where it will run: cpu or cuda [cpu]")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        given.model, dtype=getattr(torch, given.dtype), attn_implementation=given.attention)
    most = model.config.get_text_config().num_hidden_layers - 2
    try:
        hidden_layers = [int(layer) for layer in given.hidden_layers.split(",") if given.hidden_layers]
    except ValueError:
        hidden_layers = [-1]
    if any(layer < 0 or layer > most for layer in hidden_layers) or len(set(hidden_layers)) < len(hidden_layers):
        raise SystemExit(f"--hidden-layers must be different numbers from 0 to {most} with commas between them, but is "
                         f"{given.hidden_layers}.")
    shape = shape_of(model, hidden_layers)
    tree_pass = TreePass(model.eval().to(given.device), hidden_layers).eval()
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = [(token, token - 1) for token in range(5)]
        example, _ = rows_of(chain, 4, 12, cache_of(shape, 12), given.device)
        module = torch.jit.trace(tree_pass, example, check_trace=False)
        check(module, model, shape, given.device)
    torch.jit.save(module, given.output, _extra_files={"espalier.json": json.dumps(shape)})
    print(f"{given.output}: {shape}")


if __name__ == "__main__":
    main()
