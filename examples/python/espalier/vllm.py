# SPDX-License-Identifier: BSL-1.0
"""A base of proposers for vLLM's custom proposer interface (method custom_class of the speculative configuration). Not run
in vLLM: the tests call it as vLLM does."""
from __future__ import annotations

from typing import Any

import numpy as np

from ._library import InputError
from .parts import Policy, build_all


class Proposer:
    """Base of proposers of your own: propose_rows(texts) returns the distribution of the token after each text, float32
    [len(texts), vocab], probabilities. The drafted tokens are the most probable ones: vLLM's sampler is given no
    probabilities of the draft, and accepts each with the probability that the target gives it."""

    def __init__(self, vllm_config: Any):
        self._n = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._policies = [Policy("chain", length=self._n)]

    def propose_rows(self, texts: list[list[int]]) -> Any:
        raise NotImplementedError("a proposer needs propose_rows(texts).")

    def propose(self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any,
                slot_mappings: Any = None) -> list[list[int]]:
        """Returns the drafted tokens of each request: none where no token was sampled, and no more than the model's
        context has room for.

        sampled_token_ids   [requests]: the tokens that were sampled last, which the texts hold already
        num_tokens_no_spec  [requests]: the length of each text
        token_ids_cpu       [requests at least, max_model_len]: the texts, one a row
        """
        lengths, rows = np.asarray(num_tokens_no_spec), np.asarray(token_ids_cpu)
        n = len(sampled_token_ids)
        if lengths.ndim != 1 or rows.ndim != 2 or len(lengths) < n or len(rows) < n:
            raise InputError(f"{n} requests need num_tokens_no_spec [{n}] and token_ids_cpu [{n}, max_model_len], but they "
                             f"are {list(lengths.shape)} and {list(rows.shape)}.")
        texts = {i: rows[i, :int(lengths[i])].tolist() for i, sampled in enumerate(sampled_token_ids) if sampled}
        rooms = {i: min(self._n, self._longest - len(text)) for i, text in texts.items() if text}
        texts = {i: texts[i] for i, room in rooms.items() if room > 0}
        while len(self._policies) < len(texts):
            self._policies.append(Policy("chain", length=self._n))
        built = build_all(self._policies[:len(texts)], list(texts.values()), self.propose_rows)
        drafts = {i: tree.token[1:1 + rooms[i]].tolist() for i, (tree, _, _) in zip(texts, built)}
        return [drafts.get(i, []) for i in range(n)]
