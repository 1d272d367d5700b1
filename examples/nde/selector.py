# SPDX-License-Identifier: BSL-1.0
"""The network that chooses delayed trees, as include/espalier/selector/delayed_selector.hpp runs it, and safetensors files."""

import json
import os
import struct

import torch
import torch.nn.functional as F
from torch import nn

STATES = ("target_hidden", "draft_hidden_prev", "draft_hidden_root")
SCALARS = (
    "target_entropy draft_entropy root_entropy target_to_draft draft_to_target distance "
    "length temperature top_p draft_seconds target_seconds"
).split()
PATHS, TRUNKS, LENGTHS = 4, 9, 9
ACTIONS = [(k, t, n) for k in range(1, PATHS + 1) for t in range(TRUNKS) for n in range(LENGTHS)]
FORMAT = "espalier-nde-selector 2"
KINDS = {"F32": torch.float32, "I8": torch.int8}


def read_safetensors(path):
    """The metadata and the tensors of a file. SystemExit with a sentence where it is cut short or damaged."""
    with open(path, "rb") as f:
        data = f.read()
    try:
        (length,) = struct.unpack("<Q", data[:8])
        entries = json.loads(data[8 : 8 + length])
        metadata = entries.pop("__metadata__", {})
        tensors = {}
        end = 8 + length
        for name, entry in entries.items():
            a, b = (8 + length + offset for offset in entry["data_offsets"])
            if b > len(data):
                raise ValueError(f"tensor {name} ends at byte {b}, the file at {len(data)}")
            count = torch.Size(entry["shape"]).numel()
            kind = KINDS[entry["dtype"]]
            flat = torch.frombuffer(bytearray(data[a:b]), dtype=kind) if count else torch.empty(0, dtype=kind)
            tensors[name] = flat.reshape(entry["shape"])
            end = max(end, b)
        if end != len(data):
            raise ValueError(f"the tensors end at byte {end}, the file at {len(data)}")
    except (struct.error, ValueError, KeyError, TypeError, RuntimeError) as fault:
        raise SystemExit(f"{path} is cut short or damaged: {fault}.")
    return metadata, tensors


def write_safetensors(path, metadata, tensors):
    """Writes all of a file under another name first: what bears the name is whole."""
    names = {kind: name for name, kind in KINDS.items()}
    entries, chunks, end = {"__metadata__": metadata}, [], 0
    # Floats first, so that all of them begin at multiples of 4 bytes.
    for name, value in sorted(tensors.items(), key=lambda item: (item[1].dtype != torch.float32, item[0])):
        value = value.detach().contiguous()
        raw = bytes(value.flatten().view(torch.uint8).tolist())
        entries[name] = {
            "dtype": names[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [end, end + len(raw)],
        }
        chunks.append(raw)
        end += len(raw)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path + ".partial", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + b"".join(chunks))
    os.replace(path + ".partial", path)


def quantise(x, most):
    """Whole numbers of -most to most, and what each row of them is to be multiplied by."""
    scale = x.abs().amax(1, keepdim=True) / most
    return torch.floor(x / torch.where(scale > 0, scale, 1) + 0.5).clamp(-most, most), scale


def rounded(x, most):
    """What quantise leaves of x; gradients pass as if it had left everything."""
    whole, scale = quantise(x.detach(), most)
    return x + (whole * scale - x).detach()


class Layer(nn.Linear):
    """With weights of 4 bits and a scale a row, and inputs of 8 bits, unless float32."""

    MOST_WEIGHT, MOST_INPUT = 7, 127
    float32 = False

    def forward(self, x):
        if self.float32:
            return super().forward(x)
        return F.linear(rounded(x, self.MOST_INPUT), rounded(self.weight, self.MOST_WEIGHT), self.bias)


