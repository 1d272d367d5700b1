# SPDX-License-Identifier: BSL-1.0
"""Verifiers over arrays in the memory of a CUDA device, which here is the emulated one, beside the host's."""
import ctypes as c
import gc
import os

import espalier
import numpy as np
import pytest
from test_parts import drafted, logits_after, refused, softmax, target_of

os.environ["ESPALIER_EMULATOR_LATE"] = "1"  # nothing runs in a stream before something waits for it
emulated = c.CDLL(os.environ["ESPALIER_CUDA_LIBRARY"])
emulated.emulated_copy.restype = emulated.emulated_stream.restype = c.c_void_p
emulated.emulated_copy.argtypes = [c.c_void_p, c.c_size_t]
emulated.emulated_free.argtypes = [c.c_void_p]
emulated.emulated_write.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p]
emulated.emulated_allocations.restype = c.c_size_t


class OnDevice:
    """An array in the memory of the device, as CuPy, numba and torch show theirs."""

    def __init__(self, array, stream=None):
        self.address = emulated.emulated_copy(array.ctypes.data, array.nbytes)
        strides = None if array.flags.c_contiguous else array.strides
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "strides": strides,
                                         "data": (self.address, False), "version": 3, "stream": stream}

    def __del__(self):
        emulated.emulated_free(self.address)

    def __dlpack_device__(self):
        return 2, 0


def trees_of(policy, n, seed):
    """Trees of n texts, with their rows of draft and target, one text's after the other's."""
    texts = [[5, i, seed % 7] for i in range(n)]
    built = espalier.build_all([espalier.Policy(policy) for _ in texts], texts,
                               lambda after: softmax(logits_after(after, 40, 0.6)), seed)
    draft = np.concatenate([rows for _, rows, _ in built])
    firsts = np.cumsum([0] + [len(rows) for _, rows, _ in built])
    rows_of = [[int(first) + r if r >= 0 else -1 for r in row_of] for first, (_, _, row_of) in zip(firsts, built)]
    trees = [tree for tree, _, _ in built]
    target = np.concatenate([logits_after([text + tree.token[tree.path(u)[1:]].tolist() for u in range(tree.n_nodes)], 40)
                             for text, tree in zip(texts, trees)])
    return trees, target, draft, rows_of


@pytest.mark.parametrize("name", espalier.verifiers())
def test_verdicts_are_those_of_the_host(name):
    verifier, n, accepted = espalier.Verifier(name), 0, 0
    for policy in ("iid-paths", "sampled-chain", "sequoia", "best-first"):
        if not espalier.fits(espalier.Policy(policy), verifier):
            continue
        for temperature in (0.0, 0.8):
            if name == "greedy" and temperature > 0:
                continue
            for seed, count in ((1, 3), (2, 1), (3, 4)):
                trees, target, draft, rows_of = trees_of(policy, count, seed)
                how = {"temperature": temperature, "top_k": 12}
                given = (rows_of, how, seed, [len(t.token) + seed for t in trees])
                expected = espalier.verify_all(verifier, trees, target, draft, *given)
                assert espalier.verify_all(verifier, trees, OnDevice(target), OnDevice(draft), *given) == expected
                alone = verifier.verify(trees[0], OnDevice(target), OnDevice(draft), None, rows_of[0], how, seed, 0,
                                        given[3][0])
                assert alone == expected[0]
                n, accepted = n + count, accepted + sum(node > 0 for node, _ in expected)
    assert n >= 8 and accepted > 0


def test_options_of_the_verifier_reach_the_device():
    for words in ("khisti window=1", "khisti window=6"):
        verifier, by_keyword = espalier.Verifier(words), espalier.Verifier("khisti", window=int(words[-1]))
        for seed in range(6):
            trees, target, draft, rows_of = trees_of("iid-paths", 2, seed)
            given = (rows_of, {"temperature": 1.3}, seed)
            expected = espalier.verify_all(verifier, trees, target, draft, *given)
            for one in (verifier, by_keyword):
                assert espalier.verify_all(one, trees, OnDevice(target), OnDevice(draft), *given) == expected


