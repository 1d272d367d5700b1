# SPDX-License-Identifier: BSL-1.0
"""Inputs for several peers in Python: the rows of measure_top_k, and random trees."""

import os

import torch


def top_k_rows(chosen):
    """[n_rows][vocab] floats: the rows that measure_top_k wrote to the folder of inputs, or rows like them."""
    n_rows, vocab = (15, 151936) if not chosen.tiny else (2, 4096)
    path = chosen.inputs and os.path.join(chosen.inputs, "top_k.logits.f32")
    if path and os.path.exists(path):
        return torch.from_file(path, size=os.path.getsize(path) // 4, dtype=torch.float32).reshape(n_rows, vocab)
    # Normally distributed logits, and in each row 30 tokens that stand out.
    torch.manual_seed(7)
    rows = 2.5 * torch.randn(n_rows, vocab)
    return rows.scatter_(1, torch.randint(vocab, (n_rows, 30)), 10 + 10 * torch.rand(n_rows, 30))


def tree_parents(n, generator):
    """The parents of n nodes: -1 for the root, which is the first, and for each other node one of the 8 before it."""
    return [-1] + [int(torch.randint(max(0, u - 8), u, (1,), generator=generator)) for u in range(1, n)]


def tree_mask(n, prefix, generator):
    """The mask [n][prefix + n]: each node sees the prefix, its ancestors and itself."""
    mask = torch.zeros(n, prefix + n, dtype=torch.bool)
    mask[:, :prefix] = True
    for u, parent in enumerate(tree_parents(n, generator)):
        if parent >= 0:
            mask[u, prefix:] = mask[parent, prefix:]
        mask[u, prefix + u] = True
    return mask