class Scale(nn.Module):
    """Standardises, and keeps within 8 deviations."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("deviation", torch.ones(n))

    def fit(self, x):
        self.mean.copy_(x.mean(0))
        self.deviation.copy_(x.std(0).clamp_min(1e-6 * x.abs().mean(0) + 1e-12))

    def forward(self, x):
        return ((x - self.mean) / self.deviation).clamp(-8, 8)


class State(nn.Module):
    """A hidden state, projected to 128 numbers and normalised."""

    def __init__(self, n):
        super().__init__()
        self.scale = Scale(n)
        self.linear = Layer(n, 128)
        self.norm = nn.LayerNorm(128)

    def forward(self, x):
        return self.norm(self.linear(x))


class Selector(nn.Module):
    """Delayed tree expansion, appendix E, equation 10. The paper standardises the scalars; here the hidden states, too."""

    def __init__(self, target_hidden, draft_hidden, dropout=0.0, dropout_input=0.0, float32=False):
        """float32: weights as they are, not of 4 bits."""
        super().__init__()
        self.states = nn.ModuleList(State(n) for n in (target_hidden, draft_hidden, draft_hidden))
        self.scalars = Scale(len(SCALARS))
        self.first = Layer(3 * 128 + len(SCALARS), 512)
        self.second = Layer(512, 32)
        self.actions = Layer(32, len(ACTIONS))
        self.dropout, self.dropout_input, self.float32 = dropout, dropout_input, float32
        for layer in (m for m in self.modules() if isinstance(m, Layer)):
            layer.float32 = float32

    def forward(self, states, scalars):
        def drop(x, p):
            return F.dropout(x, p, self.training)

        parts = [drop(s(drop(s.scale(x), self.dropout_input)), self.dropout) for s, x in zip(self.states, states)]
        x = torch.cat([*parts, self.scalars(scalars)], 1)
        x = drop(F.gelu(self.first(x)), self.dropout)
        x = drop(F.gelu(self.second(x)), self.dropout)
        return self.actions(x)

    def tensors(self):
        """All weights by their names in a file."""
        named = {}
        for name, state in zip(STATES, self.states):
            named |= {name + ".mean": state.scale.mean, name + ".deviation": state.scale.deviation}
            named |= {name + ".weight": state.linear.weight, name + ".bias": state.linear.bias}
            named |= {name + ".norm.weight": state.norm.weight, name + ".norm.bias": state.norm.bias}
        named |= {"scalars.mean": self.scalars.mean, "scalars.deviation": self.scalars.deviation}
        for name in ("first", "second", "actions"):
            layer = getattr(self, name)
            named |= {name + ".weight": layer.weight, name + ".bias": layer.bias}
        return named

    def save(self, path, metadata):
        """metadata: target and draft (identities), vocab, verifier; strings."""
        out = {}
        for name, value in self.tensors().items():
            value = value.detach().float()
            if value.dim() == 2 and not self.float32:
                whole, scale = quantise(value, Layer.MOST_WEIGHT)
                out[name], out[name + "_scale"] = whole.to(torch.int8), scale[:, 0]
            else:
                out[name] = value
        write_safetensors(path, {"format": FORMAT, **metadata}, out)

    @staticmethod
    def load(path):
        """The network of a file, and its metadata."""
        metadata, tensors = read_safetensors(path)
        if metadata.get("format") != FORMAT:
            raise SystemExit(f"{path} is no selector: its format is not \"{FORMAT}\".")
        sizes = [len(tensors.get(name + ".mean", ())) for name in STATES[:2]]
        first = tensors.get("first.weight", torch.empty(0))
        model = Selector(*sizes, float32=first.dtype != torch.int8)
        for name, to in model.tensors().items():
            if name not in tensors or tensors[name].shape != to.shape:
                raise SystemExit(f"{path} lacks tensor {name} of shape {list(to.shape)}.")
            value = tensors[name].float()
            if tensors[name].dtype == torch.int8:
                if value.abs().max() > Layer.MOST_WEIGHT:
                    raise SystemExit(f"{path}: tensor {name} has more than 4 bits; its bytes must be -7 to 7.")
                value = value * tensors[name + "_scale"][:, None]
            to.data.copy_(value)
        return model.eval(), metadata
