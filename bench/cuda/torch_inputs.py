# SPDX-License-Identifier: BSL-1.0
"""What several of the peers in Python are measured with: the rows of measure_top_k, and random trees."""

import os

import torch


def top_k_rows(chosen):
    """[n_rows][vocab] floats: those that measure_top_k wrote to the folder of inputs, or rows like them."""
    n_rows, vocab = (15, 151936) if not chosen.tiny else (2, 4096)
    path = chosen.inputs and os.path.join(chosen.inputs, "top_k.logits.f32")
    if path and os.path.exists(path):
        return torch.from_file(path, size=os.path.getsize(path) // 4, dtype=torch.float32).reshape(n_rows, vocab)
    # A bell, and 30 tokens of each row that stand out of it.
    torch.manual_seed(7)
    rows = 2.5 * torch.randn(n_rows, vocab)
    return rows.scatter_(1, torch.randint(vocab, (n_rows, 30)), 10 + 10 * torch.rand(n_rows, 30))


def tree_parents(n, generator):
    """The parents of n nodes: -1 of the root, which is the first, and of each other node one of the 8 before it."""
    return [-1] + [int(torch.randint(max(0, u - 8), u, (1,), generator=generator)) for u in range(1, n)]


def tree_mask(n, prefix, generator):
    """[n][prefix + n] the prefix, and of the tree each node's ancestors and itself."""
    mask = torch.zeros(n, prefix + n, dtype=torch.bool)
    mask[:, :prefix] = True
    for u, parent in enumerate(tree_parents(n, generator)):
        if parent >= 0:
            mask[u, prefix:] = mask[parent, prefix:]
        mask[u, prefix + u] = True
    return mask
