#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains an EAGLE-3 head for a small target of random weights. Without torch or transformers it exits with 77: skipped."""

import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
    import transformers  # noqa: F401
except ImportError:
    sys.exit(77)

from trainer import (  # noqa: E402 (the examples are importable from here on)
    check_training,
    refusal,
    train_small,
    write_small_target,
)

from head import Head  # noqa: E402
from model import rotate  # noqa: E402

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
    },
    steps=4,
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

# Before the training's last part one row is learnt at each place, and then all that are drafted in a row.
use = torch.ones(1, length, dtype=torch.bool)
assert [len(list(head.rows(tokens, states, use, stage))) for stage in (0, 1)] == [1, steps]

with tempfile.TemporaryDirectory() as folder:
    target = write_small_target(folder, layers=6)
    settings = check_training("head", folder, target)
    assert settings["draft_vocab_size"] == 40 and settings["vocab_size"] == 64 and not settings["tie_word_embeddings"]

    # An argument that does not fit is refused in a sentence.
    assert "--length must be more than --longest" in refusal(*train_small("head", folder, 0.2, *target, "--length", 8))
    assert "--steps must be 1" in refusal(*train_small("head", folder, 0.2, *target, "--steps", 0))
    assert "is of a model of other sizes" in refusal(*train_small("head", folder, 0.2, *target, "--vocab", 30))
    write_small_target(folder, layers=4)
    assert "has 4 layers" in refusal(*train_small("head", folder, 0.2, *target))
