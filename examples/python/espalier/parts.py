# SPDX-License-Identifier: BSL-1.0
"""Trees, policies, verifiers, and the rows of passes."""
from __future__ import annotations

import copy
import ctypes as c
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np

from . import _library as l
from ._library import InputError, OptionError, call, lib

_REGIMES = ("deterministic", "iid", "without_replacement", "single_path")
_ORDERS = ("insertion", "breadth-first", "depth-first", "heavy-path")
_PURPOSES = {"draft": 0, "accept": 1, "residual": 2, "select": 3}


def _regimes_in(names: str | Iterable[str]) -> int:
    bits = 0
    for name in [names] if isinstance(names, str) else names:
        if name not in _REGIMES:
            raise OptionError(f"a regime is one of {', '.join(_REGIMES)}, but one is {name!r}.")
        bits |= 1 << _REGIMES.index(name)
    return bits


def _names_of(bits: int) -> tuple[str, ...]:
    return tuple(name for i, name in enumerate(_REGIMES) if bits >> i & 1)


def _words(options: dict[str, Any]) -> bytes:
    def word(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return ",".join(word(each) for each in value)
        return ("off", "on")[value] if isinstance(value, bool) else str(value)
    return " ".join(f"{name}={word(value)}" for name, value in options.items()).encode()


def _named(words: str, options: dict[str, Any]) -> tuple[bytes, bytes]:
    """Returns the name of a part, and its options: those of the words after the name, then those by keyword."""
    name, _, rest = words.partition(" ")
    return name.encode(), b" ".join(part for part in (rest.encode(), _words(options)) if part)


class Tree:
    """A draft tree. Node 0 is the root, the last token of the text; parent[u] < u. A draw is one token that was drawn at
    a node. A token that was drawn there before gets no second node: it has one node and two draws."""

    def __init__(self, capacity: int):
        """Makes a tree with room for this many draws."""
        self._handle, self._owns, self._cache = c.c_void_p(), True, None
        call(lib.espalier_tree_create(capacity, c.byref(self._handle)))
        self.reset(0)

    @classmethod
    def _lent(cls, handle: int) -> Tree:
        tree = cls.__new__(cls)
        tree._handle, tree._owns, tree._cache = c.c_void_p(handle), False, None
        return tree

    def _end(self) -> None:
        self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_owns", False) and self._handle:
            lib.espalier_tree_destroy(self._handle)

    @property
    def handle(self) -> c.c_void_p:
        """The tree of the C interface."""
        if self._handle is None:
            raise InputError("the tree was lent for one call, which is over: copy what you keep.")
        return self._handle

    def reset(self, root: int, limit: int = -1) -> None:
        """Begins a round: the tree then has no node but the root, and takes at most `limit` draws, or, if limit is below
        0, as many as it can hold."""
        self._cache = None
        call(lib.espalier_tree_reset(self.handle, root, limit))

    def draw(self, parent: int, token: int, log_prob: float) -> int:
        """Records a draw at a node, with its log-probability under the draft. Returns the child; -1 if the tree is
        full."""
        node = c.c_int32()
        self._cache = None
        call(lib.espalier_tree_draw(self.handle, parent, token, log_prob, c.byref(node)))
        return node.value

    def _arrays(self) -> l.TreeArrays:
        handle = self.handle
        if self._cache is None:
            shown = l.TreeArrays(c.sizeof(l.TreeArrays))
            call(lib.espalier_tree_read(handle, c.byref(shown)))
            self._cache = {"arrays": shown}
        return self._cache["arrays"]

    def _array(self, name: str) -> np.ndarray:
        shown = self._arrays()
        if name not in self._cache:
            n = shown.n_draws if name in ("next_draw", "drawn_node") else shown.n_nodes
            self._cache[name] = l.copied(getattr(shown, name), n, np.float32 if name == "log_prob" else np.int32)
        return self._cache[name]

    n_nodes = property(lambda self: len(self._array("token")), doc="Number of nodes, root included.")
    n_draws = property(lambda self: len(self._array("drawn_node")), doc="Number of draws.")
    token = property(lambda self: self._array("token"), doc="int32 [n_nodes]")
    parent = property(lambda self: self._array("parent"), doc="int32 [n_nodes]; -1 for the root")
    depth = property(lambda self: self._array("depth"), doc="int32 [n_nodes]; 0 for the root")
    log_prob = property(lambda self: self._array("log_prob"), doc="float32 [n_nodes]: under the draft")
    drawn = property(lambda self: self._array("drawn_node"), doc="int32 [n_draws]: the child that each draw chose")

    def _node(self, node: int) -> int:
        if not 0 <= node < self.n_nodes:
            raise InputError(f"there is no node {node}; the tree has the nodes 0 to {self.n_nodes - 1}.")
        return int(node)

    def draws(self, node: int) -> list[int]:
        """The children that the draws at a node chose, in order: a child comes once for each draw."""
        made, draw = [], int(self._array("first_draw")[self._node(node)])
        while draw >= 0:
            made.append(int(self._array("drawn_node")[draw]))
            draw = int(self._array("next_draw")[draw])
        return made

    def find_child(self, node: int, token: int) -> int:
        """Returns the child of a node that has this token; -1 if there is none."""
        return next((u for u in self.draws(node) if self.token[u] == token), -1)

    def path(self, node: int) -> list[int]:
        """The nodes from the root to a node."""
        nodes = [self._node(node)]
        while nodes[0] != 0:
            nodes.insert(0, int(self.parent[nodes[0]]))
        return nodes

    def committed(self, accepted: int, token: int) -> list[int]:
        """The tokens that a verdict commits: those of the path below the root, then its own."""
        return [int(self.token[u]) for u in self.path(accepted)[1:]] + [int(token)]


class Chance:
    """The only source of randomness of a round. An own part may use it while it is called, not after. A decision has a
    key, a node and a slot; two decisions of a round with equal keys get the same random number. A slot that is not given
    is one of its own."""

    def __init__(self, accept: Callable, pick: Callable, index: Callable, drafts: bool):
        self._by, self._drafts, self._made = (accept, pick, index), drafts, itertools.count(1 << 20)

    def _end(self) -> None:
        self._by = None

    def _decide(self, which: int, what: tuple, node: int, slot: int | None, purpose: str) -> int:
        if self._by is None:
            raise InputError("the chance was lent for one call, which is over.")
        use = _PURPOSES["draft" if self._drafts else purpose]
        return self._by[which](*what, int(node), next(self._made) if slot is None else int(slot), use)

    def accept(self, p: float, q: float, node: int = 0, slot: int | None = None) -> bool:
        """True with probability min(1, p / q)."""
        return bool(self._decide(0, (float(p), float(q)), node, slot, "accept"))

    def pick(self, weights: Any, node: int = 0, slot: int | None = None) -> int:
        """i with probability weights[i] / sum(weights); -1 if all are 0."""
        return self._decide(1, (np.ascontiguousarray(weights, np.float64),), node, slot, "residual")

    def index(self, n: int, node: int = 0, slot: int | None = None) -> int:
        """A whole number from 0 to n - 1, each as likely."""
        if n < 1:
            raise InputError(f"index() chooses among {n} numbers, but needs one at least.")
        return self._decide(2, (int(n),), node, slot, "select")


class RowsOf:
    """Rows over the vocabulary, found by node: rows[u] is the row after node u, [vocab]. An own part may use them while
    it is called, not after."""

    def __init__(self, row: Callable[[int], np.ndarray], argmax: Callable[[int], int] | None = None):
        self._row, self._argmax = row, argmax

    def _end(self) -> None:
        self._row = self._argmax = None

    def __getitem__(self, node: int) -> np.ndarray:
        if self._row is None:
            raise InputError("the rows were lent for one call, which is over: copy what you keep.")
        return self._row(int(node))

    def argmax(self, node: int) -> int:
        """The target's most probable token after a node; the lower of equal ones."""
        return self._argmax(int(node)) if self._argmax else int(np.argmax(self[node]))


def draw(tree: Tree, rows: RowsOf, node: int, chance: Chance, distinct: bool = False) -> int:
    """Draws a token from the row of a node, and records the draw. Returns the child; -1 if the tree is full or nothing is
    left to draw. `distinct`: without the tokens that were drawn there before (the regime without_replacement)."""
    row, before = rows[node], tree.draws(node)
    weights = row
    if distinct:
        weights = row.copy()
        weights[[tree.token[u] for u in before]] = 0
    token = chance.pick(weights, node=node, slot=len(before))
    return -1 if token < 0 else tree.draw(node, token, float(np.log(row[token])))


class TreePolicy:
    """Base of tree policies of your own. A round calls begin(tree), which returns the nodes to ask the draft about ([0],
    the root), then take(tree, rows, chance) until it returns none: it appends nodes by draw(), or by tree.draw() in the
    regime deterministic, and returns the nodes to ask about next. The number of draws must not depend on which tokens
    were drawn. Each text has a copy, made by copy.deepcopy()."""

    #: How the children of a node are chosen: one or more of deterministic, iid, without_replacement, single_path.
    sampling: str | Sequence[str] = "iid"
    #: Drafted tokens of a round at most.
    max_nodes: int = 0

    def begin(self, tree: Tree) -> Iterable[int] | None:
        return [0]

    def take(self, tree: Tree, rows: RowsOf, chance: Chance) -> Iterable[int] | None:
        raise NotImplementedError("a policy needs take(tree, rows, chance).")

    def observe(self, tree: Tree, accepted: int, token: int) -> None:
        """Is told what became of the tree, to learn from it."""


class OwnVerifier:
    """Base of verifiers of your own: verify(tree, draft, target, chance) returns the accepted node and the token after
    it. draft[u] is the row that the children of u were drawn from, target[u] the target's."""

    #: The regimes for which it is lossless.
    lossless: str | Sequence[str] = "single_path"

    def verify(self, tree: Tree, draft: RowsOf, target: RowsOf, chance: Chance) -> tuple[int, int]:
        raise NotImplementedError("a verifier needs verify(tree, draft, target, chance).")


def _ended(function: Callable, *lent: Any) -> Any:
    try:
        return function(*lent)
    finally:
        for one in lent:
            one._end()


def _guarded(function: Callable) -> Callable:
    """A callback for C: keeps the exception for call(), and returns 1."""
    def run(*arguments: Any) -> int:
        try:
            function(*arguments)
            return 0
        except BaseException as error:  # of any kind: it is raised again by call()
            l.thrown.append(error)
            return 1
    return run


def wanted_in(tree: Tree, wanted: Iterable[int] | None) -> np.ndarray:
    """The nodes that a policy of Python wants; -1, which draw() gives where the tree is full, is passed over."""
    try:
        nodes = [int(u) for u in wanted or () if u != -1]
    except (TypeError, ValueError):
        raise TypeError("begin() and take() of a policy return the nodes that are wanted, a list of whole numbers, or "
                        f"None; here it is {wanted!r}.") from None
    for u in nodes:
        if not 0 <= u < tree.n_nodes:
            raise InputError(f"the policy wants node {u}, but the tree has the nodes 0 to {tree.n_nodes - 1}.")
    return np.asarray(nodes, np.int32)


def verdict_in(tree: Tree, verdict: Any) -> tuple[int, int]:
    """The verdict of a verifier of Python."""
    try:
        accepted, token = (int(x) for x in verdict)
    except (TypeError, ValueError):
        raise TypeError(f"verify() returns the accepted node and a token, two whole numbers; here it is {verdict!r}.") from None
    if not 0 <= accepted < tree.n_nodes:
        raise InputError(f"the verifier accepts node {accepted}, but the tree has the nodes 0 to {tree.n_nodes - 1}.")
    return accepted, token


def _lent_chance(handle: int, drafts: bool) -> Chance:
    def pick(weights: np.ndarray, *key: int) -> int:
        return lib.espalier_chance_pick(handle, weights.ctypes.data, len(weights), *key)
    return Chance(lambda p, q, *key: lib.espalier_chance_accept(handle, p, q, *key), pick,
                  lambda n, *key: lib.espalier_chance_index(handle, n, *key), drafts)


def _lent_rows(rows: l.Rows) -> RowsOf:
    row_of = l.copied(rows.row_of, rows.n_nodes, np.int32)

    def row(node: int) -> np.ndarray:
        at = int(row_of[node]) if 0 <= node < len(row_of) else -1
        if at < 0:
            raise InputError(f"there is no row of node {node}: the draft was not asked about it.")
        return l.copied(rows.data + 4 * at * rows.vocab, rows.vocab, np.float32)
    return RowsOf(row)


def _lent_target(handle: int) -> RowsOf:
    def row(node: int) -> np.ndarray:
        data, vocab = c.c_void_p(), c.c_int32()
        call(lib.espalier_target_row(handle, node, c.byref(data), c.byref(vocab)))
        return l.copied(data.value, vocab.value, np.float32)

    def argmax(node: int) -> int:
        token = c.c_int32()
        call(lib.espalier_target_argmax(handle, node, c.byref(token)))
        return token.value
    return RowsOf(row, argmax)


class _Own:
    """The objects of Python behind own parts of C, by number."""
    objects: dict[int, Any] = {}
    _numbers = itertools.count(1)
    _wanted: dict[int, np.ndarray] = {}

    @classmethod
    def add(cls, part: Any) -> int:
        number = next(cls._numbers)
        cls.objects[number] = part
        return number

    @classmethod
    def remove(cls, number: int) -> None:
        cls.objects.pop(number, None)
        cls._wanted.pop(number, None)

    @classmethod
    def give(cls, number: int, tree: Tree, wanted: Any, out: Any, n: Any) -> None:
        nodes = cls._wanted[number] = wanted_in(tree, wanted)  # lives until the next call
        out[0], n[0] = nodes.ctypes.data, len(nodes)


def _begin(user: int, handle: int, out: Any, n: Any) -> None:
    tree = Tree._lent(handle)
    try:
        _Own.give(user, tree, _Own.objects[user].begin(tree), out, n)
    finally:
        tree._end()


def _take(user: int, handle: int, rows: Any, chance: int, out: Any, n: Any) -> None:
    tree, given, lent = Tree._lent(handle), _lent_rows(rows[0]), _lent_chance(chance, True)
    try:
        _Own.give(user, tree, _Own.objects[user].take(tree, given, lent), out, n)
    finally:
        for one in (tree, given, lent):
            one._end()


def _observe(user: int, handle: int, verdict: Any) -> None:
    observe = getattr(_Own.objects[user], "observe", None)
    if observe is not None:
        v = verdict[0]
        _ended(lambda tree: observe(tree, v.accepted, v.token), Tree._lent(handle))


def _copy(user: int) -> int:
    try:
        return _Own.add(copy.deepcopy(_Own.objects[user]))
    except BaseException as error:
        l.thrown.append(error)
        return _Own.add(_Own.objects[user])


def _verify(user: int, handle: int, draft: Any, target: int, chance: int, out: Any) -> None:
    tree, q, p, lent = Tree._lent(handle), _lent_rows(draft[0]), _lent_target(target), _lent_chance(chance, False)
    try:
        out[0].accepted, out[0].token = verdict_in(tree, _Own.objects[user].verify(tree, q, p, lent))
    finally:
        for one in (tree, q, p, lent):
            one._end()


_CALLS = (l.BEGIN(_guarded(_begin)), l.TAKE(_guarded(_take)), l.OBSERVE(_guarded(_observe)), l.COPY(_copy),
          l.DESTROY(_Own.remove), l.VERIFY(_guarded(_verify)))


class Policy:
    """A tree policy of the library, by its name (policies() has them all) and its options, as in Policy("eagle2", budget=12)
    or Policy("eagle2 budget=12"), or one of your own."""

    def __init__(self, name: str | TreePolicy, **options: Any):
        self._handle, self.own = c.c_void_p(), None
        if isinstance(name, str):
            call(lib.espalier_policy_create(*_named(name, options), c.byref(self._handle)))
            return
        if not (hasattr(name, "begin") and hasattr(name, "take")):
            raise TypeError(f"a policy is a name, or an object with begin and take, but is a {type(name).__name__}.")
        self.own = name
        made = l.OwnPolicy(c.sizeof(l.OwnPolicy), _regimes_in(name.sampling), int(name.max_nodes), *_CALLS[:5],
                           _Own.add(name))
        call(lib.espalier_policy_create_own(c.byref(made), c.byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.espalier_policy_destroy(self._handle)

    max_nodes = property(lambda self: lib.espalier_policy_max_nodes(self._handle),
                         doc="Drafted tokens of a round at most.")
    max_asked = property(lambda self: lib.espalier_policy_max_asked(self._handle),
                         doc="Draws that a tree may hold while it grows.")
    sampling = property(lambda self: _names_of(lib.espalier_policy_regimes(self._handle)), doc="The regimes of its trees.")

    def begin(self, tree: Tree) -> list[int]:
        """Begins to grow a tree that was reset. Returns the nodes to ask the draft about: the root, or none."""
        return self._grow(tree, lib.espalier_grow_begin)

    def take(self, tree: Tree, rows: Any, row_of: Sequence[int] | None = None, seed: int = 0, stream: int = 0,
             length: int = 0) -> list[int]:
        """Gives the policy the rows of all nodes that were asked about so far in this round. Returns the nodes whose rows
        it wants next; none once the tree is complete.

        rows    float32 [n_rows, vocab], probabilities, read in place
        row_of  [n_nodes]: the row of each node, -1 if it has none; None: node u has row u
        """
        held = _RowsIn(rows, row_of, "rows", l.FLOAT32)
        key = l.Seed(seed, stream, length)
        return self._grow(tree, lib.espalier_grow_take, c.byref(held.rows), c.byref(key))

    def _decided(self, tree: Tree, rows: np.ndarray, row_of: Sequence[int], decisions: l.Decisions) -> list[int]:
        held = _RowsIn(rows, row_of, "rows", l.FLOAT64)
        return self._grow(tree, lib.espalier_grow_decided, c.byref(held.rows), c.byref(decisions))

    def _grow(self, tree: Tree, function: Callable, *what: Any) -> list[int]:
        wanted, n = c.c_void_p(), c.c_int32()
        tree._cache = None
        call(function(self._handle, tree.handle, *what, c.byref(wanted), c.byref(n)))
        return (c.c_int32 * n.value).from_address(wanted.value)[:] if n.value else []

    def was(self) -> list[int]:
        """Returns, after a tree is complete, the numbers that nodes had before: was()[u] is the number that node u had
        when its row was asked for, -1 if it was not asked about. Empty if the policy has not built its tree anew: then
        no number has changed."""
        was, n = c.c_void_p(), c.c_int32()
        call(lib.espalier_grow_was(self._handle, c.byref(was), c.byref(n)))
        return l.copied(was.value, n.value, np.int32).tolist()

    def observe(self, tree: Tree, accepted: int, token: int) -> None:
        """Tells the policy, which may learn, what became of the tree that it has grown last: once, and as it was grown."""
        call(lib.espalier_policy_observe(self._handle, tree.handle, c.byref(l.Verdict(accepted, token))))


class _RowsIn:
    """Rows of the caller's for a call, and what keeps them alive."""

    def __init__(self, rows: Any, row_of: Sequence[int] | None, what: str, dtypes: tuple[Any, ...]):
        self.array = l.array_in(rows, what, 2, dtypes)
        self._show(l.address_of(self.array), self.array.shape, row_of, what)

    def _show(self, address: int, shape: tuple[int, int], row_of: Sequence[int] | None, what: str) -> None:
        self.row_of = None if row_of is None else l.tokens_in(row_of, f"row_of of {what}")
        if shape[1] == 0:
            raise InputError(f"{what} has rows of no tokens.")
        self.rows = l.Rows(address, *shape, None if self.row_of is None else l.address_of(self.row_of),
                           0 if self.row_of is None else len(self.row_of))


class _CudaRowsIn(_RowsIn):
    """Rows of float32 in the memory of a CUDA device."""

    def __init__(self, rows: Any, row_of: Sequence[int] | None, what: str):
        if not l.is_on_cuda(rows):
            raise InputError(f"{what} is in the host's memory, but the other rows are on a device: they must lie together.")
        self.array, shown = rows, l.cuda_array_in(rows, what)
        self.stream = l.stream_of(rows, shown)
        self._show(shown["data"][0], shown["shape"], row_of, what)


def _grown(policy: Policy, root: int, seed: int, stream: int, length: int) -> Generator:
    """Grows a tree: yields the tokens from below the root to each node that is asked about, is sent their rows, and returns
    what build() returns."""
    tree = Tree(policy.max_asked)
    tree.reset(root)
    rows, n = np.zeros((0, 1), np.float32), 0  # the first n are there
    row_of: list[int] = []
    wanted = policy.begin(tree)
    while wanted:
        row_of += [-1] * (tree.n_nodes - len(row_of))
        made = yield [tree.token[tree.path(u)[1:]].tolist() for u in wanted]
        if n > 0 and made.shape[1] != rows.shape[1]:
            raise InputError(f"the draft gives rows of {made.shape[1]} tokens, but gave rows of {rows.shape[1]} before.")
        if n + len(made) > len(rows):
            rows = np.concatenate([rows[:n], made, np.empty_like(made, shape=(n, made.shape[1]))]) if n else made.copy()
        else:
            rows[n:n + len(made)] = made
        for i, u in enumerate(wanted):
            row_of[u] = n + i
        n += len(made)
        wanted = policy.take(tree, rows[:n], row_of, seed, stream, length)
    if was := policy.was():
        row_of = [row_of[w] if 0 <= w < len(row_of) else -1 for w in was]
    row_of += [-1] * (tree.n_nodes - len(row_of))
    return tree, rows[:n], row_of


def _drafted(draft: Callable[[list[list[int]]], Any], asked: list[list[int]]) -> np.ndarray:
    made = l.array_in(draft(asked), "the draft's answer", 2, l.FLOAT32)
    if len(made) != len(asked):
        raise InputError(f"the draft was asked about {len(asked)} nodes, but gives {len(made)} rows.")
    return made


def build(policy: Policy | str | TreePolicy, root: int, draft: Callable[[list[list[int]]], Any], seed: int = 0,
          stream: int = 0, length: int = 0) -> tuple[Tree, np.ndarray, list[int]]:
    """Grows a tree. draft(paths) is given the tokens from below the root to each node that is asked about, and returns
    their rows, float32 [len(paths), vocab], probabilities.

    Returns the tree, the rows [n_rows, vocab], and the row of each node, -1 if there is none: what verify() takes."""
    growing, made = _grown(policy if isinstance(policy, Policy) else Policy(policy), root, seed, stream, length), None
    while True:
        try:
            made = _drafted(draft, growing.send(made))
        except StopIteration as grown:
            return grown.value


def build_all(policies: Sequence[Policy], texts: Sequence[list[int]], draft: Callable[[list[list[int]]], Any], seed: int = 0,
              streams: Sequence[int] | None = None) -> list[tuple[Tree, np.ndarray, list[int]]]:
    """Grows the trees of several texts beside each other, each by a policy of its own: the root is the last token of the
    text. draft(texts) is given the texts, each continued to a node that is asked about, and returns their rows, float32
    [len(texts), vocab], probabilities. Text i has stream i, or streams[i].

    Returns for each text what build() returns."""
    growing = [_grown(policy, text[-1], seed, i if streams is None else streams[i], len(text))
               for i, (policy, text) in enumerate(zip(policies, texts, strict=True))]
    built: list[Any] = [None] * len(growing)
    rows: dict[int, Any] = dict.fromkeys(range(len(growing)))
    while rows:
        asked = {}
        for i, made in rows.items():
            try:
                asked[i] = growing[i].send(made)
            except StopIteration as grown:
                built[i] = grown.value
        made = _drafted(draft, [texts[i] + path for i, paths in asked.items() for path in paths]) if asked else None
        ends = np.cumsum([len(paths) for paths in asked.values()])
        rows = {i: made[end - len(paths):end] for (i, paths), end in zip(asked.items(), ends)}
    return built


class Verifier:
    """A verifier of the library, by its name (verifiers() has them all) and its options, as for Policy, or one of your
    own."""

    def __init__(self, name: str | OwnVerifier, **options: Any):
        self._handle, self._cuda, self.own = c.c_void_p(), c.c_void_p(), None
        if isinstance(name, str):
            self._named = _named(name, options)
            call(lib.espalier_verifier_create(*self._named, c.byref(self._handle)))
            return
        if not hasattr(name, "verify"):
            raise TypeError(f"a verifier is a name, or an object with verify, but is a {type(name).__name__}.")
        self.own = name
        made = l.OwnVerifier(c.sizeof(l.OwnVerifier), _regimes_in(name.lossless), _CALLS[5], _CALLS[4], _Own.add(name))
        call(lib.espalier_verifier_create_own(c.byref(made), c.byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.espalier_verifier_destroy(self._handle)
        if getattr(self, "_cuda", None):
            l.cuda().espalier_cuda_verifier_destroy(self._cuda)

    lossless = property(lambda self: _names_of(lib.espalier_verifier_regimes(self._handle)),
                        doc="The regimes for which it is lossless.")

    def verify(self, tree: Tree, target: Any, draft: Any = None, target_row_of: Sequence[int] | None = None,
               draft_row_of: Sequence[int] | None = None, sampling: dict[str, float] | None = None, seed: int = 0,
               stream: int = 0, length: int = 0) -> tuple[int, int]:
        """Verifies a tree: returns the accepted node and the token after it.

        Where target and draft are on a CUDA device, its kernels verify, in torch's present stream, or the one that the
        arrays name. The verdict is that of the host over the same numbers.

        target    float32 [n_rows, vocab], read in place: probabilities, or logits if `sampling` is given, as it must be
                  on a device
        draft     float32 [n_rows, vocab], probabilities; None for verifiers that read the target alone
        .._row_of [n_nodes]: the row of each node, -1 for a draft's that is not there; None: node u has row u
        sampling  temperature, top_k, top_p, min_p: how logits become a distribution
        seed, stream, length  as for the tree's growth; another length in every round of a text
        """
        if l.is_on_cuda(target) or l.is_on_cuda(draft):
            key = l.Seed(seed, stream, length)
            return self._verify_on_cuda([tree], target, draft, target_row_of, draft_row_of, sampling, [key])[0]
        p = _RowsIn(target, target_row_of, "target", l.FLOAT32)
        q = None if draft is None else _RowsIn(draft, draft_row_of, "draft", l.FLOAT32)
        verdict, key = l.Verdict(), l.Seed(seed, stream, length)
        how = None if sampling is None else c.byref(sampling_in(**sampling))
        call(lib.espalier_verify(self._handle, tree.handle, None if q is None else c.byref(q.rows), c.byref(p.rows), how,
                                 c.byref(key), c.byref(verdict)))
        return verdict.accepted, verdict.token

    def _verify_on_cuda(self, trees: Sequence[Tree], target: Any, draft: Any, target_row_of: Sequence[int] | None,
                        draft_row_of: Sequence[int] | None, sampling: dict[str, float] | None,
                        keys: Sequence[l.Seed]) -> list[tuple[int, int]]:
        if self.own is not None:
            raise InputError("a verifier of your own runs on the host: copy the rows there, as with .cpu().")
        library = l.cuda()
        if sampling is None:
            raise InputError("on a device the target's rows are logits: give sampling, which says how they become "
                             "probabilities.")
        p = _CudaRowsIn(target, target_row_of, "target")
        q = None if draft is None else _CudaRowsIn(draft, draft_row_of, "draft")
        if q is not None and q.stream != p.stream:
            raise InputError(f"target is ready in stream {p.stream}, but draft in stream {q.stream}: they must share one.")
        if not self._cuda:
            l.call_cuda(library.espalier_cuda_verifier_create(*self._named, c.byref(self._cuda)))
        how, verdicts = sampling_in(**sampling), (l.Verdict * len(trees))()
        texts = (l.CudaText * len(trees))(*((c.pointer(tree._arrays()), how, key) for tree, key in zip(trees, keys)))
        l.call_cuda(library.espalier_cuda_verify(self._cuda, texts, len(trees), None if q is None else c.byref(q.rows),
                                                 c.byref(p.rows), p.stream, verdicts))
        return [(verdict.accepted, verdict.token) for verdict in verdicts]

    def _decided(self, tree: Tree, draft: np.ndarray, draft_row_of: Sequence[int], target: np.ndarray,
                 decisions: l.Decisions) -> tuple[int, int]:
        p, q = _RowsIn(target, None, "target", l.FLOAT64), _RowsIn(draft, draft_row_of, "draft", l.FLOAT64)
        verdict = l.Verdict()
        call(lib.espalier_verify_decided(self._handle, tree.handle, c.byref(q.rows), c.byref(p.rows), c.byref(decisions),
                                         c.byref(verdict)))
        return verdict.accepted, verdict.token


def verify_all(verifier: Verifier, trees: Sequence[Tree], target: Any, draft: Any = None,
               draft_rows_of: Sequence[Sequence[int]] | None = None, sampling: dict[str, float] | None = None,
               seed: int = 0, lengths: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """Verifies the trees of several texts, text i with stream i. The target's rows of all nodes stand one tree after the
    other, in the order of the nodes; draft_rows_of[i] are rows of `draft`; None: they stand like the target's. On a CUDA
    device all trees are verified at once."""
    if draft_rows_of is not None and [len(rows) for rows in draft_rows_of] != [tree.n_nodes for tree in trees]:
        raise InputError("draft_rows_of must have a row, or -1, for each node of each tree.")
    lengths = lengths or [0] * len(trees)
    if l.is_on_cuda(target) or l.is_on_cuda(draft):
        rows = None if draft_rows_of is None else [row for rows in draft_rows_of for row in rows]
        keys = [l.Seed(seed, i, length) for i, length in zip(range(len(trees)), lengths, strict=True)]
        return verifier._verify_on_cuda(trees, target, draft, None, rows, sampling, keys)
    first, made = 0, []
    for i, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        nodes = range(first, first + tree.n_nodes)
        rows = None if draft is None else nodes if draft_rows_of is None else draft_rows_of[i]
        made.append(verifier.verify(tree, target, draft, nodes, rows, sampling, seed, i, length))
        first += tree.n_nodes
    return made


def sampling_in(temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> l.Sampling:
    """The sampling options of the C interface."""
    return l.Sampling(temperature, top_k, top_p, min_p)


class Pass:
    """The rows of a forward pass, ragged over sequences. Row r writes slots[r] of its sequence, and sees the `prefix`
    slots before the round and those that its mask shows."""

    def __init__(self, arrays: l.PassArrays):
        n = arrays.n_rows
        self.is_draft = bool(arrays.is_draft)
        #: int32 [n_rows]
        self.tokens = l.copied(arrays.tokens, n, np.int32)
        #: int32 [n_rows]
        self.positions = l.copied(arrays.positions, n, np.int32)
        #: int32 [n_rows]: cache slot of each row in its sequence
        self.slots = l.copied(arrays.slots, n, np.int32)
        #: int32 [n_outputs]: the rows whose logits are wanted
        self.outputs = l.copied(arrays.outputs, arrays.n_outputs, np.int32)
        #: int32 [n_sequences, 6]: sequence, first row, row after the last, prefix, first mask word, words of a row
        self.sequences = l.copied(arrays.sequences, (arrays.n_sequences, 6), np.int32)
        #: uint32: words of bits, the least significant first
        self.mask = l.copied(arrays.mask, arrays.n_mask, np.uint32)
        self._arrays = l.PassArrays(c.sizeof(l.PassArrays), n, arrays.n_sequences, arrays.n_mask, arrays.n_outputs,
                                    *(a.ctypes.data for a in (self.tokens, self.positions, self.slots, self.sequences,
                                                              self.mask, self.outputs)), arrays.is_draft)

    n_rows = property(lambda self: len(self.tokens))

    @property
    def columns(self) -> int:
        """Slots that a mask needs columns for: the most that a sequence has."""
        return max((self.slots_of(s) for s in self.sequences), default=0)

    def slots_of(self, sequence: np.ndarray) -> int:
        """Returns the number of slots of a sequence, one of `sequences`, that hold something once its rows are written."""
        _, begin, end, prefix, _, _ = sequence
        return max(int(prefix), int(self.slots[begin:end].max(initial=-1)) + 1)

    def dense_mask(self, columns: int | None = None) -> np.ndarray:
        """uint8 [n_rows, columns]: 1 where a row sees that slot of its own sequence."""
        return self._mask(lib.espalier_dense_mask, columns, np.uint8)

    def additive_mask(self, columns: int | None = None) -> np.ndarray:
        """float32 [n_rows, columns]: 0 and minus infinity, to add to scores (attention biases, as vLLM's tree attention
        and torch's scaled_dot_product_attention take them)."""
        return self._mask(lib.espalier_additive_mask, columns, np.float32)

    def _mask(self, function: Callable, columns: int | None, dtype: Any) -> np.ndarray:
        n = self.columns if columns is None else columns
        if n < 0:
            raise InputError(f"a mask cannot have {n} columns.")
        out = np.zeros((self.n_rows, n), dtype)
        call(function(c.byref(self._arrays), n, out.ctypes.data, out.size, None))
        return out

    def flashinfer_mask(self) -> tuple[np.ndarray, np.ndarray]:
        """FlashInfer's packed custom mask, uint8, and mask_indptr, int32 [n_sequences + 1], in bytes."""
        needed, indptr = c.c_size_t(), np.zeros(len(self.sequences) + 1, np.int32)
        lib.espalier_flashinfer_mask(c.byref(self._arrays), None, 0, None, 0, c.byref(needed))
        out = np.zeros(needed.value, np.uint8)
        call(lib.espalier_flashinfer_mask(c.byref(self._arrays), out.ctypes.data, out.size, indptr.ctypes.data,
                                          indptr.size, c.byref(needed)))
        return out, indptr

    def sglang_mask(self, n: int, mode: int = 0) -> np.ndarray:
        """SGLang's tree mask, uint8, of n rows a sequence. mode 0: full, 1: qlen_only, 2: bits."""
        needed = c.c_size_t()
        lib.espalier_sglang_mask(c.byref(self._arrays), mode, n, None, 0, c.byref(needed))
        out = np.zeros(needed.value, np.uint8)
        call(lib.espalier_sglang_mask(c.byref(self._arrays), mode, n, out.ctypes.data, out.size, c.byref(needed)))
        return out

    def sglang_tree(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """SGLang's positions, retrive_index, retrive_next_token, retrive_next_sibling: int64 [n_sequences, n] each."""
        out = [np.zeros((len(self.sequences), n), np.int64) for _ in range(4)]
        call(lib.espalier_sglang_tree(c.byref(self._arrays), n, *(a.ctypes.data for a in out), out[0].size, None))
        return tuple(out)


def compile_trees(trees: Sequence[Tree], prefixes: Sequence[int], order: str = "breadth-first",
                  pending: Sequence[Sequence[int]] | None = None) -> tuple[Pass, list[list[int]]]:
    """The rows of trees for one pass: tree i is that of sequence i, after prefixes[i] slots of its cache.

    pending[i]  the last tokens of the text that the cache lacks, the root last; None: the root alone
    Returns the pass, and for each tree the row of each node among the pass's outputs."""
    if order not in _ORDERS:
        raise OptionError(f"order must be one of {', '.join(_ORDERS)}, but is {order!r}.")
    batch = c.c_void_p()
    call(lib.espalier_batch_create(c.byref(batch)))
    try:
        rows = []
        for i, tree in enumerate(trees):
            chain = l.tokens_in([tree.token[0]] if pending is None else pending[i], "pending")
            call(lib.espalier_batch_add(batch, tree.handle, _ORDERS.index(order), chain.ctypes.data, len(chain), i,
                                        prefixes[i]))
            row, n = c.c_void_p(), c.c_int32()
            call(lib.espalier_batch_logits_rows(batch, i, c.byref(row), c.byref(n)))
            rows.append(l.copied(row.value, n.value, np.int32).tolist())
        arrays = l.PassArrays(c.sizeof(l.PassArrays))
        call(lib.espalier_batch_read(batch, c.byref(arrays)))
        return Pass(arrays), rows
    finally:
        lib.espalier_batch_destroy(batch)


def policies() -> list[str]:
    """The names of the library's policies."""
    return _names(lib.espalier_policy_name)


def verifiers() -> list[str]:
    """The names of the library's verifiers."""
    return _names(lib.espalier_verifier_name)


def _names(name_of: Callable[[int], bytes | None]) -> list[str]:
    return [name.decode() for name in itertools.takewhile(lambda n: n is not None, map(name_of, itertools.count()))]


def fits(policy: Policy, verifier: Verifier) -> bool:
    """True if the verifier is lossless for the policy's trees."""
    return bool(set(policy.sampling) & set(verifier.lossless))
