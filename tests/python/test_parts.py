# SPDX-License-Identifier: BSL-1.0
"""Parts of the library on arrays, and the sentences for bad input."""
import gc
import re
import threading

import espalier
import numpy as np
import pytest


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


def logits_after(paths, vocab=16, scale=1.0):
    """Logits that depend irregularly on the last three tokens."""
    rows = []
    for path in paths:
        seen = 17
        for t in path[-3:]:
            seen = (seen * 37 + t) % 2**32
        t = np.arange(vocab)
        rows.append(scale * 0.4 * ((seen * 13 + t * t * 7 + seen % 5 * t) % 17))
    return np.array(rows, np.float32)


def drafted(name="iid-paths", seed=3, **options):
    return espalier.build(espalier.Policy(name, **options), 5, lambda paths: softmax(logits_after(paths, scale=0.6)), seed)


def target_of(tree):
    return logits_after([tree.token[tree.path(u)[1:]].tolist() for u in range(tree.n_nodes)])


def refused(sentence, error=espalier.InputError):
    return pytest.raises(error, match=sentence)


def test_a_policy_grows_one_tree_at_a_time():
    """Policies hold nodes of the tree that they grow: with another tree, or a changed one, they read what is not there."""
    rows = softmax(logits_after([[5]]))
    for name in espalier.policies():
        policy = espalier.Policy(name)
        trees = [espalier.Tree(policy.max_asked) for _ in range(2)]
        with refused("not growing this tree"):
            policy.take(trees[0], rows)
        if not policy.begin(trees[0]):
            continue
        policy.begin(trees[1])
        with refused("not growing this tree"):
            policy.take(trees[0], rows)
        trees[1].reset(3)
        with refused("not growing this tree"):
            policy.take(trees[1], rows)
        policy.begin(trees[1])
        trees[1].draw(0, 1, -1.0)
        with refused("not growing this tree"):
            policy.take(trees[1], rows)
        tree, _, _ = espalier.build(policy, 5, lambda paths: softmax(logits_after(paths)))
        with refused("not growing this tree"):
            policy.take(tree, rows)


def test_a_policy_observes_its_own_tree_once():
    for name in espalier.policies():
        policy = espalier.Policy(name)
        large = drafted("dynatree")[0]
        with refused("observes the tree that it has grown last"):
            policy.observe(large, 0, 1)
        for _ in range(2):
            tree, _, _ = espalier.build(policy, 5, lambda paths: softmax(logits_after(paths, scale=0.6)))
            with refused("observes the tree that it has grown last"):
                policy.observe(large, large.n_nodes - 1, 1)
            policy.observe(tree, tree.n_nodes - 1, 1)
            with refused("observes the tree that it has grown last"):
                policy.observe(tree, tree.n_nodes - 1, 1)


def test_trees_that_grow_beside_each_other_are_those_that_grow_alone():
    texts = [[1, 2, 3], [4], [5, 6]]
    for name in ("iid-paths", "eagle2", "best-first", "plain"):
        def draft(after):
            return softmax(logits_after(after, scale=0.6))
        beside = espalier.build_all([espalier.Policy(name) for _ in texts], texts, draft, seed=3)
        for i, (text, (tree, rows, row_of)) in enumerate(zip(texts, beside)):
            alone = espalier.build(name, text[-1], lambda paths: draft([text + path for path in paths]), 3, i, len(text))
            assert np.array_equal(tree.token, alone[0].token) and np.array_equal(tree.parent, alone[0].parent)
            assert np.array_equal(rows, alone[1]) and row_of == alone[2]
    policy = espalier.Policy("eagle2")
    with refused("not growing this tree"):
        espalier.build_all([policy, policy], texts[:2], draft)
    with refused("gives 3 rows"):
        espalier.build_all([espalier.Policy("chain"), espalier.Policy("chain")], texts[:2],
                           lambda after: softmax(logits_after(after + after[:1])))


