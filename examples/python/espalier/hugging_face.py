# SPDX-License-Identifier: BSL-1.0
"""Models of transformers as models of a decoder, with a cache that is written by slots."""
from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, StaticLayer

from ._library import InputError, OptionError
from .parts import Pass


class _SlotLayer(StaticLayer):
    """The keys and values of one layer: a row of a pass is written to its slot, and attention is given the slots that the
    pass reads."""

    def __init__(self, whole: HuggingFaceModel, number: int):
        super().__init__(whole.n_slots)
        self._whole, self._number = whole, number

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple:
        states = key_states, value_states
        stores = self._whole.stores_for(states)
        for store, new in zip(stores, states):
            store[self._number].index_copy_(1, self._whole.written, new[0])
        return tuple(self._whole.read(store[self._number])[None] for store in stores)


class HuggingFaceModel:
    """A causal language model of transformers as the model, or the drafter, of a Decoder. All texts of a pass share one
    forward pass. The keys and values are those of a StaticCache, written by slots: every text has `context` slots of it,
    and accepted rows are moved within it.

    model      a model of transformers that takes position_ids, a cache, and a mask of four dimensions: Llama, Qwen and
               their like, with full attention in every layer, by sdpa or eager
    context, max_texts   those of the Decoder

    Memory is taken with the first pass: 2 x layers x key heads x head size x context x max_texts numbers."""

    def __init__(self, model: Any, *, context: int = 1024, max_texts: int = 8):
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or (getattr(config, "sliding_window", None)
                                           and getattr(config, "use_sliding_window", True)):
            raise OptionError("a HuggingFaceModel needs full attention in every layer, but this model has "
                              f"{', '.join(sorted(kinds | {'a sliding window'} - {'full_attention'}))}.")
        if config._attn_implementation not in ("sdpa", "eager"):
            raise OptionError("attn_implementation must be sdpa or eager, which take a mask of a tree, but is "
                              f"{config._attn_implementation}.")
        if context < 1 or max_texts < 1:
            raise OptionError(f"context and max_texts must be 1 at least, but are {context} and {max_texts}.")
        self.model, self.context, self.max_texts = model.eval(), context, max_texts
        self.vocab_size, self.n_slots = config.vocab_size, context * max_texts
        self._n_layers, self._stores = config.num_hidden_layers, None
        self._cache = Cache(layers=[_SlotLayer(self, i) for i in range(self._n_layers)])
        self.written = torch.empty(0, dtype=torch.long)
        self._ranges: list[tuple[int, int]] = []

    def stores_for(self, states: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Returns the keys and the values of all layers, [n_layers, heads, n_slots, head size], which the first pass
        makes."""
        if self._stores is None:
            self._stores = tuple(torch.zeros(self._n_layers, s.shape[1], self.n_slots, s.shape[3], dtype=s.dtype,
                                             device=s.device) for s in states)
        return self._stores

    def read(self, layer: torch.Tensor) -> torch.Tensor:
        """Returns the slots of a layer that the pass under way reads: in place where they are one text's."""
        parts = [layer[:, begin:end] for begin, end in self._ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def __call__(self, rows: Pass) -> torch.Tensor:
        device, bases, columns = self.model.device, torch.zeros(rows.n_rows, dtype=torch.long), 0
        seen = torch.from_numpy(rows.dense_mask()).bool()
        self._ranges, blocks = [], []
        for sequence in rows.sequences:
            number, begin, end = sequence[:3].tolist()
            used = rows.slots_of(sequence)
            if number >= self.max_texts or used > self.context:
                raise InputError(f"the pass needs slot {used - 1} of text {number}, but the model has {self.context} slots "
                                 f"for each of {self.max_texts} texts: give it the context and max_texts of the decoder.")
            base = number * self.context
            bases[begin:end] = base
            self._ranges.append((base, base + used))
            blocks.append((begin, end, columns, used))
            columns += used
        mask = torch.full((rows.n_rows, columns), torch.finfo(self.model.dtype).min, dtype=self.model.dtype)
        for begin, end, first, used in blocks:
            mask[begin:end, first:first + used].masked_fill_(seen[begin:end, :used], 0)
        self.written = (bases + torch.from_numpy(rows.slots)).to(device)
        with torch.no_grad():
            logits = self.model(input_ids=torch.from_numpy(rows.tokens).long()[None].to(device),
                                attention_mask=mask[None, None].to(device),
                                position_ids=torch.from_numpy(rows.positions).long()[None].to(device),
                                past_key_values=self._cache, use_cache=True,
                                logits_to_keep=torch.from_numpy(rows.outputs).long().to(device)).logits[0]
        return logits.float().cpu()

    def move(self, sequence: int, source: int, target: int) -> None:
        """Moves a row of a text's cache, in all layers."""
        base = sequence * self.context
        for store in self._stores or ():
            store[:, :, base + target] = store[:, :, base + source]
