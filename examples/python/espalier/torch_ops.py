# SPDX-License-Identifier: BSL-1.0
"""The parts as operators of torch, which torch.compile keeps as one call each: torch.ops.espalier.build, .compile and
.verify, over tensors of the CPU; the rows of verify may be on a CUDA device. Shapes depend on sizes alone, not on what is
drawn, so a graph is kept from round to round.

A tree of at most n draws is a tensor `tree`, int32 [1 + n, 2]: row 0 is (-1, token of the root), row 1 + i is (node, token)
of draw i, and (-1, -1) after the last draw; and a tensor `log_prob`, float32 [1 + n]: of each draw under the draft, 0 for
the root. Parts are given by words, such as "eagle2 budget=12": a new policy each call, which has learnt nothing."""
from __future__ import annotations

import functools
import threading

import numpy as np
import torch

from . import _library as l
from ._library import InputError
from .parts import Policy, Tree, Verifier, compile_trees


class _Verifiers(threading.local):
    """The verifiers of a thread by their words: they learn nothing, and keep memory on devices from call to call."""

    def __init__(self) -> None:
        self.of = functools.cache(Verifier)


_verifiers = _Verifiers()


@functools.cache
def _room(policy: str) -> int:
    return 1 + Policy(policy).max_asked


def _ints(tensor: torch.Tensor, what: str, n_dims: int = 1) -> np.ndarray:
    return l.array_in(tensor, what, n_dims, l.INT32)


