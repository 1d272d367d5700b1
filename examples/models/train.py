#!/usr/bin/env python3
"""Trains the bundled models: a tokenizer, a small Llama (the target) and a smaller one (its draft)."""
import argparse
import json
import math
import os
import re
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DOMAINS = ("gsm8k", "python", "shakespeare", "wikitext")
UNK, BOS, EOS = 0, 1, 2
UPSAMPLE = {"gsm8k": 1.0, "python": 1.0, "shakespeare": 2.0, "wikitext": 2.0}

TARGET = dict(vocab_size=4096, hidden_size=384, num_hidden_layers=7, num_attention_heads=6, num_key_value_heads=3,
              head_dim=64, intermediate_size=1024, rope_theta=10000.0, rms_norm_eps=1e-5, max_position_embeddings=1024)
DRAFT = dict(vocab_size=4096, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=32, intermediate_size=336, rope_theta=10000.0, rms_norm_eps=1e-5, max_position_embeddings=1024)


# ---------------------------------------------------------------------------------------------------------------- text

def read(data, name):
    with open(os.path.join(data, name), encoding="utf-8", newline="") as f:
        return f.read()


def split_before(pattern, text):
    """Cuts text in front of every match of pattern."""
    starts = [0] + [m.start() for m in re.finditer(pattern, text) if m.start() > 0]
    return [text[a:b] for a, b in zip(starts, starts[1:] + [len(text)]) if text[a:b].strip()]


def documents(data, domain, split):
    """The documents of one domain; split is 'train' or 'heldout'. The two never share a line of source text."""
    train = split == "train"
    if domain == "gsm8k":
        items = [json.loads(line) for line in read(data, "gsm8k_train.jsonl" if train else "gsm8k_test.jsonl").splitlines()]
        return ["Question: %s\nAnswer: %s" % (i["question"], re.sub(r"<<.*?>>", "", i["answer"])) for i in items]
    if domain == "python":  # the modules stand one after another; a docstring, a #! or an import after two blank lines begins one
        text = read(data, "python_code_train.txt" if train else "python_code_test.txt")
        return split_before(r'(?<=\n\n\n)(?=r?"""|#!|from |import )', text)
    if domain == "wikitext":
        text = read(data, "wikitext2_raw_valid.txt" if train else "wikitext2_raw_test.txt")
        return split_before(r"(?m)^ = [^=\n]+ = $", text)
    if domain == "shakespeare":
        text = read(data, "tinyshakespeare.txt")
        cut = int(0.93 * len(text))
        return [text[:cut] if train else text[cut:]]
    raise ValueError(domain)


# ----------------------------------------------------------------------------------------------------------- tokenizer

def train_tokenizer(args):
    import sentencepiece as spm
    pieces = []
    for domain in DOMAINS:
        for doc in documents(args.data, domain, "train"):
            lines = doc.splitlines(keepends=True)
            for i in range(0, len(lines), 8):  # the trainer takes strings of moderate length
                pieces.append("".join(lines[i:i + 8])[:4000])
    out = os.path.join(args.work, "tokenizer")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(pieces), model_prefix=out, vocab_size=4096, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
        allow_whitespace_only_pieces=True, split_digits=True, user_defined_symbols=["\n"], character_coverage=0.9998,
        unk_id=UNK, bos_id=BOS, eos_id=EOS, pad_id=-1, max_sentence_length=1 << 16, num_threads=2,
        shuffle_input_sentence=False)
    sp = spm.SentencePieceProcessor(model_file=out + ".model")
    for domain in DOMAINS:
        for split in ("train", "heldout"):
            docs = documents(args.data, domain, split)
            ids = sp.encode(docs)
            bad = sum(sp.decode(i) != d for i, d in zip(ids, docs))
            n, b = sum(map(len, ids)), sum(len(d.encode()) for d in docs)
            unk = sum(i.count(UNK) for i in ids)
            print(f"{domain:12s} {split:8s} documents {len(docs):6d} tokens {n:8d} bytes {b:8d} "
                  f"bytes/token {b / n:.3f} unknown {unk} not restored {bad}", flush=True)
            stream = np.concatenate([np.array(i + [EOS], dtype=np.uint16) for i in ids])
            np.save(os.path.join(args.work, f"{domain}_{split}.npy"), stream)


# --------------------------------------------------------------------------------------------------------------- model

class RMSNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        f = x.float()
        return f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.h * self.d, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin, cache=None, mask=None):
        b, t, _ = x.shape
        q = rotate(self.q_proj(x).view(b, t, self.h, self.d).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, self.kv, self.d).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv, self.d).transpose(1, 2)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if cache is not None:
            k, v = cache.append(self, k, v)
        r = self.h // self.kv
        if t == 1:  # one new token a sequence: no copy of the keys for each head
            a = (q.view(b, self.kv, r, self.d) @ k.mT).float() * self.d ** -0.5
            a = a.masked_fill(~mask, -math.inf).softmax(-1).to(v.dtype)
            return self.o_proj((a @ v).reshape(b, 1, -1))
        k = k[:, :, None].expand(-1, -1, r, -1, -1).flatten(1, 2)
        v = v[:, :, None].expand(-1, -1, r, -1, -1).flatten(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Cache:
    """Keys and values of a batch of sequences of one length."""

    def __init__(self, model, batch, capacity, dtype):
        c = model.config
        shape = (batch, c["num_key_value_heads"], capacity, c["head_dim"])
        self.rows = {layer.self_attn: (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
                     for layer in model.model.layers}
        self.length = 0

    def append(self, owner, k, v):
        keys, values = self.rows[owner]
        end = self.length + k.shape[2]
        keys[:, :, self.length:end], values[:, :, self.length:end] = k, v
        return keys[:, :, :end], values[:, :, :end]


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin, cache=None, mask=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    """The Llama family with Hugging Face's parameter names and a tied output matrix."""

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = Body(c)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 if "embed" in name else 0.6 / math.sqrt(p.shape[1])
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * c["num_hidden_layers"])
                nn.init.normal_(p, std=std)
        inv = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angle = torch.arange(c["max_position_embeddings"]).float()[:, None] * inv
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin(), persistent=False)

    def hidden(self, ids, cache=None, mask=None, start=0):
        x = self.model.embed_tokens(ids).float()
        cos, sin = self.cos[start:start + ids.shape[1]], self.sin[start:start + ids.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin, cache, mask)
        return self.model.norm(x)

    def logits(self, h):
        return F.linear(h, self.model.embed_tokens.weight)

    def loss(self, ids, labels):
        return self.head(self.hidden(ids).flatten(0, 1), self.model.embed_tokens.weight, labels.flatten())

    @staticmethod
    def head(h, weight, labels):
        return F.cross_entropy(F.linear(h, weight).float(), labels)

    def compile_parts(self):
        """Compiles each layer, and the loss, on its own: that is quick, and the layers share one result."""
        torch._dynamo.config.cache_size_limit = 64
        for layer in self.model.layers:
            layer.compile(dynamic=False)
        self.head = torch.compile(Llama.head, dynamic=False)


# ----------------------------------------------------------------------------------------------------------- optimizer

class Muon:
    """Momentum whose update is made orthogonal by Newton-Schulz iteration (Jordan et al., 2024)."""

    def __init__(self, params, momentum=0.95, decay=0.1, half=True):
        self.params, self.momentum, self.decay = list(params), momentum, decay
        self.dtype = torch.bfloat16 if half else torch.float32
        self.buffers = [torch.zeros_like(p) for p in self.params]
        self.groups = {}
        for i, p in enumerate(self.params):
            self.groups.setdefault(p.shape, []).append(i)

    @torch.no_grad()
    def step(self, members, lr):
        u = []
        for i in members:
            m, g = self.buffers[i], self.params[i].grad
            m.lerp_(g, 1 - self.momentum)
            u.append(g.lerp(m, self.momentum))
        shape = u[0].shape
        x = torch.stack(u).to(self.dtype)
        tall = shape[0] > shape[1]
        if tall:
            x = x.mT.contiguous()
        x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
        if tall:
            x = x.mT
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        for j, i in enumerate(members):
            self.params[i].mul_(1 - lr * self.decay).add_(x[j].float(), alpha=-lr * scale)


class Optimizer:
    """Muon for the matrices, AdamW for the embedding and the norms, cut into tasks that any worker can do. All state
    lies in shared memory."""

    def __init__(self, model, muon_lr, adam_lr, decay, half):
        self.muon_lr, self.adam_lr = muon_lr, adam_lr
        named = list(model.named_parameters())
        self.muon = Muon([p for n, p in named if p.dim() == 2 and "embed" not in n], decay=decay, half=half)
        self.rest = [p for n, p in named if p.dim() != 2 or "embed" in n]
        self.first = [torch.zeros_like(p) for p in self.rest]
        self.second = [torch.zeros_like(p) for p in self.rest]
        self.tasks = [None] + [m[i:i + 4] for m in self.muon.groups.values() for i in range(0, len(m), 4)]

    def tensors(self):
        return self.muon.buffers + self.first + self.second

    @torch.no_grad()
    def do(self, task, factor, step):
        """One task: None is AdamW, a list is some matrices of one shape. step counts from 1."""
        if task is not None:
            self.muon.step(task, self.muon_lr * factor)
            return
        lr = self.adam_lr * factor
        for p, m, v in zip(self.rest, self.first, self.second):
            m.lerp_(p.grad, 0.1)
            v.lerp_(p.grad.square(), 0.05)
            if p.dim() == 2:
                p.mul_(1 - lr * 0.01)
            p.addcdiv_(m / (1 - 0.9 ** step), (v / (1 - 0.95 ** step)).sqrt_().add_(1e-8), value=-lr)

    def step(self, factor, step):
        for t in self.tasks:
            self.do(t, factor, step)
        for p in self.muon.params + self.rest:
            p.grad = None


