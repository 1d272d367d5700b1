# SPDX-License-Identifier: BSL-1.0
"""A small Llama as the draft of any causal language model that transformers loads: the target writes texts after prompts,
and the draft learns the target's distribution at each of their tokens."""

import hashlib
import json
import math
import os
import time

import numpy as np
import torch

from block import agreement, step_hits
from model import Llama, Optimizer, Trainer, begin, divergence_of_logits, exported, principal, write_folder
from text import Pool


class Target:
    """A model's folder or GGUF file."""

    def __init__(self, path, dtype, device):
        import transformers

        self.path, self.device, self.reader = path, device, None
        self.name = os.path.basename(os.path.abspath(path))
        if os.path.isfile(path):
            folder, file = os.path.split(path)
            self.place = {"pretrained_model_name_or_path": folder or ".", "gguf_file": file}
        elif os.path.isdir(path):
            self.place = {"pretrained_model_name_or_path": path}
        else:
            raise SystemExit(f"the target {path} is neither a folder nor a GGUF file.")
        self.place["local_files_only"] = True
        options = {"dtype": dtype, "output_loading_info": True}
        if "gguf_file" in self.place and hasattr(transformers, "GgufConfig"):  # others unpack it unasked
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        try:
            self.model, info = transformers.AutoModelForCausalLM.from_pretrained(**self.place, **options)
        except Exception as fault:  # of many kinds: each format has a reader of its own
            raise SystemExit(f"the target {path} cannot be loaded: {fault}") from fault
        if info["missing_keys"]:
            raise SystemExit(
                f"the target {path} lacks the tensors {', '.join(sorted(info['missing_keys']))}."
            )
        self.model.requires_grad_(False).eval().to(device)
        self.config = self.model.config.get_text_config()
        self.embedding = self.model.get_input_embeddings().weight
        self.vocab = self.model.get_output_embeddings().weight.shape[0]
        if len(self.embedding) != self.vocab:
            raise SystemExit(
                f"the target {path} reads {len(self.embedding)} tokens and writes {self.vocab}; a draft needs one vocabulary."
            )
        ends = self.model.generation_config.eos_token_id
        self.ends = ends if isinstance(ends, list) else [] if ends is None else [ends]

    def tokenizer(self):
        """Loaded when the first prompt asks for it: where all prompts are tokens, none is needed."""
        import transformers

        if self.reader is None:
            try:
                self.reader = transformers.AutoTokenizer.from_pretrained(**self.place)
            except Exception as fault:
                raise SystemExit(
                    f'the target {self.path} has no tokenizer that transformers loads; prompts must be "tokens": {fault}'
                ) from fault
            if len(self.reader) > self.vocab:
                raise SystemExit(
                    f"the tokenizer of {self.path} has {len(self.reader)} tokens, more than the target's {self.vocab}."
                )
        return self.reader

    def encode(self, text):
        """A user's message as the chat template has it, where there is one."""
        reader = self.tokenizer()
        if reader.chat_template is None:
            return reader(text).input_ids
        chat = [{"role": "user", "content": text}]
        chat = reader.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return reader(chat, add_special_tokens=False).input_ids

    @torch.no_grad()
    def write(self, prompts, temperature, new):
        """Continues each prompt by at most new tokens, up to and with the first that ends a text. temperature [batch], 0 for
        greedy."""
        from transformers import GenerationConfig

        widest, pad = max(map(len, prompts)), self.ends[0] if self.ends else 0
        ids = torch.full((len(prompts), widest), pad)
        for row, p in zip(ids, prompts):
            row[widest - len(p) :] = torch.tensor(p)
        size = torch.tensor([len(p) for p in prompts])
        seen = (torch.arange(widest) >= widest - size[:, None]).long()
        temperature = temperature.to(self.device)[:, None]

        def warmed(_, logits):  # greedy rows are left one choice
            logits = logits.float()
            best = torch.full_like(logits, -math.inf).scatter_(1, logits.argmax(-1, keepdim=True), 0.0)
            return torch.where(temperature > 0, logits / temperature.clamp_min(1e-3), best)

        # The whole of the distribution: nothing is left of what the target's own folder recommends.
        self.model.generation_config = GenerationConfig(
            do_sample=True,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new,
            eos_token_id=self.ends or None,
            pad_token_id=pad,
        )
        rows = self.model.generate(
            input_ids=ids.to(self.device), attention_mask=seen.to(self.device), logits_processor=[warmed]
        )
        out = []
        for p, row in zip(prompts, rows[:, widest:].tolist()):
            stop = next((i + 1 for i, token in enumerate(row) if token in self.ends), len(row))
            out.append(p + row[:stop])
        return out


