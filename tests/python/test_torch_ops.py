# SPDX-License-Identifier: BSL-1.0
"""The operators of torch beside the parts that they call, in and out of torch.compile."""
import threading

import espalier
import numpy as np
import pytest
import torch
from espalier import torch_ops
from test_parts import logits_after, softmax

ops = torch.ops.espalier
SEED = {"seed": 3, "stream": 1, "length": 9}


def rows_after(tree, nodes, scale):
    paths = [tree.token[tree.path(u)[1:]].tolist() for u in nodes]
    return torch.from_numpy(scale * logits_after(paths))


def built(policy):
    """A tree of the operator, grown until it wants no more."""
    rows, row_of = torch.zeros(0, 16), torch.tensor([-1], dtype=torch.int32)
    while True:
        tree, log_prob, row_of, wanted = ops.build(policy, 5, rows, row_of, **SEED)
        nodes = [u for u in wanted.tolist() if u >= 0]
        if not nodes:
            return tree, log_prob, rows, row_of
        row_of[nodes] = torch.arange(len(rows), len(rows) + len(nodes), dtype=torch.int32)
        rows = torch.cat([rows, torch.softmax(rows_after(torch_ops.tree_of(tree, log_prob), nodes, 0.6), 1)])


@pytest.mark.parametrize("policy, verifier", [("eagle2 budget=12", "greedy"), ("best-first", "target-only"),
                                              ("iid-paths", "specinfer"), ("chain", "target-only")])
def test_operators_do_what_the_parts_do(policy, verifier):
    name, *options = policy.split()
    part = espalier.Policy(name, **dict(o.split("=") for o in options))
    tree, rows, row_of = espalier.build(part, 5, lambda paths: torch.softmax(
        torch.from_numpy(0.6 * logits_after(paths)), 1), **SEED)
    shown, log_prob, their_rows, their_row_of = built(policy)
    again = torch_ops.tree_of(shown, log_prob)
    for array in ("token", "parent", "drawn", "log_prob"):
        assert np.array_equal(getattr(again, array), getattr(tree, array)), array
    assert np.array_equal(their_rows.numpy(), rows)
    assert their_row_of[:tree.n_nodes].tolist() == row_of

    tokens, positions, mask, node_row = ops.compile(shown, log_prob, 7, 7 + len(shown))
    batch, (logits_rows,) = espalier.compile_trees([tree], [7])
    n = batch.n_rows
    assert tokens[:n].tolist() == batch.tokens.tolist() and positions[:n].tolist() == batch.positions.tolist()
    assert np.array_equal(mask[:n].numpy(), batch.dense_mask(7 + len(shown))) and mask.any(1).all()
    assert node_row[:tree.n_nodes].tolist() == logits_rows and (node_row[tree.n_nodes:] == -1).all()

    order = sorted(range(tree.n_nodes), key=logits_rows.__getitem__)
    target = torch.zeros(len(shown), 16)
    target[:n] = rows_after(tree, order, 1.0)
    temperature = 0.0 if verifier == "greedy" else 0.9
    path, committed = ops.verify(verifier, shown, log_prob, target, node_row, their_rows, their_row_of,
                                 temperature=temperature, **SEED)
    accepted, token = espalier.Verifier(verifier).verify(tree, target, rows, logits_rows, row_of,
                                                         {"temperature": temperature}, **SEED)
    n = len(tree.path(accepted))
    assert path.tolist() == tree.path(accepted) + [-1] * (len(shown) - n)
    assert committed.tolist() == tree.committed(accepted, token) + [-1] * (len(shown) - n)