def _written(tree: Tree, room: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the tensors of a tree."""
    shown, log_prob = np.full((room, 2), -1, np.int32), np.zeros(room, np.float32)
    shown[0, 1] = tree.token[0]
    children = tree.drawn
    shown[1:1 + len(children), 0], shown[1:1 + len(children), 1] = tree.parent[children], tree.token[children]
    log_prob[1:1 + len(children)] = tree.log_prob[children]
    return torch.from_numpy(shown), torch.from_numpy(log_prob)


def tree_of(tree: torch.Tensor, log_prob: torch.Tensor) -> Tree:
    """Returns the tree that two tensors show."""
    draws, probs = _ints(tree, "tree", 2), l.array_in(log_prob, "log_prob", 1, l.FLOAT32)
    if draws.shape[1] != 2 or len(draws) == 0 or len(probs) != len(draws):
        raise InputError(f"tree must be [1 + n, 2] and log_prob [1 + n], but they are {list(draws.shape)} and "
                         f"{list(probs.shape)}.")
    made = Tree(len(draws) - 1)
    made.reset(int(draws[0, 1]))
    for (node, token), p in zip(draws[1:].tolist(), probs[1:].tolist()):
        if node < 0:
            break
        made.draw(node, token, p)
    return made


def _padded(values: list[int], room: int) -> torch.Tensor:
    return torch.tensor(values + [-1] * (room - len(values)), dtype=torch.int32)


@torch.library.custom_op("espalier::build", mutates_args=())
def build(policy: str, root: int, rows: torch.Tensor, row_of: torch.Tensor, seed: int = 0, stream: int = 0,
          length: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Grows a tree from its root as far as the rows allow.

    rows    float32 [n_rows, vocab], probabilities of the draft, read in place
    row_of  int32 [nodes so far]: the row of each node, -1 if it has none

    Returns tree, log_prob, row_of [1 + n], and wanted, int32 [1 + n]: the nodes whose rows are wanted next, then -1. The
    first call has row_of [-1], and wants the root. Once wanted begins with -1, the tree is complete, and row_of fits its
    nodes. A policy grows the same tree in each call: the cost of a call is that of the whole tree so far."""
    part, given, room = Policy(policy), _ints(row_of, "row_of"), _room(policy)
    if len(given) > room:
        raise InputError(f"row_of has {len(given)} nodes, but a tree of {policy!r} has {room} at most.")
    l.array_in(rows, "rows", 2, l.FLOAT32)
    tree = Tree(part.max_asked)
    tree.reset(root)
    wanted, asked, known = part.begin(tree), [], [int(u) for u in given] + [-1] * (room - len(given))
    while wanted and all(known[u] >= 0 for u in wanted):
        asked += wanted
        shown = [-1] * tree.n_nodes
        for u in asked:
            shown[u] = known[u]
        wanted = part.take(tree, rows, shown, seed, stream, length)
    if not wanted and (was := part.was()):
        known = [known[w] if w >= 0 else -1 for w in was]
    return *_written(tree, room), _padded(known[:tree.n_nodes], room), _padded(wanted, room)


@build.register_fake
def _(policy, root, rows, row_of, seed=0, stream=0, length=0):
    room = _room(policy)
    ints = functools.partial(rows.new_empty, dtype=torch.int32)
    return ints((room, 2)), rows.new_empty(room, dtype=torch.float32), ints(room), ints(room)


@torch.library.custom_op("espalier::compile", mutates_args=())
def compile(tree: torch.Tensor, log_prob: torch.Tensor, prefix: int, columns: int,
            order: str = "breadth-first") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Makes the rows of a tree for a pass, after `prefix` slots of the cache.

    Returns tokens and positions, int64 [1 + n], mask, bool [1 + n, columns], which shows the slots that each row sees, and
    row_of, int32 [1 + n]: the row of each node, then -1. Row r belongs in slot prefix + r. Rows after those of the tree
    have token 0, and see their own slot alone: columns is prefix + 1 + n at least."""
    room = len(tree)
    if columns < prefix + room:
        raise InputError(f"the mask needs {prefix + room} columns, prefix and rows, but columns is {columns}.")
    rows, (row_of,) = compile_trees([tree_of(tree, log_prob)], [prefix], order)
    mask = torch.zeros(room, columns, dtype=torch.bool)
    mask[torch.arange(room), prefix + torch.arange(room)] = True
    tokens, positions = torch.zeros(room, dtype=torch.long), torch.full((room,), prefix, dtype=torch.long)
    n = rows.n_rows
    mask[:n] = torch.from_numpy(rows.dense_mask(columns)).bool()
    tokens[:n], positions[:n] = torch.from_numpy(rows.tokens), torch.from_numpy(rows.positions)
    return tokens, positions, mask, _padded(row_of, room)


@compile.register_fake
def _(tree, log_prob, prefix, columns, order="breadth-first"):
    room = tree.shape[0]
    longs = functools.partial(tree.new_empty, dtype=torch.long)
    return (longs(room), longs(room), tree.new_empty((room, columns), dtype=torch.bool),
            tree.new_empty(room, dtype=torch.int32))


@torch.library.custom_op("espalier::verify", mutates_args=())
def verify(verifier: str, tree: torch.Tensor, log_prob: torch.Tensor, target: torch.Tensor, target_row_of: torch.Tensor,
           draft: torch.Tensor, draft_row_of: torch.Tensor, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
           min_p: float = 0.0, seed: int = 0, stream: int = 0, length: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Verifies a tree.

    target         float32 [n_rows, vocab], logits, read in place, of the CPU or, as draft, on a CUDA device
    target_row_of  int32 [1 + n]: the row of each node, as of compile
    draft, draft_row_of   rows and row_of of build

    Returns the accepted path and the committed tokens, int32 [1 + n] each, then -1: the nodes of the path, root first, and
    the tokens that are committed, as many. seed, stream and length are those of build."""
    shown = tree_of(tree, log_prob)
    p_of, q_of = _ints(target_row_of, "target_row_of"), _ints(draft_row_of, "draft_row_of")
    if min(len(p_of), len(q_of)) < shown.n_nodes:
        raise InputError(f"target_row_of and draft_row_of have {len(p_of)} and {len(q_of)} nodes, but the tree has "
                         f"{shown.n_nodes}.")
    accepted, token = _verifiers.of(verifier).verify(
        shown, target, draft, p_of[:shown.n_nodes], q_of[:shown.n_nodes],
        {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}, seed, stream, length)
    return _padded(shown.path(accepted), len(tree)), _padded(shown.committed(accepted, token), len(tree))


@verify.register_fake
def _(verifier, tree, log_prob, target, target_row_of, draft, draft_row_of, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0,
      seed=0, stream=0, length=0):
    return tree.new_empty(tree.shape[0], dtype=torch.int32), tree.new_empty(tree.shape[0], dtype=torch.int32)
