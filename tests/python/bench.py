# SPDX-License-Identifier: BSL-1.0
"""What the Python package costs beside the C interface: growing and verifying a tree of 64 nodes over 151,936 tokens.

    PYTHONPATH=examples/python ESPALIER_LIBRARY=build/examples/c/libespalier_c.so python3 tests/python/bench.py

Both make the same calls of the library: the one through Policy and Verifier, the other with structs that were made before.
They take turns, in time of the processor: medians of the call from C and of what the next one through the package takes
more, and the least times of both."""
import ctypes
import statistics
import time

import espalier
import numpy as np
from espalier import _library as l
from espalier.parts import sampling_in

VOCAB, TURNS = 151936, 100


def turns(what, through_c, through_python, n=TURNS):
    times = ([], [])
    for turn in range(2 * n + 2):
        begun = time.thread_time()
        (through_c, through_python)[turn % 2]()
        if turn > 1:
            times[turn % 2].append(time.thread_time() - begun)
    c, more = statistics.median(times[0]), statistics.median(b - a for a, b in zip(*times))
    print(f"{what}: C {1e6 * c:.0f} us (least {1e6 * min(times[0]):.0f}), Python {1e6 * more:+.0f} us, {100 * more / c:+.1f} % "
          f"(least {1e6 * min(times[1]):.0f})")


def main():
    chance = np.random.default_rng(1)
    logits = chance.normal(0, 2.5, (65, VOCAB)).astype(np.float32)
    rows = np.exp(logits - logits.max(1, keepdims=True))
    rows /= rows.sum(1, keepdims=True)
    policy, tree = espalier.Policy("best-first", budget=64), espalier.Tree(256)
    tree.reset(1)
    row_of, wanted = [-1], policy.begin(tree)
    asked = []
    while wanted:
        row_of += [-1] * (tree.n_nodes - len(row_of))
        for u in wanted:
            row_of[u] = len(asked) % 65
            asked.append(u)
        asked_rows = np.array(row_of, np.int32)
        wanted = policy.take(tree, rows, asked_rows, seed=1)
    print(tree.n_nodes, "nodes,", len(asked), "rows asked for")
    asked_of = asked_rows

    lib, handle = l.lib, policy._handle
    key, n, out = l.Seed(1, 0, 0), ctypes.c_int32(), ctypes.c_void_p()
    given = l.Rows(rows.ctypes.data, 65, VOCAB, asked_of.ctypes.data, len(asked_of))

    def grow_c():
        lib.espalier_tree_reset(tree.handle, 1, -1)
        lib.espalier_grow_begin(handle, tree.handle, ctypes.byref(out), ctypes.byref(n))
        while n.value:
            lib.espalier_grow_take(handle, tree.handle, ctypes.byref(given), ctypes.byref(key), ctypes.byref(out),
                                   ctypes.byref(n))

    def grow_python():
        tree.reset(1)
        wanted = policy.begin(tree)
        while wanted:
            wanted = policy.take(tree, rows, asked_of, seed=1)

    turns("grow", grow_c, grow_python, TURNS // 5)
    grow_python()
    nodes = np.arange(tree.n_nodes, dtype=np.int32) % 65
    target = l.Rows(logits.ctypes.data, 65, VOCAB, nodes.ctypes.data, len(nodes))
    verdict, key = l.Verdict(), l.Seed(1, 0, 0)
    for name, temperature in (("greedy", 0.0), ("target-only", 0.8)):
        verifier, how = espalier.Verifier(name), sampling_in(temperature)
        turns(f"verify by {name}",
              lambda: lib.espalier_verify(verifier._handle, tree.handle, None, ctypes.byref(target), ctypes.byref(how),
                                          ctypes.byref(key), ctypes.byref(verdict)),
              lambda: verifier.verify(tree, logits, None, nodes, sampling={"temperature": temperature}, seed=1))


if __name__ == "__main__":
    main()
