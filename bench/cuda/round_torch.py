# SPDX-License-Identifier: BSL-1.0
"""Measures the round of measure_round in PyTorch, as the authors of DDTree write it: topk and logsumexp on the device,
a copy to the host, a heap and masks there, a copy back, and after the target's pass the walk on the host and the
compaction of the cache."""

import heapq
import json
import os
import sys

import torch

import torch_timing


def logits(folder, name, n_rows, vocab):
    numbers = torch.from_file(os.path.join(folder, name), size=n_rows * vocab, dtype=torch.float32)
    return numbers.reshape(n_rows, vocab).to(torch_timing.device())


def build(tokens, log_probs, budget):
    """The tree of DDTree, Algorithm 1; nodes in the order of being taken. tokens, log_probs: [n_rows][n_ranks]."""
    n_rows, n_ranks = len(tokens), len(tokens[0])
    heap = [(-log_probs[0][0], (0,), 0, 1, 0, log_probs[0][0])]
    node_tokens, depths, parents, children = [], [0], [-1], [{}]
    while heap and len(node_tokens) < budget:
        _, ranks, parent, depth, rank, log_prob = heapq.heappop(heap)
        token = tokens[depth - 1][rank]
        node = len(node_tokens) + 1
        node_tokens.append(token)
        depths.append(depth)
        parents.append(parent)
        children[parent][token] = node
        children.append({})
        if rank + 1 < n_ranks:
            sibling = log_prob - log_probs[depth - 1][rank] + log_probs[depth - 1][rank + 1]
            heapq.heappush(heap, (-sibling, ranks[:-1] + (rank + 1,), parent, depth, rank + 1, sibling))
        if depth < n_rows:
            child = log_prob + log_probs[depth][0]
            heapq.heappush(heap, (-child, ranks + (0,), node, depth + 1, 0, child))
    return node_tokens, depths, parents, children


def main():
    chosen = torch_timing.arguments(__doc__)
    described = chosen.inputs and os.path.join(chosen.inputs, "round.json")
    if not described or not os.path.exists(described):
        sys.exit("There are no inputs: measure_round --inputs DIR writes them.")
    with open(described) as file:
        of = json.load(file)
    budget, prefix, vocab = of["budget"], of["prefix"], of["vocab"]
    on = torch_timing.device()
    draft = logits(chosen.inputs, "round.draft.f32", of["n_rows"], vocab)
    target = logits(chosen.inputs, "round.target.f32", budget + 1, vocab)
    cache = torch.zeros(of["layers"], 2, prefix + budget + 1, of["row_size"], device=on, dtype=torch.bfloat16)
    pinned = torch.cuda.is_available()
    # Arrays that the host writes anew each round are allocated before, in pinned memory.
    host_tokens = torch.empty(budget + 1, dtype=torch.int64, pin_memory=pinned)
    host_positions = torch.empty(budget + 1, dtype=torch.int64, pin_memory=pinned)
    host_mask = torch.empty(budget + 1, budget + 1, dtype=torch.bool, pin_memory=pinned)
    tokens_there = torch.empty(budget + 1, dtype=torch.int64, device=on)
    positions_there = torch.empty(budget + 1, dtype=torch.int64, device=on)
    mask_there = torch.empty(1, 1, budget + 1, prefix + budget + 1, dtype=torch.bool, device=on)
    mask_there[..., :prefix] = True

    def draft_tree():
        top = torch.topk(draft, min(budget, vocab), dim=1)
        log_probs = top.values - torch.logsumexp(draft, dim=1, keepdim=True)
        return build(top.indices.cpu().tolist(), log_probs.cpu().tolist(), budget)

    def compiled(tree):
        node_tokens, depths, parents, _ = tree
        n = len(depths)
        host_tokens[:n] = torch.tensor([0] + node_tokens)
        host_positions[:n] = prefix + torch.tensor(depths)
        seen = host_mask.numpy()
        seen[:n] = False
        for u in range(n):
            if u > 0:
                seen[u, :u] = seen[parents[u], :u]
            seen[u, u] = True
        tokens_there.copy_(host_tokens, non_blocking=True)
        positions_there.copy_(host_positions, non_blocking=True)
        mask_there[0, 0, :, prefix:].copy_(host_mask, non_blocking=True)
        return n

    def verified(tree):
        choice = target.argmax(dim=1).cpu().tolist()
        node, path = 0, [0]
        while choice[node] in tree[3][node]:
            node = tree[3][node][choice[node]]
            path.append(node)
        return path, choice[node]

    def committed(path):
        kept = torch.tensor(path, device=on) + prefix
        cache[:, :, prefix:prefix + len(path)] = cache[:, :, kept]

    def whole():
        tree = draft_tree()
        compiled(tree)
        path, token = verified(tree)
        committed(path)
        return path, token

    path, token = whole()
    if "accepted" in of and len(path) - 1 != of["accepted"]:
        sys.exit(
            f"PyTorch accepts {len(path) - 1} tokens, measure_round {of['accepted']}: the inputs are not the same, "
            "or one of them is wrong."
        )
    tree = draft_tree()
    n = compiled(tree)
    race = torch_timing.Race(chosen.repetitions)
    host = "by the host's clock, waiting at the end"
    race.add("round.whole", f"the same round in PyTorch and Python, {n - 1} nodes", whole, host=True, note=host)
    race.add("round.draft_tree", "topk, logsumexp, copies to the host, heap", draft_tree, host=True, note=host)
    what = "masks and positions on the host, copies to the device"
    race.add("round.compile", what, lambda: compiled(tree), host=True, note=host)
    race.add("round.verify", "argmax, copy to the host, walk", lambda: verified(tree), host=True, note=host)
    race.add("round.commit", "compaction of the cache", lambda: committed(path), host=True, note=host)
    race.finish(chosen.json)


if __name__ == "__main__":
    main()
