# SPDX-License-Identifier: BSL-1.0
"""The C interface of the library, include/espalier/c/espalier.h, by ctypes, which gives up the interpreter's lock for the
time of each call."""
from __future__ import annotations

import ctypes as c
import functools
import os
import pathlib
import sys
from typing import Any

import numpy as np

ABI, CUDA_ABI = 1, 1
FLOAT32, FLOAT64 = (np.dtype(np.float32),), (np.dtype(np.float64),)  # the types that array_in() may allow
INT32, INT64 = (np.dtype(np.int32),), (np.dtype(np.int64),)


class Error(ValueError):
    """An error of the library. Its text is a sentence that says what was wrong and what is allowed."""


class OptionError(Error):
    """An option is out of range, or parts do not fit."""


class InputError(Error):
    """An input does not fit: a type, a shape, a device, a token, a node."""


class NumericError(Error):
    """No token can be drawn from these numbers, such as NaN."""


class LawError(AssertionError):
    """A part breaks a law; the text says where, and by how much."""


class Rows(c.Structure):
    _fields_ = [("data", c.c_void_p), ("n_rows", c.c_int32), ("vocab", c.c_int32), ("row_of", c.c_void_p),
                ("n_nodes", c.c_int32)]


class Seed(c.Structure):
    _fields_ = [("seed", c.c_uint64), ("stream", c.c_uint32), ("length", c.c_uint32)]


class Verdict(c.Structure):
    _fields_ = [("accepted", c.c_int32), ("token", c.c_int32)]


class Sampling(c.Structure):
    _fields_ = [("temperature", c.c_float), ("top_k", c.c_int32), ("top_p", c.c_float), ("min_p", c.c_float)]


class TreeArrays(c.Structure):
    _fields_ = [("size", c.c_size_t), ("n_nodes", c.c_int32), ("n_draws", c.c_int32)] + [
        (name, c.c_void_p) for name in ("token", "parent", "depth", "log_prob", "first_draw", "next_draw", "drawn_node")]


class PassArrays(c.Structure):
    _fields_ = [("size", c.c_size_t)] + [(name, c.c_int32) for name in ("n_rows", "n_sequences", "n_mask", "n_outputs")] + [
        (name, c.c_void_p) for name in ("tokens", "positions", "slots", "sequences", "mask", "outputs")] + [
        ("is_draft", c.c_int32)]


ACCEPT = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_double, c.c_double, c.c_int32, c.c_int32, c.c_int32)
PICK = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(c.c_double), c.c_int32, c.c_int32, c.c_int32, c.c_int32)
INDEX = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, c.c_int32, c.c_int32, c.c_int32)
MOVE = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, c.c_int32, c.c_int32, c.c_int32)
BEGIN = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.POINTER(c.c_void_p), c.POINTER(c.c_int32))
TAKE = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.POINTER(Rows), c.c_void_p, c.POINTER(c.c_void_p),
                   c.POINTER(c.c_int32))
OBSERVE = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.POINTER(Verdict))
COPY = c.CFUNCTYPE(c.c_void_p, c.c_void_p)
DESTROY = c.CFUNCTYPE(None, c.c_void_p)
VERIFY = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.POINTER(Rows), c.c_void_p, c.c_void_p, c.POINTER(Verdict))


class Decisions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("accept", ACCEPT), ("pick", PICK), ("index", INDEX), ("user", c.c_void_p)]


class OwnPolicy(c.Structure):
    _fields_ = [("size", c.c_size_t), ("regimes", c.c_uint32), ("max_nodes", c.c_int32), ("begin", BEGIN), ("take", TAKE),
                ("observe", OBSERVE), ("copy", COPY), ("destroy", DESTROY), ("user", c.c_void_p)]


class OwnVerifier(c.Structure):
    _fields_ = [("size", c.c_size_t), ("regimes", c.c_uint32), ("verify", VERIFY), ("destroy", DESTROY),
                ("user", c.c_void_p)]


class DecoderOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("vocab_size", c.c_int32), ("context", c.c_int32), ("max_texts", c.c_int32),
                ("prefill_rows", c.c_int32), ("draft", c.c_int32), ("order", c.c_int32), ("draft_sampling", Sampling),
                ("move", MOVE), ("user", c.c_void_p)]


class TextOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("max_tokens", c.c_int32), ("sampling", Sampling), ("seed", c.c_uint64),
                ("stream", c.c_uint32), ("stop_tokens", c.c_void_p), ("n_stop_tokens", c.c_int32)]


class Event(c.Structure):
    _fields_ = [("text", c.c_int64), ("tokens", c.c_void_p), ("n_tokens", c.c_int32), ("n_drafted", c.c_int32),
                ("state", c.c_int32), ("error", c.c_char_p)]


class CudaText(c.Structure):
    _fields_ = [("tree", c.POINTER(TreeArrays)), ("sampling", Sampling), ("seed", Seed)]


def _path_of(name: str, variable: str) -> pathlib.Path:
    """The file of a shared library: the one that an environment variable names, or the one beside this file."""
    file = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    return pathlib.Path(os.environ.get(variable) or pathlib.Path(__file__).parent / file)


def _require_abi(path: pathlib.Path, abi: int, expected: int) -> None:
    if abi != expected:
        raise ImportError(f"the library {path} has ABI {abi}, but this package is for ABI {expected}.")


def _open() -> c.CDLL:
    path = _path_of("espalier_c", "ESPALIER_LIBRARY")
    lib = c.CDLL(str(path))
    _require_abi(path, lib.espalier_abi(), ABI)
    for name in ("version", "error", "policy_name", "verifier_name"):
        getattr(lib, "espalier_" + name).restype = c.c_char_p
    for name in ("policy_regimes", "verifier_regimes"):
        getattr(lib, "espalier_" + name).restype = c.c_uint32
    for name in ("policy", "verifier", "tree", "batch", "decoder"):
        destroy = getattr(lib, f"espalier_{name}_destroy")
        destroy.restype, destroy.argtypes = None, [c.c_void_p]
    p, i = c.c_void_p, c.c_int32
    lib.espalier_policy_max_nodes.argtypes = lib.espalier_policy_max_asked.argtypes = [p]
    lib.espalier_policy_regimes.argtypes = lib.espalier_verifier_regimes.argtypes = [p]
    lib.espalier_tree_reset.argtypes = [p, i, i]
    lib.espalier_tree_draw.argtypes = [p, i, i, c.c_float, c.POINTER(i)]
    lib.espalier_tree_read.argtypes = [p, c.POINTER(TreeArrays)]
    lib.espalier_grow_begin.argtypes = [p, p, c.POINTER(p), c.POINTER(i)]
    lib.espalier_grow_take.argtypes = [p, p, c.POINTER(Rows), c.POINTER(Seed), c.POINTER(p), c.POINTER(i)]
    lib.espalier_grow_decided.argtypes = [p, p, c.POINTER(Rows), c.POINTER(Decisions), c.POINTER(p), c.POINTER(i)]
    lib.espalier_grow_was.argtypes = [p, c.POINTER(p), c.POINTER(i)]
    lib.espalier_verify.argtypes = [p, p, c.POINTER(Rows), c.POINTER(Rows), c.POINTER(Sampling), c.POINTER(Seed),
                                    c.POINTER(Verdict)]
    lib.espalier_verify_decided.argtypes = [p, p, c.POINTER(Rows), c.POINTER(Rows), c.POINTER(Decisions),
                                            c.POINTER(Verdict)]
    lib.espalier_policy_observe.argtypes = [p, p, c.POINTER(Verdict)]
    lib.espalier_chance_accept.argtypes = [p, c.c_double, c.c_double, i, i, i]
    lib.espalier_chance_pick.argtypes = [p, p, i, i, i, i]
    lib.espalier_chance_index.argtypes = [p, i, i, i, i]
    lib.espalier_target_row.argtypes = [p, i, c.POINTER(p), c.POINTER(i)]
    lib.espalier_target_argmax.argtypes = [p, i, c.POINTER(i)]
    lib.espalier_batch_clear.argtypes = [p]
    lib.espalier_batch_add.argtypes = [p, p, i, p, i, i, i]
    lib.espalier_batch_read.argtypes = [p, c.POINTER(PassArrays)]
    lib.espalier_batch_logits_rows.argtypes = [p, i, c.POINTER(p), c.POINTER(i)]
    lib.espalier_batch_kept.argtypes = [p, i, p, i, c.POINTER(p), c.POINTER(i)]
    lib.espalier_decoder_create.argtypes = [c.POINTER(DecoderOptions), p, p, c.POINTER(p)]
    lib.espalier_decoder_add.argtypes = [p, p, i, c.POINTER(TextOptions), c.POINTER(c.c_int64)]
    lib.espalier_decoder_cancel.argtypes = lib.espalier_decoder_resume.argtypes = [p, c.c_int64]
    lib.espalier_decoder_is_idle.argtypes = lib.espalier_decoder_give_up.argtypes = [p]
    lib.espalier_decoder_begin_step.argtypes = [p, c.POINTER(PassArrays)]
    lib.espalier_decoder_end_step.argtypes = [p, p, i, i, c.POINTER(PassArrays)]
    lib.espalier_decoder_events.argtypes = [p, c.POINTER(c.POINTER(Event)), c.POINTER(i)]
    lib.espalier_decoder_text.argtypes = [p, c.c_int64, c.POINTER(p), c.POINTER(i), c.POINTER(i)]
    mask = [c.POINTER(PassArrays), i, p, c.c_size_t, c.POINTER(c.c_size_t)]
    lib.espalier_dense_mask.argtypes = lib.espalier_additive_mask.argtypes = mask
    lib.espalier_flashinfer_mask.argtypes = [c.POINTER(PassArrays), p, c.c_size_t, p, c.c_size_t, c.POINTER(c.c_size_t)]
    lib.espalier_sglang_mask.argtypes = [c.POINTER(PassArrays), i, i, p, c.c_size_t, c.POINTER(c.c_size_t)]
    lib.espalier_sglang_tree.argtypes = [c.POINTER(PassArrays), i, p, p, p, p, c.c_size_t, c.POINTER(c.c_size_t)]
    return lib


