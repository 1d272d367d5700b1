# SPDX-License-Identifier: BSL-1.0
"""Drafts and the sampler for SGLang, beside stand-ins with the signatures of SGLang 0.5.23: its registry of speculative
algorithms, its n-gram worker as far as it drafts, and the walk of its sampling kernel. SGLang itself is not run."""
import array
import enum
import sys
import types
from types import SimpleNamespace

import espalier
import numpy as np
import pytest
from espalier import sglang
from espalier.proof import _largest_difference
from test_parts import OnCuda, logits_after, refused, softmax


# ---- stand-ins ----

class CustomSpecAlgo:
    """sglang/srt/speculative/spec_registry.py"""

    def __init__(self, name, factory, *, supports_overlap=False, validate_server_args=None):
        self.name, self.factory, self.supports_overlap = name, factory, supports_overlap

    def is_ngram(self):
        return False

    def is_eagle(self):
        return False

    def has_draft_kv(self):
        return True

    def create_worker(self, server_args):
        return self.factory(server_args)


class SpeculativeAlgorithm(enum.Enum):
    """sglang/srt/speculative/spec_info.py"""
    NGRAM = 1

    @classmethod
    def register(cls, name, *, supports_overlap=False, validate_server_args=None, spec_class=CustomSpecAlgo):
        def decorator(factory):
            registered[name.upper()] = spec_class(name.upper(), factory, supports_overlap=supports_overlap)
            return factory
        return decorator

    def handle_server_args(self, server_args):
        server_args.handled = self.name

    def create_future_map(self, device):
        return f"{self.name} on {device}"


registered = {}


class NGRAMWorker:
    """sglang/srt/speculative/ngram_worker.py: a worker whose model is logits_after(), which verifies greedily."""

    def __init__(self, draft_token_num, enable_overlap):
        self.draft_token_num, self.enable_overlap, self.n_passes = draft_token_num, enable_overlap, 0

    def _prepare_draft_tokens(self, batch):
        raise AssertionError("drafts come from the corpus.")

    def _update_ngram_corpus(self, batch):
        raise AssertionError("the corpus is written.")

    def forward(self, batch):
        n, bs = self.draft_token_num, len(batch.reqs)
        tokens, mask = self._prepare_draft_tokens(batch)
        assert tokens.dtype == mask.dtype == np.int64 and tokens.shape == (bs * n,) and mask.shape == (bs * n * n,)
        self.n_passes += 1
        written = []
        for request, draft, seen in zip(batch.reqs, tokens.reshape(bs, n), mask.reshape(bs, n, n)):
            accepted = []
            node, text = 0, [*request.origin_input_ids_unpadded, *request.all_output]
            assert draft[0] == text[-1]
            while node is not None:
                accepted.append(int(np.argmax(logits_after([text + accepted]))))
                node = next((c for c in children(seen, node) if draft[c] == accepted[-1]), None)
            written.append(accepted)
        self._update_ngram_corpus(batch)
        return written


def children(mask, node):
    """The links that reconstruct_indices_from_tree_mask makes: the parent of i is the last j < i that i sees."""
    parent = [max((j for j in range(i) if mask[i, j]), default=-1) for i in range(len(mask))]
    return [i for i in range(len(mask)) if parent[i] == node]


def sampled(tokens, mask, target, uniforms):
    """The walk of tree_speculative_sampling_target_only (csrc/speculative/sampling.cuh), over exact uniform numbers."""
    node, text = 0, ()
    while True:
        row, total, rejected, accepted = target(text), 0.0, set(), None
        for child in children(mask, node):
            total += row[tokens[child]]
            if row[tokens[child]] > 0 and uniforms[node] < total:
                accepted = child
                break
            rejected.add(int(tokens[child]))
        if accepted is None:
            left = np.array([0.0 if t in rejected else p for t, p in enumerate(row)])
            return text + (int(np.argmax(uniforms[len(tokens)] * left.sum() < np.cumsum(left))),)
        node, text = accepted, text + (int(tokens[accepted]),)


@pytest.fixture
def engine(monkeypatch):
    for name, members in (("sglang", {}), ("sglang.srt", {}), ("sglang.srt.speculative", {}),
                          ("sglang.srt.speculative.spec_info", {"CustomSpecAlgo": CustomSpecAlgo,
                                                                "SpeculativeAlgorithm": SpeculativeAlgorithm}),
                          ("sglang.srt.speculative.ngram_worker", {"NGRAMWorker": NGRAMWorker})):
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    registered.clear()


