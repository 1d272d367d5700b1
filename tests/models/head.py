#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains an EAGLE-3 head for a small target of random weights. Without torch or transformers it exits with 77: skipped."""

import json
import os
import re
import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    sys.exit(77)

from trainer import refusal, run  # noqa: E402 (the examples are importable from here on)

from head import Head  # noqa: E402
from model import dequantised, rotate  # noqa: E402

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4}
SMALL = "--texts 12 --batch 5 --new 12 --longest 8 --vocab 40 --micro 64 --accumulate 1 --show 2 --precision fp32"


# The rows of all steps at once are those of drafting token by token: rows up to the pending token read the target's
# states, each drafted row the state that the row before it left. Only where the pending token is the first is there a row
# of the first token.
torch.manual_seed(2)
head = Head(
    {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "draft_vocab_size": 40,
        "max_position_embeddings": 32,
    }
)


def one_by_one(layer, tokens, states, cos, sin):
    """The last row of a layer whose rows see all rows before them."""
    attention = layer.self_attn
    pair = torch.cat((layer.input_layernorm(tokens), layer.hidden_norm(states)), -1)
    n, d, group = tokens.shape[1], attention.d, attention.h // attention.kv
    q = rotate(attention.q_proj(pair).view(1, n, -1, d).transpose(1, 2), cos, sin)[:, :, -1:]
    k = rotate(attention.k_proj(pair).view(1, n, -1, d).transpose(1, 2), cos, sin).repeat_interleave(group, 1)
    v = attention.v_proj(pair).view(1, n, -1, d).transpose(1, 2).repeat_interleave(group, 1)
    y = ((q @ k.mT) * d**-0.5).softmax(-1) @ v
    x = states[:, -1:] + attention.o_proj(y.transpose(1, 2).reshape(1, 1, -1))
    return x + layer.mlp(layer.post_attention_layernorm(x))


tokens, states, length, steps = torch.randn(1, 9, 32), torch.randn(1, 9, 96), 9, 4
with torch.no_grad():
    together = list(head(tokens, states, steps))
    read = F.pad(head.fc(states), (0, 0, 1, 0))[:, :-1]
    for pending in range(length - steps):
        rows = read[:, : pending + 1]
        for step in range(steps):
            first, n = min(pending, 1), pending + 1 + step
            path = (tokens[:, first:n], rows[:, first:], head.cos[first:n], head.sin[first:n])
            left = one_by_one(head.midlayer, *path)
            gap = (head.norm(left)[0, 0] - together[step][0, pending + step]).abs().max()
            assert gap < 1e-5, (pending, step, gap)
            rows = torch.cat((rows, left), 1)

with tempfile.TemporaryDirectory() as folder:
    target, prompts, work, out = (os.path.join(folder, n) for n in ("target", "prompts", "work", "out"))
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=64, max_position_embeddings=32, initializer_range=0.3, **SIZES)
    LlamaForCausalLM(config).save_pretrained(target)
    with open(prompts, "w") as f:
        for i in range(33):
            f.write(json.dumps({"tokens": [1, *range(3 + i % 5, 3 + i % 5 + 1 + i // 5)]}) + "\n")

    def train_head(minutes, *more):
        small = ("--work", work, "--threads", "1", "head", *SMALL.split(), "--device", "cpu", "--minutes", minutes)
        return (*small, "--target", target, "--prompts", prompts, "--out", out, *more)

    said = run(*train_head(0.1))
    losses = [float(x) for x in re.findall(r"loss (\S+)", said)]
    assert losses[-1] < 0.8 * losses[0], losses
    assert "on 3 prompts kept apart: position 1" in said, said
    more = run(*train_head(0.13))
    step = re.search(r"resumed at step (\d+)", more)
    assert int(step[1]) > 0 and min(map(int, re.findall(r"step +(\d+) loss", more))) > int(step[1]), more

    # What is exported is what was trained, up to the rounding to int8, and the row of each token is the row that d2t names.
    with open(os.path.join(out, "config.json")) as f:
        settings = json.load(f)
    assert settings["draft_vocab_size"] == 40 and settings["vocab_size"] == 64 and not settings["tie_word_embeddings"]
    trained = torch.load(os.path.join(work, "head.pt"))["model"]
    written = dequantised(out)
    kept = written.pop("d2t") + torch.arange(40)
    assert kept.dtype == torch.int64 and (kept[1:] > kept[:-1]).all() and 0 <= kept[0] and kept[-1] < 64
    assert set(written) == set(trained)
    for name, values in written.items():
        assert (values - trained[name]).abs().max() <= 0.01 * trained[name].abs().max(), name

    # What does not fit is refused in a sentence.
    assert "--length more than --longest" in refusal(*train_head(0.2, "--length", 8))
    assert "is of a model of other sizes" in refusal(*train_head(0.2, "--vocab", 30))
    config.num_hidden_layers = 4
    LlamaForCausalLM(config).save_pretrained(target)
    assert "has 4 layers" in refusal(*train_head(0.2))
