# SPDX-License-Identifier: BSL-1.0
"""The shared library from Python's ctypes: from_python.py libespalier_c.so. Grows a tree, and verifies it."""
import ctypes as c
import sys

lib = c.CDLL(sys.argv[1])
lib.espalier_error.restype = lib.espalier_version.restype = lib.espalier_policy_name.restype = c.c_char_p


class Rows(c.Structure):
    _fields_ = [("data", c.POINTER(c.c_float)), ("n_rows", c.c_int32), ("vocab", c.c_int32),
                ("row_of", c.POINTER(c.c_int32)), ("n_nodes", c.c_int32)]


class Seed(c.Structure):
    _fields_ = [("seed", c.c_uint64), ("stream", c.c_uint32), ("length", c.c_uint32)]


class Verdict(c.Structure):
    _fields_ = [("accepted", c.c_int32), ("token", c.c_int32)]


class Arrays(c.Structure):
    _fields_ = [("size", c.c_size_t), ("n_nodes", c.c_int32), ("n_draws", c.c_int32)] + [
        (name, c.POINTER(c.c_float if name == "log_prob" else c.c_int32)) for name in
        ("token", "parent", "depth", "log_prob", "first_draw", "next_draw", "drawn_node")]


def require(status):
    if status != 0:
        raise RuntimeError(lib.espalier_error().decode())


def rows_of(rows):
    flat = [x for row in rows for x in row]
    return Rows((c.c_float * len(flat))(*flat), len(rows), len(rows[0]), None, 0)


assert lib.espalier_abi() == 1
names = []
while (name := lib.espalier_policy_name(len(names))) is not None:
    names.append(name.decode())
assert "best-first" in names

policy, verifier, tree = c.c_void_p(), c.c_void_p(), c.c_void_p()
require(lib.espalier_policy_create(b"sampled-chain", b"length=1", c.byref(policy)))
require(lib.espalier_verifier_create(b"naive", None, c.byref(verifier)))
require(lib.espalier_tree_create(1, c.byref(tree)))

# Over many seeds the first committed token has the target's distribution.
draft, target = [[0.7, 0.2, 0.1]], [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]
counts, wanted, n_wanted, n_rounds = [0, 0, 0], c.POINTER(c.c_int32)(), c.c_int32(), 20000
q, p = rows_of(draft), rows_of(target)
for i in range(n_rounds):
    seed, verdict = Seed(5, 0, i + 1), Verdict()
    require(lib.espalier_tree_reset(tree, 0, -1))
    require(lib.espalier_grow_begin(policy, tree, c.byref(wanted), c.byref(n_wanted)))
    while n_wanted.value > 0:
        require(lib.espalier_grow_take(policy, tree, c.byref(q), c.byref(seed), c.byref(wanted), c.byref(n_wanted)))
    require(lib.espalier_verify(verifier, tree, c.byref(q), c.byref(p), None, c.byref(seed), c.byref(verdict)))
    tokens, n = (c.c_int32 * 2)(), c.c_int32()
    require(lib.espalier_accepted_path(tree, c.byref(verdict), None, tokens, 2, c.byref(n)))
    counts[tokens[0]] += 1
arrays = Arrays(c.sizeof(Arrays))
require(lib.espalier_tree_read(tree, c.byref(arrays)))
assert arrays.n_nodes == 2 and arrays.parent[1] == 0
for count, expected in zip(counts, target[0]):
    sigma = (n_rounds * expected * (1 - expected)) ** 0.5
    assert abs(count - n_rounds * expected) < 5 * sigma, (counts, target[0])

bad = c.c_void_p()
assert lib.espalier_verifier_create(b"nave", None, c.byref(bad)) == 1
assert lib.espalier_error() == b"there is no verifier nave; the nearest name is naive."
for destroy, handle in ((lib.espalier_tree_destroy, tree), (lib.espalier_verifier_destroy, verifier),
                        (lib.espalier_policy_destroy, policy)):
    destroy(handle)
print("espalier", lib.espalier_version().decode(), "from ctypes:", counts, "of", n_rounds)