class Mine(sglang.Drafts):
    policy = "best-first budget=7"

    def propose_rows(self, texts):
        return softmax(logits_after(texts, scale=0.6))


def worker_of(drafts=Mine, overlap=False, n=8):
    sglang.register("mine", drafts)
    return registered["MINE"].create_worker(None)(n, overlap)


def batch_of(*texts):
    reqs = [SimpleNamespace(rid=f"r{i}", origin_input_ids_unpadded=array.array("q", text), output_ids=array.array("q"),
                            all_output=[]) for i, text in enumerate(texts)]
    nothing = SimpleNamespace(accept_tokens=np.zeros(0, np.int32), accept_lens=np.zeros(len(reqs), np.int32))
    return SimpleNamespace(reqs=reqs, spec_info=nothing, grammar_needs_sync=lambda: False)


def step(worker, batch):
    """One step, after which a scheduler that overlaps has processed the step before."""
    written = worker.forward(batch)
    late = np.zeros((len(written), worker.draft_token_num), np.int32)
    for i, (request, tokens) in enumerate(zip(batch.reqs, written)):
        request.all_output += tokens
        known = len(request.all_output) - worker.enable_overlap * len(tokens)
        request.output_ids = array.array("q", request.all_output[:known])
        late[i, :len(tokens)] = tokens
    batch.spec_info = SimpleNamespace(accept_tokens=late.ravel(), accept_lens=np.array([len(t) for t in written]))


# ---- drafts ----

@pytest.mark.parametrize("overlap", [False, True])
def test_texts_are_the_greedy_ones(engine, overlap):
    worker, batch = worker_of(overlap=overlap), batch_of([1, 2, 3], [4], [5, 6])
    while min(len(r.all_output) for r in batch.reqs) < 20:
        step(worker, batch)
    for request in batch.reqs:
        text = list(request.origin_input_ids_unpadded)
        for token in request.all_output:
            assert token == np.argmax(logits_after([text]))
            text.append(token)
    assert worker.n_passes < 12  # 20 without drafts


def test_an_algorithm_is_served_as_ngram(engine):
    sglang.register("mine", Mine)
    algorithm, args = registered["MINE"], SimpleNamespace()
    assert algorithm.is_ngram() and not algorithm.is_eagle() and not algorithm.has_draft_kv() and algorithm.supports_overlap
    algorithm.handle_server_args(args)
    assert args.handled == "NGRAM" and algorithm.create_future_map("cpu") == "NGRAM on cpu"
    assert issubclass(algorithm.create_worker(args), NGRAMWorker)
    with pytest.raises(AttributeError, match="no_such"):
        algorithm.no_such


def test_a_policy_is_told_what_became_of_its_trees(engine):
    told = []

    class Told(espalier.TreePolicy):
        sampling, max_nodes = "deterministic", 1

        def take(self, tree, rows, chance):
            tree.draw(0, int(np.argmax(rows[0])), 0.0)

        def observe(self, tree, accepted, token):
            told.append((tree.token[0], tree.committed(accepted, token)))

    class OfMine(Mine):
        policy = Told()

    for overlap in (False, True):
        told.clear()
        worker, batch = worker_of(OfMine, overlap, n=2), batch_of([1, 2])
        for _ in range(5):
            step(worker, batch)
        whole = [2] + batch.reqs[0].all_output
        for root, committed in told:
            assert whole[0] == root and whole[1:1 + len(committed)] == committed
            whole = whole[len(committed):]
        assert len(told) == 4


def test_the_same_requests_get_the_same_trees(engine):
    class Random(Mine):
        policy = "iid-paths paths=3 length=2"

    def drafted(*numbers):
        batch = batch_of([1, 2, 3], [4], [4])
        batch.reqs = [batch.reqs[i] for i in numbers]
        return worker_of(Random)._prepare_draft_tokens(batch)[0].reshape(len(numbers), 8).tolist()

    assert drafted(0, 1, 2) == drafted(2, 1, 0)[::-1]
    assert drafted(1, 2)[0] != drafted(1, 2)[1]
    assert drafted() == []


def lossless_for(form, n, models, policy="best-first budget=2"):
    for model in models:
        tree, _, _ = espalier.build(espalier.Policy(policy), 0,
                                    lambda paths: np.array([model.draft(tuple(p)) for p in paths], np.float32))
        tokens, mask = form(tree, n)
        by, emitted = espalier.Enumerator(), {}
        while by.more():
            text = sampled(tokens, mask, model.target, espalier.Uniforms(by))
            emitted[text] = emitted.get(text, 0.0) + by.probability()
        _, written, expected = _largest_difference(emitted, model.target, model.vocab)
        if abs(written - expected) > 1e-9:
            return False
    return True


