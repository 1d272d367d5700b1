# SPDX-License-Identifier: BSL-1.0
"""A decoder of many texts whose models are callables of Python."""
from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _library as l
from ._library import Error, InputError, OptionError, call, lib
from .parts import OwnVerifier, Pass, Policy, TreePolicy, Verifier, _ORDERS, sampling_in

_STATES = {1: "running", 2: "stop token", 4: "length", 5: "context full", 6: "nothing allowed", 7: "failed"}


class TextModel:
    """A model that is a function of texts, without a cache of its own: logits_of(texts) is given the tokens of each text,
    and returns the logits of the token after each, float32 [len(texts), vocab]."""

    def __init__(self, logits_of: Callable[[list[list[int]]], Any]):
        self._logits_of, self._tokens = logits_of, {}

    def __call__(self, rows: Pass) -> Any:
        texts = []
        for number, begin, end, prefix, mask_begin, words in rows.sequences.tolist():
            slots = self._tokens.setdefault(number, {})
            for r in range(begin, end):
                slots[int(rows.slots[r])] = int(rows.tokens[r])
            before = [slots[i] for i in range(prefix)]
            for r in rows.outputs[(rows.outputs >= begin) & (rows.outputs < end)].tolist():
                first = mask_begin + (r - begin) * words
                bits = np.unpackbits(rows.mask[first:first + words].view(np.uint8), bitorder="little")
                texts.append(before + [slots[prefix + int(j)] for j in np.flatnonzero(bits)])
        return self._logits_of(texts) if texts else None

    def move(self, sequence: int, source: int, target: int) -> None:
        self._tokens[sequence][target] = self._tokens[sequence][source]


class Drafter(TextModel):
    """Base of drafters of your own: propose(texts) returns the distribution of the token after each text, float32
    [len(texts), vocab], probabilities."""

    def __init__(self) -> None:
        def logits_of(texts: list[list[int]]) -> np.ndarray:
            with np.errstate(divide="ignore"):
                rows = l.array_in(self.propose(texts), "the drafter's answer", 2, l.FLOAT32)
                return np.log(rows)
        super().__init__(logits_of)

    def propose(self, texts: list[list[int]]) -> Any:
        raise NotImplementedError("a drafter needs propose(texts).")


class Event(NamedTuple):
    """What a step has done for one text."""
    text: int           #: its number
    tokens: np.ndarray  #: int32: the committed tokens; none if a part of the prompt was read
    n_drafted: int      #: draws of the tree that the target saw
    state: str          #: running, stop token, length, context full; failed: the text is held at its last token
    error: str          #: "", or the sentence of the error


