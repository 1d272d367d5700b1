# SPDX-License-Identifier: BSL-1.0
"""A block-diffusion draft in DFlash's manner (Chen et al., 2026): from the target's hidden states at every position of the
context, and from the pending token, one pass gives the marginals of the next positions."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from model import Attention, Layer, RMSNorm, rotate

BLOCK = dict(
    hidden_size=384,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=64,
    intermediate_size=416,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=1024,
    block_size=16,
    target_layers=[2, 4, 6],
)


@torch.no_grad()
def features(target, layers, ids):
    """The target's residual stream after the given numbers of layers, side by side, and its last hidden state, of ids
    [batch][length]."""
    x, kept = target.model.embed_tokens(ids).float(), []
    cos, sin = target.cos[: ids.shape[1]], target.sin[: ids.shape[1]]
    for i, layer in enumerate(target.model.layers):
        x = layer(x, cos, sin)
        if i + 1 in layers:
            kept.append(x)
    return torch.cat(kept, -1), target.model.norm(x)


class BlockAttention(Attention):
    """Rows of a block see the context in front of their block, and every row of it. Keys and values of both come from the
    same matrices."""

    def __init__(self, c, norm=nn.Identity):
        super().__init__(c)
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, x, context, rows, before, seen):
        """x [batch][blocks][rows][width], context [batch][length][width], rows and before the cosines and sines at their
        positions, seen [batch][blocks][length]."""
        b, n, r, _ = x.shape
        t, group = context.shape[1], self.h // self.kv
        q = rotate(self.q_norm(self.q_proj(x).view(b, n, r, self.h, self.d)).permute(0, 3, 1, 2, 4), *rows)
        k = rotate(self.k_norm(self.k_proj(x).view(b, n, r, self.kv, self.d)).permute(0, 3, 1, 2, 4), *rows)
        v = self.v_proj(x).view(b, n, r, self.kv, self.d).permute(0, 3, 1, 2, 4)
        keys = rotate(self.k_norm(self.k_proj(context).view(b, t, self.kv, self.d)).transpose(1, 2), *before)
        values = self.v_proj(context).view(b, t, self.kv, self.d).transpose(1, 2)
        q = q.to(v.dtype) * self.d**-0.5
        q = q.reshape(b, self.kv, group, n * r, self.d)
        k, keys = k.to(v.dtype), keys.to(v.dtype)
        far = q.flatten(2, 3) @ keys.mT  # the heads of a group are rows of one product
        far = (
            far.view(b, self.kv, group, n, r, t).float().masked_fill(~seen[:, None, None, :, None], -math.inf)
        )
        near = q.view(b, self.kv, group, n, r, self.d) @ k[:, :, None].mT
        a = torch.cat((far, near.float()), -1).softmax(-1).to(v.dtype)
        y = (a[..., :t].reshape(b, self.kv, -1, t) @ values).view(b, self.kv, group, n, r, self.d)
        y = y + a[..., t:] @ v[:, :, None]
        return self.o_proj(y.permute(0, 3, 4, 1, 2, 5).reshape(b, n, r, -1))


class BlockLayer(Layer):
    def __init__(self, c, norm=nn.Identity):
        super().__init__(c)
        self.self_attn = BlockAttention(c, norm)

    def forward(self, x, context, rows, before, seen):
        x = x + self.self_attn(self.input_layernorm(x), context, rows, before, seen)
        return x + self.mlp(self.post_attention_layernorm(x))


class BlockLayers(nn.Module):
    """The layers of a block. Its context is one projection of the target's states of several layers. norm() makes the norm
    of each head's queries and of its keys."""

    def __init__(self, c, states, norm=nn.Identity):
        super().__init__()
        self.config = c
        width = c["hidden_size"]
        self.fc = nn.Linear(states * width, width, bias=False)
        self.hidden_norm = RMSNorm(width, c["rms_norm_eps"])
        self.layers = nn.ModuleList(BlockLayer(c, norm) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(width, c["rms_norm_eps"])
        inv = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angle = torch.arange(c["max_position_embeddings"] + c["block_size"]).float()[:, None] * inv
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin(), persistent=False)

    def begin(self):
        """Draws the matrices, those that write to the stream smaller."""
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.5 if "embed" in name else 0.6 / math.sqrt(p.shape[1])
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * self.config["num_hidden_layers"])
                nn.init.normal_(p, std=std)

    def through(self, x, context, anchors):
        """The last states, after the norm, of the rows x [batch][blocks][rows][width] of blocks that begin at anchors
        [batch][blocks]; context [batch][length][width]."""
        length, device = context.shape[1], x.device
        at = anchors[:, :, None] + torch.arange(x.shape[2], device=device)
        seen = torch.arange(length, device=device) < anchors[:, :, None]
        there = self.cos[at][:, None], self.sin[at][:, None]
        for layer in self.layers:
            x = layer(x, context, there, (self.cos[:length], self.sin[:length]), seen)
        return self.norm(x)


