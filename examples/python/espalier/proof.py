# SPDX-License-Identifier: BSL-1.0
"""Exact proofs for policies, verifiers and samplers of Python: every outcome of a round over tiny models is run with its
probability, and what it writes must be distributed as the target alone writes it. The models, trees and the comparison
are those of the C++ checks, espalier/testing, in the sizes that an interpreter runs in seconds."""
from __future__ import annotations

import copy
import ctypes as c
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import _library as l
from . import parts
from ._library import InputError, LawError, OptionError
from .parts import Chance, OwnVerifier, Policy, RowsOf, Tree, TreePolicy, Verifier

Row = Callable[[tuple[int, ...]], np.ndarray]


class Enumerator:
    """Runs a procedure once for every sequence of outcomes that can occur, and knows the probability of each.

        by = Enumerator()
        while by.more():
            distribution[procedure(by)] += by.probability()"""

    def __init__(self) -> None:
        self._trail: list[tuple[np.ndarray, int]] = []
        self._depth = -1

    def more(self) -> bool:
        """Turns to the next sequence of outcomes; False when all have been run."""
        if self._depth < 0:
            self._depth = 0
            return True
        del self._trail[self._depth:]
        self._depth = 0
        while self._trail:
            distribution, outcome = self._trail[-1]
            later = np.flatnonzero(distribution[outcome + 1:] > 0)
            if len(later):
                self._trail[-1] = (distribution, outcome + 1 + int(later[0]))
                return True
            self._trail.pop()
        return False

    def probability(self) -> float:
        """The probability of the outcomes since the start of this run."""
        return math.prod(float(d[i]) for d, i in self._trail[:self._depth])

    def _decide(self, distribution: np.ndarray) -> int:
        if self._depth == len(self._trail):
            possible = np.flatnonzero(distribution > 0)
            if not len(possible):
                raise LawError("no outcome of a decision is possible: every probability is 0 or not a number.")
            self._trail.append((distribution, int(possible[0])))
        self._depth += 1
        return self._trail[self._depth - 1][1]

    def accept(self, p: float, q: float, *key: int) -> bool:
        yes = 0.0 if not p > 0 else 1.0 if p >= q else p / q
        return self._decide(np.array([yes, 1 - yes])) == 0

    def pick(self, weights: np.ndarray, *key: int) -> int:
        w = np.where(weights > 0, weights, 0.0)
        total = w.sum()
        return self._decide(w / total) if total > 0 else -1

    def index(self, n: int, *key: int) -> int:
        return self._decide(np.full(n, 1 / n))

    def below(self, share: float) -> bool:
        """True with this probability."""
        return self.accept(share, 1.0)


class _Keys:
    """The decisions of one part in one round: no two may have one key, or they would get the same random number."""

    def __init__(self, by: Any, whose: str):
        self._by, self._whose, self._used = by, whose, set()

    def _new(self, key: tuple[int, ...]) -> None:
        if key in self._used:
            raise LawError(f"the {self._whose} decides two things with one key, node {key[0]} and slot {key[1]}: both get "
                           "the same random number.")
        self._used.add(key)

    def accept(self, p: float, q: float, *key: int) -> bool:
        self._new(key)
        return self._by.accept(p, q, *key)

    def pick(self, weights: np.ndarray, *key: int) -> int:
        token = self._by.pick(weights, *key)
        if token >= 0:
            self._new(key)
        return token

    def index(self, n: int, *key: int) -> int:
        self._new(key)
        return self._by.index(n, *key)


class _Decided:
    """The enumerator as decisions of the C interface, for parts of the library."""

    def __init__(self, by: Enumerator):
        def guarded(f: Callable) -> Callable:
            def run(*arguments: Any) -> int:
                try:
                    return int(f(*arguments))
                except BaseException as error:
                    l.thrown.append(error)
                    return -2
            return run
        self.decisions = l.Decisions(
            c.sizeof(l.Decisions), l.ACCEPT(guarded(lambda _, p, q, *key: by.accept(p, q))),
            l.PICK(guarded(lambda _, w, n, *key: by.pick(np.ctypeslib.as_array(w, (n,)).copy()))),
            l.INDEX(guarded(lambda _, n, *key: by.index(n))), None)


# ---- tiny models ----

def _mixed(key: int) -> int:
    mask = (1 << 64) - 1
    key = (key + 0x9E3779B97F4A7C15) & mask
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & mask
    return key ^ (key >> 31)