def schedule(x, warm=0.02, hold=0.35):
    """The factor of the learning rate at fraction x of the budget: up, level, then down to zero in a straight line."""
    if x < warm:
        return max(x, 1e-3) / warm
    return 1.0 if x < hold else max(0.0, (1 - x) / (1 - hold))


# ------------------------------------------------------------------------------------------------------------- batches

class Windows:
    """Windows of length tokens, beginning with bos, from the training streams: each stream is walked through in shuffled
    windows at a random phase, then again. Windows of gsm8k begin at a document."""

    def __init__(self, work, length, seed, domains=DOMAINS):
        self.length, self.rng = length, np.random.default_rng(seed)
        self.streams = {d: np.load(os.path.join(work, f"{d}_train.npy")).astype(np.int64) for d in domains}
        self.starts = {d: np.concatenate(([0], np.flatnonzero(s == EOS)[:-1] + 1)) for d, s in self.streams.items()}
        size = np.array([len(self.streams[d]) * UPSAMPLE[d] for d in domains])
        self.domains, self.p = list(domains), size / size.sum()
        self.queue = {d: [] for d in domains}
        self.credit = np.zeros(len(domains))

    def one(self):
        self.credit += self.p
        i = int(self.credit.argmax())
        self.credit[i] -= 1
        d = self.domains[i]
        s, n = self.streams[d], self.length
        if not self.queue[d]:
            offsets = np.arange(int(self.rng.integers(n)), len(s) - 2 * n, n)
            self.queue[d] = list(self.rng.permutation(offsets))
        o = int(self.queue[d].pop())
        if d == "gsm8k":
            j = np.searchsorted(self.starts[d], o)
            o = int(self.starts[d][min(j, len(self.starts[d]) - 1)])
            o = min(o, len(s) - n)
        return np.concatenate(([BOS], s[o:o + n]))

    def draw(self, tokens):
        return [self.one() for _ in range(tokens // self.length)]

    def fetch(self, drawn):
        w = torch.from_numpy(np.stack(drawn))
        return w[:, :-1], w[:, 1:]


# ---------------------------------------------------------------------------------------------------------- evaluation

@torch.no_grad()
def heldout_loss(model, work, domain, limit=None, length=512, batch=8):
    """Mean loss in nats a token over consecutive windows of the held-out stream, each beginning with bos."""
    s = np.load(os.path.join(work, f"{domain}_heldout.npy")).astype(np.int64)
    count = max(1, (len(s)) // length)
    rows = np.stack([np.concatenate(([BOS], s[i * length:(i + 1) * length])) for i in range(count)])
    if limit and count > limit:
        rows = rows[np.linspace(0, count - 1, limit).astype(int)]
    total = 0.0
    for i in range(0, len(rows), batch):
        w = torch.from_numpy(rows[i:i + batch])
        total += model.loss(w[:, :-1], w[:, 1:]).item() * len(w)
    return total / len(rows)


# -------------------------------------------------------------------------------------------------------------- target

def save(path, obj):
    torch.save(obj, path + ".tmp")
    os.replace(path + ".tmp", path)


def take(counter):
    with counter.get_lock():
        counter.value += 1
        return counter.value - 1


class Trainer:
    """Workers of one thread each share the weights; each takes the next part of a step's batch when it is free, so that a
    core that other work keeps busy slows the step little. The schedule follows the clock, not the count of steps.

    source(length, seed) gives an object with draw(tokens), cheap and the same in every worker, and fetch(drawn);
    loss(model, *fetched) a tuple whose first member is minimised and whose others are shown."""

    def __init__(self, args, model, opt, path, state, source, loss, shown, evaluate=None):
        import torch.multiprocessing as mp
        self.args, self.model, self.opt, self.path, self.state = args, model, opt, path, state
        self.source, self.loss, self.names, self.evaluate = source, loss, shown, evaluate
        n = args.threads
        self.grads = [[torch.zeros_like(p).share_memory_() for p in model.parameters()] for _ in range(n)]
        for t in list(model.parameters()) + opt.tensors():
            t.share_memory_()
        self.part, self.task, self.length = mp.Value("i", 0), mp.Value("i", 0), mp.Value("i", 0)
        self.factor, self.sums, self.barrier = mp.Value("d", 0.0), mp.Array("d", n * len(shown)), mp.Barrier(n)
        fork = mp.get_context("fork")
        others = [fork.Process(target=self.work, args=(i,), daemon=True) for i in range(1, n)]
        for o in others:
            o.start()
        self.work(0)
        for o in others:
            o.join()

    def save(self, elapsed):
        self.state["elapsed"] = elapsed
        save(self.path, {"model": self.model.state_dict(), "opt": self.opt.tensors(), "state": self.state})

    def work(self, me):
        torch.set_num_threads(1)
        args, model, opt, state = self.args, self.model, self.opt, self.state
        if args.compile:
            model.compile_parts()
        params, length, source = list(model.parameters()), 0, None
        for p in params:
            p.grad = None
        budget, begun, before = args.minutes * 60, time.time(), state["elapsed"]
        last_eval = last_save = shown = time.time()
        shown_tokens, record = state["tokens"], []
        while True:
            elapsed = before + time.time() - begun
            if me == 0:  # the first worker sets the step
                x = elapsed / budget
                self.length.value = 0 if x >= 1 else 256 if x < args.middle_from else 512 if x < args.long_from else 1024
                self.factor.value = schedule(x)
                self.part.value = self.task.value = 0
                self.sums[:] = [0.0] * len(self.sums)
            self.barrier.wait()
            if self.length.value == 0:
                break
            if self.length.value != length:
                length, drawn, offset = self.length.value, 0, state["step"]
                source = self.source(length, args.seed + offset)
            while True:
                part = take(self.part)
                if part >= args.accumulate:
                    break
                while drawn <= (state["step"] - offset) * args.accumulate + part:
                    batch = source.draw(args.micro)
                    drawn += 1
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
                    values = self.loss(model, *source.fetch(batch))
                (values[0] / args.accumulate).backward()
                for i, v in enumerate(values):
                    self.sums[me * len(values) + i] += v.item() / args.accumulate
            for p, g in zip(params, self.grads[me]):
                if p.grad is None:
                    g.zero_()
                else:
                    g.copy_(p.grad)
            self.barrier.wait()
            state["step"] += 1
            state["tokens"] += args.accumulate * args.micro
            for i, p in enumerate(params):
                p.grad = sum((g[i] for g in self.grads[1:]), self.grads[0][i])
            while True:
                t = take(self.task)
                if t >= len(opt.tasks):
                    break
                opt.do(opt.tasks[t], self.factor.value, state["step"])
            for p in params:
                p.grad = None
            if me == 0:
                record.append(np.array(self.sums).reshape(args.threads, -1).sum(0))
            self.barrier.wait()
            if me != 0:
                continue
            now = time.time()
            if state["step"] % args.show == 0:
                rate = (state["tokens"] - shown_tokens) / (now - shown)
                text = " ".join(f"{n} {v:.3f}" for n, v in zip(self.names, np.mean(record, 0)))
                print(f"step {state['step']:5d} {text} tokens {state['tokens']:9d} tokens/s {rate:6.0f} "
                      f"factor {self.factor.value:.3f} minutes left {(budget - elapsed) / 60:5.1f}", flush=True)
                shown, shown_tokens, record = now, state["tokens"], []
            if now - last_save > args.save_every:
                self.save(before + now - begun)
                last_save = now
            if self.evaluate and now - last_eval > args.eval_every:
                print("held out " + " ".join(f"{d} {v:.3f}" for d, v in self.evaluate(model).items()), flush=True)
                last_eval = shown = time.time()
                shown_tokens = state["tokens"]
        if me == 0:
            self.save(before + time.time() - begun)


def begin(args, model, opt, path):
    """The state to go on from: that of the checkpoint at path if there is one."""
    print(f"parameters {sum(p.numel() for p in model.parameters())}", flush=True)
    if not os.path.exists(path) or args.fresh:
        return {"elapsed": 0.0, "step": 0, "tokens": 0}
    c = torch.load(path)
    model.load_state_dict(c["model"])
    for t, v in zip(opt.tensors(), c["opt"]):
        t.copy_(v)
    print(f"resumed at step {c['state']['step']}", flush=True)
    return c["state"]


def train_target(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Llama(TARGET)
    opt = Optimizer(model, args.muon_lr, args.adam_lr, args.decay, args.precision == "bf16")
    path = os.path.join(args.work, "target.pt")

    def evaluate(m):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            return {d: heldout_loss(m, args.work, d, 8, batch=2) for d in DOMAINS}

    Trainer(args, model, opt, path, begin(args, model, opt, path), lambda length, seed: Windows(args.work, length, seed),
            lambda m, ids, labels: (m.loss(ids, labels),), ["loss"], evaluate)


# -------------------------------------------------------------------------------------------------------------- export

def quantise(w):
    """Symmetric int8 with one scale a row."""
    scale = w.abs().amax(1).clamp_min(1e-12) / 127.0
    return torch.round(w / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


def export(args):
    from safetensors.torch import save_file
    for part, config in (("target", TARGET), ("draft", DRAFT)):
        path = os.path.join(args.work, part + ".pt")
        if part not in args.part or not os.path.exists(path):
            continue
        weights = torch.load(path, map_location="cpu")["model"]
        out = {}
        for name, w in weights.items():
            w = w.float().contiguous()
            if w.dim() == 2:
                out[name], out[name + "_scale"] = quantise(w)
            else:
                out[name] = w
        folder = os.path.join(args.out, part)
        os.makedirs(folder, exist_ok=True)
        model = os.path.join(folder, "model.safetensors")
        save_file(out, model, metadata={"format": "pt"})
        os.chmod(model, 0o644)
        settings = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **config, "hidden_act": "silu",
                    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, "bos_token_id": BOS,
                    "eos_token_id": EOS, "torch_dtype": "float32",
                    "quantization_config": {"quant_method": "espalier_int8_rows"}}
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(settings, f, indent=2)
            f.write("\n")
        print(f"{part} parameters {sum(w.numel() for w in weights.values())} file {os.path.getsize(model)} bytes")
    with open(os.path.join(args.work, "tokenizer.model"), "rb") as f, \
            open(os.path.join(args.out, "tokenizer.model"), "wb") as g:
        g.write(f.read())


def dequantised(folder):
    """The weights of an exported folder, in float32."""
    from safetensors.torch import load_file
    t = load_file(os.path.join(folder, "model.safetensors"))
    return {n: w.float() * t[n + "_scale"][:, None] if w.dtype == torch.int8 else w
            for n, w in t.items() if not n.endswith("_scale")}


def exported(folder, config, half=False):
    model = Llama(config)
    model.load_state_dict(dequantised(folder))
    model.requires_grad_(False)
    if half:
        for p in model.parameters():
            if p.dim() == 2:
                p.data = p.data.bfloat16()
    return model.eval()


# ------------------------------------------------------------------------------------------------- text the target writes

@torch.no_grad()
def write(model, prompts, length, temperature, generator, half):
    """Continues each prompt (a list of ids) to length tokens in all. temperature [batch], 0 for greedy.

    Returns ids [batch][length], valid [batch] (tokens up to and with the first eos that was written), the prompts' lengths,
    and the target's last hidden state (after the final norm) of each token, float16 [batch][length][hidden]."""
    batch, widest = len(prompts), max(map(len, prompts))
    size = torch.tensor([len(p) for p in prompts])
    pad = widest - size
    capacity = int(length + (widest - size.min()))  # prompts are aligned at their ends; the shortest begins last
    ids = torch.full((batch, capacity), EOS)
    for i, p in enumerate(prompts):
        ids[i, pad[i]:widest] = torch.tensor(p)
    seen = torch.arange(capacity)[None] >= pad[:, None]
    states = torch.zeros(batch, capacity, model.config["hidden_size"], dtype=torch.float16)
    cache = Cache(model, batch, capacity, torch.bfloat16 if half else torch.float32)
    first = seen[:, None, None, :widest] & torch.ones(widest, widest, dtype=torch.bool).tril() | torch.eye(widest, dtype=torch.bool)
    ended = torch.zeros(batch, dtype=torch.bool)
    for t in range(widest, capacity + 1):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            if t == widest:
                h = model.hidden(ids[:, :t], cache, first)
                states[:, :t] = h
            else:
                h = model.hidden(ids[:, t - 1:t], cache, seen[:, None, None, :t], start=t - 1)
                states[:, t - 1:t] = h
            cache.length = t
            if t == capacity:
                break
            logits = model.logits(h[:, -1]).float()
        choice = logits.argmax(-1)
        warm = temperature > 0
        if warm.any():
            p = (logits[warm] / temperature[warm, None]).softmax(-1)
            choice[warm] = torch.multinomial(p, 1, generator=generator)[:, 0]
        ids[:, t] = torch.where(ended, EOS, choice)
        ended |= choice == EOS
        if ended.all():
            break
    rows = torch.full((batch, length), EOS)
    hidden = torch.zeros(batch, length, states.shape[2], dtype=torch.float16)
    valid = torch.zeros(batch, dtype=torch.long)
    for i in range(batch):
        a = int(pad[i])
        rows[i] = ids[i, a:a + length]
        hidden[i] = states[i, a:a + length]
        stop = (rows[i, len(prompts[i]):] == EOS).nonzero()
        valid[i] = len(prompts[i]) + int(stop[0]) + 1 if len(stop) else length
    return rows, valid, size, hidden


def cut_prompts(work, sp, split, count, domain, rng, shortest=24, longest=96):
    """Prompts of one domain: for gsm8k, two in three are whole questions; the rest begin after a line's end."""
    s = np.load(os.path.join(work, f"{domain}_{split}.npy")).astype(np.int64)
    newline = sp.piece_to_id("\n")
    answer = sp.encode("\nAnswer:")
    begins = np.flatnonzero((s == newline) | (s == EOS)) + 1
    begins = begins[begins < len(s) - longest - 1]
    if domain == "gsm8k":
        begins = np.concatenate(([0], np.flatnonzero(s[:-longest * 2] == EOS) + 1))
    out = []
    while len(out) < count:
        o = int(rng.choice(begins))
        p = s[o:o + int(rng.integers(shortest, longest + 1))].tolist()
        if domain == "gsm8k" and rng.random() < 0.67:
            q = s[o:o + 200].tolist()
            at = next((i for i in range(len(q)) if q[i:i + len(answer)] == answer), None)
            if at is None or at + len(answer) > longest + 24:
                continue
            p = q[:at + len(answer)]
        if EOS not in p:
            out.append([BOS] + p)
    return out


SHARES = {"gsm8k": 0.3, "python": 0.3, "shakespeare": 0.2, "wikitext": 0.2}


def write_batches(args, me):
    """Every worker writes batches me, me + threads, ... and stores each as a file."""
    import sentencepiece as spm
    torch.set_num_threads(1)
    model = exported(os.path.join(args.out, "target"), TARGET, half=True)
    sp = spm.SentencePieceProcessor(model_file=os.path.join(args.out, "tokenizer.model"))
    begun = time.time()
    for batch in range(me, args.batches, args.threads):
        rng, g = np.random.default_rng([args.seed, batch]), torch.Generator().manual_seed(args.seed + batch)
        prompts = []
        for d in DOMAINS:
            prompts += cut_prompts(args.work, sp, "train", round(args.batch * SHARES[d]), d, rng)
        temperature = torch.zeros(len(prompts))  # half greedy, half sampled
        warm = torch.rand(len(prompts), generator=g) < 0.5
        temperature[warm] = 0.7 + 0.3 * torch.rand(int(warm.sum()), generator=g)
        rows, valid, size, hidden = write(model, prompts, args.length, temperature, g, half=True)
        save(os.path.join(args.work, f"written-{batch}.part"), [rows.to(torch.int16), valid, hidden])
        done, n = time.time() - begun, batch // args.threads + 1
        print(f"batch {batch} written tokens {int((valid - size).sum())} tokens/s of this worker {n * int((valid - size).sum()) / done:.0f} "
              f"minutes left {done / n * (len(range(me, args.batches, args.threads)) - n) / 60:.1f}", flush=True)
        if args.minutes and done + done / n > args.minutes * 60:
            break
    windows = Windows(args.work, 512, args.seed)
    windows.p = np.array([SHARES[d] for d in DOMAINS])
    model.compile_parts()
    rows, states = [], []
    for i in range(args.text_rows // 2):
        drawn = windows.draw(1024)
        if i % args.threads == me:
            ids, _ = windows.fetch(drawn)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                states.append(model.hidden(ids).half())
            rows.append(ids.to(torch.int16))
    if rows:
        save(os.path.join(args.work, f"text-{me}.part"), [torch.cat(rows), torch.full((2 * len(rows),), 512), torch.cat(states)])


def write_text(args):
    """Writes the text the draft learns from: continuations by the exported target, and its hidden states on training text."""
    import torch.multiprocessing as mp
    torch.set_num_threads(1)
    begun = time.time()
    workers = [mp.get_context("fork").Process(target=write_batches, args=(args, i)) for i in range(args.threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for kind in ("written", "text"):
        names = sorted(n for n in os.listdir(args.work) if re.fullmatch(kind + r"-\d+\.part", n))
        parts = [torch.load(os.path.join(args.work, n)) for n in names]
        rows, valid, states = [torch.cat(p) for p in zip(*parts)]
        save(os.path.join(args.work, kind + ".pt"), [rows, valid, states])
        for n in names:
            os.remove(os.path.join(args.work, n))
        print(f"{kind}: {len(rows)} sequences, {int(valid.sum())} tokens, {(time.time() - begun) / 60:.1f} minutes", flush=True)


# --------------------------------------------------------------------------------------------------------------- draft

def divergence(h, weight, teacher, teacher_weight, use, hard):
    """KL(target || draft) over the whole vocabulary, plus hard times the cross entropy with the target's first choice."""
    p = F.linear(teacher, teacher_weight).float()
    q = F.linear(h, weight).float().log_softmax(-1)
    logp = p.log_softmax(-1)
    kl = (logp.exp() * (logp - q)).sum(-1)
    best = p.argmax(-1)
    ce = -q.gather(-1, best[:, None])[:, 0]
    return ((kl + hard * ce) * use).sum() / use.sum(), (kl * use).sum() / use.sum(), \
        ((q.argmax(-1) == best).float() * use).sum() / use.sum()


class Pool:
    """Text with the target's hidden states, in shuffled order, again and again."""

    def __init__(self, path, rng):
        self.rows, self.valid, self.states = torch.load(path, mmap=True)
        self.rng, self.queue = rng, []

    def draw(self, count):
        if len(self.queue) < count:
            self.queue = list(self.rng.permutation(len(self.rows)))
        return [self.queue.pop() for _ in range(count)]

    def fetch(self, drawn):
        i = torch.tensor(drawn)
        ids = self.rows[i].long()
        use = (torch.arange(ids.shape[1])[None] < self.valid[i, None] - 1).float()
        return ids, self.states[i].bfloat16(), use


class Mixture:
    """Parts of a batch from what the target wrote (share written) or from the training text."""

    def __init__(self, work, seed, written):
        self.rng, self.written = np.random.default_rng(seed), written
        self.pools = [Pool(os.path.join(work, f), self.rng) for f in ("written.pt", "text.pt")]

    def draw(self, tokens):
        which = int(self.rng.random() >= self.written)
        pool = self.pools[which]
        return which, pool.draw(tokens // pool.rows.shape[1])

    def fetch(self, drawn):
        return self.pools[drawn[0]].fetch(drawn[1])


def train_draft(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    teacher = dequantised(os.path.join(args.out, "target"))["model.embed_tokens.weight"]
    model = Llama(DRAFT)
    if args.start:
        model.load_state_dict(torch.load(args.start)["model"])
    else:  # the best 128-dimensional picture of the target's embedding
        u, sv, _ = torch.linalg.svd(teacher, full_matrices=False)
        e = u[:, :DRAFT["hidden_size"]] * sv[:DRAFT["hidden_size"]]
        model.model.embed_tokens.weight.data.copy_(e / e.std() * 0.05)
    teacher = teacher.bfloat16()
    opt = Optimizer(model, args.muon_lr, args.adam_lr, 0.02, True)
    path = os.path.join(args.work, "draft.pt")
    measure_loss = torch.compile(divergence, dynamic=False) if args.compile else divergence

    def loss(m, ids, states, use):
        return measure_loss(m.hidden(ids).flatten(0, 1), m.model.embed_tokens.weight, states.flatten(0, 1), teacher,
                            use.flatten(), args.hard)

    Trainer(args, model, opt, path, begin(args, model, opt, path), lambda length, seed: Mixture(args.work, seed, args.written),
            loss, ["loss", "divergence", "same first choice"])


# ------------------------------------------------------------------------------------------------------------- measure

@torch.no_grad()
def measure(args):
    import sentencepiece as spm
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(7)
    sp = spm.SentencePieceProcessor(model_file=os.path.join(args.out, "tokenizer.model"))
    models = {"target": exported(os.path.join(args.out, "target"), TARGET), "draft": exported(os.path.join(args.out, "draft"), DRAFT)}
    print(f"agreement on what the target writes greedily, {args.length} tokens from each of {args.prompts} held-out prompts a domain")
    for d in DOMAINS:
        prompts = cut_prompts(args.work, sp, "heldout", args.prompts, d, rng, 30, 96)
        room = args.length + max(map(len, prompts))
        rows, valid, size, states = write(models["target"], prompts, room, torch.zeros(len(prompts)), None, half=False)
        i = torch.arange(room)[None]
        end = torch.minimum(valid, size + args.length)
        use = (i >= size[:, None] - 1) & (i < end[:, None] - 1)  # rows whose next token is a written one
        q = models["draft"].logits(models["draft"].hidden(rows[:, :-1]))
        p = models["target"].logits(states[:, :-1].float())
        use, truth = use[:, :-1], rows[:, 1:]
        top = q.topk(3, -1).indices == truth[..., None]
        first, three = top[..., 0][use].float().mean(), top.any(-1)[use].float().mean()
        overlap = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1)[use].mean()
        print(f"{d:12s} tokens {int(use.sum()):6d} top-1 {first:.3f} top-3 {three:.3f} overlap at temperature 1 {overlap:.3f}", flush=True)
    if args.check:  # the folder's weights in transformers' own model
        from transformers import LlamaConfig, LlamaForCausalLM
        for part, m in models.items():
            with open(os.path.join(args.out, part, "config.json")) as f:
                c = json.load(f)
            c.pop("quantization_config")
            hf = LlamaForCausalLM(LlamaConfig(**c)).eval()
            left = hf.load_state_dict(dequantised(os.path.join(args.out, part)), strict=False)
            ids = torch.from_numpy(np.load(os.path.join(args.work, "wikitext_heldout.npy")).astype(np.int64)[:600])[None]
            gap = (hf(ids).logits - m.logits(m.hidden(ids))).abs().max()
            print(f"{part}: transformers {left}, largest difference of a logit {gap:.1e}", flush=True)
    if args.losses:
        for part, m in models.items():
            m.compile_parts()
            print(f"{part} held-out loss, nats a token: " + " ".join(
                f"{d} {heldout_loss(m, args.work, d, args.limit):.4f}" for d in DOMAINS), flush=True)


# ------------------------------------------------------------------------------------------------------------- prompts

def make_prompts(args):
    """Held-out prompts of 30 to 120 tokens that begin and end at natural places."""
    import sentencepiece as spm
    sp = spm.SentencePieceProcessor(model_file=os.path.join(args.out, "tokenizer.model"))
    rng, out = np.random.default_rng(args.seed), []
    for d in DOMAINS:
        found = []
        for doc in documents(args.data, d, "heldout"):
            if d == "gsm8k":
                found.append(doc[:doc.index("\nAnswer:") + len("\nAnswer:")])
                continue
            begin = {"shakespeare": r"(?<=\n\n)(?=[A-Z][A-Za-z ]*:\n)", "wikitext": r"(?<=\n )(?=[A-Z][^\n=]{200})",
                     "python": r"(?m)^(?=(?:    )?(?:def|class) )"}[d]
            stop = {"shakespeare": r"(?<=[.!?;:])\n", "wikitext": r" \.(?= [A-Z])", "python": r"(?<!\n)\n"}[d]
            for m in re.finditer(begin, doc):
                piece = doc[m.start():m.start() + 400]
                ends = [e.end() for e in re.finditer(stop, piece)]
                want = int(rng.integers(35, 115))
                ends = [e for e in ends if len(sp.encode(piece[:e])) <= want]
                if ends:
                    found.append(piece[:ends[-1]])
        found = [t for t in found if 30 <= len(sp.encode(t)) <= 120]
        for i in np.sort(rng.permutation(len(found))[:15]):
            out.append({"domain": d, "text": found[i]})
        print(f"{d} {len(found)} candidates")
    with open(os.path.join(args.out, "prompts.jsonl"), "w") as f:
        for o in out:
            f.write(json.dumps(o) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--data", default="data", help="folder of the text files")
    p.add_argument("--work", default="work", help="folder of checkpoints and token streams")
    p.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)), help="folder of the exported models")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seed", type=int, default=20261121)
    sub = p.add_subparsers(dest="command", required=True)
    sub.add_parser("tokenizer", help="trains the tokenizer and writes the token streams").set_defaults(run=train_tokenizer)

    def command(name, run, text):
        c = sub.add_parser(name, help=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        c.set_defaults(run=run)
        return c

    def training(name, run, text, minutes, muon_lr, adam_lr):
        c = command(name, run, text)
        c.add_argument("--minutes", type=float, default=minutes, help="wall-clock budget, to which the schedule is fitted")
        c.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
        c.add_argument("--compile", action="store_true", help="use torch.compile")
        c.add_argument("--micro", type=int, default=1024, help="tokens in one forward pass")
        c.add_argument("--accumulate", type=int, default=8, help="forward passes in one step")
        c.add_argument("--muon-lr", type=float, default=muon_lr)
        c.add_argument("--adam-lr", type=float, default=adam_lr)
        c.add_argument("--middle-from", type=float, default=0.55, help="fraction of the budget after which sequences have 512 tokens, not 256")
        c.add_argument("--long-from", type=float, default=0.93, help="fraction of the budget after which sequences have 1024 tokens")
        c.add_argument("--save-every", type=float, default=180, help="seconds")
        c.add_argument("--eval-every", type=float, default=600, help="seconds")
        c.add_argument("--show", type=int, default=10, help="steps between progress lines")
        c.add_argument("--fresh", action="store_true", help="ignore a checkpoint")
        return c

    t = training("target", train_target, "trains the target, or resumes", 80, 0.02, 0.003)
    t.add_argument("--decay", type=float, default=0.1)
    e = command("export", export, "quantises checkpoints into the folders target and draft")
    e.add_argument("--part", nargs="+", default=["target", "draft"])
    w = command("write", write_text, "lets the exported target write the text that the draft learns from")
    w.add_argument("--batches", type=int, default=24)
    w.add_argument("--batch", type=int, default=250, help="sequences at a time")
    w.add_argument("--length", type=int, default=256, help="tokens of a sequence, prompt included")
    w.add_argument("--text-rows", type=int, default=2400, help="windows of 512 tokens of training text")
    w.add_argument("--minutes", type=float, default=0, help="stop writing after these, 0: never")
    d = training("draft", train_draft, "distils the draft from the exported target, or resumes", 20, 0.02, 0.004)
    d.add_argument("--start", default="", help="checkpoint whose weights to begin with")
    d.add_argument("--written", type=float, default=0.7, help="share of steps on text written by the target")
    d.add_argument("--hard", type=float, default=0.2, help="weight of the cross entropy with the target's first choice")
    m = command("measure", measure, "agreement of draft and target, held-out losses of the exported weights")
    m.add_argument("--prompts", type=int, default=64, help="prompts a domain")
    m.add_argument("--length", type=int, default=128, help="tokens written from each")
    m.add_argument("--check", action="store_true", help="compare with transformers")
    m.add_argument("--losses", action="store_true")
    m.add_argument("--limit", type=int, default=0, help="windows a domain for the losses, 0: all")
    command("prompts", make_prompts, "cuts the held-out prompts")
    args = p.parse_args()
    os.makedirs(args.work, exist_ok=True)
    args.run(args)


if __name__ == "__main__":
    main()