lib = _open()


@functools.cache
def cuda() -> c.CDLL:
    """The library of verifiers on CUDA devices, include/espalier/c/espalier_cuda.h. Raises InputError where it is not."""
    path = _path_of("espalier_c_cuda", "ESPALIER_CUDA_LIBRARY")
    if not path.exists():
        raise InputError("this package was installed where no nvcc was, and has no verifiers on CUDA devices: install it where "
                         "nvcc 12 or later is, or copy the rows to the host's memory, as with .cpu().")
    lib = c.CDLL(str(path))
    _require_abi(path, lib.espalier_cuda_abi(), CUDA_ABI)
    lib.espalier_cuda_error.restype = c.c_char_p
    p = c.c_void_p
    lib.espalier_cuda_verifier_create.argtypes = [c.c_char_p, c.c_char_p, c.POINTER(p)]
    lib.espalier_cuda_verifier_destroy.restype, lib.espalier_cuda_verifier_destroy.argtypes = None, [p]
    lib.espalier_cuda_verify.argtypes = [p, c.POINTER(CudaText), c.c_int32, c.POINTER(Rows), c.POINTER(Rows), p,
                                         c.POINTER(Verdict)]
    return lib


def call_cuda(status: int) -> None:
    """Raises the error of a call of that library."""
    if status != 0:
        raise _ERRORS.get(status, Error)(cuda().espalier_cuda_error().decode())


_ERRORS = {1: OptionError, 2: InputError, 3: NumericError, 4: MemoryError}

# The exceptions that parts of Python have thrown inside a call of the library, which knows only that they failed.
thrown: list[BaseException] = []


def call(status: int) -> None:
    """Raises the error of a call: the exception of a part of Python as it was, or the library's sentence."""
    if thrown:
        error = thrown[0]
        thrown.clear()
        raise error
    if status != 0:
        raise _ERRORS.get(status, Error)(lib.espalier_error().decode())


