# SPDX-License-Identifier: BSL-1.0
"""Decoders over models of Python."""
import threading

import espalier
import numpy as np
import pytest
from test_parts import logits_after, softmax


def target(texts):
    return logits_after(texts)


def draft(texts):
    return 0.6 * logits_after(texts) + 0.3 * logits_after([t[-1:] for t in texts])


def plain(prompt, n, temperature=0.0, **options):
    return espalier.Decoder(None, "plain", "target-only" if temperature else "greedy", espalier.TextModel(target),
                            vocab_size=16).generate(prompt, n, temperature=temperature, **options)


@pytest.mark.parametrize("policy", ["chain", "best-first", "dynatree", "eagle2"])
def test_a_tree_writes_what_plain_decoding_writes(policy):
    decoder = espalier.Decoder(espalier.TextModel(draft), policy, "greedy", espalier.TextModel(target), vocab_size=16)
    assert decoder.generate([1, 2, 3], 30).tolist() == plain([1, 2, 3], 30).tolist()
    sampled = espalier.Decoder(espalier.TextModel(draft), policy, "target-only", espalier.TextModel(target), vocab_size=16)
    assert sampled.generate([4], 30, temperature=0.8, seed=3).tolist() == plain([4], 30, 0.8, seed=3).tolist()


def test_a_verifier_of_ones_own_has_no_rows_without_a_draft():
    class Asks(espalier.OwnVerifier):
        lossless = "deterministic"

        def verify(self, tree, draft, target, chance):
            with pytest.raises(espalier.InputError, match="there is no row of node 0"):
                draft[0]
            return 0, target.argmax(0)

    decoder = espalier.Decoder(None, "plain", Asks(), espalier.TextModel(target), vocab_size=16)
    assert decoder.generate([1, 2], 5).tolist() == plain([1, 2], 5).tolist()


def test_texts_of_a_batch_are_what_they_are_alone():
    decoder = espalier.Decoder("prompt-lookup", "chain", "greedy", espalier.TextModel(target), vocab_size=16, max_texts=2)
    texts = [decoder.add([t, 5, t], 20) for t in range(4)]
    steps = 0
    while not decoder.idle:
        steps += 1
        for event in decoder.step():
            assert not event.error
    assert [decoder.written(t).tolist() for t in texts] == [plain([t, 5, t], 20).tolist() for t in range(4)]
    assert steps <= 41  # two texts share each pass


def test_a_model_without_moves_and_own_halves():
    model = espalier.TextModel(target)
    decoder = espalier.Decoder(lambda rows: draft_model(rows), "best-first", "greedy", lambda rows: model(rows), vocab_size=16)
    draft_model = espalier.TextModel(draft)
    text = decoder.add([7], 20)
    while not decoder.idle:
        rows = decoder.begin_step()
        while rows is not None:
            rows = decoder.end_step(draft_model(rows) if rows.is_draft else model(rows))
    assert decoder.written(text).tolist() == plain([7], 20).tolist()


def test_a_mask_has_all_slots_where_rows_do_not_follow_the_prefix():
    model, far = espalier.TextModel(draft), []

    def masked(rows):
        mask = rows.dense_mask()
        assert (mask[np.arange(rows.n_rows), rows.slots] == 1).all()
        far.extend(rows.slots[-1] >= s[3] + s[2] - s[1] for s in rows.sequences)
        return model(rows)

    decoder = espalier.Decoder(masked, "eagle2", "greedy", espalier.TextModel(target), vocab_size=16)
    assert decoder.generate([7], 20).tolist() == plain([7], 20).tolist()
    assert any(far)  # the second depth of a tree, after the first one's rows


def test_streams_and_stop_tokens():
    decoder = espalier.Decoder(espalier.TextModel(draft), "chain", "greedy", espalier.TextModel(target), vocab_size=16)
    whole = plain([1], 30).tolist()
    stream = decoder.stream([1], 30)
    assert [next(stream) for _ in range(5)] == whole[:5]
    stream.close()
    assert decoder.idle
    assert decoder.generate([1], 30, stop=[whole[7]]).tolist() == whole[:whole.index(whole[7]) + 1]


class Two(espalier.TreePolicy):
    """Two drawn tokens after the root."""
    sampling, max_nodes = "iid", 2

    def take(self, tree, rows, chance):
        espalier.draw(tree, rows, 0, chance)
        espalier.draw(tree, rows, 0, chance)


