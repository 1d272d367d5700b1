# SPDX-License-Identifier: BSL-1.0
"""An EAGLE-3 head for any causal language model that transformers loads (Li et al., 2025): one layer over the target's states
of three of its layers. It is unrolled in training as in drafting: from the second step on its rows read the states that its own
rows left."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import MLP, RMSNorm, rotate
from states import begin_as, sizes_of, train_on_states


class HeadAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(2 * c["hidden_size"], self.h * self.d, bias=False)
        self.k_proj = nn.Linear(2 * c["hidden_size"], self.kv * self.d, bias=False)
        self.v_proj = nn.Linear(2 * c["hidden_size"], self.kv * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin, before):
        """Returns the attention's output for the rows of one step. before: keys and values of the earlier steps' rows, to
        which this step's are added. Row r of step j sees the rows 1 to r - j of step 0, and of each step i from 1 to j the
        row r - j + i: the path that leads to it. Row 0, whose token has no state before it, is seen by the path that
        begins there alone, since drafting makes no row for it otherwise."""
        b, t, _ = x.shape
        q = rotate(self.q_proj(x).view(b, t, self.h, self.d).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, self.kv, self.d).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv, self.d).transpose(1, 2)
        q, k = (q * self.d**-0.5).to(v.dtype), k.to(v.dtype)
        q = q.view(b, self.kv, self.h // self.kv, t, self.d)
        before.append((k, v))
        j = len(before) - 1
        first_k, first_v = before[0]
        far = (q.flatten(2, 3) @ first_k.mT).view(b, self.kv, -1, t, t).float()
        seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril(-j)
        seen[:, 0] = False
        seen[min(j, t - 1), 0] = True
        far = far.masked_fill(~seen, -math.inf)
        near = []
        for i in range(1, j + 1):
            near.append((before[i][0].roll(j - i, 2)[:, :, None] * q).float().sum(-1, keepdim=True))
        a = torch.cat([far, *near], -1).softmax(-1).to(v.dtype)
        y = (a[..., :t].flatten(2, 3) @ first_v).view(b, self.kv, -1, t, self.d)
        for i in range(1, j + 1):
            y = y + a[..., t + i - 1, None] * before[i][1].roll(j - i, 2)[:, :, None]
        return self.o_proj(y.permute(0, 3, 1, 2, 4).reshape(b, t, -1))


class HeadLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.hidden_norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = HeadAttention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, token, state, cos, sin, before):
        pair = torch.cat((self.input_layernorm(token), self.hidden_norm(state)), -1)
        x = state + self.self_attn(pair, cos, sin, before)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    """The head, with the tensors' names of SafeAILab's layout. Its output matrix has the rows of config["draft_vocab_size"]
    tokens; the embedding is the target's. It drafts so many steps in training."""

    def __init__(self, c, steps):
        super().__init__()
        self.config, self.steps = c, steps
        width = c["hidden_size"]
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.midlayer = HeadLayer(c)
        self.norm = RMSNorm(width, c["rms_norm_eps"])
        self.lm_head = nn.Linear(width, c["draft_vocab_size"], bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.6 / math.sqrt(p.shape[1])
                nn.init.normal_(p, std=std / 4 if name.endswith(("o_proj.weight", "down_proj.weight")) else std)
        inv = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angle = torch.arange(c["max_position_embeddings"]).float()[:, None] * inv
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin(), persistent=False)

    def forward(self, tokens, states, steps):
        """Yields for each of so many steps its rows' last states [batch][length][width], after the norm, of which lm_head
        makes logits. tokens [batch][length][width] are embeddings, states [batch][length][3 * width] the target's at the
        same positions. Row r of a step has read the token at r and a state of r - 1, and says what comes after r."""
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        state, before = self.fc(states).float(), []
        for _ in range(steps):
            state = self.midlayer(tokens, F.pad(state, (0, 0, 1, 0))[:, :-1], cos, sin, before)
            yield self.norm(state)

    def begin_as(self, layers):
        """Begins with the weights of the target's last layer, which reads the state, the second half of a pair."""
        last = layers[-1].state_dict()
        begin_as(self.midlayer, {name.replace("input_layernorm", "hidden_norm"): w for name, w in last.items()})

    def rows(self, tokens, read, use, stage):
        """Yields for each step, in stage 0 for the first alone, the rows' last states [rows][width] and the places in the flat
        batch of the target's rows that they are to equal: of those in use, the ones that have a path of this length behind
        them."""
        for step, last in enumerate(self(tokens, read, self.steps if stage else 1)):
            at = use.clone()
            at[:, : step + 1] = False
            yield last[at], at.flatten().nonzero()[:, 0]

    def drafted(self, tokens, read, depth):
        """Yields for each of so many tokens drafted in a row its row's last state [batch][length][width], where the pending
        token stands at each place."""
        for step, last in enumerate(self(tokens, read, depth)):
            yield F.pad(last[:, step:], (0, 0, 0, step))

    def compile_parts(self):
        """Compiles nothing: rows of a batch are as long as its longest text. The loss is compiled by itself."""


def head(args):
    if args.steps < 1:
        raise SystemExit("--steps must be 1 or more.")
    args.stages = (args.unroll_from,)

    def make(target, _):
        drafted = {"draft_vocab_size": min(args.vocab, target.vocab), "num_hidden_layers": 1}
        return Head(drafted | sizes_of(target, args), args.steps)

    architecture = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "tie_word_embeddings": False}
    train_on_states(args, "head", 5, make, lambda model: architecture | model.config)