def irregular(seed: int, vocab: int, zeros: int = 0, levels: int = 0) -> Row:
    """Rows that depend irregularly on the path. About one in `zeros` probabilities is 0 (0: none); the others have one of
    `levels` sizes (0: any)."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def row(path: tuple[int, ...]) -> np.ndarray:
        if path in known:
            return known[path]
        key = seed
        for t in path:
            key = _mixed(key ^ (t + 1))
        made = np.zeros(vocab)
        for t in range(vocab):
            x = _mixed((key + t * 77) & ((1 << 64) - 1))
            if not (zeros and x % zeros == 0):
                made[t] = 1 + (x >> 20) % levels if levels else 0.05 + (_mixed(x) >> 11) * 2.0**-53
        if not made.any():
            made[key % vocab] = 1
        return known.setdefault(path, made / made.sum())
    return row


def _certain(vocab: int, first: int, step: int) -> Row:
    return lambda path: np.eye(vocab)[min(first + step * (len(path) % 2), vocab - 1)]


def _deep(row: Row, depth: int) -> Row:
    before = _certain(2, 0, 1)
    return lambda path: before(path) if len(path) < depth else row(path[depth:])


def _sharp(row: Row, vocab: int) -> Row:
    return lambda path: row(path) * 0.1 + 0.9 * np.eye(vocab)[len(path) % vocab]


def _masked(row: Row, forbidden: int) -> Row:
    def left(path: tuple[int, ...]) -> np.ndarray:
        made = row(path).copy()
        made[forbidden] = 0
        return made / made.sum()
    return left


@dataclasses.dataclass(frozen=True)
class TinyModel:
    """A target and a draft with so few tokens that every outcome can be run."""
    name: str
    vocab: int
    target: Row
    draft: Row


def tiny_models(vocab: int) -> list[TinyModel]:
    """Rows on which a verifier can be wrong: alike, tied, certain or disjoint, with zeros in target or draft."""
    p = irregular(100, vocab)
    models = [("unlike", p, irregular(200, vocab)), ("p = q", p, p),
              ("zeros in p", irregular(101, vocab, 2), irregular(201, vocab)),
              ("zeros in q", p, irregular(202, vocab, 2)),
              ("zeros in both", irregular(103, vocab, 2), irregular(203, vocab, 2)),
              ("ties", irregular(104, vocab, 0, 2), irregular(204, vocab, 0, 1)),
              ("disjoint", _certain(vocab, 0, 0), _certain(vocab, 1, 1)),
              ("certain target", _certain(vocab, 0, 1), irregular(205, vocab))]
    if vocab > 2:
        models += [("holes in both", _masked(p, 2), _masked(irregular(206, vocab), 2)),
                   ("a flat target and a sharp draft", irregular(112, vocab, 0, 2), _sharp(irregular(212, vocab), vocab))]
    return [TinyModel(f"{name}, vocabulary {vocab}", vocab, target, draft) for name, target, draft in models]


def deep_model(depth: int) -> TinyModel:
    """Target and draft agree and are certain above `depth`."""
    return TinyModel(f"after {depth} certain tokens", 2, _deep(irregular(107, 2), depth), _deep(irregular(207, 2), depth))


# ---- rounds ----

@dataclasses.dataclass
class Coverage:
    """What a check exercised: it holds for that, and for nothing beyond it. str() says it in words."""
    n_outcomes: int = 0
    n_models: int = 0
    vocabulary: int = 0
    depth: int = 0
    draws: int = 0
    limit: int = -1   #: room for drafted tokens up to which every outcome of a policy was run
    budget: int = -1  #: max_nodes of the policy
    largest_difference: float = 0.0

    def __str__(self) -> str:
        words = (f"every outcome: {self.n_outcomes} of {self.n_models} models of up to {self.vocabulary} tokens, trees to "
                 f"depth {self.depth}, up to {self.draws} draws at a node")
        if self.budget >= 0:
            words += f", room for 0 to {self.limit} drafted tokens of the budget of {self.budget}"
        return f"{words}; largest difference {self.largest_difference:.3g}"


class _TooMany(Exception):
    pass


def _require_some(is_any: bool, max_outcomes: int, of: str) -> None:
    """Checks that something was run: a check of nothing is none."""
    if not is_any:
        raise OptionError(f"max_outcomes is {max_outcomes}, which is too few for the outcomes of {of}.")


class _Round:
    """A tree that has grown over a model, with the draft's rows and the target's."""

    def __init__(self, model: TinyModel, capacity: int):
        self.model, self.tree = model, Tree(max(capacity, 1))
        self.draft_rows: list[np.ndarray] = []
        self.row_of: list[int] = []

    def path(self, node: int) -> tuple[int, ...]:
        return tuple(int(self.tree.token[u]) for u in self.tree.path(node)[1:])

    def begin(self, limit: int) -> None:
        self.tree.reset(0, limit)
        self.draft_rows, self.row_of = [], []

    def ask(self, nodes: Sequence[int]) -> None:
        self.row_of += [-1] * (self.tree.n_nodes - len(self.row_of))
        for u in nodes:
            if self.row_of[u] >= 0:
                raise LawError(f"the policy asks about node {u} twice.")
            if u and self.row_of[self.tree.parent[u]] < 0:
                raise LawError(f"the policy asks about node {u} before its parent, node {self.tree.parent[u]}.")
            self.row_of[u] = len(self.draft_rows)
            self.draft_rows.append(self.model.draft(self.path(u)))

    def row(self, node: int) -> np.ndarray:
        at = self.row_of[node] if 0 <= node < len(self.row_of) else -1
        if at < 0:
            raise InputError(f"there is no row of node {node}: the draft was not asked about it.")
        return self.draft_rows[at].copy()

    def end(self, was: Sequence[int] = ()) -> None:
        if was:
            self.row_of = [self.row_of[w] if 0 <= w < len(self.row_of) else -1 for w in was]
        self.row_of += [-1] * (self.tree.n_nodes - len(self.row_of))
        tree = self.tree
        for u in range(1, tree.n_nodes):
            if not 0 <= tree.token[u] < self.model.vocab:
                raise LawError(f"the policy drafts token {tree.token[u]} of a vocabulary of {self.model.vocab}.")
            row = self.row(int(tree.parent[u]))
            p = row[tree.token[u]]
            if not p > 0:
                raise LawError(f"the policy drafts token {tree.token[u]} after node {tree.parent[u]}, which its row gives "
                               "probability 0.")
            if abs(tree.log_prob[u] - math.log(p)) > 1e-5 * (1 - math.log(p)):
                raise LawError(f"the policy says that token {tree.token[u]} after node {tree.parent[u]} has "
                               f"log-probability {tree.log_prob[u]:.6g}; its row says {math.log(p):.6g}.")


class _Watched:
    """The enumerator of a policy's draws, which notes what was picked at each node, to be compared with the tree."""

    def __init__(self, by: Enumerator):
        self.by, self.picks = by, {}
        self.accept, self.index = by.accept, by.index

    def pick(self, weights: np.ndarray, node: int, slot: int, use: int) -> int:
        token = self.by.pick(weights)
        if token >= 0:
            self.picks.setdefault(node, []).append((token, weights))
        return token

    def require_kept(self, round_: _Round, distinct: bool) -> None:
        tree = round_.tree
        for u in range(tree.n_nodes):
            drawn = [int(tree.token[v]) for v in tree.draws(u)]
            picked = [t for t, w in self.picks.get(u, []) if len(w) == round_.model.vocab]
            if drawn != picked[:len(drawn)] or (len(drawn) < len(picked) and tree.n_draws < round_.limit):
                raise LawError(f"the policy picks the tokens {picked} at node {u}, and drafts {drawn}: draws are kept "
                               "whatever they are, in the order in which they were made.")
            for i, (_, weights) in enumerate(self.picks.get(u, [])[:len(drawn)]):
                expected = round_.row(u)
                if distinct:
                    expected[drawn[:i]] = 0
                total, sum_of = weights.sum(), expected.sum()
                if total <= 0 or np.abs(weights / total - expected / sum_of).max() > 1e-9:
                    raise LawError(f"the policy draws at node {u} from other weights than the draft's row"
                                   f"{' without the tokens drawn before' if distinct else ''}.")