def test_every_policy_builds_and_every_verifier_that_fits_verifies():
    n = 0
    for name in espalier.policies():
        policy = espalier.Policy(name)
        tree, rows, row_of = espalier.build(policy, 5, lambda paths: softmax(logits_after(paths, scale=0.6)), 1)
        assert (tree.n_draws > 0) == (policy.max_nodes > 0)
        assert tree.n_draws <= policy.max_nodes and (tree.parent[1:] < np.arange(1, tree.n_nodes)).all()
        for other in espalier.verifiers():
            verifier = espalier.Verifier(other)
            if not espalier.fits(policy, verifier):
                continue
            if rows.shape[1] == 1:
                rows = np.zeros((0, 16), np.float32)
            logits = target_of(tree)
            temperature = 0.0 if other == "greedy" else 1.0
            accepted, token = verifier.verify(tree, logits, rows, draft_row_of=row_of,
                                              sampling={"temperature": temperature}, seed=1)
            assert 0 <= accepted < tree.n_nodes and 0 <= token < 16
            if other == "greedy":
                assert token == np.argmax(logits[accepted])
                assert all(tree.token[v] == np.argmax(logits[u]) for u, v in zip(tree.path(accepted), tree.path(accepted)[1:]))
            n += 1
        policy.observe(tree, accepted, token)
    assert n > 60


def test_masks_show_the_prefix_the_ancestors_and_the_node():
    trees = [drafted(seed=s)[0] for s in (1, 2)]
    rows, row_of = espalier.compile_trees(trees, [4, 7])
    mask = rows.dense_mask()
    assert rows.n_rows == sum(t.n_nodes for t in trees) and mask.shape == (rows.n_rows, rows.columns)
    for tree, prefix, at in zip(trees, (4, 7), row_of):
        for u in range(tree.n_nodes):
            r = rows.outputs[at[u]]
            assert rows.tokens[r] == tree.token[u] and rows.positions[r] == prefix + tree.depth[u]
            seen = {int(rows.slots[rows.outputs[at[v]]]) for v in tree.path(u)} | set(range(prefix))
            assert set(np.flatnonzero(mask[r])) == seen
    assert (np.isneginf(rows.additive_mask()) == (mask == 0)).all()
    packed, indptr = rows.flashinfer_mask()
    bits = np.unpackbits(packed[:indptr[1]], bitorder="little")
    n = trees[0].n_nodes
    assert (bits[:n * (4 + n)].reshape(n, 4 + n) == mask[:n, :4 + n]).all()
    most = max(t.n_nodes for t in trees)
    positions, index, first_child, sibling = rows.sglang_tree(most)
    assert positions.shape == (2, most) and positions[0, 0] == 4 and first_child[0, 0] == 1
    full = rows.sglang_mask(most)
    assert (full[:n * (4 + most)].reshape(most, 4 + most)[:n, :4 + n] == mask[:n, :4 + n]).all() if n == most else True


def test_probabilities_and_logits_give_one_verdict_and_many_texts_are_one_call():
    tree, rows, row_of = drafted()
    logits, verifier = target_of(tree), espalier.Verifier("specinfer")
    by_logits = verifier.verify(tree, logits, rows, draft_row_of=row_of, sampling={"temperature": 1.0}, seed=9)
    assert by_logits == verifier.verify(tree, softmax(logits), rows, draft_row_of=row_of, seed=9)
    made = [drafted(seed=s) for s in range(4)]
    starts = np.cumsum([0] + [len(r) for _, r, _ in made])
    verdicts = espalier.verify_all(verifier, [t for t, _, _ in made], np.concatenate([softmax(target_of(t)) for t, _, _ in made]),
                                   np.concatenate([r for _, r, _ in made]),
                                   [[w + s if w >= 0 else -1 for w in at] for (_, _, at), s in zip(made, starts)], seed=9)
    assert verdicts[0] == verifier.verify(made[0][0], softmax(target_of(made[0][0])), made[0][1], draft_row_of=made[0][2], seed=9)
    tree, (accepted, token) = made[0][0], verdicts[0]
    assert tree.committed(accepted, token)[-1] == token


