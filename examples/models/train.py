#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains the bundled models: a tokenizer, a small Llama (the target), a smaller one (its draft) and a
block-diffusion draft. distil trains a smaller model, head an EAGLE-3 head and dflash a DFlash block, for any target.

    pip install torch sentencepiece safetensors numpy transformers
    pip install accelerate gguf    # for a target in a GGUF file

The commands, in order: tokenizer, prompts, target, export, write, draft, block, export, measure; with --tiny, which makes
the pair of examples/embedded: tokenizer, target, export, write, draft, export, image, measure. --work keeps checkpoints and token
streams; target, draft and block resume when they are started again. --data needs gsm8k_train.jsonl, gsm8k_test.jsonl,
python_code_train.txt, python_code_test.txt, tinyshakespeare.txt, wikitext2_raw_valid.txt (trained on) and
wikitext2_raw_test.txt (held out). distil, head and dflash need neither the others nor --data: the target writes texts after
prompts, a draft is trained on them, exported and measured, and what was interrupted goes on when it is started again; only the
target's states, which head and dflash keep in a file, are then computed from the first text on."""

import argparse
import json
import os
import re
import time

import numpy as np
import torch

from block import BLOCK, BlockDraft, Blocks, agreement, block_hits, block_loss, step_hits
from dflash import dflash
from distil import distil
from head import head
from model import (
    DRAFT,
    TARGET,
    TINY_DRAFT,
    TINY_TARGET,
    Cache,
    Llama,
    Optimizer,
    Trainer,
    begin,
    dequantised,
    divergence,
    divergence_of_logits,
    exported,
    image,
    principal,
    save,
    write_folder,
)
from text import BOS, DOMAINS, EOS, Pool, Windows, cut_prompts, load_tokenizer, make_prompts, train_tokenizer

SHARES = {"gsm8k": 0.3, "python": 0.3, "shakespeare": 0.2, "wikitext": 0.2}


