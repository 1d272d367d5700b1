# SPDX-License-Identifier: BSL-1.0
"""Measures SGLang's kernels that verify a tree of 64 drafted tokens over 151,936 tokens, with the steps before them in
SGLang: the argmax, or the softmax, of every row. To compare with verify.greedy and verify.target_only of
measure_verify."""

import sgl_kernel
import torch

import torch_inputs
import torch_timing


def tree_links(parents):
    """First child and next sibling of each node, -1: none; the root comes first."""
    n = len(parents)
    child, sibling, last = [-1] * n, [-1] * n, [-1] * n
    for u, parent in enumerate(parents[1:], start=1):
        if last[parent] < 0:
            child[parent] = u
        else:
            sibling[last[parent]] = u
        last[parent] = u
    return child, sibling


def main():
    chosen = torch_timing.arguments(__doc__)
    n, vocab = (65, 151936) if not chosen.tiny else (9, 1000)
    on = torch_timing.device()
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(n, vocab, generator=generator).to(on) * 2.5
    parents = torch_inputs.tree_parents(n, generator)
    child, sibling = (torch.tensor([links], device=on) for links in tree_links(parents))
    candidates = torch.randint(0, vocab, (1, n), generator=generator).to(on)
    predicts = torch.empty(n + 1, dtype=torch.int32, device=on)
    accepted_at = torch.empty(1, n, dtype=torch.int32, device=on)
    # The arrays of the tree that both kernels read, and those in which they write.
    walk = {
        "predicts": predicts,
        "accept_index": accepted_at,
        "accept_token_num": torch.empty(1, dtype=torch.int32, device=on),
        "candidates": candidates,
        "retrive_index": torch.arange(n, device=on)[None],
        "retrive_next_token": child,
        "retrive_next_sibling": sibling,
    }
    coins = torch.rand(1, n, generator=generator).to(on)
    last_coin = torch.rand(1, generator=generator).to(on)

    def greedy():
        accepted_at.fill_(-1)
        sgl_kernel.verify_tree_greedy(**walk, target_predict=logits.argmax(dim=1)[None])

    def target_only():
        accepted_at.fill_(-1)
        target = torch.softmax(logits, dim=1)[None]
        sgl_kernel.tree_speculative_sampling_target_only(
            **walk,
            uniform_samples=coins,
            uniform_samples_for_final_sampling=last_coin,
            target_probs=target,
            draft_probs=torch.zeros_like(target),
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
        )

    # If the root's choice is none of its children, the result must be the argmax of the root's row.
    greedy()
    torch_timing.wait()
    assert int(predicts[0]) == int(logits[0].argmax()), (
        "verify_tree_greedy gives another token than the argmax of the root's row"
    )
    race = torch_timing.Race(chosen.repetitions)
    for name, work, before, then in (
        ("greedy", greedy, "argmax", "verify_tree_greedy"),
        ("target_only", target_only, "softmax", "zeros for the draft, tree_speculative_sampling_target_only"),
    ):
        what = f"{before} of every row of floats, {then}, {n - 1} nodes"
        race.add(f"verify.{name}", what, work, graph=True, note=f"{before} of every row and its walk")
    race.finish(chosen.json)


if __name__ == "__main__":
    main()