def test_rows_are_read_in_place():
    tree, rows, row_of = drafted()
    target = softmax(target_of(tree))
    held = espalier._library.array_in(target, "target", 2, (np.float32,))
    assert held is target or np.shares_memory(held, target)
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(target.copy())
    assert espalier._library.array_in(tensor, "target", 2, (np.float32,)).ctypes.data == tensor.data_ptr()
    verifier = espalier.Verifier("specinfer")
    assert verifier.verify(tree, tensor, torch.from_numpy(rows), draft_row_of=row_of, seed=2) == verifier.verify(
        tree, target, rows, draft_row_of=row_of, seed=2)
    with refused("float32.*convert"):
        verifier.verify(tree, tensor.double(), rows, draft_row_of=row_of)
    with refused("contiguous"):
        verifier.verify(tree, tensor.t().contiguous().t(), rows, draft_row_of=row_of)
    with refused("grad"):
        verifier.verify(tree, tensor.requires_grad_(), rows, draft_row_of=row_of)


def test_bad_input_gets_a_sentence():
    tree, rows, row_of = drafted()
    target, verifier = softmax(target_of(tree)), espalier.Verifier("specinfer")
    with refused("nearest name is eagle2", espalier.OptionError):
        espalier.Policy("egale2")
    with refused("nearest name is budget", espalier.OptionError):
        espalier.Policy("eagle2", buget=3)
    with refused("a whole number, 1 to 1024", espalier.OptionError):
        espalier.Policy("eagle2", budget=0)
    with refused("on or off", espalier.OptionError):
        espalier.Policy("dynatree", history=3)
    with refused("an array, as of numpy or torch, but is a list"):
        verifier.verify(tree, [[0.5, 0.5]], rows, draft_row_of=row_of)
    with refused("float32, but is of float64"):
        verifier.verify(tree, target.astype(np.float64), rows, draft_row_of=row_of)
    with refused("2 dimensions, but has 1"):
        verifier.verify(tree, target[0], rows, draft_row_of=row_of)
    with refused("not contiguous"):
        verifier.verify(tree, target[:, ::2], rows, draft_row_of=row_of)
    with refused("said to have row"):
        verifier.verify(tree, target[:2], rows, draft_row_of=row_of)
    with refused("draft is a null pointer"):
        verifier.verify(tree, target)
    with refused("8 tokens"):
        verifier.verify(tree, target, np.ascontiguousarray(rows[:, :8]), draft_row_of=row_of)
    bad = target.copy()
    bad[0, 3] = np.nan
    with refused("token 3 after node 0 is nan", espalier.NumericError):
        verifier.verify(tree, bad, rows, draft_row_of=row_of)
    with refused("add up to", espalier.NumericError):
        verifier.verify(tree, target * 2, rows, draft_row_of=row_of)
    with refused("temperature must be 0", espalier.OptionError):
        espalier.Verifier("greedy").verify(tree, target, sampling={"temperature": 1.0})
    with refused("node 99"):
        tree.path(99)
    with refused("4 rows|has 0 dimensions|asked about 1 nodes"):
        espalier.build("eagle2", 5, lambda paths: np.full((4, 16), 1 / 16, np.float32))
    with refused("rows of 17 tokens, but gave rows of 16 before"):
        espalier.build("eagle2", 5, lambda paths: np.full((len(paths), 16 + len(paths[0])), 1 / 16, np.float32))
    with refused("root"):
        espalier.compile_trees([tree], [4], pending=[[1, 2]])
    for prefix in (-1, 2**31 - tree.n_nodes):
        with refused(f"the prefix is {prefix} slots; beside {tree.n_nodes} rows"):
            espalier.compile_trees([tree], [prefix])
    espalier.compile_trees([tree], [2**31 - 1 - tree.n_nodes])
    with refused("one of insertion", espalier.OptionError):
        espalier.compile_trees([tree], [4], order="random")
    with refused("columns"):
        espalier.compile_trees([tree], [4])[0].dense_mask(2)