def test_padded_trees_are_lossless_under_the_kernels_walk():
    def at_the_root(tree, n):
        """As SGLang's fillResult pads."""
        tokens, mask = sglang.padded(tree, n)
        for u in range(tree.n_nodes, n):
            mask[u] = 0
            mask[u, [0, u]] = 1
        return tokens, mask

    models = espalier.tiny_models(3)
    assert lossless_for(sglang.padded, 5, models) and lossless_for(sglang.padded, 3, models)
    assert lossless_for(at_the_root, 3, models) and not lossless_for(at_the_root, 5, models)


def test_drafts_that_are_refused(engine):
    with pytest.raises(NotImplementedError, match="propose_rows"):
        step(worker_of(sglang.Drafts, n=12), batch_of([1]))
    with refused("drafts up to 7 tokens, .* at most 6", espalier.OptionError):
        step(worker_of(n=7), batch_of([1]))
    tree = espalier.Tree(3)
    for token in range(3):
        tree.draw(0, token, -1.0)
    with refused("has 4 nodes, but there is room for 3"):
        sglang.padded(tree, 3)


# ---- the sampler ----

def links(mask):
    n = len(mask)
    next_token, next_sibling = np.full(n, -1), np.full(n, -1)
    for u in range(n):
        linked = children(mask, u)
        for child, sibling in zip(linked, linked[1:]):
            next_sibling[child] = sibling
        next_token[u] = linked[0] if linked else -1
    return next_token, next_sibling


def arguments(trees, n, target, draft, coins, depth=None):
    """The arguments of SGLang's kernels, for the trees of several texts."""
    forms = [sglang.padded(tree, n) for tree in trees]
    linked = [links(mask) for _, mask in forms]
    texts = len(trees)
    return {"predicts": np.full(texts * n, -7, np.int32), "accept_index": np.full((texts, depth or n), -1, np.int32),
            "accept_token_num": np.zeros(texts, np.int32), "candidates": np.stack([tokens for tokens, _ in forms]),
            "retrive_index": np.arange(texts * n).reshape(texts, n),
            "retrive_next_token": np.stack([a for a, _ in linked]), "retrive_next_sibling": np.stack([b for _, b in linked]),
            "uniform_samples": coins[:, :n].copy(), "uniform_samples_for_final_sampling": coins[:, n].copy(),
            "target_probs": target, "draft_probs": draft, "threshold_single": 1.0, "threshold_acc": 1.0,
            "deterministic": True}


def written(given, i):
    n = given["candidates"].shape[1]
    path = given["accept_index"][i, :given["accept_token_num"][i] + 1]
    assert (given["accept_index"][i, len(path):] == -1).all() and path[0] == i * n and (np.diff(path) > 0).all()
    return given["predicts"][path].tolist()


def rows_of(model, tokens, mask, row):
    return np.array([row(tuple(int(tokens[v]) for v in range(1, u + 1) if mask[u, v])) for u in range(len(tokens))], np.float32)


@pytest.mark.parametrize("policy, verifier", [
    ("best-first budget=4", "target-only"), ("iid-paths paths=2 length=2", "target-only"), ("sampled-chain length=3", "naive"),
    ("sampled-chain length=3", "block-verification"), ("sampled-chain length=3", "specinfer"),
    ("dyspec-greedy budget=4", "residual-walk"), ("dyspec-greedy budget=4", "traversal-distinct")])