def round_of(rows, target, root, length):
    """A round over a draft of one row: a tree, its pass, and the verdict."""
    row_of = torch.zeros(1, dtype=torch.int32)
    tree, log_prob, row_of, wanted = ops.build("iid-paths paths=3 length=1", root, rows, row_of, length=length)
    tokens, positions, mask, node_row = ops.compile(tree, log_prob, 4, 12)
    seen = target[tokens] + mask.sum(1, keepdim=True) * 0
    path, committed = ops.verify("specinfer", tree, log_prob, seen, node_row, rows, row_of, 1.0, length=length)
    return path, committed + 0, wanted


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_keeps_them(backend):
    rows, target = torch.softmax(torch.randn(1, 16), 1), torch.randn(16, 16)
    n_graphs = []

    def counted(graph, inputs):
        n_graphs.append(sum("espalier" in str(node.target) for node in graph.graph.nodes))
        from torch._dynamo import lookup_backend
        return lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(round_of, backend=counted, fullgraph=True)
    for length in range(6):
        for one, other in zip(compiled(rows, target, 5, length), round_of(rows, target, 5, length)):
            assert torch.equal(one, other)
    assert n_graphs[-1] == 3 and len(n_graphs) <= 3  # one graph, with all three; a second once length changes


def test_fakes_have_the_shapes_of_the_operators():
    rows, row_of = torch.softmax(torch.randn(1, 16), 1), torch.zeros(1, dtype=torch.int32)
    policy = "iid-paths paths=3 length=1"
    torch.library.opcheck(ops.build, (policy, 5, rows, row_of), {"length": 2})
    tree, log_prob, row_of, _ = ops.build(policy, 5, rows, row_of)
    torch.library.opcheck(ops.compile, (tree, log_prob, 4, 12))
    node_row = ops.compile(tree, log_prob, 4, 12)[3]
    torch.library.opcheck(ops.verify, ("specinfer", tree, log_prob, torch.randn(4, 16), node_row, rows, row_of, 1.0))


def test_bad_tensors():
    tree, log_prob, rows, row_of = built("iid-paths")
    target, nodes = torch.randn(len(tree), 16), torch.arange(len(tree), dtype=torch.int32)
    bad = target.clone()
    bad[0, 3] = float("nan")

    def verify(name="specinfer", tree=tree, log_prob=log_prob, target=target, nodes=nodes, rows=rows, row_of=row_of):
        return ops.verify(name, tree, log_prob, target, nodes, rows, row_of, 1.0)

    for wrong, sentence in (
            (lambda: verify(target=target.double()), "target must be of float32, but is of float64"),
            (lambda: verify(target=target.bfloat16()), "bfloat16|cannot be read in place"),
            (lambda: verify(target=target[0]), "target must have 2 dimensions, but has 1"),
            (lambda: verify(target=target.T.contiguous().T), "target is not contiguous"),
            (lambda: verify(target=target[:, :15].contiguous()), "15"),
            (lambda: verify(target=bad), "nan"),
            (lambda: verify(nodes=nodes.long()), "target_row_of must be of int32, but is of int64"),
            (lambda: verify(nodes=nodes[:1]), "have 1 and"),
            (lambda: verify(tree=tree[:, :1].contiguous()), r"tree must be \[1 \+ n, 2\]"),
            (lambda: verify(log_prob=log_prob[:1]), r"log_prob \[1 \+ n\]"),
            (lambda: verify(name="oracle"), "oracle"),
            (lambda: ops.build("chain depth", 5, rows, row_of), "written name=value"),
            (lambda: ops.build("chain", 5, rows * float("nan"), torch.zeros(1, dtype=torch.int32)), "nan"),
            (lambda: ops.build("chain", 5, rows, torch.zeros(999, dtype=torch.int32)), "at most"),
            (lambda: ops.build("chain", 5, rows, torch.full((1,), 99, dtype=torch.int32)), "99"),
            (lambda: ops.compile(tree, log_prob, 4, 5), "columns"),
            (lambda: ops.compile(tree, log_prob, 4, 99, "random"), "one of insertion")):
        with pytest.raises(espalier.Error, match=sentence):
            wrong()
    verify()  # nothing was lost


def test_two_threads():
    expected, seen = built("iid-paths"), []
    threads = [threading.Thread(target=lambda: seen.append(built("iid-paths"))) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 2 and all(torch.equal(a, b) for one in seen for a, b in zip(one, expected))
