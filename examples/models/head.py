# SPDX-License-Identifier: BSL-1.0
"""An EAGLE-3 head for any causal language model that transformers loads (Li et al., 2025): one layer over the target's states
of three of its layers. It is unrolled in training as in drafting: from the second step on its rows read the states that its own
rows left."""

import hashlib
import math
import os
import shutil

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from block import agreement
from distil import angles_of, positions_of, target_of, write_all
from model import MLP, Optimizer, RMSNorm, Trainer, begin, dequantised, rotate, write_folder


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
    tokens; the embedding is the target's."""

    def __init__(self, c):
        super().__init__()
        self.config = c
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

    def compile_parts(self):
        """Compiles nothing: rows of a batch are as long as its longest text. The loss is compiled by itself."""


class States:
    """The target's states at every token of some texts, one text behind the other: the inputs of layers 2 and n / 2 and of
    the third last, which a head reads if its config names none; the last state, after the final norm; and the logarithm of
    the sum of its logits' exponentials. They are kept in a file, whose name tells the texts and the target."""

    def __init__(self, folder, name, target, rows, valid, precision):
        self.valid = valid.numpy()
        self.starts = np.concatenate(([0], np.cumsum(self.valid)))
        self.width = 4 * target.embedding.shape[1] + 1
        shape = (int(self.starts[-1]), self.width)
        made_of = hashlib.sha256(rows.numpy().tobytes() + self.valid.tobytes())
        made_of.update(target.embedding.detach().cpu().view(torch.int16).numpy().tobytes())
        made_of.update(f"{target.name} {target.model.num_parameters()} {precision}".encode())
        path = os.path.join(folder, f"{name}-{made_of.hexdigest()[:12]}.states")
        if not os.path.exists(path):
            size, free = 2 * shape[0] * shape[1], shutil.disk_usage(folder).free
            if size > free:
                raise SystemExit(f"{path} would take {size / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} left.")
            self.write(path, shape, target, rows)
        self.data = np.memmap(path, np.float16, "r", shape=shape)

    @torch.no_grad()
    def write(self, path, shape, target, rows):
        data = np.memmap(path + ".tmp", np.float16, "w+", shape=shape)
        output = target.model.get_output_embeddings().weight
        n, batch = target.config.num_hidden_layers, 8
        order = np.argsort(self.valid, kind="stable")
        for i in range(0, len(order), batch):
            at = order[i : i + batch]
            ids = rows[at, : int(self.valid[at].max())].long().to(target.device)
            out = target.model.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
            total = torch.stack([torch.logsumexp(F.linear(row, output).float(), -1) for row in out[n]])
            kept = torch.cat([out[2], out[n // 2], out[n - 3], out[n], total[..., None]], -1).half().cpu().numpy()
            for row, text in zip(kept, at):
                data[self.starts[text] : self.starts[text + 1]] = row[: self.valid[text]]
            if not np.isfinite(kept).all():
                raise SystemExit(f"the states of {target.path} are too large for 16 bits, as which they are kept.")
            if i // batch % 40 == 0:
                print(f"states of {i + len(at)} texts of {len(order)}", flush=True)
        data.flush()
        os.replace(path + ".tmp", path)

    def of(self, texts, length):
        """[texts][length][4 * width + 1], zeros behind a text."""
        out = np.zeros((len(texts), length, self.width), np.float16)
        for row, text in zip(out, texts):
            n = min(length, self.valid[text])
            row[:n] = self.data[self.starts[text] : self.starts[text] + n]
        return torch.from_numpy(out)


class Texts:
    """Parts of a batch: whole texts, in shuffled order, again and again."""

    def __init__(self, rows, size, states, seed, length):
        self.rows, self.size, self.states, self.length = rows, size, states, length
        self.rng, self.queue = np.random.default_rng(seed), []

    def draw(self, tokens):
        drawn, most = [], 0
        while True:
            if not self.queue:
                self.queue = list(self.rng.permutation(len(self.rows)))
            most = max(most, min(self.length, int(self.states.valid[self.queue[-1]])))
            if drawn and most * (len(drawn) + 1) > tokens:
                return drawn
            drawn.append(self.queue.pop())

    def fetch(self, drawn):
        """ids [batch][length], the target's states, and whether the next token of each is one that the target wrote."""
        valid = torch.from_numpy(self.states.valid[drawn]).clamp_max(self.length)
        length = int(valid.max())
        at = torch.arange(length)[None]
        use = (at >= self.size[drawn, None] - 1) & (at < valid[:, None] - 1)
        return self.rows[drawn, :length].long(), self.states.of(drawn, length), use


def usual_tokens(rows, valid, count, vocab):
    """The tokens that texts have most often, ascending, and the share of the texts that they are."""
    use = torch.arange(rows.shape[1])[None] < valid[:, None]
    counts = torch.bincount(rows[use].long(), minlength=vocab)
    kept = counts.argsort(descending=True, stable=True)[:count].sort().values
    return kept, float(counts[kept].sum() / counts.sum())


@torch.no_grad()
def head_hits(head, embedding, kept, rows, states, depth):
    """Whether the i-th token that the head drafts is the text's, if the pending token stands at each place and the tokens
    drafted before it are the text's: [texts][length][depth]."""
    hits, device, width = [], embedding.device, embedding.shape[1]
    for i in range(0, len(rows), 4):
        at = list(range(i, min(i + 4, len(rows))))
        ids = rows[at].long().to(device)
        part = states.of(at, ids.shape[1])[..., : 3 * width].to(device).float()
        right = []
        for step, last in enumerate(head(F.embedding(ids, embedding).float(), part, depth)):
            found = F.pad(kept[head.lm_head(last).argmax(-1)][:, :-1] == ids[:, 1:], (0, 1))
            right.append(F.pad(found[:, step:], (0, step)))
        hits.append(torch.stack(right, -1).cpu())
    return torch.cat(hits)


def divergence_of_rows(q, p, total, hard):
    """KL(target || head) over the tokens of the head, plus hard times the cross entropy with the best of them, and how
    often the head's first choice is that one. p: the target's logits of these tokens; total: the logarithm of the sum of
    the exponentials of all its logits."""
    q = q.float().log_softmax(-1)
    logp = p.float() - total[:, None]
    best = logp.argmax(-1)
    kl = (logp.exp() * (logp - q)).sum(-1)
    return (kl - hard * q.gather(-1, best[:, None])[:, 0]).mean(), (q.argmax(-1) == best).float().mean()


@torch.no_grad()
def require_simple(target, where):
    """Refuses a target whose logits are not its output matrix times the last state, or that has fewer than five layers."""
    c, model = target.config, target.model
    if c.num_hidden_layers < 5:
        raise SystemExit(
            f"the target {where} has {c.num_hidden_layers} layers; the states of three are read, for which it needs 5."
        )
    out = model(input_ids=torch.arange(4, device=target.device)[None], output_hidden_states=True)
    made = F.linear(out.hidden_states[-1], model.get_output_embeddings().weight)
    if not hasattr(model.get_decoder(), "norm") or not torch.allclose(made, out.logits, rtol=1e-2, atol=1e-2):
        raise SystemExit(f"the logits of {where} are not its output matrix times its last state, as a head's are.")


def head(args):
    target = target_of(args)
    require_simple(target, args.target)
    c, width, device = target.config, target.embedding.shape[1], target.device
    if args.steps < 1 or args.length <= args.longest:
        raise SystemExit("--steps must be 1 or more, and --length more than --longest.")
    (held_rows, held_valid, held_size), (rows, valid, size) = write_all(args, target)
    heads = c.num_attention_heads
    config = {
        "vocab_size": target.vocab,
        "draft_vocab_size": min(args.vocab, target.vocab),
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(c, "num_key_value_heads", None) or heads,
        "head_dim": getattr(c, "head_dim", None) or width // heads,
        "intermediate_size": args.inner or c.intermediate_size,
        "rope_theta": angles_of(target),
        "rms_norm_eps": getattr(c, "rms_norm_eps", 1e-5),
        "max_position_embeddings": positions_of(target),
    }
    output, embedding = target.model.get_output_embeddings().weight.detach(), target.embedding.detach()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Head(config).to(device)
    opt = Optimizer(model, args.muon_lr, args.adam_lr, 0.02, args.precision == "bf16")
    path = os.path.join(args.work, "head.pt")
    state = begin(args, model, opt, path, target.name)
    if state["step"] == 0:
        kept, share = usual_tokens(rows, valid, config["draft_vocab_size"], target.vocab)
        print(f"{len(kept)} tokens of {target.vocab} are {100 * share:.2f} % of the texts", flush=True)
        state["kept"] = kept.tolist()
        with torch.no_grad():  # the stream begins near the latest state, and the output as the target's
            model.lm_head.weight.copy_(output[kept.to(device)])
            model.norm.weight.copy_(target.model.get_decoder().norm.weight)
            model.fc.weight.mul_(0.3)
            model.fc.weight[:, 2 * width :] += torch.eye(width, device=device)
    kept = torch.tensor(state["kept"], device=device)
    of_kept = output[kept].clone()
    torch.set_num_threads(args.threads)
    held_states = States(args.work, "held_out", target, held_rows, held_valid, args.precision)
    states = States(args.work, "texts", target, rows, valid, args.precision)
    torch.set_num_threads(1)
    divergence = torch.compile(divergence_of_rows, dynamic=True) if args.compile else divergence_of_rows

    def loss(m, ids, seen, use):
        """The divergence from the target's distribution on the tokens of the head, of each step, step j weighing
        args.decay**j; the target's share on other tokens counts for nothing."""
        ids, seen, use = ids.to(device), seen.to(device), use.to(device)
        teacher = F.linear(seen[use][:, 3 * width : 4 * width].to(output.dtype), of_kept)
        place = torch.zeros(use.shape, dtype=torch.long, device=device)
        place[use] = torch.arange(len(teacher), device=device)
        tokens, read = F.embedding(ids, embedding).float(), seen[..., : 3 * width].float()
        total, weight, right = 0, 0, []
        for step, last in enumerate(m(tokens, read, args.steps)):
            at = use.clone()
            at[:, : step + 1] = False
            mean, hit = divergence(m.lm_head(last[at]), teacher[place[at]], seen[at][:, 4 * width].float(), args.hard)
            total, weight = total + args.decay**step * mean, weight + args.decay**step
            right.append(hit)
        return total / weight, right[0], right[-1]

    def measured(m):
        hits = head_hits(m, embedding, kept, held_rows, held_states, 7)
        right, of_7 = agreement(hits, held_valid, held_size)
        _, of_5 = agreement(hits[..., :5], held_valid, held_size)
        return {f"position {i + 1}": float(right[i]) for i in range(5)} | {"accepted of 5": of_5, "of 7": of_7}

    Trainer(
        args,
        model,
        opt,
        path,
        state,
        lambda length, seed: Texts(rows, size, states, seed, args.length),
        loss,
        ["loss", "same first choice", "same last choice"],
        measured,
    )
    weights = {name: w.cpu() for name, w in model.state_dict().items()}
    weights["d2t"] = kept.cpu() - torch.arange(len(kept))
    architecture = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "tie_word_embeddings": False}
    n_bytes = write_folder(args.out, weights, {**architecture, **config})
    print(f"{args.out}: parameters {sum(p.numel() for p in model.parameters())} file {n_bytes} bytes")
    found = dequantised(args.out)
    del found["d2t"]
    model.load_state_dict(found)
    print(
        f"on {len(held_rows)} prompts kept apart: " + " ".join(f"{n} {v:.3f}" for n, v in measured(model).items()),
        flush=True,
    )