class Follows(espalier.OwnVerifier):
    """Draws from the target, and follows what was drafted."""
    lossless = ("deterministic", "iid", "without_replacement", "single_path")

    def verify(self, tree, draft, target, chance):
        u = 0
        while True:
            token = chance.pick(target[u], u)
            child = tree.find_child(u, token)
            if child < 0:
                return u, token
            u = child


def test_own_parts_in_a_decoder():
    class Mine(espalier.Drafter):
        def propose(self, texts):
            return softmax(draft(texts))

    decoder = espalier.Decoder(Mine(), Two(), Follows(), espalier.TextModel(target), vocab_size=16)
    text, n_drafted = decoder.add([1, 2], 60, temperature=1.0, seed=4), 0
    while not decoder.idle:
        n_drafted += sum(event.n_drafted for event in decoder.step())
    assert len(decoder.written(text)) == 60 and n_drafted > 40


def test_what_a_model_or_a_part_raises_comes_out_and_nothing_is_lost():
    fail = [False]

    def model(texts):
        if fail[0]:
            raise RuntimeError("the card has gone")
        return target(texts)

    class Fails(Two):
        def take(self, tree, rows, chance):
            if fail[0]:
                raise KeyError("mine")
            super().take(tree, rows, chance)

    for policy, verifier, error in (("best-first", "greedy", RuntimeError), (Fails(), Follows(), KeyError)):
        decoder = espalier.Decoder(espalier.TextModel(draft), policy, verifier, espalier.TextModel(model), vocab_size=16)
        text = decoder.add([1, 2], 20)
        for _ in range(3):
            decoder.step()
        before = decoder.text(text).tolist()
        fail[0] = True
        with pytest.raises(error):
            decoder.step()
        assert decoder.text(text).tolist() == before
        fail[0] = False
        while not decoder.idle:
            decoder.step()
        if verifier == "greedy":
            assert decoder.written(text).tolist() == plain([1, 2], 20).tolist()


def test_bad_input():
    def make(**changes):
        of = {"drafter": espalier.TextModel(draft), "policy": "best-first", "verifier": "greedy",
              "model": espalier.TextModel(target), "vocab_size": 16} | changes
        return espalier.Decoder(of.pop("drafter"), of.pop("policy"), of.pop("verifier"), of.pop("model"), **of)

    for changes, sentence in (({"verifier": "specinfer"}, "not lossless"), ({"drafter": None}, "must be plain"),
                              ({"drafter": "oracle"}, "prompt-lookup"), ({"vocab_size": 0}, "vocab_size is 0"),
                              ({"context": -1}, "context"), ({"drafter": "prompt-lookup"}, "prompt look-up")):
        with pytest.raises(espalier.OptionError, match=sentence):
            make(**changes)
    with pytest.raises(TypeError, match="callable"):
        make(model=3)
    decoder = make()
    for prompt, sentence in (([], "empty"), ([99], "99"), ([0.5], "whole numbers"), ([2**40], "32 bits")):
        with pytest.raises(espalier.InputError, match=sentence):
            decoder.add(prompt, 5)
    with pytest.raises(espalier.OptionError, match="temperature must be 0"):
        decoder.add([1], 5, temperature=1.0)
    with pytest.raises(espalier.InputError):
        decoder.text(7)
    with pytest.raises(espalier.InputError, match="begin_step"):
        decoder.end_step(np.zeros((1, 16), np.float32))
    for wrong, sentence in ((np.zeros((1, 16)), "float32"), (np.zeros((3, 15), np.float32), "logits"), ([[0.0]], "array")):
        decoder = make(model=lambda rows, wrong=wrong: wrong)
        decoder.add([1], 5)
        with pytest.raises(espalier.InputError, match=sentence):
            decoder.step()
    decoder = make(model=lambda rows: np.full((len(rows.outputs), 16), np.nan, np.float32))
    decoder.add([1], 5)
    events = decoder.step()
    assert events[0].state == "failed" and "nan" in events[0].error


def test_two_threads_do_not_step_at_once():
    entered, leave = threading.Event(), threading.Event()

    def model(texts):
        entered.set()
        leave.wait(10)
        return target(texts)

    decoder = espalier.Decoder(None, "plain", "greedy", espalier.TextModel(model), vocab_size=16)
    decoder.add([1], 1)
    thread = threading.Thread(target=decoder.step)
    thread.start()
    assert entered.wait(10)
    with pytest.raises(espalier.Error, match="another thread"):
        decoder.step()
    leave.set()
    thread.join()
    assert len(decoder.written(0)) == 1