class _Grower:
    """Grows the tree of a round in every possible way."""

    def __init__(self, policy: Any, regimes: Sequence[str]):
        self.policy, self.regimes = policy, regimes
        self.is_own = isinstance(policy, Policy) and policy.own is not None
        self.capacity = policy.max_asked if isinstance(policy, Policy) else policy.max_nodes

    def grow(self, round_: _Round, limit: int, by: Enumerator) -> None:
        round_.limit = limit
        round_.begin(limit)
        if isinstance(self.policy, Policy) and not self.is_own:
            return self._grow_library(round_, by)
        own = copy.deepcopy(self.policy.own if self.is_own else self.policy)
        watched = _Watched(by)
        keys, tree = _Keys(watched, "policy"), round_.tree
        wanted = [] if limit == 0 else parts.wanted_in(tree, own.begin(tree)).tolist()
        if wanted and wanted != [0]:
            raise LawError(f"the policy asks about the nodes {wanted} first; it must be the root, alone.")
        while wanted:
            round_.ask(wanted)
            chance, rows = Chance(keys.accept, keys.pick, keys.index, True), RowsOf(round_.row)
            wanted = parts.wanted_in(tree, own.take(tree, rows, chance)).tolist()
            chance._end(), rows._end()
            if tree.n_draws >= limit:
                break
        round_.end()
        if tree.n_draws > own.max_nodes:
            raise LawError(f"the policy keeps {tree.n_draws} drafted tokens; its max_nodes is {own.max_nodes}.")
        if "deterministic" in self.regimes:
            return self._require_deterministic(round_)
        watched.require_kept(round_, "iid" not in self.regimes and "without_replacement" in self.regimes)

    def _grow_library(self, round_: _Round, by: Enumerator) -> None:
        decided = _Decided(by)
        wanted = self.policy.begin(round_.tree)
        while wanted:
            round_.ask(wanted)
            wanted = self.policy._decided(round_.tree, np.stack(round_.draft_rows), round_.row_of, decided.decisions)
        round_.end(self.policy.was())

    @staticmethod
    def _require_deterministic(round_: _Round) -> None:
        tree = round_.tree
        for u in range(tree.n_nodes):
            drawn = [int(tree.token[v]) for v in tree.draws(u)]
            if not drawn:
                continue
            row = round_.row(u)
            left = np.delete(row, drawn)
            if len(set(drawn)) < len(drawn) or (len(left) and left.max() > row[drawn].min()):
                raise LawError(f"the policy drafts the tokens {drawn} at node {u}, which are not the most probable ones: "
                               "its regime is deterministic.")


