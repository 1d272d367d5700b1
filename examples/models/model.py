# SPDX-License-Identifier: BSL-1.0
"""The Llama family, its optimizer, the trainer and the int8 form in which the weights are stored."""

import json
import math
import multiprocessing.connection
import os
import pickle
import signal
import struct
import sys
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TARGET = dict(
    vocab_size=4096,
    hidden_size=384,
    num_hidden_layers=7,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=64,
    intermediate_size=1024,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=1024,
)
DRAFT = dict(
    vocab_size=4096,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=336,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=1024,
)
# A pair for machines without an operating system: about a quarter of a million parameters, and an eighth of that.
TINY_TARGET = dict(
    vocab_size=512,
    hidden_size=96,
    num_hidden_layers=3,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=32,
    intermediate_size=144,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
)
TINY_DRAFT = dict(
    vocab_size=512,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=48,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
)


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
            a = (q.view(b, self.kv, r, self.d) @ k.mT).float() * self.d**-0.5
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
        self.rows = {
            layer.self_attn: (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
            for layer in model.model.layers
        }
        self.length = 0

    def append(self, owner, k, v):
        keys, values = self.rows[owner]
        end = self.length + k.shape[2]
        keys[:, :, self.length : end], values[:, :, self.length : end] = k, v
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
        cos, sin = self.cos[start : start + ids.shape[1]], self.sin[start : start + ids.shape[1]]
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


def divergence(h, weight, teacher, teacher_weight, use, hard):
    """KL(target || draft) over the whole vocabulary, plus hard times the cross entropy with the target's first choice."""
    return divergence_of_logits(F.linear(h, weight), F.linear(teacher, teacher_weight), use, hard)


def divergence_of_logits(q, p, use, hard):
    p, q = p.float(), q.float().log_softmax(-1)
    logp = p.log_softmax(-1)
    kl = (logp.exp() * (logp - q)).sum(-1)
    best = p.argmax(-1)
    ce = -q.gather(-1, best[:, None])[:, 0]
    return (
        ((kl + hard * ce) * use).sum() / use.sum(),
        (kl * use).sum() / use.sum(),
        ((q.argmax(-1) == best).float() * use).sum() / use.sum(),
    )


def principal(embedding, width):
    """The best picture of an embedding in width dimensions, with which a draft's begins."""
    e = embedding.float()
    directions = torch.linalg.eigh(e.T @ e).eigenvectors[:, -width:].flip(1)
    e = e @ directions
    return e / e.std() * 0.05


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
    """Muon for the matrices, AdamW for the embedding and the norms, cut into tasks that any worker can do. All state lies in
    shared memory."""

    def __init__(self, model, muon_lr, adam_lr, decay, half):
        self.muon_lr, self.adam_lr = muon_lr, adam_lr
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]

        def by_muon(name, p):
            return p.dim() == 2 and "embed" not in name

        self.muon = Muon([p for n, p in named if by_muon(n, p)], decay=decay, half=half)
        self.rest = [p for n, p in named if not by_muon(n, p)]
        self.first = [torch.zeros_like(p) for p in self.rest]
        self.second = [torch.zeros_like(p) for p in self.rest]
        self.tasks = [None] + [m[i : i + 4] for m in self.muon.groups.values() for i in range(0, len(m), 4)]

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
            p.addcdiv_(m / (1 - 0.9**step), (v / (1 - 0.95**step)).sqrt_().add_(1e-8), value=-lr)


def schedule(x, warm=0.02, hold=0.35):
    """The factor of the learning rate at fraction x of the budget: up, level, then down to zero in a straight line."""
    if x < warm:
        return max(x, 1e-3) / warm
    return 1.0 if x < hold else max(0.0, (1 - x) / (1 - hold))


def save(path, obj):
    torch.save(obj, path + ".tmp")
    os.replace(path + ".tmp", path)


def take(counter):
    with counter.get_lock():
        counter.value += 1
        return counter.value - 1