class BlockDraft(BlockLayers):
    """Row 0 is the pending token beside the context's last row, row i the same with a learned vector for position i after it.
    The target's embedding goes in, and reads the marginals off."""

    def __init__(self, c):
        super().__init__(c, len(c["target_layers"]))
        width = c["hidden_size"]
        self.pending_norm = RMSNorm(width, c["rms_norm_eps"])
        self.pending_proj = nn.Linear(width, width, bias=False)
        self.mask_embed = nn.Parameter(torch.zeros(c["block_size"] - 1, width))
        self.begin()

    def forward(self, states, pending, anchors, rows):
        """The last hidden states [batch][blocks][rows - 1][width] of the positions after the pending tokens, which stand at
        anchors [batch][blocks]; pending are their embeddings, states the target's features of the whole text.
        """
        context = self.hidden_norm(self.fc(states))
        root = self.pending_proj(self.pending_norm(pending))
        root = root + context[torch.arange(len(anchors))[:, None], anchors - 1]
        x = root[:, :, None] + F.pad(self.mask_embed[: rows - 1], (0, 0, 1, 0))
        return self.through(x, context, anchors)[:, :, 1:]

    def compile_parts(self):
        torch._dynamo.config.cache_size_limit = 64
        for layer in self.layers:
            layer.compile(dynamic=False)


class Blocks:
    """Windows with random places of the pending token: from what the target wrote (share written) or from the training text.
    Blocks are whole, halves or quarters: any length can be asked for, and the first positions, which matter most, are learned most.
    """

    def __init__(self, windows, written, share, seed, block):
        self.windows, self.rows, self.valid = windows, *written
        self.rng, self.share, self.block, self.queue = np.random.default_rng(seed), share, block, []

    def draw(self, tokens):
        rows = self.block >> int(self.rng.choice(3, p=(0.25, 0.4, 0.35)))
        seed = int(self.rng.integers(1 << 30))
        if self.rng.random() >= self.share:
            return rows, seed, None, self.windows.draw(tokens)
        count = max(1, tokens // self.rows.shape[1])
        if len(self.queue) < count:
            self.queue = list(self.rng.permutation(len(self.rows)))
        return rows, seed, [self.queue.pop() for _ in range(count)], None

    def fetch(self, drawn):
        """ids [batch][length], how many of each row are text, anchors [batch][blocks], rows of a block."""
        rows, seed, places, windows = drawn
        if places is None:
            ids, _ = self.windows.fetch(windows)
            valid = torch.full((len(ids),), ids.shape[1])
        else:
            ids, valid = self.rows[places].long(), self.valid[places]
        rng, count = np.random.default_rng(seed), min(4 * ids.shape[1] // rows, ids.shape[1] - 2)
        anchors = [rng.choice(int(v) - 2, count, replace=v - 2 < count) + 1 for v in valid]
        return ids, valid, torch.from_numpy(np.stack(anchors)), rows


def block_loss(model, target, divergence, decay, hard, ids, valid, anchors, rows):
    """The divergence at each position of each block, given the text's own tokens in front of it; position i weighs
    exp(-(i - 1) / decay)."""
    states, last = features(target, model.config["target_layers"], ids)
    embedding = target.model.embed_tokens.weight
    h = model(states, F.embedding(ids.gather(1, anchors), embedding), anchors, rows)
    i = torch.arange(1, rows)
    at = anchors[:, :, None] + i
    use = (at < valid[:, None, None]) * torch.exp(-(i - 1) / decay)
    teacher = F.linear(last, embedding)[
        torch.arange(len(ids))[:, None, None], (at - 1).clamp_max(ids.shape[1] - 1)
    ]
    return divergence(F.linear(h, embedding).flatten(0, 2), teacher.flatten(0, 2), use.flatten(), hard)


def accepted_lengths(hits, valid, first):
    """Of each round of greedy decoding, how many drafted tokens the target takes. hits [batch][length][depth]: whether the
    i-th drafted token is right if the pending token stands there; the first pending token stands at first."""
    out = []
    for h, end, n in zip(hits, valid.tolist(), first.tolist()):
        row = []
        while n < end - 1:
            row.append(int(h[n][: end - 1 - n].long().cumprod(0).sum()))
            n += row[-1] + 1
        out.append(row)
    return out


@torch.no_grad()
def block_hits(model, target, ids, rows):
    """Whether the likeliest token of each marginal is the text's, [batch][length][rows - 1]."""
    states, _ = features(target, model.config["target_layers"], ids)
    length = ids.shape[1]
    embedding = target.model.embed_tokens.weight
    anchors = torch.arange(length).clamp_min(1).expand(len(ids), -1)
    h = model(states, F.embedding(ids, embedding), anchors, rows)
    best = torch.cat([F.linear(part, embedding).argmax(-1) for part in h.split(16, 1)], 1)
    truth = F.pad(ids, (0, rows), value=-1).unfold(1, rows, 1)[:, :length, 1:]
    return best == truth


@torch.no_grad()
def step_hits(draft, ids, rows):
    """The same of an autoregressive draft, whose i-th token counts only if those before it are right."""
    best = draft.logits(draft.hidden(ids)).argmax(-1)
    right = F.pad(best[:, :-1] == ids[:, 1:], (0, rows))
    return right.unfold(1, rows - 1, 1)[:, : ids.shape[1]]


def agreement(hits, valid, size):
    """For each depth, how often the drafted token is the target's, and the mean accepted length of the rounds."""
    n = torch.arange(hits.shape[1])[None, :, None]
    use = (n >= size[:, None, None]) & (n + torch.arange(1, hits.shape[2] + 1) < valid[:, None, None])
    rounds = sum(accepted_lengths(hits, valid, size), [])
    return (hits & use).sum((0, 1)) / use.sum((0, 1)), float(np.mean(rounds))