class _Shape:
    """A policy that draws a given number of tokens at each node of each depth."""

    def __init__(self, regime: str, draws: Sequence[int], uneven: bool = False):
        self.regime, self.draws, self.uneven = regime, draws, uneven
        self.max_nodes, nodes = 0, 1
        for n in draws:
            nodes *= n
            self.max_nodes += nodes

    capacity = property(lambda self: self.max_nodes)

    def __str__(self) -> str:
        return f"draws at each node of the depths from 0 on: {', '.join(map(str, self.draws))}" + (
            ", less at some nodes" * self.uneven)

    def grow(self, round_: _Round, limit: int, by: Enumerator) -> None:
        round_.limit = limit
        round_.begin(limit)
        tree, level = round_.tree, [0]
        for n in self.draws:
            round_.ask(level)
            below = []
            for u in level:
                count = (n + int(tree.token[u])) % (n + 1) if self.uneven and u else n
                row = round_.row(u)
                left = row.copy()
                for _ in range(count):
                    if self.regime == "deterministic":
                        t = int(np.argmax(left)) if left.max() > 0 else -1
                    else:
                        t = by.pick(left)
                    if t < 0:
                        break
                    before = tree.n_nodes
                    child = tree.draw(u, t, math.log(row[t]))
                    if self.regime != "iid":
                        left[t] = 0
                    if child >= before:
                        below.append(child)
            level = below
            if not level:
                break
        round_.end()


def _verified(verifier: Any, round_: _Round, by: Enumerator) -> tuple[int, int]:
    tree, model = round_.tree, round_.model
    if isinstance(verifier, Verifier) and verifier.own is None:
        target = np.stack([model.target(round_.path(u)) for u in range(tree.n_nodes)])
        draft = np.stack(round_.draft_rows) if round_.draft_rows else np.zeros((0, model.vocab))
        verdict = verifier._decided(tree, draft, round_.row_of, target, _Decided(by).decisions)
    else:
        own = verifier.own if isinstance(verifier, Verifier) else verifier
        keys = _Keys(by, "verifier")
        draft, target = RowsOf(round_.row), RowsOf(lambda u: model.target(round_.path(u)).copy())
        chance = Chance(keys.accept, keys.pick, keys.index, False)
        verdict = parts.verdict_in(tree, own.verify(tree, draft, target, chance))
        for lent in (draft, target, chance):
            lent._end()
    if not 0 <= verdict[1] < model.vocab:
        raise LawError(f"the verifier adds token {verdict[1]} of a vocabulary of {model.vocab}.")
    return verdict


