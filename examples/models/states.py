# SPDX-License-Identifier: BSL-1.0
"""Trains a head or a block, which drafts from a target's states, for any causal language model that transformers loads: the
target's states at every token of texts that it wrote are computed once and kept in a file, and the draft is trained on them,
exported and measured."""

import hashlib
import os
import shutil

import numpy as np
import torch
import torch.nn.functional as F

from block import agreement
from distil import angles_of, positions_of, target_of, usual_tokens, write_all
from model import Optimizer, Trainer, begin, checkpoint, dequantised, write_folder


class States:
    """The target's states at every token of some texts, one text behind the other: the inputs of three layers; the last
    state, after the final norm; and the logarithm of the sum of its logits' exponentials. They are kept in a file, whose
    name tells the texts and the target."""

    @staticmethod
    def layers(target):
        """The layers, from 0, whose inputs are kept: 2, half and the third last, as an EAGLE-3 head reads them if its config
        names none."""
        n = target.config.num_hidden_layers
        return [2, n // 2, n - 3]

    def __init__(self, folder, name, target, rows, valid, precision, threads):
        self.valid = valid.numpy()
        self.starts = np.concatenate(([0], np.cumsum(self.valid)))
        self.width = 4 * target.embedding.shape[1] + 1
        shape = (int(self.starts[-1]), self.width)
        made_of = hashlib.sha256(rows.numpy().tobytes() + self.valid.tobytes())
        made_of.update(target.embedding.detach().cpu().view(torch.int16).numpy().tobytes())
        made_of.update(f"{target.name} {target.model.num_parameters()} {precision}".encode())
        path = os.path.join(folder, f"{name}-{made_of.hexdigest()[:12]}.states")
        if not os.path.exists(path):
            size = 2 * shape[0] * shape[1]
            if os.path.exists(path + ".tmp"):
                os.remove(path + ".tmp")
            free = shutil.disk_usage(folder).free
            if size > free:
                raise SystemExit(f"{path} would take {size / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} left.")
            self.write(path, shape, target, rows, threads)
        self.data = np.memmap(path, np.float16, "r", shape=shape)

    def write(self, path, shape, target, rows, threads):
        """Writes the file, by `threads` processes of one thread each. A pass has texts of about the same length, 2,048 tokens."""
        np.memmap(path + ".tmp", np.float16, "w+", shape=shape).flush()
        order, passes = np.argsort(self.valid, kind="stable"), []
        for text in order:
            if not passes or (len(passes[-1]) + 1) * self.valid[text] > 2048:
                passes.append([])
            passes[-1].append(text)
        fork = torch.multiprocessing.get_context("fork")
        parts = [(path, shape, target, rows, passes, part, threads) for part in range(threads)]
        others = [fork.Process(target=self.write_part, args=part, daemon=True) for part in parts[1:]]
        for other in others:
            other.start()
        self.write_part(*parts[0])
        for other in others:
            other.join()
            if other.exitcode != 0:
                raise SystemExit(f"{path}.tmp was not written.")
        os.replace(path + ".tmp", path)

    @torch.no_grad()
    def write_part(self, path, shape, target, rows, passes, part, parts):
        """Writes the states of the passes part, part + parts, part + 2 * parts and so on."""
        torch.set_num_threads(1)
        data = np.memmap(path + ".tmp", np.float16, "r+", shape=shape)
        output, n = target.model.get_output_embeddings().weight, target.config.num_hidden_layers
        for i, at in enumerate(passes[part::parts]):
            ids = rows[at, : int(self.valid[at].max())].long().to(target.device)
            out = target.model.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
            total = torch.stack([torch.logsumexp(F.linear(row, output).float(), -1) for row in out[n]])
            read = [out[i] for i in self.layers(target)]
            kept = torch.cat([*read, out[n], total[..., None]], -1).half().cpu().numpy()
            for row, text in zip(kept, at):
                data[self.starts[text] : self.starts[text + 1]] = row[: self.valid[text]]
            if not np.isfinite(kept).all():
                raise SystemExit(f"the states of {target.path} are too large for 16 bits, as which they are kept.")
            if part == 0 and i % 10 == 0:
                print(f"states: pass {parts * i + 1} of {len(passes)}", flush=True)
        data.flush()

    def of(self, texts, length):
        """[texts][length][4 * width + 1], zeros behind a text."""
        out = np.zeros((len(texts), length, self.width), np.float16)
        for row, text in zip(out, texts):
            n = min(length, self.valid[text])
            row[:n] = self.data[self.starts[text] : self.starts[text] + n]
        return torch.from_numpy(out)


class Texts:
    """Parts of a batch: texts, each up to `length` tokens, in shuffled order, again and again."""

    def __init__(self, rows, size, states, seed, length, stage):
        self.rows, self.size, self.states, self.length, self.stage = rows, size, states, length, stage
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
        """ids [batch][length], the target's states, whether the next token of each is one that the target wrote, and the
        stage of the training."""
        valid = torch.from_numpy(self.states.valid[drawn]).clamp_max(self.length)
        length = int(valid.max())
        at = torch.arange(length)[None]
        use = (at >= (self.size[drawn, None] - 1).clamp_min(1)) & (at < valid[:, None] - 1)
        return self.rows[drawn, :length].long(), self.states.of(drawn, length), use, self.stage


def divergence_of_rows(q, p, total, hard):
    """KL(target || head) over the tokens of the head, plus hard times the cross entropy with the best of them, and how
    often the head's first choice is that one. p: the target's logits of these tokens; total: the logarithm of the sum of
    the exponentials of all its logits."""
    q = q.float().log_softmax(-1)
    logp = p.float() - total[:, None]
    best = logp.argmax(-1)
    kl = (logp.exp() * (logp - q)).sum(-1)
    return (kl - hard * q.gather(-1, best[:, None])[:, 0]).mean(), (q.argmax(-1) == best).float().mean()


def begin_as(layer, weights):
    """Gives a layer the weights of a target's layer that have the names of its own and fit: a matrix that reads more than
    the target's takes them for its last columns."""
    own = layer.state_dict()
    for name, weight in weights.items():
        rows, n = weight.shape[:-1], weight.shape[-1]
        if name in own and own[name].shape[:-1] == rows and own[name].shape[-1] >= n:
            own[name][..., -n:] = weight


@torch.no_grad()
def require_simple(target, where, fewest):
    """Refuses a target whose logits are not its output matrix times the last state, or that has too few layers."""
    c, model = target.config, target.model
    if c.num_hidden_layers < fewest:
        raise SystemExit(
            f"the target {where} has {c.num_hidden_layers} layers; the states of three are read, for which it needs {fewest}."
        )
    out = model(input_ids=torch.arange(4, device=target.device)[None], output_hidden_states=True)
    made = F.linear(out.hidden_states[-1], model.get_output_embeddings().weight)
    decoder = model.get_decoder()
    if not hasattr(decoder, "norm") or not hasattr(decoder, "layers"):
        raise SystemExit(f"the class of {where} in transformers has no layers and norm, with which a draft begins.")
    if not torch.allclose(made, out.logits, rtol=1e-2, atol=1e-2):
        raise SystemExit(f"the logits of {where} are not its output matrix times its last state, as a head's are.")


def sizes_of(target, args):
    """The sizes of a draft's layers, which are the target's."""
    c, heads = target.config, target.config.num_attention_heads
    return {
        "vocab_size": target.vocab,
        "hidden_size": target.embedding.shape[1],
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(c, "num_key_value_heads", None) or heads,
        "head_dim": getattr(c, "head_dim", None) or target.embedding.shape[1] // heads,
        "intermediate_size": args.inner or c.intermediate_size,
        "rope_theta": angles_of(target),
        "rms_norm_eps": getattr(c, "rms_norm_eps", 1e-5),
        "max_position_embeddings": positions_of(target),
    }


@torch.no_grad()
def hits_of(model, embedding, kept, rows, states, depth):
    """Whether the i-th token that a model drafts is the text's, if the pending token stands at each place and the tokens
    drafted before it are the text's: [texts][length][depth]."""
    hits, device, width = [], embedding.device, embedding.shape[1]
    for text in range(len(rows)):
        ids = rows[[text]].long().to(device)
        read = states.of([text], ids.shape[1])[..., : 3 * width].to(device).float()
        right = []
        for step, last in enumerate(model.drafted(F.embedding(ids, embedding).float(), read, depth)):
            found = kept[model.lm_head(last).argmax(-1)]
            right.append(F.pad(found[:, : ids.shape[1] - 1 - step] == ids[:, 1 + step :], (0, 1 + step)))
        hits.append(torch.stack(right, -1).cpu())
    return torch.cat(hits)


def train_on_states(args, name, fewest, make, settings_of):
    """Trains, exports and measures a draft. name is that of its checkpoint, fewest the number of layers that the target needs.
    make(target, unused) returns the draft: it has fc, norm and lm_head, and begin_as(layers), rows(tokens, read, use, stage) and
    drafted(tokens, read, depth), as Head says; unused is the token that texts have least often, or
    had when the training began. settings_of(draft) returns
    its config.json."""
    target = target_of(args)
    require_simple(target, args.target, fewest)
    width, device = target.embedding.shape[1], target.device
    if args.vocab < 1:
        raise SystemExit("--vocab must be 1 or more.")
    if args.length <= args.longest or args.length < 3:
        raise SystemExit("--length must be more than --longest, and 3 or more.")
    (held_rows, held_valid, held_size), (rows, valid, size) = write_all(args, target)
    enough = valid > 2  # the state in front of a pending token, that token, and one to draft
    if not enough.any():
        raise SystemExit("No text to learn from has three tokens.")
    rows, valid, size = rows[enough], valid[enough], size[enough]
    output, embedding = target.model.get_output_embeddings().weight.detach(), target.embedding.detach()
    usual, share, unused = usual_tokens(rows, valid, args.vocab, target.vocab)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    path = os.path.join(args.work, f"{name}.pt")
    if os.path.exists(path) and not args.fresh:
        saved = checkpoint(path)["state"]
        if saved.get("target") == target.name:  # else begin() refuses it
            unused = saved.get("unused", unused)
    model = make(target, unused).to(device)
    model.lm_head.requires_grad_(False)  # it is the target's output matrix
    opt = Optimizer(model, args.muon_lr, args.adam_lr, 0.02, args.precision == "bf16")
    state = begin(args, model, opt, path, target.name)
    if state["step"] == 0:
        print(f"{len(usual)} tokens of {target.vocab} are {100 * share:.2f} % of the texts", flush=True)
        state["kept"], state["unused"] = usual.tolist(), unused
        decoder = target.model.get_decoder()
        with torch.no_grad():  # the stream begins near the latest state, layers and output as the target's
            model.begin_as(decoder.layers)
            model.lm_head.weight.copy_(output[usual.to(device)])
            model.norm.weight.copy_(decoder.norm.weight)
            model.fc.weight.mul_(0.3)
            model.fc.weight[:, 2 * width :] += torch.eye(width, device=device)
    kept = torch.tensor(state["kept"], device=device)
    of_kept = output[kept].clone()
    held_states = States(args.work, "held_out", target, held_rows, held_valid, args.precision, args.threads)
    states = States(args.work, "texts", target, rows, valid, args.precision, args.threads)
    divergence = torch.compile(divergence_of_rows, dynamic=True) if args.compile else divergence_of_rows

    def loss(m, ids, seen, use, stage):
        """The divergence from the target's distribution on the tokens of the model, of each token drafted in a row, the
        j-th, from 0, weighing args.decay**j; the target's share on other tokens counts for nothing."""
        ids, seen, use = ids.to(device), seen.to(device), use.to(device)
        teacher = F.linear(seen[use][:, 3 * width : 4 * width].to(output.dtype), of_kept)
        place = torch.zeros(use.numel(), dtype=torch.long, device=device)
        place[use.flatten()] = torch.arange(len(teacher), device=device)
        tokens, read, sums = F.embedding(ids, embedding).float(), seen[..., : 3 * width].float(), seen.flatten(0, 1)[:, -1]
        total, weight, right = 0, 0, []
        for step, (last, at) in enumerate(m.rows(tokens, read, use, stage)):
            if len(at) == 0:  # no text is long enough
                continue
            mean, hit = divergence(F.linear(last, of_kept), teacher[place[at]], sums[at].float(), args.hard)
            total, weight = total + args.decay**step * mean, weight + args.decay**step
            right.append(hit)
        return total / weight, right[0], right[-1]

    def measured(m):
        hits = hits_of(m, embedding, kept, held_rows, held_states, 7)
        right, of_7 = agreement(hits, held_valid, held_size)
        _, of_5 = agreement(hits[..., :5], held_valid, held_size)
        return {f"position {i + 1}": float(right[i]) for i in range(5)} | {"accepted of 5": of_5, "of 7": of_7}

    Trainer(
        args,
        model,
        opt,
        path,
        state,
        lambda stage, seed: Texts(rows, size, states, seed, args.length, stage),
        loss,
        ["loss", "same first choice", "same last choice"],
        measured,
    )
    weights = {name: w.cpu() for name, w in model.state_dict().items()}
    weights["d2t"] = kept.cpu() - torch.arange(len(kept))
    n_bytes = write_folder(args.out, weights, settings_of(model))
    print(f"{args.out}: parameters {sum(p.numel() for p in model.parameters())} file {n_bytes} bytes")
    found = dequantised(args.out)
    del found["d2t"]
    model.load_state_dict(found)
    print(
        f"on {len(held_rows)} prompts kept apart: " + " ".join(f"{n} {v:.3f}" for n, v in measured(model).items()),
        flush=True,
    )
