# SPDX-License-Identifier: BSL-1.0
"""Trees and a sampler for SGLang: trees of any policy in the form of SGLang's n-gram worker, registered as a speculative
algorithm of their own, and a function with the signature of its sampling kernels by any verifier that fits. Not run in
SGLang: the tests call both as SGLang 0.5.23 does."""
from __future__ import annotations

import copy
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _library as l
from ._library import InputError, OptionError
from .parts import OwnVerifier, Policy, Tree, TreePolicy, Verifier, build_all


def padded(tree: Tree, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of a tree, int64 [n], the root first, and its mask, int64 [n, n], 1 where the row's node is the
    column's node or below it: the form in which SGLang's n-gram worker drafts n tokens a text.

    A tree of less than n nodes goes on below its last node with a chain of tokens 0. SGLang itself puts these at the root,
    several of the same token, and its sampler counts the probability of that token once for each."""
    k = tree.n_nodes
    if k > n:
        raise InputError(f"the tree has {k} nodes, but there is room for {n}, the root included.")
    tokens, mask = np.zeros(n, np.int64), np.eye(n, dtype=np.int64)
    tokens[:k] = tree.token
    parents = np.arange(-1, n - 1)
    parents[:k] = tree.parent
    for u in range(1, n):
        mask[u] |= mask[parents[u]]
    return tokens, mask


class Drafts:
    """Base of drafts of your own for SGLang, which register() makes an algorithm: propose_rows(texts) returns the
    distribution of the token after each text, float32 [len(texts), vocab], probabilities. Trees are grown from these rows by
    `policy`, for all requests of a step at once; SGLang's own sampler is lossless for them, however they were grown.

    Each request has a policy of its own, which is told what became of its trees. With several ranks, each grows the trees,
    so propose_rows must return the same rows on all of them."""

    #: A policy in words, such as "eagle2 budget=11", or one of your own. It drafts fewer tokens than
    #: speculative_num_draft_tokens, which counts the root.
    policy: str | TreePolicy = "best-first budget=11"
    #: The seed of the trees' random numbers. The same request gets the same trees.
    seed: int = 0

    _growing: dict[str, tuple[Policy, Tree, int]] = {}  # of each request of the last step, with the text's length

    def propose_rows(self, texts: list[list[int]]) -> Any:
        raise NotImplementedError("drafts need propose_rows(texts).")

    def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the drafted tokens of a batch, int64 [requests * n], and their mask, int64 [requests * n * n], where n
        is self.draft_token_num: as SGLang's worker does from its corpus."""
        n, texts = self.draft_token_num, self._texts_of(batch)
        policies = [self._policy_of(request.rid, text) for request, text in zip(batch.reqs, texts)]
        built = build_all(policies, texts, self.propose_rows, self.seed, [zlib.crc32(r.rid.encode()) for r in batch.reqs])
        self._growing = {request.rid: (policy, tree, len(text))
                         for request, policy, text, (tree, _, _) in zip(batch.reqs, policies, texts, built)}
        forms = [padded(tree, n) for tree, _, _ in built]
        return (np.concatenate([tokens for tokens, _ in forms]) if forms else np.zeros(0, np.int64),
                np.concatenate([mask.ravel() for _, mask in forms]) if forms else np.zeros(0, np.int64))

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Leaves the corpus of SGLang's worker empty."""

    def _texts_of(self, batch: Any) -> list[list[int]]:
        """Returns the tokens of each request. Where steps overlap, those of the last step are not in it yet."""
        texts = [[*request.origin_input_ids_unpadded, *request.output_ids] for request in batch.reqs]
        if self.enable_overlap and not batch.grammar_needs_sync():
            tokens, lengths = batch.spec_info.accept_tokens.tolist(), batch.spec_info.accept_lens.tolist()
            for i, text in enumerate(texts):
                text += tokens[i * self.draft_token_num:][:lengths[i]]
        return texts

    def _policy_of(self, rid: str, text: list[int]) -> Policy:
        if rid not in self._growing:
            made = Policy(copy.deepcopy(self.policy))
            if made.max_nodes >= self.draft_token_num:
                raise OptionError(f"the policy drafts up to {made.max_nodes} tokens, but speculative_num_draft_tokens is "
                                  f"{self.draft_token_num}, with the root: at most {self.draft_token_num - 1} can be drafted.")
            return made
        policy, tree, length = self._growing.pop(rid)
        node = 0
        for token in text[length:]:
            child = tree.find_child(node, token)
            if child < 0:
                policy.observe(tree, node, token)
                break
            node = child
        return policy


def register(name: str, drafts: type[Drafts], supports_overlap: bool = True) -> None:
    """Makes a subclass of Drafts a speculative algorithm of SGLang, by its registry: --speculative-algorithm NAME. It is
    served as SGLang's own NGRAM is. Call it in a function that is an entry point of the group sglang.srt.plugins."""
    from sglang.srt.speculative.spec_info import CustomSpecAlgo, SpeculativeAlgorithm

    class ServedAsNgram(CustomSpecAlgo):
        """An algorithm that answers as NGRAM does, but for its worker."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            SpeculativeAlgorithm.NGRAM.handle_server_args(server_args)

        def __getattr__(self, name: str) -> Any:  # what an algorithm of the registry lacks, such as create_future_map
            return getattr(SpeculativeAlgorithm.NGRAM, name)

    def worker(server_args: Any) -> type:
        from sglang.srt.speculative.ngram_worker import NGRAMWorker
        return type(drafts.__name__, (drafts, NGRAMWorker), {"__module__": drafts.__module__})

    SpeculativeAlgorithm.register(name, supports_overlap=supports_overlap, spec_class=ServedAsNgram)(worker)


def _tree_of(tokens: np.ndarray, next_token: np.ndarray, next_sibling: np.ndarray) -> tuple[Tree, list[int]]:
    """Returns the tree that SGLang's links show, and the place of each node among the candidates. Siblings of one token
    become one node."""
    n = len(tokens)
    tree, places, nodes = Tree(n - 1), [0], {0: 0}
    tree.reset(int(tokens[0]))
    for place in range(n):  # links go to later places
        child, last = int(next_token[place]), place
        if child >= 0 and place not in nodes:
            raise InputError(f"candidate {place} has a child, but is not linked itself.")
        while child >= 0:
            if not last < child < n or child in nodes:
                raise InputError(f"candidate {last} is linked to {child}; links go to later candidates, below {n}, and to "
                                 "each once.")
            nodes[child] = tree.draw(nodes[place], int(tokens[child]), 0.0)
            if nodes[child] == len(places):
                places.append(child)
            child, last = int(next_sibling[child]), child
    return tree, places


def sampler(policy: Policy | str | TreePolicy, verifier: Verifier | str | OwnVerifier) -> Callable[..., None]:
    """Returns a function with the signature of SGLang's tree_speculative_sampling_target_only and
    chain_speculative_sampling_triton, over tensors of the CPU, that verifies by any verifier. `policy` says how the
    candidates were drafted; OptionError if the verifier is not lossless for it. Links know no token that was drawn twice at
    a node, so trees of independent draws need a verifier that is lossless for every tree.

    The random numbers of a text's verification are those of a seed that its uniform_samples, and that of the final
    sampling, are hashed to."""
    policy = policy if isinstance(policy, Policy) else Policy(policy)
    verifier = verifier if isinstance(verifier, Verifier) else Verifier(verifier)
    reads_draft = "deterministic" not in verifier.lossless
    if reads_draft and not set(policy.sampling) & set(verifier.lossless) - {"iid"}:
        raise OptionError(f"the verifier is lossless for {', '.join(verifier.lossless)}, but the policy drafts "
                          f"{', '.join(policy.sampling)}, of which SGLang's links show no independent draws.")

    def sample(predicts: Any, accept_index: Any, accept_token_num: Any, candidates: Any, retrive_index: Any,
               retrive_next_token: Any, retrive_next_sibling: Any, uniform_samples: Any,
               uniform_samples_for_final_sampling: Any, target_probs: Any, draft_probs: Any, threshold_single: float = 1.0,
               threshold_acc: float = 1.0, deterministic: bool = True) -> None:
        """Verifies a batch of candidates.

        predicts            int32 [texts * n], written: the token after each accepted candidate
        accept_index        int32 [texts, depth], written: the numbers of the accepted candidates, the root first
        accept_token_num    int32 [texts], written: how many were accepted, without the root
        candidates, retrive_index, retrive_next_token, retrive_next_sibling   int64 [texts, n]
        uniform_samples     float32 [texts, n or n - 1];  uniform_samples_for_final_sampling  float32 [texts]
        target_probs        float32 [texts, n, vocab], read in place
        draft_probs         float32 [texts, n or n - 1, vocab]: row u is what the children of candidate u were drawn from;
                            not read by verifiers that are lossless for every tree
        """
        if threshold_single != 1.0 or threshold_acc != 1.0:
            raise OptionError(f"thresholds of {threshold_single} and {threshold_acc} accept more than is lossless: both must "
                              "be 1.")
        tokens, index, next_token, next_sibling = (l.array_in(value, what, 2, l.INT64) for value, what in (
            (candidates, "candidates"), (retrive_index, "retrive_index"), (retrive_next_token, "retrive_next_token"),
            (retrive_next_sibling, "retrive_next_sibling")))
        coins = l.array_in(uniform_samples, "uniform_samples", 2, l.FLOAT32)
        last = l.array_in(uniform_samples_for_final_sampling, "uniform_samples_for_final_sampling", 1, l.FLOAT32)
        target = l.array_in(target_probs, "target_probs", 3, l.FLOAT32)
        draft = l.array_in(draft_probs, "draft_probs", 3, l.FLOAT32) if reads_draft else None
        out = [l.array_in(value, what, n_dims, l.INT32) for value, what, n_dims in (
            (predicts, "predicts", 1), (accept_index, "accept_index", 2), (accept_token_num, "accept_token_num", 1))]
        n_texts, n = tokens.shape
        fits = (all(a.shape == tokens.shape for a in (index, next_token, next_sibling)) and target.shape[:2] == (n_texts, n)
                and all(len(a) == n_texts for a in (coins, last, out[1], out[2])) and n > 0
                and (draft is None or (len(draft) == n_texts and draft.shape[2] == target.shape[2])))
        if not fits or not all(a.flags.writeable for a in out):
            raise InputError(f"the arrays of {n_texts} texts with {n} candidates do not fit each other, or those that are "
                             "written are read-only.")
        if index.size and not (0 <= index.min() and index.max() < len(out[0])):
            raise InputError(f"retrive_index goes beyond the {len(out[0])} numbers of predicts.")
        verdicts = []
        for i in range(n_texts):
            tree, places = _tree_of(tokens[i], next_token[i], next_sibling[i])
            if tree.depth.max() >= out[1].shape[1]:
                raise InputError(f"the tree of text {i} is {tree.depth.max()} deep, but accept_index has room for "
                                 f"{out[1].shape[1] - 1}.")
            if draft is not None:
                _require_drawn(tree, places, draft[i])
            seed = hashlib.blake2b(coins[i].tobytes() + last[i].tobytes(), digest_size=8)
            accepted, token = verifier.verify(tree, target[i], None if draft is None else draft[i], places,
                                              None if draft is None else [p if p < draft.shape[1] else -1 for p in places],
                                              seed=int.from_bytes(seed.digest(), "little"))
            verdicts.append(([places[u] for u in tree.path(accepted)], tree.committed(accepted, token)))
        for i, (path, written) in enumerate(verdicts):
            out[0][index[i, path]] = written
            out[1][i, :len(path)] = index[i, path]
            out[2][i] = len(path) - 1

    return sample


def _require_drawn(tree: Tree, places: list[int], draft: np.ndarray) -> None:
    for u in range(1, tree.n_nodes):
        row, token = places[tree.parent[u]], tree.token[u]
        if row >= len(draft) or not 0 <= token < draft.shape[1] or not draft[row, token] > 0:
            raise InputError(f"draft_probs give token {token} no probability after candidate {row}: this verifier needs the "
                             "rows that the tokens were drawn from.")