def _largest_difference(emitted: dict[tuple[int, ...], float], row: Row, vocab: int) -> tuple[tuple[int, ...], float, float]:
    """The text whose probability differs the most between the target and texts that are emitted, and which the target
    then continues; with the probability of each."""
    worst: tuple[tuple[int, ...], float, float] = ((), sum(emitted.values()), 1.0)

    def compare(text: tuple[int, ...], texts: list[tuple[tuple[int, ...], float]], continued: float, written: float,
                expected: float) -> None:
        nonlocal worst
        if not abs(written - expected) <= abs(worst[1] - worst[2]):
            worst = (text, written, expected)
        n = len(text)
        continued += sum(p for t, p in texts if len(t) == n)
        longer = [(t, p) for t, p in texts if len(t) > n]
        if not longer:
            return
        p_next = row(text)
        for token in range(vocab):
            here = [(t, p) for t, p in longer if t[n] == token]
            on = continued * float(p_next[token])
            compare((*text, token), here, on, on + sum(p for _, p in here), expected * float(p_next[token]))
    compare((), list(emitted.items()), 0.0, worst[1], 1.0)
    return worst


def _run(model: TinyModel, grower: Any, verifier: Any, limit: int, most: int, told: str, tolerance: float,
         covered: Coverage) -> None:
    """Runs every outcome over a model. Raises _TooMany beyond `most` outcomes, with nothing counted."""
    emitted: dict[tuple[int, ...], float] = {}
    round_, n, depth, draws = _Round(model, grower.capacity), 0, 0, 0
    drafts = Enumerator()
    while drafts.more():
        grower.grow(round_, limit, drafts)
        weight, tree = drafts.probability(), round_.tree
        depth = max(depth, int(tree.depth.max()))
        draws = max([draws] + [len(tree.draws(u)) for u in range(tree.n_nodes)])
        verdicts = Enumerator()
        while verdicts.more():
            n += 1
            if n > most:
                raise _TooMany
            accepted, token = _verified(verifier, round_, verdicts)
            text = (*round_.path(accepted), token)
            emitted[text] = emitted.get(text, 0.0) + weight * verdicts.probability()
    text, written, expected = _largest_difference(emitted, model.target, model.vocab)
    off = abs(written - expected)
    if not off <= tolerance:
        raise LawError(f"{told}: over the tiny model \"{model.name}\" it writes the tokens {' '.join(map(str, text))} with "
                       f"probability {written:.6g}; the target alone writes them with {expected:.6g}.")
    covered.n_outcomes += n
    covered.depth, covered.draws = max(covered.depth, depth), max(covered.draws, draws)
    covered.vocabulary = max(covered.vocabulary, model.vocab)
    covered.largest_difference = max(covered.largest_difference, off)


_WORDS = {"single_path": "a single path", "iid": "drawn independently (iid)",
          "without_replacement": "drawn without replacement", "deterministic": "of the most probable tokens"}


def _argmax_only(model: TinyModel) -> TinyModel:
    return dataclasses.replace(model, target=lambda path: np.eye(model.vocab)[int(np.argmax(model.target(path)))])


def check_verifier(verifier: Verifier | OwnVerifier | str, max_outcomes: int = 4000, tolerance: float = 1e-9) -> Coverage:
    """Proves a verifier lossless over trees of each regime that it names: paths, several draws at a node, uneven trees,
    deep ones. A tree of more than max_outcomes outcomes over a model is left out.

    Raises LawError with the smallest of these trees on which the verifier is biased, the text and both probabilities,
    OptionError if max_outcomes leaves every tree out."""
    verifier = Verifier(verifier) if isinstance(verifier, str) else verifier
    lossless = verifier.lossless
    regimes = parts._names_of(parts._regimes_in(lossless))
    sharp = _argmax_only if isinstance(verifier, Verifier) and verifier.own is None and _is_greedy(verifier) else (
        lambda model: model)
    covered, names = Coverage(), set()
    for regime in ("single_path", "iid", "without_replacement", "deterministic"):
        if regime not in regimes:
            continue
        drawn_as = "iid" if regime == "single_path" else regime
        trees = [((1,), False, 4), ((1, 1), False, 3), ((1, 1, 1), False, 2)]
        if regime != "single_path":
            trees += [((2,), False, 3), ((3,), False, 2), ((3,), False, 3), ((2, 1), True, 3), ((1, 2), False, 2)]
        cases = [(shape, uneven, model) for shape, uneven, most in trees for vocab in (2, 3, 4) if vocab <= most
                 for model in tiny_models(vocab)]
        cases += [((1,) * (depth + 2), False, deep_model(depth)) for depth in (4, 9)]
        for draws, uneven, model in cases:
            shape = _Shape(drawn_as, draws, uneven)
            told = f"the verifier is not lossless for trees that are {_WORDS[regime]}, with {shape}"
            try:
                _run(sharp(model), shape, verifier, shape.max_nodes, max_outcomes, told, tolerance, covered)
                names.add(model.name)
            except _TooMany:
                continue
    _require_some(bool(names), max_outcomes, "the smallest tree over the smallest model")
    covered.n_models = len(names)
    return covered