def json_lines(path, what):
    """Yields for each line of a file that is not empty its name for messages and what it holds."""
    try:
        with open(path, encoding="utf-8") as f:
            lines = f.readlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise SystemExit(f"the {what} {path} cannot be read: {fault}.")
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as fault:
            raise SystemExit(f"{where} is cut short or no JSON: {fault}.")


def checked_tokens(tokens, target, where):
    """The tokens, which must be a list of tokens of the target's vocabulary."""
    if not isinstance(tokens, list):
        raise SystemExit(f'{where} has "tokens" that are no list.')
    for t in tokens:
        if type(t) is not int or not 0 <= t < target.vocab:
            raise SystemExit(f"{where}: token {t} is not of the target's vocabulary, 0 to {target.vocab - 1}.")
    return tokens


def read_prompts(path, target, longest):
    """The tokens of each prompt of a file, whose lines are JSON: a string, or an object with "text" or "tokens"."""
    prompts = []
    for where, o in json_lines(path, "prompts"):
        o = o if isinstance(o, dict) else {"text": o}
        tokens, text = o.get("tokens"), o.get("text")
        if not tokens and text and isinstance(text, str):
            tokens = target.encode(text)
        if not tokens or not isinstance(tokens, list):
            raise SystemExit(
                f'{where} is no prompt: it must be a string or an object with "text" or "tokens".'
            )
        prompts.append(checked_tokens(tokens, target, where))
    short = [p for p in prompts if len(p) <= longest]
    print(f"{path}: {len(short)} prompts of {len(prompts)} have at most {longest} tokens", flush=True)
    if not short:
        raise SystemExit(f"{path} has no prompt of at most {longest} tokens; --longest allows more.")
    return short


def read_texts(path, header):
    """The texts of a file, each with the length of its prompt, and the bytes that they take: what follows the last whole line
    was cut short."""
    with open(path, "rb") as f:
        lines = f.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    if not lines:
        return [], 0
    texts = []
    try:
        found, *rest = map(json.loads, lines)
        other = [key for key, value in header.items() if found.get(key) != value]
        for o in rest:
            texts.append((o["prompt"], np.array(o["tokens"], np.int32)))
            if not 0 < o["prompt"] < len(o["tokens"]):
                raise ValueError(f"text {len(texts)} is not longer than its prompt")
            if not other and not 0 <= min(o["tokens"]) <= max(o["tokens"]) < header["vocabulary"]:
                raise ValueError(f"text {len(texts)} has tokens that are not of the vocabulary")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as fault:
        raise SystemExit(
            f"{path} is damaged ({fault!r}); remove it, and the texts are written anew."
        ) from fault
    if other:
        raise SystemExit(
            f"{path} was written with other {' and '.join(other)}; remove it, or give another --work."
        )
    return texts, sum(map(len, lines))