@torch.no_grad()
def heldout_loss(model, work, domain, limit=None, length=512, batch=8):
    """Mean loss in nats a token over consecutive windows of the held-out stream, each beginning with bos."""
    s = np.load(os.path.join(work, f"{domain}_heldout.npy")).astype(np.int64)
    count = max(1, (len(s)) // length)
    rows = np.stack([np.concatenate(([BOS], s[i * length : (i + 1) * length])) for i in range(count)])
    if limit and count > limit:
        rows = rows[np.linspace(0, count - 1, limit).astype(int)]
    total = 0.0
    for i in range(0, len(rows), batch):
        w = torch.from_numpy(rows[i : i + batch])
        total += model.loss(w[:, :-1], w[:, 1:]).item() * len(w)
    return total / len(rows)


def train_on_text(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Llama(args.sizes[args.model])
    opt = Optimizer(model, args.muon_lr, args.adam_lr, args.decay, args.precision == "bf16")
    path = os.path.join(args.work, f"{args.model}.pt")
    length = min(512, args.sizes[args.model]["max_position_embeddings"])

    def evaluate(m):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            return {d: heldout_loss(m, args.work, d, 8, length, batch=2) for d in args.domains}

    Trainer(
        args,
        model,
        opt,
        path,
        begin(args, model, opt, path, "text alone" if args.model == "draft" else None),
        lambda stage, seed: Windows(args.work, 256 << stage, seed, args.domains),
        lambda m, ids, labels: (m.loss(ids, labels),),
        ["loss"],
        evaluate,
    )


def export(args):
    for part, config in args.sizes.items():
        path = os.path.join(args.work, part + ".pt")
        if part not in args.part or not os.path.exists(path):
            continue
        weights = torch.load(path, map_location="cpu")["model"]
        size = write_folder(
            os.path.join(args.out, part),
            weights,
            {
                "architectures": ["BlockDraft" if part == "block" else "LlamaForCausalLM"],
                "model_type": "espalier_block" if part == "block" else "llama",
                **config,
                "bos_token_id": BOS,
                "eos_token_id": EOS,
            },
        )
        print(f"{part} parameters {sum(w.numel() for w in weights.values())} file {size} bytes")


def write_images(args):
    """Target, draft and pieces in one file: two images, then for each piece its length in a byte and its bytes."""
    parts = [image(os.path.join(args.out, part), args.sizes[part]) for part in ("target", "draft")]
    pieces = load_tokenizer(args.out).pieces
    parts.append(b"".join(bytes([len(p)]) + p for p in pieces))
    with open(args.to, "wb") as f:
        f.write(b"".join(parts))
    print(f"{args.to}: target {len(parts[0])} bytes, draft {len(parts[1])}, {len(pieces)} pieces {len(parts[2])}")


@torch.no_grad()
def write(model, prompts, length, temperature, generator, half):
    """Continues each prompt (a list of ids) to length tokens in all. temperature [batch], 0 for greedy.

    Returns ids [batch][length], valid [batch] (tokens up to and with the first eos that was written), the prompts' lengths,
    and the target's last hidden state (after the final norm) of each token, float16 [batch][length][hidden].
    """
    batch, widest = len(prompts), max(map(len, prompts))
    size = torch.tensor([len(p) for p in prompts])
    pad = widest - size
    capacity = int(
        length + (widest - size.min())
    )  # prompts are aligned at their ends; the shortest begins last
    ids = torch.full((batch, capacity), EOS)
    for i, p in enumerate(prompts):
        ids[i, pad[i] : widest] = torch.tensor(p)
    seen = torch.arange(capacity)[None] >= pad[:, None]
    states = torch.zeros(batch, capacity, model.config["hidden_size"], dtype=torch.float16)
    cache = Cache(model, batch, capacity, torch.bfloat16 if half else torch.float32)
    first = seen[:, None, None, :widest] & torch.ones(widest, widest, dtype=torch.bool).tril() | torch.eye(
        widest, dtype=torch.bool
    )
    ended = torch.zeros(batch, dtype=torch.bool)
    for t in range(widest, capacity + 1):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            if t == widest:
                h = model.hidden(ids[:, :t], cache, first)
                states[:, :t] = h
            else:
                h = model.hidden(ids[:, t - 1 : t], cache, seen[:, None, None, :t], start=t - 1)
                states[:, t - 1 : t] = h
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
        rows[i] = ids[i, a : a + length]
        hidden[i] = states[i, a : a + length]
        stop = (rows[i, len(prompts[i]) :] == EOS).nonzero()
        valid[i] = len(prompts[i]) + int(stop[0]) + 1 if len(stop) else length
    return rows, valid, size, hidden


def write_batches(args, me):
    """Every worker writes batches me, me + threads, ... and stores each as a file."""
    torch.set_num_threads(1)
    model = exported(os.path.join(args.out, "target"), args.sizes["target"], half=True)
    sp, shares = load_tokenizer(args.out), {d: SHARES[d] for d in args.domains}
    longest = 32 if args.tiny else 96
    begun = time.time()
    for batch in range(me, args.batches, args.threads):
        rng, g = np.random.default_rng([args.seed, batch]), torch.Generator().manual_seed(args.seed + batch)
        prompts = []
        for d, share in shares.items():
            count = round(args.batch * share / sum(shares.values()))
            prompts += cut_prompts(args.work, sp, "train", count, d, rng, longest // 4, longest)
        temperature = torch.zeros(len(prompts))  # half greedy, half sampled
        warm = torch.rand(len(prompts), generator=g) < 0.5
        temperature[warm] = 0.7 + 0.3 * torch.rand(int(warm.sum()), generator=g)
        rows, valid, size, hidden = write(model, prompts, args.length, temperature, g, half=True)
        save(os.path.join(args.work, f"written-{batch}.part"), [rows.to(torch.int16), valid, hidden])
        done, n = time.time() - begun, batch // args.threads + 1
        print(
            f"batch {batch} written tokens {int((valid - size).sum())} tokens/s of this worker {n * int((valid - size).sum()) / done:.0f} "
            f"minutes left {done / n * (len(range(me, args.batches, args.threads)) - n) / 60:.1f}",
            flush=True,
        )
        if args.minutes and done + done / n > args.minutes * 60:
            break
    length = min(512, model.config["max_position_embeddings"])
    windows = Windows(args.work, length, args.seed, args.domains)
    windows.p = np.array(list(shares.values())) / sum(shares.values())
    if args.compile:
        model.compile_parts()
    rows, states = [], []
    for i in range(args.text_rows // 2):
        drawn = windows.draw(2 * length)
        if i % args.threads == me:
            ids, _ = windows.fetch(drawn)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                states.append(model.hidden(ids).half())
            rows.append(ids.to(torch.int16))
    if rows:
        save(
            os.path.join(args.work, f"text-{me}.part"),
            [torch.cat(rows), torch.full((2 * len(rows),), length), torch.cat(states)],
        )


def write_text(args):
    """Writes the text the draft learns from: continuations by the exported target, and its hidden states on training text."""
    import torch.multiprocessing as mp

    torch.set_num_threads(1)
    begun = time.time()
    workers = [
        mp.get_context("fork").Process(target=write_batches, args=(args, i)) for i in range(args.threads)
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
        if w.exitcode != 0:
            raise SystemExit("A process that wrote text ended early; the same command begins again.")
    for kind in ("written", "text"):
        names = sorted(n for n in os.listdir(args.work) if re.fullmatch(kind + r"-\d+\.part", n))
        parts = [torch.load(os.path.join(args.work, n)) for n in names]
        rows, valid, states = [torch.cat(p) for p in zip(*parts)]
        save(os.path.join(args.work, kind + ".pt"), [rows, valid, states])
        for n in names:
            os.remove(os.path.join(args.work, n))
        print(
            f"{kind}: {len(rows)} sequences, {int(valid.sum())} tokens, {(time.time() - begun) / 60:.1f} minutes",
            flush=True,
        )


class Mixture:
    """Parts of a batch from what the target wrote (share written) or from the training text."""

    def __init__(self, work, seed, written):
        self.rng, self.written = np.random.default_rng(seed), written
        self.pools = [
            Pool(self.rng, *torch.load(os.path.join(work, f), mmap=True)) for f in ("written.pt", "text.pt")
        ]

    def draw(self, tokens):
        which = int(self.rng.random() >= self.written)
        return which, self.pools[which].draw(tokens)

    def fetch(self, drawn):
        return self.pools[drawn[0]].fetch(drawn[1])


def train_draft(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    teacher = dequantised(os.path.join(args.out, "target"))["model.embed_tokens.weight"]
    model = Llama(args.sizes["draft"])
    if args.start:
        model.load_state_dict(torch.load(args.start)["model"])
    else:
        model.model.embed_tokens.weight.data.copy_(principal(teacher, model.config["hidden_size"]))
    teacher = teacher.bfloat16()
    opt = Optimizer(model, args.muon_lr, args.adam_lr, 0.02, args.precision == "bf16")
    path = os.path.join(args.work, "draft.pt")
    measure_loss = torch.compile(divergence, dynamic=False) if args.compile else divergence

    def loss(m, ids, states, use):
        return measure_loss(
            m.hidden(ids).flatten(0, 1),
            m.model.embed_tokens.weight,
            states.flatten(0, 1),
            teacher,
            use.flatten(),
            args.hard,
        )

    Trainer(
        args,
        model,
        opt,
        path,
        begin(args, model, opt, path),
        lambda _, seed: Mixture(args.work, seed, args.written),
        loss,
        ["loss", "divergence", "same first choice"],
    )


@torch.no_grad()
def measure(args):
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(7)
    sp = load_tokenizer(args.out)
    models = {part: exported(os.path.join(args.out, part), args.sizes[part]) for part in ("target", "draft")}
    shortest, longest = (8, 32) if args.tiny else (30, 96)
    print(
        f"agreement on what the target writes greedily, {args.length} tokens from each of {args.prompts} held-out prompts a domain"
    )
    for d in args.domains if args.prompts else ():
        prompts = cut_prompts(args.work, sp, "heldout", args.prompts, d, rng, shortest, longest)
        room = args.length + max(map(len, prompts))
        rows, valid, size, states = write(
            models["target"], prompts, room, torch.zeros(len(prompts)), None, half=False
        )
        i = torch.arange(room)[None]
        end = torch.minimum(valid, size + args.length)
        use = (i >= size[:, None] - 1) & (i < end[:, None] - 1)  # rows whose next token is a written one
        q = models["draft"].logits(models["draft"].hidden(rows[:, :-1]))
        p = models["target"].logits(states[:, :-1].float())
        use, truth = use[:, :-1], rows[:, 1:]
        top = q.topk(3, -1).indices == truth[..., None]
        first, three = top[..., 0][use].float().mean(), top.any(-1)[use].float().mean()
        overlap = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1)[use].mean()
        print(
            f"{d:12s} tokens {int(use.sum()):6d} top-1 {first:.3f} top-3 {three:.3f} overlap at temperature 1 {overlap:.3f}",
            flush=True,
        )
    if args.block:
        measure_block(args, models)
    if args.check:  # the folder's weights in transformers' own model
        from transformers import LlamaConfig, LlamaForCausalLM

        for part, m in models.items():
            with open(os.path.join(args.out, part, "config.json")) as f:
                c = json.load(f)
            c.pop("quantization_config")
            hf = LlamaForCausalLM(LlamaConfig(**c)).eval()
            left = hf.load_state_dict(dequantised(os.path.join(args.out, part)), strict=False)
            ids = torch.from_numpy(
                np.load(os.path.join(args.work, "wikitext_heldout.npy")).astype(np.int64)[:600]
            )[None]
            gap = (hf(ids).logits - m.logits(m.hidden(ids))).abs().max()
            print(f"{part}: transformers {left}, largest difference of a logit {gap:.1e}", flush=True)
    if args.losses:
        length = min(512, args.sizes["target"]["max_position_embeddings"])
        for part, m in models.items():
            m.compile_parts()
            print(
                f"{part} held-out loss, nats a token: "
                + " ".join(f"{d} {heldout_loss(m, args.work, d, args.limit, length):.4f}" for d in args.domains),
                flush=True,
            )


def heldout_continuations(args, target, length, each=None):
    """The prompts of prompts.jsonl (or the first each of a domain) with what the target writes greedily after them: ids, valid,
    the prompts' lengths, the domains."""
    sp = load_tokenizer(args.out)
    with open(os.path.join(args.out, "prompts.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    lines = [o for d in DOMAINS for o in [o for o in lines if o["domain"] == d][:each]]
    prompts = [[BOS] + sp.encode(o["text"]) for o in lines]
    room = length + max(map(len, prompts))
    rows, valid, size, _ = write(target, prompts, room, torch.zeros(len(prompts)), None, half=False)
    return rows, torch.minimum(valid, size + length), size, [o["domain"] for o in lines]


def measure_block(args, models):
    """Both drafts on what the target writes greedily after the prompts of prompts.jsonl."""
    model = BlockDraft(BLOCK)
    model.load_state_dict(dequantised(os.path.join(args.out, "block")))
    model.requires_grad_(False)
    rows, valid, size, domains = heldout_continuations(args, models["target"], args.length)
    length = BLOCK["block_size"]
    hits = {
        "block": torch.cat([block_hits(model, models["target"], part, length) for part in rows.split(4)]),
        "draft": torch.cat([step_hits(models["draft"], part, length) for part in rows.split(4)]),
    }
    print(
        f"the likeliest tokens against {args.length} tokens after each prompt, and the tokens accepted a round"
    )
    for d in (*DOMAINS, "all"):
        here = [i for i, x in enumerate(domains) if d in (x, "all")]
        for name, h in hits.items():
            right, whole = agreement(h[here], valid[here], size[here])
            _, half = agreement(h[here][..., : length // 2 - 1], valid[here], size[here])
            print(
                f"{d:12s} {name} positions "
                + " ".join(f"{x:.3f}" for x in (right if name == "block" else right[:1]).tolist())
                + f" accepted of {length // 2 - 1}: {half:.2f} of {length - 1}: {whole:.2f}",
                flush=True,
            )


def train_block(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    target = exported(os.path.join(args.out, "target"), TARGET, half=True)
    model = BlockDraft(BLOCK)
    model.norm.weight.data.copy_(target.model.norm.weight)
    opt = Optimizer(model, args.muon_lr, args.adam_lr, 0.02, True)
    path = os.path.join(args.work, "block.pt")
    written = torch.load(os.path.join(args.work, "written.pt"), mmap=True)[:2]
    state = begin(args, model, opt, path)
    plain = exported(os.path.join(args.out, "target"), TARGET)
    rows, valid, size, _ = heldout_continuations(args, plain, 96, 4)
    measure_loss = divergence_of_logits
    if args.compile:
        target.compile_parts()
        measure_loss = torch.compile(divergence_of_logits, dynamic=False)

    def source(stage, seed):
        windows = Windows(args.work, 256 << stage, seed)
        windows.p = np.array([SHARES[d] for d in DOMAINS])
        return Blocks(windows, written, args.written, seed, BLOCK["block_size"])

    def loss(m, *drawn):
        return block_loss(m, target, measure_loss, args.position_decay, args.hard, *drawn)

    def evaluate(m):
        hits, length = [], BLOCK["block_size"]
        for part in rows.split(4):
            hits.append(block_hits(m, plain, part, length))
        right, mean = agreement(torch.cat(hits), valid, size)
        return {**{f"position {i + 1}": float(right[i]) for i in (0, 1, 2, 3, 6, 14)}, "accepted": mean}

    Trainer(
        args,
        model,
        opt,
        path,
        state,
        source,
        loss,
        ["loss", "divergence", "same first choice"],
        evaluate,
    )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default="data", help="folder of the text files (default: data)")
    p.add_argument("--work", default="work", help="folder of checkpoints and token streams (default: work)")
    p.add_argument(
        "--out",
        default="",
        help="folder of the exported models (default: that of this script, with --tiny that of --work)",
    )
    p.add_argument(
        "--tiny",
        action="store_true",
        help="the pair of examples/embedded, which reads and writes Shakespeare; its folders go to --work",
    )
    p.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="worker processes of one thread each (default: the cores)",
    )
    p.add_argument("--seed", type=int, default=20261121, help="default: %(default)s")
    sub = p.add_subparsers(dest="command", required=True)
    sub.add_parser("tokenizer", help="trains the tokenizer and writes the token streams").set_defaults(
        run=train_tokenizer
    )

    def command(name, run, text):
        c = sub.add_parser(name, help=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        c.set_defaults(run=run)
        return c

    def training(name, run, text, minutes, muon_lr, adam_lr, longer=True):
        c = command(name, run, text)
        c.add_argument(
            "--minutes",
            type=float,
            default=minutes,
            help="wall-clock budget, to which the schedule is fitted",
        )
        c.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
        c.add_argument("--compile", action="store_true", help="use torch.compile")
        c.add_argument("--micro", type=int, default=1024, help="tokens in one forward pass")
        c.add_argument("--accumulate", type=int, default=8, help="forward passes in one step")
        c.set_defaults(stages=())
        c.add_argument("--muon-lr", type=float, default=muon_lr)
        c.add_argument("--adam-lr", type=float, default=adam_lr)
        if longer:
            c.add_argument(
                "--middle-from",
                type=float,
                default=0.55,
                help="fraction of the budget after which sequences have 512 tokens, not 256",
            )
            c.add_argument(
                "--long-from",
                type=float,
                default=0.93,
                help="fraction of the budget after which sequences have 1024 tokens",
            )
        c.add_argument("--save-every", type=float, default=180, help="seconds")
        c.add_argument("--eval-every", type=float, default=600, help="seconds")
        c.add_argument("--show", type=int, default=10, help="steps between progress lines")
        c.add_argument("--fresh", action="store_true", help="ignore a checkpoint")
        return c

    t = training("target", train_on_text, "trains the target on text, or resumes", 80, 0.02, 0.003)
    t.add_argument(
        "--model", choices=("target", "draft"), default="target", help="draft: one that learns from text alone, too"
    )
    t.add_argument("--decay", type=float, default=0.1)
    e = command("export", export, "quantises checkpoints into the folders target, draft and block")
    e.add_argument("--part", nargs="+", default=["target", "draft", "block"])
    i = command("image", write_images, "writes what --tiny exported into one file for small machines")
    i.add_argument("--to", required=True, default=argparse.SUPPRESS, help="the file")
    w = command("write", write_text, "lets the exported target write the text that the draft learns from")
    w.add_argument("--batches", type=int, default=24)
    w.add_argument("--batch", type=int, default=250, help="sequences at a time")
    w.add_argument("--length", type=int, default=256, help="tokens of a sequence, prompt included")
    w.add_argument("--text-rows", type=int, default=2400, help="windows of 512 tokens of training text")
    w.add_argument("--compile", action="store_true", help="use torch.compile")
    w.add_argument("--minutes", type=float, default=0, help="stop writing after these, 0: never")
    d = training(
        "draft", train_draft, "distils the draft from the exported target, or resumes", 20, 0.02, 0.004
    )
    d.add_argument("--start", default="", help="checkpoint whose weights to begin with")
    d.add_argument("--written", type=float, default=0.7, help="share of steps on text written by the target")
    d.add_argument(
        "--hard", type=float, default=0.2, help="weight of the cross entropy with the target's first choice"
    )
    b = training(
        "block", train_block, "distils the block draft from the exported target, or resumes", 60, 0.02, 0.004
    )
    b.add_argument("--written", type=float, default=0.5, help="share of steps on text written by the target")
    b.add_argument(
        "--hard", type=float, default=0.2, help="weight of the cross entropy with the target's first choice"
    )
    b.add_argument(
        "--position-decay", type=float, default=7, help="position i of a block weighs exp(-(i - 1) / this)"
    )
    needed = {"required": True, "default": argparse.SUPPRESS}

    def for_any_target(name, run, text, minutes, adam_lr):
        c = training(name, run, text, minutes, 0.02, adam_lr, longer=False)
        c.add_argument("--target", **needed, help="folder or GGUF file of a model that transformers loads")
        c.add_argument("--prompts", **needed, help='JSON lines, each with "text" (a user\'s message) or "tokens"')
        c.add_argument("--out", **needed, help="folder of what is trained")
        c.add_argument(
            "--held-out",
            default="",
            help="prompts to measure with; if not given, every 16th of --prompts, at most 128",
        )
        c.add_argument("--texts", type=int, default=30720, help="texts that the target writes")
        c.add_argument(
            "--written-texts",
            default="",
            help="a file of what the target has written after --prompts, as nde write makes it; --texts is then not used; the "
            "file's greedy texts of the prompts kept apart are measured with if it has one for each",
        )
        c.add_argument("--batch", type=int, default=256, help="texts at a time")
        c.add_argument("--longest", type=int, default=128, help="tokens of a prompt; longer ones are left out")
        c.add_argument("--new", type=int, default=256, help="tokens that the target writes after each")
        c.add_argument(
            "--hard",
            type=float,
            default=0.2,
            help="weight of the cross entropy with the target's first choice (among the tokens that a head or a block drafts)",
        )
        c.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        return c

    o = for_any_target("distil", distil, "distils a draft for any target, or resumes", 20, 0.003)
    o.add_argument("--vocab", type=int, default=8192, help="tokens that can be drafted: the texts' usual ones; 0: all")
    o.add_argument("--width", type=int, default=192, help="of the draft")
    o.add_argument("--layers", type=int, default=4)
    o.add_argument("--heads", type=int, default=3)

    def on_states(name, run, text, decay):
        h = for_any_target(name, run, text, 60, 0.001)
        h.add_argument("--vocab", type=int, default=8192, help="tokens that can be drafted: the texts' usual ones")
        h.add_argument("--inner", type=int, default=0, help="width of the feed-forward block, 0: the target's")
        h.add_argument(
            "--decay", type=float, default=decay, help="the token drafted j-th, from 0, weighs this to the power of j"
        )
        h.add_argument("--length", type=int, default=384, help="tokens of each text that are learnt from, with its prompt")
        return h

    h = on_states("head", head, "trains an EAGLE-3 head for any target, or resumes", 0.8)
    h.add_argument("--steps", type=int, default=5, help="tokens that the head drafts in a row in training")
    h.add_argument(
        "--unroll-from", type=float, default=0.6, help="fraction of the budget before which it drafts one alone"
    )
    f = on_states("dflash", dflash, "trains a DFlash block for any target, or resumes", 0.8)
    f.add_argument("--layers", type=int, default=2)
    f.add_argument("--block", type=int, default=8, help="rows of a block: the pending token and all that are drafted")
    m = command("measure", measure, "agreement of draft and target, held-out losses of the exported weights")
    m.add_argument("--prompts", type=int, default=64, help="prompts a domain, 0: no agreement")
    m.add_argument("--length", type=int, default=128, help="tokens written from each")
    m.add_argument("--block", action="store_true", help="the block draft beside the draft, on prompts.jsonl")
    m.add_argument("--check", action="store_true", help="compare with transformers")
    m.add_argument("--losses", action="store_true")
    m.add_argument("--limit", type=int, default=0, help="windows a domain for the losses, 0: all")
    c = command("prompts", make_prompts, "cuts prompts: the held-out ones, or others from the training text")
    c.add_argument("--split", choices=("heldout", "train"), default="heldout", help="of which text")
    c.add_argument("--count", type=int, default=15, help="prompts a domain")
    c.add_argument("--to", dest="prompts_file", default="", help="file, prompts.jsonl of --out if not given")
    args = p.parse_args()
    args.out = args.out or (args.work if args.tiny else os.path.dirname(os.path.abspath(__file__)))
    args.domains = ("shakespeare",) if args.tiny else DOMAINS
    args.sizes = {"target": TARGET, "draft": DRAFT, "block": BLOCK}
    if args.tiny:
        args.sizes = {"target": TINY_TARGET, "draft": TINY_DRAFT}
    elif hasattr(args, "middle_from"):
        args.stages = (args.middle_from, args.long_from)
    os.makedirs(args.work, exist_ok=True)
    args.run(args)


if __name__ == "__main__":
    main()