def _is_greedy(verifier: Verifier) -> bool:
    """Whether a verifier of the library is for temperature 0 alone: it takes no logits at another one."""
    tree = Tree(1)
    try:
        verifier.verify(tree, np.zeros((1, 2), np.float32), np.zeros((0, 2), np.float32), sampling={"temperature": 1.0})
    except OptionError:
        return True
    return False


def check_lossless(policy: Policy | TreePolicy | str, verifier: Verifier | OwnVerifier | str,
                   max_outcomes: int = 4000, tolerance: float = 1e-9) -> Coverage:
    """Proves a policy and a verifier: every outcome of a round over models of up to 4 tokens must write what the
    target alone writes, with all the room that the policy's budget asks for, as far as there are not more than
    max_outcomes outcomes over a model, and with every smaller one. Draws of a policy are compared with the draft's rows.
    A verifier of your own is first checked alone, by check_verifier().

    Either part is a name, a part of the library with options, or an object of your own.

    Returns what was exercised. Raises LawError with what is wrong, OptionError if the regimes do not fit or
    max_outcomes is too few even without drafted tokens."""
    policy = Policy(policy) if isinstance(policy, str) else policy
    verifier = Verifier(verifier) if isinstance(verifier, str) else verifier
    is_own = not isinstance(verifier, Verifier) or verifier.own is not None
    regimes = parts._names_of(parts._regimes_in(policy.sampling))
    if not set(regimes) & set(parts._names_of(parts._regimes_in(verifier.lossless))):
        raise OptionError(f"the verifier is lossless for {', '.join(verifier.lossless)}, but the policy's trees are "
                          f"{', '.join(regimes)}.")
    covered = check_verifier(verifier, max_outcomes, tolerance) if is_own else Coverage()
    grower = _Grower(policy, regimes)
    is_greedy = not is_own and _is_greedy(verifier)
    models = [m for vocab in (2, 3, 4) for m in tiny_models(vocab)]
    if is_greedy:
        models = [_argmax_only(m) for m in models]
    covered.budget = policy.max_nodes
    for limit in range(policy.max_nodes + 1):
        told = f"the pair is not lossless, with room for {limit} drafted tokens"
        try:
            for model in models:
                _run(model, grower, verifier, limit if limit < policy.max_nodes else grower.capacity, max_outcomes, told,
                     tolerance, covered)
        except _TooMany:
            break
        covered.limit = limit
    _require_some(covered.limit >= 0, max_outcomes, "rounds without drafted tokens over all models")
    covered.n_models = max(covered.n_models, len(models))
    return covered


# ---- samplers ----

class Uniform:
    """A number uniform in [0, 1) of which only comparisons are decided: each comparison with a number narrows the range
    in which it lies, with the exact probability. It may be multiplied by numbers and added to them first."""

    __slots__ = ("_at", "_scale", "_shift")
    __array_ufunc__ = None  # numpy leaves comparisons to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, by: Enumerator | None, at: list | None = None, scale: float = 1.0, shift: float = 0.0):
        self._at = [by, 0.0, 1.0] if at is None else at  # shared by all that are made of this number
        self._scale, self._shift = scale, shift

    def _below(self, bound: Any) -> Any:
        """Whether scale * u + shift < bound."""
        if isinstance(bound, np.ndarray):
            return np.array([self._below(b) for b in bound.ravel()], bool).reshape(bound.shape)
        bound = float(bound)
        if math.isnan(bound) or self._scale == 0:
            return self._shift < bound
        x = (bound - self._shift) / self._scale
        by, low, high = self._at
        is_less = x >= high or (x > low and by.below((x - low) / (high - low)))
        if low < x < high:
            self._at[1], self._at[2] = (low, x) if is_less else (x, high)
        return is_less if self._scale > 0 else not is_less

    def __lt__(self, other: Any) -> Any:
        return self._below(other)

    __le__ = __lt__

    def __ge__(self, other: Any) -> Any:
        return np.logical_not(self._below(other)) if isinstance(other, np.ndarray) else not self._below(other)

    __gt__ = __ge__

    def _made(self, scale: float, shift: float) -> Uniform:
        return Uniform(None, self._at, scale, shift)

    def _mapped(self, other: Any, f: Callable[[float], Uniform]) -> Any:
        if isinstance(other, np.ndarray):
            made = np.empty(other.shape, object)
            for i, x in np.ndenumerate(other):
                made[i] = f(float(x))
            return made
        return f(float(other))

    def __mul__(self, other: Any) -> Any:
        return self._mapped(other, lambda x: self._made(self._scale * x, self._shift * x))

    def __add__(self, other: Any) -> Any:
        return self._mapped(other, lambda x: self._made(self._scale, self._shift + x))

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return self._made(-self._scale, -self._shift) + other

    def __truediv__(self, other: Any) -> Any:
        return self * (1 / other)

    __rmul__, __radd__ = __mul__, __add__

    def __float__(self) -> float:
        raise TypeError("an enumerated uniform number has no value: compare it with numbers, times or plus numbers. For a "
                        "sampler that needs values or a generator, use draw_lossless().")

    def __bool__(self) -> bool:
        return True