class OnCuda:
    """A tensor of a device, as DLPack shows it."""

    def __dlpack__(self, **_):
        raise AssertionError("the tensor is read.")

    def __dlpack_device__(self):
        return 2, 0


def test_tensors_of_a_device_are_refused_by_name():
    tree, rows, row_of = drafted()
    target, verifier, policy = target_of(tree), espalier.Verifier("specinfer"), espalier.Policy("eagle2")
    grown = espalier.Tree(policy.max_asked)
    grown.reset(5)
    policy.begin(grown)
    decoder = espalier.Decoder(None, "plain", "greedy", lambda rows: OnCuda(), vocab_size=16)
    decoder.add([1, 2], 4)
    for what, call in (("row_of of target", lambda: verifier.verify(tree, target, rows, OnCuda(), row_of)),
                       ("rows", lambda: policy.take(grown, OnCuda())),
                       ("the draft's answer", lambda: espalier.build("eagle2", 5, lambda paths: OnCuda())),
                       ("pending", lambda: espalier.compile_trees([tree], [4], pending=[OnCuda()])),
                       ("the prompt", lambda: decoder.add(OnCuda())),
                       ("logits", decoder.step)):
        with refused(f"^{what} is on a device \\(CUDA\\), not in the host's memory"):
            call()


def test_a_package_without_verifiers_on_devices_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("ESPALIER_CUDA_LIBRARY", str(tmp_path / "none.so"))
    espalier._library.cuda.cache_clear()
    tree, rows, row_of = drafted()
    verifier = espalier.Verifier("specinfer")
    for call in (lambda: verifier.verify(tree, OnCuda(), rows, draft_row_of=row_of),
                 lambda: verifier.verify(tree, target_of(tree), OnCuda(), draft_row_of=row_of),
                 lambda: espalier.verify_all(verifier, [tree], OnCuda(), OnCuda(), [row_of])):
        with refused("installed where no nvcc was.*\\.cpu\\(\\)"):
            call()


def test_what_was_lent_ends_with_its_call():
    kept = []

    class Keeps(espalier.OwnVerifier):
        lossless = ("iid", "single_path")

        def verify(self, tree, draft, target, chance):
            kept.extend((tree, draft, target, chance))
            return 0, chance.pick(target[0])

    tree, rows, row_of = drafted()
    espalier.Verifier(Keeps()).verify(tree, softmax(target_of(tree)), rows, draft_row_of=row_of)
    for use in (lambda: kept[0].n_nodes, lambda: kept[1][0], lambda: kept[2][0], lambda: kept[3].accept(1, 2)):
        with refused("lent for one call"):
            use()


def test_exceptions_of_own_parts_come_back_as_they_were():
    class Fails(espalier.OwnVerifier):
        lossless = ("iid", "single_path")

        def verify(self, tree, draft, target, chance):
            raise KeyError("mine")

    tree, rows, row_of = drafted()
    with pytest.raises(KeyError, match="mine"):
        espalier.Verifier(Fails()).verify(tree, softmax(target_of(tree)), rows, draft_row_of=row_of)

    class Odd(Fails):
        def verify(self, tree, draft, target, chance):
            return "no verdict"

    with pytest.raises(TypeError, match="two whole numbers"):
        espalier.Verifier(Odd()).verify(tree, softmax(target_of(tree)), rows, draft_row_of=row_of)


def test_handles_are_freed_and_threads_do_not_meet():
    def work():
        for seed in range(20):
            tree, rows, row_of = drafted(seed=seed)
            espalier.Verifier("specinfer").verify(tree, softmax(target_of(tree)), rows, draft_row_of=row_of, seed=seed)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    gc.collect()
    from espalier.parts import _Own
    assert not _Own.objects


def test_version_and_names():
    assert re.fullmatch(r"\d+\.\d+\.\d+", espalier.__version__)
    assert "best-first" in espalier.policies() and "specinfer" in espalier.verifiers()