def copied(pointer: Any, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """The numbers at an address, copied."""
    made = np.empty(shape, dtype)
    if made.size:
        c.memmove(made.ctypes.data, pointer, made.nbytes)
    return made


# numpy's array objects begin with Python's own part, then the address of the numbers. It is read there in a fraction of the
# time that array.ctypes or __array_interface__ take.
_ADDRESS = object.__basicsize__


def address_of(array: np.ndarray) -> int:
    """Returns where the numbers of an array are."""
    return c.c_void_p.from_address(id(array) + _ADDRESS).value or 0


def _interface_address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


_shown = np.ones(3, np.float32)
if sys.implementation.name != "cpython" or address_of(_shown) != _interface_address_of(_shown):
    address_of = _interface_address_of


def array_in(value: Any, what: str, n_dims: int, dtypes: tuple[np.dtype, ...]) -> np.ndarray:
    """The array of a caller, by DLPack where it has it, without a copy.

    Raises InputError for what is no array in the host's memory, of another type or shape, or not contiguous."""
    array = value if isinstance(value, np.ndarray) else _of_dlpack(value, what, dtypes)
    if array.dtype in dtypes and array.ndim == n_dims and array.flags.c_contiguous:
        return array
    if array.dtype not in dtypes:
        raise InputError(f"{what} must be of {_names(dtypes)}, but is of {array.dtype.name}: convert it.")
    if array.ndim != n_dims:
        raise InputError(f"{what} must have {n_dims} dimension{'s' * (n_dims > 1)}, but has {array.ndim}.")
    raise InputError(f"{what} is not contiguous: contiguous() or numpy.ascontiguousarray() copies it.")


def _of_dlpack(value: Any, what: str, dtypes: tuple[np.dtype, ...]) -> np.ndarray:
    if not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        raise InputError(f"{what} must be an array, as of numpy or torch, but is a {type(value).__name__}.")
    _require_host(value, what)
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InputError(f"{what} cannot be read in place ({error}); a tensor that requires grad needs .detach(), and one of "
                         f"another type than {_names(dtypes)} must be converted.") from None


def _require_host(value: Any, what: str) -> None:
    """Raises InputError for a tensor in the memory of a device, by DLPack's numbers of devices."""
    kind = int(value.__dlpack_device__()[0])
    if kind not in (1, 3):  # of the CPU, and pinned for CUDA
        names = {2: "CUDA", 8: "Metal", 10: "ROCm", 13: "CUDA's managed memory", 14: "oneAPI"}
        device = names.get(kind, f"DLPack's kind {kind}")
        raise InputError(f"{what} is on a device ({device}), not in the host's memory: copy it there, as with .cpu().")


_ON_CUDA = 2  # DLPack's number


def is_on_cuda(value: Any) -> bool:
    """True for an array in the memory of a CUDA device."""
    return (not isinstance(value, np.ndarray) and hasattr(value, "__dlpack_device__")
            and int(value.__dlpack_device__()[0]) == _ON_CUDA)


def cuda_array_in(value: Any, what: str) -> dict[str, Any]:
    """The description of a caller's array of two dimensions on a device, by __cuda_array_interface__.

    Raises InputError for what has none, is of another type or shape, or not contiguous."""
    try:
        shown = value.__cuda_array_interface__
    except (AttributeError, RuntimeError) as error:
        raise InputError(f"{what} cannot be read in place on its device ({error}); a tensor that requires grad needs "
                         ".detach().") from None
    if np.dtype(shown["typestr"]) not in FLOAT32:
        name = "bfloat16 or another type of 2 bytes" if shown["typestr"][1:] == "V2" else np.dtype(shown["typestr"]).name
        raise InputError(f"{what} must be of {_names(FLOAT32)}, but is of {name}: convert it.")
    shape, strides = shown["shape"], shown.get("strides")
    if len(shape) != 2:
        raise InputError(f"{what} must have 2 dimensions, but has {len(shape)}.")
    if strides is not None and any(n > 1 and s != of for n, s, of in zip(shape, strides, (4 * shape[1], 4))):
        raise InputError(f"{what} is not contiguous: contiguous() copies it.")
    return shown


def stream_of(value: Any, shown: dict[str, Any]) -> int:
    """The stream in which an array is ready: torch's present one for its tensors, or the one that the array names."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return torch.cuda.current_stream(value.device).cuda_stream
    return shown.get("stream") or 0


def _names(dtypes: tuple[np.dtype, ...]) -> str:
    return " or ".join(d.name for d in dtypes)


def tokens_in(value: Any, what: str) -> np.ndarray:
    """Whole numbers of 32 bits: a list, or an array of any whole numbers."""
    array = value
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack_device__"):
            _require_host(value, what)
        array = np.asarray(value)
    if array.dtype in INT32 and array.ndim == 1 and array.flags.c_contiguous:
        return array
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{what} must be whole numbers in one dimension, but has {array.ndim} dimensions of "
                         f"{array.dtype.name}.")
    if array.min() < -2**31 or array.max() >= 2**31:
        raise InputError(f"{what} has a number beyond 32 bits.")
    return np.ascontiguousarray(array, np.int32)