class Uniforms:
    """The uniform numbers of a sampler: uniforms[i], slices of them (a numpy array of objects), next(uniforms)."""

    def __init__(self, by: Enumerator):
        self._by, self._made, self._next = by, {}, 0

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            if i.stop is None:
                raise IndexError("a slice of the uniform numbers needs an end: there are as many as are asked for.")
            numbers = range(i.start or 0, i.stop, i.step or 1)
            made = np.empty(len(numbers), object)
            for k, j in enumerate(numbers):
                made[k] = self[j]
            return made
        if int(i) < 0:
            raise IndexError("the uniform numbers have no end to count from.")
        if int(i) not in self._made:
            self._made[int(i)] = Uniform(self._by)
        return self._made[int(i)]

    def __iter__(self) -> Iterator[Uniform]:
        return self

    def __next__(self) -> Uniform:
        self._next += 1
        return self[self._next - 1]


Sampler = Callable[[np.ndarray, np.ndarray, np.ndarray, Any], Sequence[int]]


def _tokens_of(answer: Any, draws: Sequence[int], vocab: int) -> list[int]:
    try:
        tokens = [int(t) for t in answer]
    except (TypeError, ValueError):
        raise TypeError(f"a sampler returns the tokens that are written, a list of whole numbers; here it is "
                        f"{answer!r}.") from None
    while tokens and tokens[-1] < 0:  # padding of engines
        tokens.pop()
    if not 1 <= len(tokens) <= len(draws) + 1 or tokens[:-1] != list(draws[:len(tokens) - 1]) or tokens[-1] >= vocab:
        raise LawError(f"the sampler writes the tokens {tokens} where {list(draws)} were drafted: it must write some of the "
                       f"first of them, and one token more, of a vocabulary of {vocab}.")
    return tokens


class _Path:
    """One path of n tokens drawn from the draft, or its most probable tokens (deterministic)."""

    def __init__(self, n: int, regime: str):
        self.n, self.regime = n, regime

    def drawn(self, model: TinyModel, by: Any) -> tuple[int, ...]:
        path: tuple[int, ...] = ()
        for _ in range(self.n):
            row = model.draft(path)
            path += (int(np.argmax(row)) if self.regime == "deterministic" else by.pick(row),)
        return path


def _rows(row: Row, path: tuple[int, ...], n: int, dtype: Any) -> np.ndarray:
    return np.stack([row(path[:i]) for i in range(n)]).astype(dtype) if n else np.zeros((0, len(row(()))), dtype)


