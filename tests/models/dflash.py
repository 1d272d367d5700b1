#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains a DFlash block for a small target of random weights. Without torch or transformers it exits with 77: skipped."""

import json
import os
import sys
import tempfile

try:
    import torch
    import transformers  # noqa: F401
except ImportError:
    sys.exit(77)

from trainer import (  # noqa: E402 (the examples are importable from here on)
    check_training,
    refusal,
    run,
    train_small,
    write_small_target,
)

from dflash import Dflash  # noqa: E402
from states import States  # noqa: E402

# A block's rows depend on the states in front of its anchor and on the pending token, and on nothing behind them; and
# the rows that training compares are those that drafting makes at the same places.
torch.manual_seed(2)
sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2}
sizes |= {"intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 32}
block = Dflash(sizes | {"draft_vocab_size": 40, "block_size": 8}, torch.randn(32))
tokens, read, length = torch.randn(2, 12, 32), torch.randn(2, 12, 96), 12
with torch.no_grad():
    drafted = torch.stack(list(block.drafted(tokens, read, 7)), 2)
    for n in range(1, length):
        other_tokens, other_read = torch.randn_like(tokens), torch.randn_like(read)
        other_tokens[:, n], other_read[:, :n] = tokens[:, n], read[:, :n]
        again = torch.stack(list(block.drafted(other_tokens, other_read, 7)), 2)
        assert (again[:, n] - drafted[:, n]).abs().max() < 1e-5, n
        other_read[:, n - 1] += 1
        moved = torch.stack(list(block.drafted(other_tokens, other_read, 7)), 2)
        assert (moved[:, n] - drafted[:, n]).abs().max() > 1e-3, n
    use = torch.zeros(2, length, dtype=torch.bool)
    use[0, 3:10] = use[1, 5:12] = True
    anchors, seen = torch.arange(length).clamp_min(1).expand(2, -1), set()
    for seed in range(20):
        torch.manual_seed(seed)
        compared = list(block.rows(tokens, read, use, 0))
        drafted = block(tokens, read, anchors, len(compared) + 1)
        for i, (last, at) in enumerate(compared):
            if len(at) > 0:
                seen.add((len(compared), i))
            assert use.flatten()[at].all()
            gap = (drafted.flatten(0, 1)[at - i, i] - last).abs()
            assert gap.numel() == 0 or gap.max() < 1e-5, (seed, i)
    # Every row of every length was compared.
    assert seen == {(n, i) for n in (1, 3, 7) for i in range(n)}, seen

with tempfile.TemporaryDirectory() as folder:
    target = write_small_target(folder, layers=8)
    settings = check_training("dflash", folder, target)
    assert settings["speculators_model_type"] == "dflash" and settings["draft_vocab_size"] == 40
    assert settings["block_size"] == 8 and settings["aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert settings["transformer_layer_config"]["num_hidden_layers"] == 2

    # A block that is resumed keeps the token that it takes for its mask, whichever texts have least often by then.
    saved = os.path.join(folder, "work", "dflash.pt")
    checkpoint = torch.load(saved)
    other = (settings["mask_token_id"] + 1) % 64
    assert checkpoint["state"]["unused"] == settings["mask_token_id"]
    checkpoint["state"]["unused"] = other
    torch.save(checkpoint, saved)
    run(*train_small("dflash", folder, 0.15, *target))
    with open(os.path.join(folder, "out", "config.json")) as f:
        assert json.load(f)["mask_token_id"] == other
    assert "--vocab must be 1" in refusal(*train_small("dflash", folder, 0.2, *target, "--vocab", 0))

    # An argument that does not fit is refused in a sentence.
    assert "--block must be 8" in refusal(*train_small("dflash", folder, 0.2, *target, "--block", 4))
    write_small_target(folder, layers=6)
    assert "has 6 layers" in refusal(*train_small("dflash", folder, 0.2, *target))