def write_texts(path, target, prompts, temperature, order, header, args):
    """The file of what the target writes after prompts[order[i]] at temperature[i]; goes on where the file ends. Returns ids
    [texts][longest], padded with 0, valid [texts], and the prompts' lengths."""
    header = {
        "format": "espalier-texts 1",
        **header,
        "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    }
    texts, size = read_texts(path, header) if os.path.exists(path) else ([], 0)
    kind, already, tokens, begun = os.path.basename(path), len(texts), 0, time.time()
    with open(path, "r+b" if size else "wb") as f:
        f.truncate(size)
        f.seek(size)
        if size == 0:
            f.write(json.dumps(header).encode() + b"\n")
        while len(texts) < len(order):
            at = range(len(texts), min(len(texts) + args.batch, len(order)))
            torch.manual_seed(args.seed + at.start)
            batch = [prompts[order[i]] for i in at]
            written = target.write(batch, torch.tensor(temperature[at.start : at.stop]).float(), args.new)
            for i, p, t in zip(at, batch, written):
                line = {"prompt": len(p), "temperature": round(float(temperature[i]), 4), "tokens": t}
                f.write(json.dumps(line).encode() + b"\n")
                texts.append((len(p), np.array(t, np.int32)))
                tokens += len(t) - len(p)
            f.flush()
            seconds = time.time() - begun
            left = seconds / (len(texts) - already) * (len(order) - len(texts))
            print(
                f"{kind}: {len(texts)} texts of {len(order)} tokens/s {tokens / seconds:.0f} minutes left {left / 60:.1f}",
                flush=True,
            )
    return padded(kind, texts[: len(order)])


def padded(kind, texts):
    """Texts, each with the length of its prompt, as write_texts returns them."""
    rows = torch.zeros(len(texts), max(len(t) for _, t in texts), dtype=torch.int32)
    for row, (_, t) in zip(rows, texts):
        row[: len(t)] = torch.from_numpy(t)
    print(f"{kind}: {len(texts)} texts, {sum(len(t) - n for n, t in texts)} tokens written", flush=True)
    return rows, torch.tensor([len(t) for _, t in texts]), torch.tensor([n for n, _ in texts])


def read_written(path, target, prompts, held_out):
    """The texts of a file that another program wrote after prompts, each with the length of its prompt, and a greedy one for
    each prompt of held_out, or nothing if the file lacks one of them. Its lines are JSON objects with "target", "prompt", a
    length, "tokens", and, where a text is greedy, a "sampling" of "0", or "0:" and a top-p."""
    known, texts, n = set(map(tuple, prompts)), [], 0
    apart = dict.fromkeys(map(tuple, held_out))
    c = target.config
    sizes = f" {c.num_hidden_layers}x{c.hidden_size}, {target.vocab} tokens, "
    for where, o in json_lines(path, "texts"):
        size, name = (o.get("prompt"), o.get("target")) if isinstance(o, dict) else (None, None)
        if type(size) is not int or not isinstance(name, str):
            raise SystemExit(f'{where} is no text: it must be an object with "target", "prompt" and "tokens".')
        if sizes not in name:
            raise SystemExit(f"{where} is of the target {name}, not of one of{sizes.rstrip(', ')}.")
        tokens = checked_tokens(o.get("tokens"), target, where)
        if not 0 < size < len(tokens):
            raise SystemExit(f"{where}: the text has no tokens after its prompt.")
        n += 1
        prompt, text = tuple(tokens[:size]), (size, np.array(tokens, np.int32))
        if prompt in known:
            texts.append(text)
        elif prompt in apart and str(o.get("sampling")).split(":")[0] == "0":
            before = apart[prompt]
            if before is not None and not np.array_equal(before[1], text[1]):
                raise SystemExit(f"{where} is another greedy text of a prompt kept apart than a line before it has.")
            apart[prompt] = text
    print(f"{path}: {len(texts)} of {n} texts are of prompts to learn from", flush=True)
    if not texts:
        raise SystemExit(f"{path} has no text of a prompt that --prompts has and that is not kept apart for measuring.")
    found = sum(text is not None for text in apart.values())
    print(f"{path}: greedy texts of {found} of {len(apart)} prompts kept apart", flush=True)
    return texts, [apart[tuple(p)] for p in held_out] if found == len(apart) else []


def draft_config(target, args):
    """The draft's sizes; what it shares with the target is the target's."""
    width, heads, most = args.width, args.heads, target.embedding.shape[1]
    if width > most:
        raise SystemExit(f"--width {width} is more than the target's, {most}.")
    if width % heads or width // heads % 2:
        raise SystemExit(f"--width {width} must be --heads {heads} times an even number.")
    return {
        "vocab_size": target.vocab,
        "hidden_size": width,
        "num_hidden_layers": args.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": width // heads,
        "intermediate_size": max(1, round(width / 6)) * 16,
        "rope_theta": angles_of(target),
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": positions_of(target),
    }


@torch.no_grad()
def measured(draft, rows, valid, size):
    """On greedily written texts: the share of first choices that are the target's, and the tokens accepted of 5 and of 7
    that are drafted a round."""
    device = draft.model.embed_tokens.weight.device
    hits = torch.cat([step_hits(draft, part.to(device).long(), 8).cpu() for part in rows.split(4)])
    (first, *_), of_7 = agreement(hits, valid, size)
    _, of_5 = agreement(hits[..., :5], valid, size)
    return {"first choice": float(first), "accepted of 5": of_5, "accepted of 7": of_7}


def target_of(args):
    """Returns the target, after a check that the arguments fit it and one another; sets the threads."""
    if args.texts < 1 or args.batch < 1 or args.new < 2:
        raise SystemExit("--texts and --batch must be 1 or more, --new 2 or more.")
    if args.device != "cpu":
        args.threads = 1  # workers are for the cores
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    target = Target(args.target, torch.bfloat16 if args.precision == "bf16" else torch.float32, args.device)
    positions = positions_of(target)
    if args.longest + args.new > positions:
        raise SystemExit(
            f"--longest {args.longest} and --new {args.new} are more than the target's {positions} positions."
        )
    return target


def write_all(args, target):
    """What the target writes after the prompts kept apart and after the others, for which args.written_texts may have it: for
    each ids, valid and the prompts' lengths, as write_texts returns them."""
    prompts = read_prompts(args.prompts, target, args.longest)
    if args.held_out:
        held_out = read_prompts(args.held_out, target, args.longest)
    else:
        held_out = prompts[::16][:128]
    apart = set(map(tuple, held_out))
    prompts = [p for p in prompts if tuple(p) not in apart]
    if not prompts:
        raise SystemExit(f"{args.prompts} has no other prompt than those kept apart for measuring.")

    header = {"target": target.name, "vocabulary": target.vocab}
    header |= {"seed": args.seed, "new tokens": args.new}

    def texts(name, *what):
        return write_texts(os.path.join(args.work, name), target, *what, header, args)

    learnt = measured_with = None
    if args.written_texts:
        learnt, measured_with = read_written(args.written_texts, target, prompts, held_out)
    if measured_with:
        measured_with = padded("texts kept apart", measured_with)
    else:
        measured_with = texts("held_out.jsonl", held_out, np.zeros(len(held_out)), range(len(held_out)))
    if learnt:
        return measured_with, padded(args.written_texts, learnt)
    rng = np.random.default_rng(args.seed)
    order = np.concatenate([rng.permutation(len(prompts)) for _ in range(-(-args.texts // len(prompts)))])
    warm, heat = np.random.default_rng([args.seed, 1]).random((args.texts, 2)).T
    temperature = np.where(warm < 0.5, 0.0, 0.6 + 0.4 * heat)  # half greedy, half sampled
    return measured_with, texts("texts.jsonl", prompts, temperature, order[: args.texts])


def usual_tokens(rows, valid, count, vocab):
    """The tokens that texts have most often, ascending, the share of the texts that they are, and the token that texts have
    least often."""
    use = torch.arange(rows.shape[1])[None] < valid[:, None]
    counts = torch.bincount(rows[use].long(), minlength=vocab)
    kept = counts.argsort(descending=True, stable=True)[:count].sort().values
    return kept, float(counts[kept].sum() / counts.sum()), int(counts.argmin())


def positions_of(target):
    """Number of positions that a text may have."""
    return getattr(target.config, "max_position_embeddings", None) or 2048


def angles_of(target):
    """The base of the target's rotary angles."""
    c = target.config
    return (getattr(c, "rope_parameters", None) or {}).get("rope_theta") or getattr(c, "rope_theta", None) or 10000.0


def distil(args):
    target = target_of(args)
    config = draft_config(target, args)
    held_out, (rows, valid, _) = write_all(args, target)

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Llama(config)
    model.model.embed_tokens.weight.data.copy_(principal(target.embedding, args.width))
    model.to(args.device)
    opt = Optimizer(model, args.muon_lr, args.adam_lr, 0.02, args.precision == "bf16")
    path = os.path.join(args.work, "distil.pt")
    state = begin(args, model, opt, path, target.name)
    divergence = torch.compile(divergence_of_logits, dynamic=False) if args.compile else divergence_of_logits

    def loss(m, ids, use):
        ids, use = ids.to(args.device), use.to(args.device)
        with torch.no_grad():
            teacher = target.model(input_ids=ids, use_cache=False).logits
        logits = m.logits(m.hidden(ids))
        return divergence(logits.flatten(0, 1), teacher.flatten(0, 1), use.flatten(), args.hard)

    Trainer(
        args,
        model,
        opt,
        path,
        state,
        lambda _, seed: Pool(np.random.default_rng(seed), rows, valid),
        loss,
        ["loss", "divergence", "same first choice"],
        lambda m: measured(m, *held_out),
    )
    ends = target.ends[0] if len(target.ends) == 1 else target.ends
    config |= {"bos_token_id": getattr(target.config, "bos_token_id", None), "eos_token_id": ends}
    size = write_folder(
        args.out,
        model.cpu().state_dict(),
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **config},
    )
    print(f"{args.out}: parameters {sum(p.numel() for p in model.parameters())} file {size} bytes")
    listed = os.path.join(args.out, "head_tokens.json")
    if os.path.exists(listed):
        os.remove(listed)
    if 0 < args.vocab < target.vocab:
        usual, share, _ = usual_tokens(rows, valid, args.vocab, target.vocab)
        with open(listed, "w") as f:
            json.dump({"head_tokens": usual.tolist()}, f)
        print(f"{len(usual)} tokens of {target.vocab} are drafted: {100 * share:.2f} % of the texts", flush=True)
    found = measured(exported(args.out, config), *held_out)
    print(
        f"on {len(held_out[0])} prompts kept apart: "
        + " ".join(f"{name} {v:.3f}" for name, v in found.items()),
        flush=True,
    )