def check_sampler(sampler: Sampler, regime: str = "iid", max_outcomes: int = 20000, tolerance: float = 1e-9) -> Coverage:
    """Proves a rejection sampler of one path: every outcome of the draft's draws and of the sampler's comparisons of
    uniform numbers is run with its exact probability, over paths of 1 to 3 tokens and deeper ones.

    sampler(target_rows, draft_rows, draws, uniforms) -> tokens
      target_rows  float64 [n + 1, vocab]: the target's distribution after 0, 1, .. n drafted tokens
      draft_rows   float64 [n, vocab]: the distribution that each drafted token was drawn from
      draws        int64 [n]: the drafted tokens
      uniforms     numbers uniform in [0, 1) that may be compared: uniforms[i], uniforms[:k], next(uniforms)
      tokens       the accepted ones of the drafted tokens, and one more; entries below 0 at the end are left out
    regime: how the tokens are drafted: iid, drawn from draft_rows, or deterministic, the most probable ones.

    Raises LawError with the smallest case, the text and both probabilities, OptionError if max_outcomes leaves every
    path out."""
    if regime not in ("iid", "deterministic"):
        raise OptionError(f"regime must be iid or deterministic, but is {regime!r}.")
    covered, names = Coverage(draws=1), set()
    cases = [(n, model) for n, most in ((1, 4), (2, 3), (3, 2)) for vocab in (2, 3, 4) if vocab <= most
             for model in tiny_models(vocab)] + [(6, deep_model(4))]
    for n, model in cases:
        emitted: dict[tuple[int, ...], float] = {}
        path, drafts, n_run, too_many = _Path(n, regime), Enumerator(), 0, False
        while not too_many and drafts.more():
            draws = path.drawn(model, drafts)
            weight, by = drafts.probability(), Enumerator()
            while by.more():
                n_run += 1
                if too_many := n_run > max_outcomes:
                    break
                answer = sampler(_rows(model.target, draws, n + 1, np.float64), _rows(model.draft, draws, n, np.float64),
                                 np.array(draws, np.int64), Uniforms(by))
                text = tuple(_tokens_of(answer, draws, model.vocab))
                emitted[text] = emitted.get(text, 0.0) + weight * by.probability()
        if too_many:
            continue
        text, written, expected = _largest_difference(emitted, model.target, model.vocab)
        if not abs(written - expected) <= tolerance:
            raise LawError(f"the sampler is not lossless: with {n} drafted token{'s' * (n > 1)}, over the tiny model "
                           f"\"{model.name}\", it writes the tokens {' '.join(map(str, text))} with probability "
                           f"{written:.6g}; the target alone writes them with {expected:.6g}.")
        names.add(model.name)
        covered.n_outcomes += n_run
        covered.depth, covered.vocabulary = max(covered.depth, n), max(covered.vocabulary, model.vocab)
        covered.largest_difference = max(covered.largest_difference, abs(written - expected))
    _require_some(bool(names), max_outcomes, "the shortest path over the smallest model")
    covered.n_models = len(names)
    return covered


@dataclasses.dataclass
class DrawnCoverage:
    """What a check by drawing exercised: no proof, but a test."""
    n_rounds: int = 0
    n_models: int = 0
    largest_z: float = 0.0

    def __str__(self) -> str:
        return f"drawn: {self.n_rounds} rounds over {self.n_models} models; counts within {self.largest_z:.2f} standard errors"


class _Drawn:
    """Draws by a generator, with the members of Enumerator."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def pick(self, weights: np.ndarray) -> int:
        return int(self._random.choice(len(weights), p=weights / weights.sum()))


def draw_lossless(sampler: Callable[[np.ndarray, np.ndarray, np.ndarray], Sequence[int]], n_rounds: int = 2000,
                  regime: str = "iid", seed: int = 1, largest_z: float = 5.0, dtype: Any = np.float32,
                  models: Sequence[tuple[int, TinyModel]] | None = None) -> DrawnCoverage:
    """Tests a sampler that makes its own random numbers: sampler(target_rows, draft_rows, draws) -> tokens, as for
    check_sampler(), is run n_rounds times over each model. How often each text begins must agree with the target's exact
    probability: within largest_z standard errors.

    Raises LawError with the text, both shares and the deviation. 5 standard errors are met by chance in one of 10^6
    counts."""
    covered, by = DrawnCoverage(), _Drawn(seed)
    for n, model in models if models is not None else [(n, m) for n, v in ((1, 3), (2, 3)) for m in tiny_models(v)]:
        path, counts = _Path(n, regime), {}
        reached: dict[tuple[int, ...], int] = {}
        for _ in range(n_rounds):
            draws = path.drawn(model, by)
            answer = sampler(_rows(model.target, draws, n + 1, dtype), _rows(model.draft, draws, n, dtype),
                             np.array(draws, np.int64))
            text = tuple(_tokens_of(answer, draws, model.vocab))
            for i in range(len(text)):
                reached[text[:i]] = reached.get(text[:i], 0) + 1
                counts[text[:i + 1]] = counts.get(text[:i + 1], 0) + 1
        # After each beginning, the next token is the target's, whatever led there.
        for before, n_here in reached.items():
            for token, p in enumerate(model.target(before)):
                count = counts.get((*before, token), 0)
                z = abs(count - n_here * p) / math.sqrt(n_here * p * (1 - p) + 0.25)
                covered.largest_z = max(covered.largest_z, z)
                if z > largest_z:
                    raise LawError(
                        f"the sampler is not lossless: with {n} drafted token{'s' * (n > 1)}, over the tiny model "
                        f"\"{model.name}\", token {token} follows {' '.join(map(str, before)) or 'the prompt'} in {count} "
                        f"of {n_here} rounds, {100 * count / n_here:.1f} %; the target writes it with {100 * p:.1f} %. "
                        f"That is off by {z:.1f} standard errors.")
        covered.n_rounds += n_rounds
        covered.n_models += 1
    return covered