def test_samplers_write_as_the_target(policy, verifier):
    chance, n, rounds, vocab = np.random.default_rng(1), 5, 1000, 4
    sample = sglang.sampler(espalier.Policy(policy), verifier)
    for model in [m for m in espalier.tiny_models(vocab) if m.name.startswith(("unlike", "zeros in q"))]:
        def proposed(texts):
            return np.array([model.draft(tuple(text[1:])) for text in texts], np.float32)

        built = espalier.build_all([espalier.Policy(policy) for _ in range(rounds)], [[0]] * rounds, proposed)
        trees = [tree for tree, _, _ in built]
        forms = [sglang.padded(tree, n) for tree in trees]
        target = np.stack([rows_of(model, *form, model.target) for form in forms])
        draft = np.stack([rows_of(model, *form, model.draft) for form in forms])
        for i, tree in enumerate(trees):  # a padding is drawn from a row that gives it all
            for u in range(tree.n_nodes - 1, n - 1):
                draft[i, u] = np.eye(vocab)[0]
        given = arguments(trees, n, target, draft, chance.random((rounds, n + 1), np.float32))
        sample(**given)
        first, second = np.zeros(vocab), np.zeros((vocab, vocab))
        for i in range(rounds):
            tokens = written(given, i)
            first[tokens[0]] += 1
            if len(tokens) > 1:
                second[tokens[0], tokens[1]] += 1
        for counts, row in [(first, model.target(()))] + [(second[t], model.target((t,))) for t in range(vocab)]:
            errors = np.abs(counts - counts.sum() * row) / np.sqrt(counts.sum() * row * (1 - row) + 0.25)
            assert errors.max() < 5, (model.name, counts, row)
        assert given["accept_token_num"].sum() > rounds / 4


def greedy_given(**changes):
    tree, _, _ = espalier.build(espalier.Policy("best-first", budget=7), 5,
                                lambda paths: softmax(logits_after(paths, scale=0.6)))
    tokens, mask = sglang.padded(tree, 10)
    paths = [[int(tokens[v]) for v in range(1, u + 1) if mask[u, v]] for u in range(10)]
    target = softmax(logits_after(paths))[None]
    given = arguments([tree], 10, target, np.zeros_like(target), np.zeros((1, 11), np.float32), depth=10)
    return given | changes, tree


def test_the_greedy_path_is_written():
    given, tree = greedy_given()
    sglang.sampler("best-first", "greedy")(**given)
    node, path = 0, []
    while True:
        path.append(int(np.argmax(logits_after([[int(tree.token[v]) for v in tree.path(node)[1:]]]))))
        node = tree.find_child(node, path[-1])
        if node < 0:
            break
    assert written(given, 0) == path and len(path) > 1


def test_the_same_coins_give_the_same_tokens():
    def tokens(coin):
        given, _ = greedy_given(uniform_samples=np.full((1, 10), coin, np.float32))
        sglang.sampler("best-first", "target-only")(**given)
        return written(given, 0)
    assert tokens(0.25) == tokens(0.25) and len({tuple(tokens(x / 64)) for x in range(64)}) > 8


def test_tensors_are_written_in_place():
    torch = pytest.importorskip("torch")
    given, _ = greedy_given()
    sglang.sampler("best-first", "target-only")(**given)
    of_torch = {k: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for k, v in greedy_given()[0].items()}
    sglang.sampler("best-first", "target-only")(**of_torch)
    for name in ("predicts", "accept_index", "accept_token_num"):
        assert np.array_equal(of_torch[name].numpy(), given[name])


def test_what_a_sampler_refuses():
    for policy, verifier in (("iid-paths", "specinfer"), ("eagle2", "naive"), ("dyspec-greedy", "specinfer")):
        with refused("lossless for", espalier.OptionError):
            sglang.sampler(policy, verifier)
    sample = sglang.sampler("eagle2", "target-only")

    def is_refused(sentence, error=espalier.InputError, by=sample, **changes):
        with refused(sentence, error):
            by(**greedy_given(**changes)[0])

    is_refused("must be 1", espalier.OptionError, threshold_acc=0.9)
    is_refused("must be 1", espalier.OptionError, threshold_single=0.5)
    is_refused("target_probs is on a device", target_probs=OnCuda())
    is_refused("candidates must be of int64", candidates=np.zeros((1, 10), np.int32))
    is_refused("do not fit", uniform_samples=np.zeros((2, 10), np.float32))
    is_refused("do not fit", target_probs=np.full((1, 9, 16), 1 / 16, np.float32))
    is_refused("goes beyond the 10", retrive_index=np.arange(1, 11)[None])
    is_refused("room for 1", accept_index=np.zeros((1, 2), np.int32))
    is_refused("links go to later", retrive_next_sibling=np.arange(10)[None])
    is_refused("is not linked itself", retrive_next_token=np.array([[-1, 2] + [-1] * 8]))
    is_refused("nan", espalier.NumericError, target_probs=np.full((1, 10, 16), np.nan, np.float32))
    frozen = np.zeros(10, np.int32)
    frozen.flags.writeable = False
    is_refused("read-only", predicts=frozen)
    is_refused("no probability after candidate", by=sglang.sampler("sampled-chain", "naive"))