class Decoder:
    """Writes texts by tree speculative decoding; several at once share each pass.

    drafter   a model like the target's; "prompt-lookup"; or None, for the policy plain
    policy, verifier   names, parts of the library, or own ones, which must fit
    model     model(rows) -> logits, float32 [len(rows.outputs), vocab_size]: a forward pass over a Pass. It writes the
              keys and values of row r to rows.slots[r] of its sequence's cache, and each row sees what the mask shows.
              A model with move(sequence, source, target) moves rows of its cache; without it accepted tokens are
              forwarded again. TextModel makes one of a function of texts
    context   slots of each text, in both caches; a text has at most as many tokens

    What a model or an own part raises comes out of step() as it was; the step is given up, all texts stand at their last
    committed tokens, and step() may be called again. The library's work runs without the interpreter's lock."""

    def __init__(self, drafter: Any, policy: str | Policy | TreePolicy, verifier: str | Verifier | OwnVerifier,
                 model: Callable[[Pass], Any], *, vocab_size: int, context: int = 1024, max_texts: int = 8,
                 prefill_rows: int = 64, order: str = "insertion", draft_temperature: float = 1.0):
        self._handle: Any = None
        self._policy = policy if isinstance(policy, Policy) else Policy(policy)
        self._verifier = verifier if isinstance(verifier, Verifier) else Verifier(verifier)
        if not callable(model):
            raise TypeError(f"the model must be callable, but is a {type(model).__name__}.")
        if isinstance(drafter, str) and drafter != "prompt-lookup":
            raise OptionError(f"a drafter is a model, \"prompt-lookup\" or None, but is {drafter!r}.")
        if order not in _ORDERS:
            raise OptionError(f"order must be one of {', '.join(_ORDERS)}, but is {order!r}.")
        kind = 2 if drafter is None else int(isinstance(drafter, str))
        self._models = (model, drafter if kind == 0 else None)
        self._vocab, self._lock, self._moves = vocab_size, threading.Lock(), []
        moves = all(m is None or hasattr(m, "move") for m in self._models)
        self._move = l.MOVE(lambda _, *move: self._moves.append(move)) if moves else l.MOVE()
        options = l.DecoderOptions(c.sizeof(l.DecoderOptions), vocab_size, context, max_texts, prefill_rows, kind,
                                   _ORDERS.index(order), sampling_in(draft_temperature, 0, 1.0, 0.0), self._move, None)
        handle = c.c_void_p()
        call(lib.espalier_decoder_create(c.byref(options), self._policy._handle, self._verifier._handle, c.byref(handle)))
        self._handle = handle

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.espalier_decoder_destroy(self._handle)

    def add(self, prompt: Any, max_tokens: int = -1, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
            min_p: float = 0.0, seed: int = 0, stream: int = 0, stop: Sequence[int] = ()) -> int:
        """Adds a text, which waits for its turn, and returns its number. A text is the same whoever is served beside it;
        several texts of one seed need different streams."""
        tokens, ends, text = l.tokens_in(prompt, "the prompt"), l.tokens_in(stop, "stop"), c.c_int64()
        options = l.TextOptions(c.sizeof(l.TextOptions), max_tokens, sampling_in(temperature, top_k, top_p, min_p), seed,
                                stream, ends.ctypes.data, len(ends))
        call(lib.espalier_decoder_add(self._handle, tokens.ctypes.data, len(tokens), c.byref(options), c.byref(text)))
        return text.value

    def cancel(self, text: int) -> None:
        """Ends a text, whether it waits, is served, is held or has ended, and forgets it."""
        call(lib.espalier_decoder_cancel(self._handle, text))

    def resume(self, text: int) -> None:
        """Goes on with a text that is held because a part failed."""
        call(lib.espalier_decoder_resume(self._handle, text))

    @property
    def idle(self) -> bool:
        """True if all texts have ended or are held."""
        return bool(lib.espalier_decoder_is_idle(self._handle))

    def text(self, text: int) -> np.ndarray:
        """The tokens of a text so far: the tokens of the prompt, then the tokens that were written. int32."""
        return self._text(text)[0]

    def written(self, text: int) -> np.ndarray:
        """The tokens that were written after the prompt: int32."""
        tokens, n_prompt = self._text(text)
        return tokens[n_prompt:]

    def _text(self, text: int) -> tuple[np.ndarray, int]:
        tokens, n, n_prompt = c.c_void_p(), c.c_int32(), c.c_int32()
        call(lib.espalier_decoder_text(self._handle, text, c.byref(tokens), c.byref(n), c.byref(n_prompt)))
        return l.copied(tokens.value, n.value, np.int32), n_prompt.value

    def begin_step(self) -> Pass | None:
        """The first half of a step, for engines: the pass that it needs next; None once it is over."""
        return self._half(lib.espalier_decoder_begin_step)

    def end_step(self, logits: Any) -> Pass | None:
        """The other half: takes the logits of the pass under way, float32 [len(outputs), vocab_size], read in place, and
        returns the next pass of the step; None once it is over. For a pass without outputs logits may be None."""
        rows = np.zeros((0, self._vocab), np.float32)
        if logits is not None:
            rows = l.array_in(logits, "logits", 2, l.FLOAT32)
        return self._half(lib.espalier_decoder_end_step, rows.ctypes.data, *rows.shape)

    def _half(self, function: Callable, *what: Any) -> Pass | None:
        arrays = l.PassArrays(c.sizeof(l.PassArrays))
        l.thrown.clear()
        try:
            status = function(self._handle, *what, c.byref(arrays))
            if l.thrown:
                lib.espalier_decoder_give_up(self._handle)
            call(status)
        finally:
            self._apply_moves()
        return Pass(arrays) if arrays.n_rows else None

    def _apply_moves(self) -> None:
        moves, self._moves = self._moves, []
        for is_draft, sequence, source, target in moves:
            self._models[is_draft].move(sequence, source, target)

    def give_up(self) -> None:
        """Gives up the step under way: all texts stand at their last committed tokens."""
        call(lib.espalier_decoder_give_up(self._handle))

    def step(self) -> list[Event]:
        """Makes one step: for each text that is served a round, or the reading of a part of its prompt."""
        if not self._lock.acquire(blocking=False):
            raise Error("another thread is in a step of this decoder: one step after the other.")
        try:
            rows = self.begin_step()
            while rows is not None:
                logits = self._models[rows.is_draft](rows)
                rows = self.end_step(logits if len(rows.outputs) else None)
        except BaseException:
            lib.espalier_decoder_give_up(self._handle)
            raise
        finally:
            self._lock.release()
        return self.events()

    def events(self) -> list[Event]:
        """What the last step has done for each text."""
        events, n = c.POINTER(l.Event)(), c.c_int32()
        call(lib.espalier_decoder_events(self._handle, c.byref(events), c.byref(n)))
        return [Event(e.text, l.copied(e.tokens, e.n_tokens, np.int32), e.n_drafted, _STATES.get(e.state, "idle"),
                      e.error.decode()) for e in events[:n.value]]

    def stream(self, prompt: Any, max_tokens: int = -1, **options: Any) -> Iterator[int]:
        """Writes a text, and yields its tokens as they are committed. Leaving the iterator cancels the text. Options are
        those of add(); other texts go on beside it."""
        text = self.add(prompt, max_tokens, **options)
        try:
            state = "running"
            while state == "running":
                for event in self.step():
                    if event.text != text:
                        continue
                    if event.error:
                        raise Error(event.error)
                    state = event.state
                    yield from event.tokens.tolist()
        finally:
            self.cancel(text)

    def generate(self, prompt: Any, max_tokens: int = -1, **options: Any) -> np.ndarray:
        """The tokens that are written after a prompt: int32."""
        return np.fromiter(self.stream(prompt, max_tokens, **options), np.int32)
