#!/usr/bin/env python3
"""Writes the references of the block draft: what examples/models/block.py, its definition, computes.

    pip install torch safetensors numpy sentencepiece
    python make_block_golden.py            # rewrites the folder block beside this script; the seed is fixed
    python make_block_golden.py bundled    # rewrites block_bundled.json from the weights in examples/models

block/ is a tiny random block draft for the target in llama_tied/: config.json, model.safetensors (int8 rows) and golden.json:

    tokens    [n_tokens]    the text
    blocks    a list of     pending_at: where the pending token stands; what is before it is the context
                            logits [length][vocab]: of the tokens after the pending one

The arithmetic is float64 throughout, from the values that the stored integers and scales stand for. block_bundled.json holds, in
float32, the argmax, the largest logit and the logarithm of the sum of exponentials of each row.
"""
import json
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "../../../examples/models")
sys.path.insert(0, MODELS)

from block import BlockDraft, features  # noqa: E402
from model import Llama, dequantised, quantise  # noqa: E402

TOKENS = [1, 17, 5, 42, 42, 63, 8, 0, 29, 51, 3, 70, 11, 36]
CONFIG = {
    "architectures": ["BlockDraft"], "model_type": "espalier_block", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 44, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "block_size": 8, "target_layers": [1, 2], "hidden_act": "silu",
    "quantization_config": {"quant_method": "espalier_int8_rows"}}


def config_of(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)


@torch.no_grad()
def logits_of(target, draft, ids, pending_at, length):
    ids = torch.tensor([ids])
    anchor = torch.tensor([[pending_at]])
    states, _ = features(target, draft.config["target_layers"], ids)
    pending = target.model.embed_tokens(ids[:, pending_at])[:, None]
    return target.logits(draft(states, pending, anchor, length + 1))[0, 0]


def make_tiny():
    path = os.path.join(HERE, "block")
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(CONFIG, f, indent=2)
        f.write("\n")
    g = torch.Generator().manual_seed(6)
    stored, exact = {}, {}
    for name, p in sorted(BlockDraft(CONFIG).named_parameters()):
        if p.dim() == 2:
            w = torch.randn(p.shape, generator=g) * (0.5 if "embed" in name else 1.2 / p.shape[1] ** 0.5)
            stored[name], stored[name + "_scale"] = quantise(w)
            exact[name] = stored[name].double() * stored[name + "_scale"].double()[:, None]
        else:
            stored[name] = 1.0 + torch.randn(p.shape, generator=g) * 0.25
            exact[name] = stored[name].double()
    model = os.path.join(path, "model.safetensors")
    save_file(stored, model, metadata={"format": "pt"})
    os.chmod(model, 0o644)

    torch.Tensor.float = torch.Tensor.double  # the models' float32 islands, too
    folder = os.path.join(HERE, "llama_tied")
    target, draft = Llama(config_of(folder)).double(), BlockDraft(CONFIG).double()
    target.load_state_dict({n: w.double() for n, w in load_file(os.path.join(folder, "model.safetensors")).items()})
    draft.load_state_dict(exact)
    blocks = []
    for pending_at, length in ((1, 7), (6, 7), (13, 7), (13, 3), (9, 1)):
        logits = logits_of(target, draft, TOKENS[: pending_at + 1], pending_at, length)
        # What stands after the pending token is not seen.
        again = logits_of(target, draft, TOKENS, pending_at, length)
        assert (again - logits).abs().max() < 1e-12
        blocks.append({"pending_at": pending_at, "logits": np.round(logits.numpy(), 8).tolist()})
    with open(os.path.join(path, "golden.json"), "w") as f:
        json.dump({"tokens": TOKENS, "blocks": blocks}, f, separators=(",", ":"))
        f.write("\n")


def make_bundled():
    import sentencepiece as spm

    folders = [os.path.join(MODELS, part) for part in ("target", "block")]
    target, draft = Llama(config_of(folders[0])), BlockDraft(config_of(folders[1]))
    target.load_state_dict(dequantised(folders[0]))
    draft.load_state_dict(dequantised(folders[1]))
    sp = spm.SentencePieceProcessor(model_file=os.path.join(MODELS, "tokenizer.model"))
    with open(os.path.join(MODELS, "prompts.jsonl"), encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f]
    cases = []
    for text, pending_at, length in ((texts[0], 1, 15), (texts[0], 24, 15), (texts[20], 28, 7), (texts[40], 29, 15)):
        ids = [1] + sp.encode(text)[: pending_at]
        logits = logits_of(target, draft, ids, pending_at, length)
        cases.append({"tokens": ids, "argmax": logits.argmax(-1).tolist(),
                      "largest": np.round(logits.amax(-1).double().numpy(), 5).tolist(),
                      "logsumexp": np.round(logits.logsumexp(-1).double().numpy(), 5).tolist()})
    with open(os.path.join(HERE, "block_bundled.json"), "w") as f:
        json.dump(cases, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    make_bundled() if sys.argv[1:] == ["bundled"] else make_tiny()