def test_kernels_run_in_the_stream_that_the_arrays_name():
    stream = emulated.emulated_stream()
    trees, target, draft, rows_of = trees_of("iid-paths", 2, 5)
    given, verifier = (rows_of, {"temperature": 1.0}, 5), espalier.Verifier("specinfer")
    expected = espalier.verify_all(verifier, trees, target, draft, *given)
    late_target, late_draft = (OnDevice(np.full_like(a, np.nan), stream) for a in (target, draft))
    for late, rows in ((late_target, target), (late_draft, draft)):
        assert emulated.emulated_write(late.address, rows.ctypes.data, rows.nbytes, stream) == 0
    assert espalier.verify_all(verifier, trees, late_target, late_draft, *given) == expected
    with refused("target is ready in stream [0-9]+, but draft in stream 0: they must share one"):
        espalier.verify_all(verifier, trees, late_target, OnDevice(draft), *given)


def test_verifiers_that_read_the_target_alone_need_no_draft():
    tree, _, _ = drafted("best-first")
    target, how = target_of(tree), {"temperature": 0.9}
    for name in ("target-only", "greedy"):
        verifier, how = espalier.Verifier(name), {"temperature": 0.0 if name == "greedy" else 0.9}
        expected = verifier.verify(tree, target, sampling=how, seed=4)
        assert verifier.verify(tree, OnDevice(target), sampling=how, seed=4) == expected
        assert espalier.verify_all(verifier, [tree], OnDevice(target), sampling=how, seed=4) == [expected]


def test_bad_arrays_on_the_device():
    tree, rows, row_of = drafted()
    logits, verifier, how = target_of(tree), espalier.Verifier("specinfer"), {"temperature": 1.0}

    def verify(target=logits, draft=rows, by=verifier, how=how, move=OnDevice):
        return by.verify(tree, move(target), move(draft), None, row_of, how)

    class Own(espalier.OwnVerifier):
        lossless = "iid"

    class NeedsGradient(OnDevice):
        __cuda_array_interface__ = property(lambda self: self.refuse(), lambda self, shown: None)

        def refuse(self):
            raise RuntimeError("it requires grad")

    class Bfloat16(OnDevice):
        def __init__(self, array):
            super().__init__(array)
            self.__cuda_array_interface__["typestr"] = "<V2"

    class Nowhere(OnDevice):
        def __init__(self, array):
            super().__init__(array)
            self.array = array
            self.__cuda_array_interface__["data"] = (array.ctypes.data, False)

    expected = verify()
    assert expected == verifier.verify(tree, logits, rows, None, row_of, how)
    bad = logits.copy()
    bad[0, 3] = np.nan
    for wrong, sentence, error in (
            (lambda: verify(logits.astype(np.float64)), "target must be of float32, but is of float64: convert it", None),
            (lambda: verify(draft=rows.astype(np.float16)), "draft must be of float32, but is of float16: convert it", None),
            (lambda: verify(move=Bfloat16), "target must be of float32, but is of bfloat16", None),
            (lambda: verify(logits[0]), "target must have 2 dimensions, but has 1", None),
            (lambda: verify(np.asfortranarray(logits)), r"target is not contiguous: contiguous\(\) copies it", None),
            (lambda: verify(draft=rows[:, :15].copy()), "the draft's rows have 15 tokens, but the target's have 16", None),
            (lambda: verify(logits[:1]), "target has 1 rows, but node 1", None),
            (lambda: verify(bad), "the target's logit of token 3 after node 0", espalier.NumericError),
            (lambda: verify(how=None), "give sampling, which says how they become probabilities", None),
            (lambda: verify(how={"temperature": -1.0}), "temperature", espalier.OptionError),
            (lambda: verify(by=espalier.Verifier(Own())), "a verifier of your own runs on the host", None),
            (lambda: verify(move=NeedsGradient), r"it requires grad\); a tensor that requires grad needs .detach\(\)", None),
            (lambda: verify(move=Nowhere), "the rows of target are not in the memory of a device", None),
            (lambda: verifier.verify(tree, OnDevice(logits), rows, None, row_of, how), "draft is in the host's memory", None),
            (lambda: verifier.verify(tree, logits, OnDevice(rows), None, row_of, how), "target is in the host's memory", None),
            (lambda: verifier.verify(tree, OnDevice(logits), None, None, row_of, how), "draft is a null pointer", None),
            (lambda: verify(by=espalier.Verifier("greedy")), "the temperature must be 0", espalier.OptionError)):
        with refused(sentence, error or espalier.InputError):
            wrong()
    assert verify() == expected


def test_verifiers_free_their_memory_of_the_device():
    gc.collect()
    before = emulated.emulated_allocations()
    test_verifiers_that_read_the_target_alone_need_no_draft()
    gc.collect()
    assert emulated.emulated_allocations() == before
