# SPDX-License-Identifier: BSL-1.0
"""The proposer for vLLM, made and called as vLLM 0.33.0 does (vllm/v1/spec_decode/custom_class_proposer.py and
gpu_model_runner.py): made with the configuration, then called with three arguments and slot_mappings by name."""
from types import SimpleNamespace

import espalier
import numpy as np
import pytest
from espalier.vllm import Proposer
from test_parts import logits_after, softmax


class Mine(Proposer):
    def propose_rows(self, texts):
        return softmax(logits_after(texts))


def made(n=4, longest=32, of=Mine):
    return of(SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=n),
                              model_config=SimpleNamespace(max_model_len=longest)))


def proposed(proposer, texts, sampled=None):
    rows = np.zeros((len(texts) + 1, 32), np.int32)
    for row, text in zip(rows, texts):
        row[:len(text)] = text
    return proposer.propose(sampled or [text[-1:] for text in texts], np.array([len(t) for t in texts] + [0]), rows,
                            slot_mappings=None)


def greedy(text, n):
    for _ in range(n):
        text = text + [int(np.argmax(logits_after([text])))]
    return text[len(text) - n:]


def test_it_drafts_the_most_probable_tokens():
    texts = [[1, 2, 3], [4], [5, 6]]
    assert proposed(made(), texts) == [greedy(text, 4) for text in texts]


def test_requests_without_a_token_or_room_get_less():
    texts = [list(range(8)), [4], [5, 6]]
    assert proposed(made(longest=10), texts, [[7], [], [6]]) == [greedy(texts[0], 2), [], greedy(texts[2], 4)]
    assert proposed(made(longest=8), texts[:1]) == [[]]


def test_what_is_refused():
    with pytest.raises(NotImplementedError, match="propose_rows"):
        proposed(made(of=Proposer), [[1]])
    with pytest.raises(espalier.OptionError, match="length"):
        made(n=0)
    with pytest.raises(espalier.InputError, match="2 requests need"):
        made().propose([[1], [2]], np.array([1]), np.zeros((2, 4), np.int32))

    class Nan(Proposer):
        def propose_rows(self, texts):
            return np.full((len(texts), 16), np.nan, np.float32)

    with pytest.raises(espalier.NumericError, match="nan"):
        proposed(made(of=Nan), [[1]])