class Trainer:
    """Workers of one thread each share the weights; each takes the next part of a step's batch when it is free, so that a
    core that other work keeps busy slows the step little. The schedule follows the clock, not the count of steps. A model on
    another device than the CPU has one worker.

    source(stage, seed) gives an object with draw(tokens), cheap and the same in every worker, and fetch(drawn); it is asked
    for anew when a stage, of which args.stages has the beginnings as shares of the time, begins. loss(model, *fetched)
    gives a tuple whose first member is minimised and whose others are shown. Weights that need no gradient stay as they
    are. If a worker is killed, all end."""

    def __init__(self, args, model, opt, path, state, source, loss, shown, evaluate=None):
        import torch.multiprocessing as mp

        self.args, self.model, self.opt, self.path, self.state = args, model, opt, path, state
        self.source, self.loss, self.names, self.evaluate = source, loss, shown, evaluate
        n = args.threads
        trained = [p for p in model.parameters() if p.requires_grad]
        self.grads = [[torch.zeros_like(p).share_memory_() for p in trained] for _ in range(n)]
        for t in list(model.parameters()) + opt.tensors():
            t.share_memory_()
        self.part, self.task, self.stage = mp.Value("i", 0), mp.Value("i", 0), mp.Value("i", 0)
        self.factor, self.sums, self.barrier = (
            mp.Value("d", 0.0),
            mp.Array("d", n * len(shown)),
            mp.Barrier(n),
        )
        fork = mp.get_context("fork")
        others = [fork.Process(target=self.join, args=(i,), daemon=True) for i in range(1, n)]
        for o in others:
            o.start()
        self.end_without([o.sentinel for o in others])
        try:
            self.work(0)
        finally:
            self.stage.value = -1
        for o in others:
            o.join()

    def join(self, me):
        """Works as a process of its own, which an interruption from the keyboard leaves to the first worker."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.end_without([multiprocessing.parent_process().sentinel])
        self.work(me)

    def end_without(self, workers):
        """Ends this process as soon as one of the other workers, given by their sentinels, has ended before the training:
        this one would wait for it for ever."""

        def watch():
            multiprocessing.connection.wait(workers)
            if self.stage.value >= 0:
                print(
                    f"A worker was killed or failed. {self.path} has the training as it was saved last, if it was.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)

        if workers:
            threading.Thread(target=watch, daemon=True).start()

    def save(self, elapsed):
        self.state["elapsed"] = elapsed
        save(self.path, {"model": self.model.state_dict(), "opt": self.opt.tensors(), "state": self.state})

    def work(self, me):
        torch.set_num_threads(1)
        args, model, opt, state = self.args, self.model, self.opt, self.state
        torch.manual_seed(args.seed + state["step"] * args.threads + me)  # workers and resumed runs draw differently
        if args.compile:
            model.compile_parts()
        params, stage, source = [p for p in model.parameters() if p.requires_grad], None, None
        device = params[0].device.type
        for p in params:
            p.grad = None
        budget, begun, before = args.minutes * 60, time.time(), state["elapsed"]
        last_eval = last_save = shown = time.time()
        shown_tokens, record = state["tokens"], []
        while True:
            elapsed = before + time.time() - begun
            if me == 0:  # the first worker sets the step
                x = elapsed / budget
                self.stage.value = -1 if x >= 1 else sum(x >= begin for begin in args.stages)
                self.factor.value = schedule(x)
                self.part.value = self.task.value = 0
                self.sums[:] = [0.0] * len(self.sums)
            self.barrier.wait()
            if self.stage.value < 0:
                break
            if self.stage.value != stage:
                stage, drawn, offset = self.stage.value, 0, state["step"]
                source = self.source(stage, args.seed + offset)
            while True:
                part = take(self.part)
                if part >= args.accumulate:
                    break
                while drawn <= (state["step"] - offset) * args.accumulate + part:
                    batch = source.draw(args.micro)
                    drawn += 1
                with torch.autocast(device, dtype=torch.bfloat16, enabled=args.precision == "bf16"):
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
                print(
                    f"step {state['step']:5d} {text} tokens {state['tokens']:9d} tokens/s {rate:6.0f} "
                    f"factor {self.factor.value:.3f} minutes left {(budget - elapsed) / 60:5.1f}",
                    flush=True,
                )
                shown, shown_tokens, record = now, state["tokens"], []
            if now - last_save > args.save_every:
                self.save(before + now - begun)
                last_save = now
            if self.evaluate and now - last_eval > args.eval_every:
                print(
                    "held out " + " ".join(f"{d} {v:.3f}" for d, v in self.evaluate(model).items()),
                    flush=True,
                )
                last_eval = shown = time.time()
                shown_tokens = state["tokens"]
        if me == 0:
            self.save(before + time.time() - begun)


def checkpoint(path):
    """What save() wrote to the file."""
    try:
        return torch.load(path, map_location="cpu")
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as fault:
        raise SystemExit(f"the checkpoint {path} is cut short or damaged ({fault}); --fresh begins anew.")


def begin(args, model, opt, path, target=None):
    """The state to go on from: that of the checkpoint at path if there is one, which must be for the target of this name;
    "text alone" is that of a draft without one."""
    print(f"parameters {sum(p.numel() for p in model.parameters())}", flush=True)
    if not os.path.exists(path) or args.fresh:
        return {"elapsed": 0.0, "step": 0, "tokens": 0, "target": target}
    c = checkpoint(path)
    if {n: w.shape for n, w in c["model"].items()} != {n: w.shape for n, w in model.state_dict().items()}:
        raise SystemExit(f"the checkpoint {path} is of a model of other sizes; --fresh begins anew.")
    if c["state"].get("target") != target:
        raise SystemExit(
            f"the checkpoint {path} is of a draft for {c['state'].get('target') or 'the bundled target'}; --fresh begins "
            "anew, another --work leaves it."
        )
    model.load_state_dict(c["model"])
    for t, v in zip(opt.tensors(), c["opt"]):
        t.copy_(v)
    print(f"resumed at step {c['state']['step']}", flush=True)
    return c["state"]


def quantise(w):
    """Symmetric int8 with one scale a row."""
    scale = w.abs().amax(1).clamp_min(1e-12) / 127.0
    return torch.round(w / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


def write_folder(folder, weights, settings):
    """A model's folder: model.safetensors, whose matrices are int8 rows, and config.json, the settings and, where they say nothing
    else, what all models have. Returns the bytes of the former."""
    from safetensors.torch import save_file

    tensors = {}
    for name, w in weights.items():
        if w.dim() == 2:
            tensors[name], tensors[name + "_scale"] = quantise(w.float().contiguous())
        else:
            tensors[name] = w.float().contiguous() if w.is_floating_point() else w.contiguous()
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "model.safetensors")
    save_file(tensors, path + ".tmp", metadata={"format": "pt"})
    os.chmod(path + ".tmp", 0o644)
    os.replace(path + ".tmp", path)
    settings = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "quantization_config": {"quant_method": "espalier_int8_rows"},
        **settings,
    }
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(settings, f, indent=2)
        f.write("\n")
    return os.path.getsize(path)


def dequantised(folder):
    """The weights of an exported folder, in float32."""
    from safetensors.torch import load_file

    t = load_file(os.path.join(folder, "model.safetensors"))
    return {
        n: w.float() * t[n + "_scale"][:, None] if w.dtype == torch.int8 else w
        for n, w in t.items()
        if not n.endswith("_scale")
    }


def exported(folder, config, half=False):
    model = Llama(config)
    model.load_state_dict(dequantised(folder))
    model.requires_grad_(False)
    if half:
        for p in model.parameters():
            if p.dim() == 2:
                p.data = p.data.bfloat16()
    return model.eval()


def image(folder, config):
    """The bytes of an exported folder as small_llama reads them: include/espalier/model/small/small_weights.hpp."""
    from safetensors.torch import load_file

    t = load_file(os.path.join(folder, "model.safetensors"))
    c, body = config, "model."
    frequencies = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"])
    position, floats, integers = 1, [], []
    while position < c["max_position_embeddings"]:
        floats += [(position * frequencies).cos(), (position * frequencies).sin()]
        position *= 2
    floats.append(t[body + "norm.weight"])

    def matrix(*names):
        floats.extend(t[n + ".weight_scale"] for n in names)
        integers.extend(t[n + ".weight"] for n in names)

    matrix(body + "embed_tokens")
    for i in range(c["num_hidden_layers"]):
        layer = f"{body}layers.{i}."
        floats += [t[layer + "input_layernorm.weight"], t[layer + "post_attention_layernorm.weight"]]
        matrix(*(layer + f"self_attn.{n}_proj" for n in "qkv"))
        matrix(layer + "self_attn.o_proj")
        matrix(layer + "mlp.gate_proj", layer + "mlp.up_proj")
        matrix(layer + "mlp.down_proj")
    contents = b"".join(x.numpy().astype("<f4").tobytes() for x in floats)
    contents += b"".join(x.numpy().astype("i1").tobytes() for x in integers)
    sizes = [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
    ]
    words = struct.pack("<4sII8If", b"ESPL", 1, 48 + len(contents), *(c[s] for s in sizes), c["rms_norm_eps"])
    return words + contents
