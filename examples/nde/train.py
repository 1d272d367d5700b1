#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains the selector of delayed trees from traces and the costs of passes.

    pip install torch
    train.py train --traces DIR --costs FILE --verifier specinfer --out FILE
    train.py train --traces DIR --costs FILE --all --out FOLDER
    train.py cross --traces DIR --costs FILE --all
    train.py cross --traces DIR --price FILE --all
    train.py evaluate --traces DIR --costs FILE --selector FILE

Prompts are parted by their traces' `prompt`: those held out are neither trained on nor looked at until the end, and of the others
some decide when to stop, by what a regression over other prompts foretells of them (--smooth). cross trains several times, with
other prompts held out each time, until each has been once, and tells how the selectors do on all of them; it writes
no files. train resumes from FILE.checkpoint-SEED when it is started again with the same options."""

import argparse
import copy
import functools
import hashlib
import json
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

from selector import ACTIONS, FORMAT, LENGTHS, SCALARS, STATES, Selector, read_safetensors

TRACES = "espalier-nde-traces 1"
SAME = ("target", "draft", "vocab", "verifiers")  # of all traces that are used together
LENGTH, TEMPERATURE, TOP_P, DRAFT_SECONDS, TARGET_SECONDS = map(
    SCALARS.index, ("length", "temperature", "top_p", "draft_seconds", "target_seconds")
)


class Curve:
    """Seconds of a pass by rows and context, as include/espalier/cost/cost_curve.hpp gives them; rows may be fractions."""

    def __init__(self, entry):
        self.rows = torch.tensor(entry["rows"], dtype=torch.float64)
        self.contexts = torch.tensor(entry["contexts"], dtype=torch.float64)
        seconds = torch.tensor(entry["seconds"], dtype=torch.float64)
        self.seconds = seconds.reshape(len(self.rows), len(self.contexts))

        # Beyond the last of a grid: its last slope, or the steepest among those up to there.
        self.row_slopes = self.slopes(self.rows, self.seconds)
        self.context_slopes = self.slopes(self.contexts, self.seconds.T)

    @staticmethod
    def slopes(grid, seconds):
        if len(grid) == 1:
            return torch.zeros(seconds.shape[1], dtype=torch.float64)
        return ((seconds[-1] - seconds[-2]) / (grid[-1] - grid[-2])).cummax(0).values

    @staticmethod
    def place(grid, x):
        """The grid points beside x, the share of the way between them, and how far x is beyond the last."""
        inside = x.clamp(grid[0], grid[-1]).contiguous()
        low = (torch.searchsorted(grid, inside, right=True) - 1).clamp(0, max(0, len(grid) - 2))
        high = (low + 1).clamp_max(len(grid) - 1)
        gap = torch.where(high > low, grid[high] - grid[low], 1)
        beyond = (x - grid[-1]).clamp_min(0) if len(grid) > 1 else torch.zeros_like(x)
        return low, high, (inside - grid[low]) / gap, beyond

    def __call__(self, rows, context):
        rows, context = torch.broadcast_tensors(rows.double(), context.double())
        r, r1, across, more_rows = self.place(self.rows, rows)
        c, c1, along, more_context = self.place(self.contexts, context)
        low = torch.lerp(self.seconds[r, c], self.seconds[r, c1], along)
        high = torch.lerp(self.seconds[r1, c], self.seconds[r1, c1], along)
        inside = torch.lerp(low, high, across)
        inside += more_rows * torch.lerp(self.row_slopes[c], self.row_slopes[c1], along)
        return inside + more_context * torch.lerp(self.context_slopes[r], self.context_slopes[r1], across)


def read_costs(path):
    try:
        with open(path) as f:
            entry = json.load(f)
        return entry, Curve(entry["draft_pass"]), Curve(entry["target_pass"])
    except (OSError, ValueError, KeyError, RuntimeError) as fault:
        raise SystemExit(f"{path} is no cost file: {fault!r}.")


def read_traces(folder):
    """All traces of a folder as one: tensors by root, the names of prompts, and what the traces have in common."""
    names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))
    if not names:
        raise SystemExit(f"{folder} holds no traces (trace-*.safetensors).")
    common, first, parts, prompts, domains = None, None, {}, [], []
    for name in names:
        path = os.path.join(folder, name)
        metadata, tensors = read_safetensors(path)
        if metadata.get("format") != TRACES:
            raise SystemExit(f"{path} is no trace: its format is not \"{TRACES}\".")
        these = {key: metadata.get(key) for key in SAME}
        if common is None:
            common, first = these, name
        for key in SAME:
            if these[key] != common[key]:
                raise SystemExit(
                    f"{path} is of other models or settings: its {key} is \"{these[key]}\", but that of {first} is "
                    f"\"{common[key]}\". Collect traces of different models in different folders."
                )
        n = len(tensors["scalars"]) if "scalars" in tensors else 0
        shapes = {
            "efficiency": (n, len(common["verifiers"].split(",")), len(ACTIONS)),
            "nodes": (n, len(ACTIONS)),
            "draft_rows": (n, len(ACTIONS)),
            "scalars": (n, len(SCALARS) - 2),
        }
        for tensor in (*shapes, *STATES):
            if tensor not in tensors:
                raise SystemExit(f"{path} lacks tensor {tensor}.")
            shape = tuple(tensors[tensor].shape)
            if shape != shapes.get(tensor, (n, *shape[1:])):
                raise SystemExit(f"{path}: tensor {tensor} has shape {list(shape)}, not {list(shapes[tensor])}.")
            if not torch.isfinite(tensors[tensor]).all():
                raise SystemExit(f"{path}: tensor {tensor} holds numbers that are not finite.")
            parts.setdefault(tensor, []).append(tensors[tensor])
        prompts += [metadata.get("prompt", name)] * n
        domains += [metadata.get("domain", "")] * n
    tensors = {name: torch.cat(values) for name, values in parts.items()}
    return tensors, prompts, domains, common


def part_of(prompt, heldout, validation, turn=0):
    """Which part a prompt belongs to, whatever other prompts there are. 1 / heldout turns hold out each prompt once."""
    u = (int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") / 2**64 - turn * heldout) % 1
    return "heldout" if u < heldout else "validation" if u < heldout + validation else "train"


class Roots:
    """Roots with what their actions bring and cost."""

    def __init__(self, tensors, prompts, domains, costs, choosing, verifier, names):
        entry, draft, target = costs
        if verifier not in names:
            raise SystemExit(f"there is no verifier {verifier} in the traces; there are {', '.join(names)}.")
        self.states = [tensors[name] for name in STATES]
        self.prompts, self.domains = prompts, domains
        self.tokens = tensors["efficiency"][:, names.index(verifier)]
        context = tensors["scalars"][:, LENGTH, None]
        self.one = torch.cat([draft(torch.ones(1), context), target(torch.ones(1), context)], 1).float()
        self.scalars = torch.cat([tensors["scalars"], self.one], 1)
        # The trunk and the pass at its end have one row each; the others what is left of the mean.
        _, trunk, length = torch.tensor(ACTIONS).T.double()
        passes = trunk + length
        single = trunk + length.clamp_max(1)
        wide = passes - single
        rows = ((tensors["draft_rows"] * passes - single) / wide.clamp_min(1)).clamp_min(1)
        opening = entry.get("opening_seconds", 0.0)  # of a round that drafts, beside its passes
        self.draft_seconds = (single * draft(torch.ones(1), context) + wide * draft(rows, context)).float()
        self.draft_seconds += opening * (passes > 0)
        self.target_seconds = target(tensors["nodes"] + 1, context).float()
        # A selector takes its time, and asks for the root's row even where it then drafts nothing.
        self.asked_seconds = choosing + torch.where(passes > 0, 0, self.one[:, :1] + opening).float()
        self.settings = [tuple(s) for s in tensors["scalars"][:, [TEMPERATURE, TOP_P]].tolist()]

    def weigh(self, foretold):
        """Roots lie at equal distances in a text, rounds do not: fewer begin where more tokens are accepted. From here on a root
        counts as much as rounds begin near it, by the tokens foretold of a path."""
        weight = 1 / foretold[:, PATH, None]
        for name in ("tokens", "draft_seconds", "target_seconds", "asked_seconds"):
            setattr(self, name, getattr(self, name) * weight)

    def seconds(self, chosen=False):
        """Of all actions [roots][actions]: of static trees, or of trees that a selector chose."""
        return self.draft_seconds + self.target_seconds + (self.asked_seconds if chosen else 0)

    def take(self, index):
        part = object.__new__(Roots)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                value = value[index]
            elif name == "states":
                value = [s[index] for s in value]
            else:
                value = [value[i] for i in index.tolist()]
            setattr(part, name, value)
        return part

    def by_setting(self, settings):
        """Indices of roots, for each sampling setting."""
        found = {s: [] for s in settings}
        for i, s in enumerate(self.settings):
            found.setdefault(s, []).append(i)
        return {s: torch.tensor(i) for s, i in found.items() if i}


def best_static(train, allowed, seconds=None):
    """The action of the highest throughput over the training roots, in all and for each sampling setting."""
    allowed, tokens = torch.tensor(allowed), train.tokens
    seconds = train.seconds() if seconds is None else seconds

    def best(index):
        rate = tokens[index].double().sum(0) / seconds[index].double().sum(0)
        return int(allowed[rate[allowed].argmax()])

    return {s: best(i) for s, i in train.by_setting([]).items()} | {None: best(torch.arange(len(tokens)))}


def static_of(best, roots):
    return torch.tensor([best.get(s, best[None]) for s in roots.settings])


PATH = ACTIONS.index((1, 0, LENGTHS - 1))
UNDELAYED = [i for i, (_, trunk, _) in enumerate(ACTIONS) if trunk == 0]
EVERY = list(range(len(ACTIONS)))
# Of trees that are the same only the first is ever chosen.
DUPLICATE = torch.tensor([(n == 0 and k > 1) or (k == 1 and t > 0 and n < LENGTHS - 1) for k, t, n in ACTIONS])


def throughput(tokens, seconds, action):
    at = action[:, None]
    return (tokens.gather(1, at).double().sum() / seconds.gather(1, at).double().sum()).item()


@torch.no_grad()
def choices(model, roots):
    model.eval()
    return model(roots.states, roots.scalars).argmax(1)


def ratio_of(chosen, others, prompts):
    """Throughput over another one's, both (tokens, seconds) by root, and the standard error of that: prompts are independent."""
    sums = [x.double().sum() for x in (*chosen, *others)]
    ratio = (sums[0] / sums[1]) / (sums[2] / sums[3])
    of_root = chosen[0] / sums[0] - chosen[1] / sums[1] - others[0] / sums[2] + others[1] / sums[3]
    number = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
    of_prompt = torch.zeros(len(number), dtype=torch.float64)
    of_prompt.index_add_(0, torch.tensor([number[p] for p in prompts]), of_root.double())
    return ratio.item(), (ratio * of_prompt.square().sum().sqrt()).item()


class Tally:
    """What chosen trees bring and cost on held-out prompts, beside others; of several turns."""

    def __init__(self):
        self.prompts, self.actions, self.at = [], [], {}

    def add(self, model, train, heldout):
        baseline = best_static(train, UNDELAYED)
        delayed = best_static(train, EVERY)
        chosen, tokens, still, asked = choices(model, heldout), heldout.tokens, heldout.seconds(), heldout.seconds(True)
        for name, action, seconds in (
            ("selector", chosen, asked),
            ("best undelayed", static_of(baseline, heldout), still),
            ("best delayed", static_of(delayed, heldout), still),
            ("one delayed for all", static_of({None: delayed[None]}, heldout), still),
            ("oracle", (tokens / asked).argmax(1), asked),
        ):
            these = torch.cat([x.gather(1, action[:, None]) for x in (tokens, seconds)], 1)
            self.at.setdefault(name, []).append(these)
        self.prompts += heldout.prompts
        self.actions.append(torch.stack([chosen, static_of(baseline, heldout)], 1))

    def report(self, title):
        at = {name: torch.cat(parts).unbind(1) for name, parts in self.at.items()}
        chosen, static = torch.cat(self.actions).unbind(1)
        n = len(set(self.prompts))
        print(f"\n{title}: throughput of the chosen trees on {len(chosen)} roots of {n} held-out prompts\n")
        print("| over | ratio | standard error |\n|---|--:|--:|")
        found = {name: ratio_of(at["selector"], at[name], self.prompts) for name in at if name != "selector"}
        for name, (ratio, error) in found.items():
            print(f"| {name} | {ratio:.4f} | {error:.4f} |")
        tokens = at["selector"][0].sum() / at["best undelayed"][0].sum()
        same = (chosen == static).float().mean()
        print(f"\nTokens a round over best undelayed: {tokens:.3f}; the same tree as that: {same:.0%}")
        common = zip(*map(torch.Tensor.tolist, torch.bincount(chosen, minlength=len(ACTIONS)).topk(8)))
        print("Most often chosen (paths, trunk, length):", end=" ")
        print(", ".join(f"{ACTIONS[a]} {n / len(chosen):.1%}" for n, a in common if n), flush=True)
        return found["best undelayed"]


def loss_of(scores, tokens, seconds, base, args):
    """Equation 12. base: tokens and seconds of the baseline's tree at the root, and on average in its sampling setting.

    The first term is the paper's with --objective roots: the mean of log throughput, root by root. Texts take the time of all
    their roots together, so that a token gained counts the same wherever it is gained: with --objective sums, the default, the
    term is the logarithm of the ratio of sums, to first order about the baseline."""
    p = scores.softmax(1)
    tokens, seconds = (p * tokens).sum(1), (p * seconds).sum(1)
    base_tokens, base_seconds, mean_tokens, mean_seconds = base.unbind(1)
    ratio = tokens / seconds / (base_tokens / base_seconds)
    if args.objective == "roots":
        gain = ratio.log()
    else:
        gain = (tokens - base_tokens) / mean_tokens - (seconds - base_seconds) / mean_seconds
    below = (1 - ratio).clamp_min(0) ** 2
    worst = below.topk(max(1, math.ceil(args.alpha * len(below)))).values
    return -gain.mean() + args.penalty * worst.mean()


def warm_loss_of(scores, tokens, seconds, base, args):
    """Cross-entropy with a distribution that prefers actions by their gain: quicker to learn from than equation 12, and not
    quite what is wanted."""
    base_tokens, base_seconds, mean_tokens, mean_seconds = base[:, :, None].unbind(1)
    gain = (tokens - base_tokens) / mean_tokens - (seconds - base_seconds) / mean_seconds
    gain = gain.masked_fill(DUPLICATE, -math.inf)
    return F.cross_entropy(scores, (gain / args.warm_temperature).softmax(1))


def base_of(best, roots, seconds):
    """What loss_of needs to know of the baseline, [roots][4]."""
    at = static_of(best, roots)[:, None]
    each = torch.cat([roots.tokens.gather(1, at), seconds.gather(1, at)], 1)
    mean = torch.empty_like(each)
    for index in roots.by_setting([]).values():
        mean[index] = each[index].mean(0)
    return torch.cat([each, mean], 1)


class Regression:
    """What actions bring, foretold by kernel ridge regression. What four trees bring says little of a root; many like it say
    more. Roots are alike by their scalars, and more so by their hidden states beside; what is left is linear in all of them."""

    NOISE = 3.0  # variance of what four trees bring, by that of what the kernel explains; 1 to 8 do as well

    def __init__(self, roots, parts):
        """roots: those to foretell for, all of them; parts: of each, one of the names below."""
        scalars = roots.scalars[:, : len(SCALARS) - 2]
        logs = scalars[:, :LENGTH].clamp_min(1e-3).log()
        known = torch.tensor([part == "train" for part in parts])
        inputs = [self.standardised(x, known) for x in (torch.cat([scalars, logs], 1), *roots.states)]
        scalars, *states = inputs  # standardised
        self.kernel = functools.reduce(torch.Tensor.add_, (torch.cdist(x, x).square_() for x in states))
        self.kernel.div_(-len(states)).exp_().add_(1)
        self.kernel.mul_(torch.cdist(scalars, scalars).square_().div_(-2).exp_())
        self.kernel.addmm_(scalars, scalars.T, alpha=0.3)
        for x in states:
            self.kernel.addmm_(x, x.T, alpha=0.3 / len(states))
        self.prompts, self.parts = roots.prompts, parts

    @staticmethod
    def standardised(x, known):
        x = (x - x[known].mean(0)) / (x[known].std(0) + 1e-6)
        return x.clamp(-6, 6) / math.sqrt(x.shape[1])

    def __call__(self, tokens, folds=5):
        """Tokens of all roots and actions. A training root is foretold by those of other folds: none is by its own prompt."""
        each = zip(self.prompts, self.parts)
        fold = torch.tensor([self.fold(prompt, folds) if part == "train" else -1 for prompt, part in each])
        out = tokens.clone()
        for f in range(-1, folds):
            by, of = ((fold >= 0) & (fold != f)).nonzero()[:, 0], (fold == f).nonzero()[:, 0]
            mean = tokens[by].mean(0)
            between = self.kernel[by[:, None], by]
            between.diagonal().add_(self.NOISE)
            weights = torch.cholesky_solve(tokens[by] - mean, torch.linalg.cholesky(between))
            out[of] = self.kernel[of[:, None], by] @ weights + mean
        return out.clamp_min(1)

    @staticmethod
    def fold(prompt, folds):
        return hashlib.sha256(prompt.encode()).digest()[8] % folds


class Machine:
    """The roots on a machine whose passes take longer or shorter by these factors."""

    def __init__(self, roots, draft=1.0, target=1.0):
        still = draft * roots.draft_seconds + target * roots.target_seconds
        self.roots, self.seconds = roots, still + draft * roots.asked_seconds
        self.base = base_of(best_static(roots, UNDELAYED, still), roots, still)
        self.scalars = roots.scalars.clone()
        self.scalars[:, DRAFT_SECONDS] *= draft
        self.scalars[:, TARGET_SECONDS] *= target

    def batch(self, index):
        states = [s[index] for s in self.roots.states]
        return states, self.scalars[index], self.roots.tokens[index], self.seconds[index], self.base[index]


@torch.no_grad()
def objective(model, roots, best, args):
    """The loss on a whole part, and the throughput of the most probable actions by the baseline's."""
    model.eval()
    scores = model(roots.states, roots.scalars)
    still, asked = roots.seconds(), roots.seconds(True)
    loss = loss_of(scores, roots.tokens, asked, base_of(best, roots, still), args)
    chosen, base = scores.argmax(1), static_of(best, roots)
    return loss.item(), throughput(roots.tokens, asked, chosen) / throughput(roots.tokens, still, base)


def new_model(args, machines):
    train = machines[0].roots
    model = Selector(train.states[0].shape[1], train.states[1].shape[1], args.dropout, args.dropout_input, args.float32)
    for state, x in zip(model.states, train.states):
        state.scale.fit(x)
        if args.scalars_only:
            state.norm.weight.data.zero_()
            state.norm.requires_grad_(False)
    model.scalars.fit(torch.cat([m.scalars for m in machines]))
    model.actions.weight.data[DUPLICATE] = 0
    model.actions.bias.data[DUPLICATE] = -100
    return model


def fingerprint(parts):
    """Numbers that tell what was trained on from anything else."""
    tensors = [t for name in ("train", "validation") for p in [parts[name]] for t in (p.tokens, p.scalars, *p.states)]
    return [(t.double().flatten() * torch.linspace(1, 2, t.numel(), dtype=torch.float64)).sum().item() for t in tensors]


def fit(args, parts, seed, checkpoint, origin):
    """The weights of the lowest loss on the validation prompts, and that loss. A checkpoint of another origin is not used."""
    train, validation = parts["train"], parts["validation"]
    baseline = best_static(train, UNDELAYED)
    torch.manual_seed(seed)
    factors = sorted({1.0, args.spread, 1 / args.spread})
    machines = [Machine(train)]
    machines += [Machine(train, draft, target) for draft in factors for target in factors if (draft, target) != (1, 1)]
    model = new_model(args, machines)
    decayed = [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]
    other = [p for p in model.parameters() if p.dim() == 1 and p.requires_grad]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": args.decay}, {"params": other, "weight_decay": 0.0}], lr=args.rate
    )
    best, begun_at, begun = (math.inf, -1, None), 0, time.time()
    kept = ("traces", "costs", "out", "run", "command", "all", "verifier", "seeds", "threads", "every")
    settings = {k: v for k, v in vars(args).items() if k not in kept}
    settings |= {"format": FORMAT, "seed": seed, "origin": origin, "seconds": train.seconds().sum().item()}
    if checkpoint and os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        if saved["settings"] == settings:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            torch.set_rng_state(saved["random"])
            best, begun_at = saved["best"], saved["epoch"]
    for epoch in range(begun_at, args.epochs):
        if epoch - best[1] > args.patience:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * epoch / args.epochs)))
        model.train()
        total, order = 0.0, torch.randperm(len(train.tokens))
        for index in order.split(args.batch):
            # Every other batch on the machine that was measured.
            other_machine = len(machines) > 1 and torch.rand(()) < 0.5
            machine = machines[int(torch.randint(1, len(machines), ())) if other_machine else 0]
            states, scalars, tokens, seconds, base = machine.batch(index)
            measure = warm_loss_of if epoch < args.warm else loss_of
            loss = measure(model(states, scalars), tokens, seconds, base, args)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item() * len(index)
        held, ratio = objective(model, validation, baseline, args)
        if held < best[0]:
            best = (held, epoch, {k: v.clone() for k, v in model.state_dict().items()})
        if epoch % args.every == 0 or epoch + 1 == args.epochs:
            print(
                f"seed {seed} epoch {epoch} loss {total / len(order):.4f} validation loss {held:.4f} ratio {ratio:.3f} "
                f"best {best[0]:.4f} at {best[1]} seconds {time.time() - begun:.0f}",
                flush=True,
            )
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": best}
            state |= {"epoch": epoch + 1, "settings": settings, "random": torch.get_rng_state()}
            if checkpoint:
                torch.save(state, checkpoint + ".partial")
                os.replace(checkpoint + ".partial", checkpoint)
    model.load_state_dict(best[2])
    return model.eval(), best[0]


def parts_of(args, prompts, turn=0):
    parts = [part_of(prompt, args.heldout, args.validation, turn) for prompt in prompts]
    for part in ("train", "validation", "heldout"):
        if part not in parts:
            raise SystemExit(f"there are too few prompts: none of {len(set(prompts))} is in the part \"{part}\".")
    return parts


def taken(roots, parts):
    return {name: roots.take(torch.tensor([i for i, part in enumerate(parts) if part == name])) for name in set(parts)}


def roots_of(args, loaded, costs, verifier):
    tensors, prompts, domains, common = loaded
    return Roots(tensors, prompts, domains, costs, args.choosing, verifier, common["verifiers"].split(","))


def load(args):
    costs, loaded = read_costs(args.costs or args.price), read_traces(args.traces)
    for key in ("target", "draft"):
        if args.costs and costs[0].get(key) != loaded[3][key]:
            raise SystemExit(
                f"{args.costs} has the costs of the {key} \"{costs[0].get(key)}\", but the traces are of "
                f"\"{loaded[3][key]}\"."
            )
    return costs, loaded


def verifiers_of(args, common):
    if not args.all and not args.verifier:
        raise SystemExit(f"--verifier or --all is needed; the traces have {common['verifiers']}.")
    return common["verifiers"].split(",") if args.all else [args.verifier]


def trained(args, loaded, costs, out=None, turn=0):
    """For each verifier: its name, the model, and the parts of the roots. With out(verifier) its file is written."""
    common = loaded[3]
    parts, teacher = parts_of(args, loaded[1], turn), None
    for verifier in verifiers_of(args, common):
        roots = roots_of(args, loaded, costs, verifier)
        teacher = teacher or Regression(roots, parts)
        foretold, taught = teacher(roots.tokens), copy.copy(roots)
        taught.tokens = torch.lerp(roots.tokens, foretold, args.smooth)
        roots.weigh(foretold)
        taught.weigh(foretold)
        by_part = taken(roots, parts)
        print(f"{verifier}: " + ", ".join(f"{len(p.tokens)} {name} roots" for name, p in by_part.items()), flush=True)
        metadata = {key: common[key] for key in ("target", "draft", "vocab")} | {"verifier": verifier}
        metadata |= {"heldout": str(args.heldout), "validation": str(args.validation)}
        checkpoints = [out and f"{out(verifier)}.checkpoint-{seed}" for seed in range(args.seeds)]
        origin = (metadata, fingerprint(by_part))
        found = [fit(args, taken(taught, parts), seed, checkpoint, origin) for seed, checkpoint in enumerate(checkpoints)]
        model = min(found, key=lambda entry: entry[1])[0]
        if out:
            model.save(out(verifier), metadata)
            for checkpoint in filter(os.path.exists, checkpoints):
                os.remove(checkpoint)
            model = Selector.load(out(verifier))[0]
        yield verifier, model, by_part


def train(args):
    torch.set_num_threads(args.threads)
    costs, loaded = load(args)
    if args.all:
        os.makedirs(args.out, exist_ok=True)

    def out(verifier):
        return os.path.join(args.out, verifier + ".safetensors") if args.all else args.out

    for verifier, model, parts in trained(args, loaded, costs, out):
        tally = Tally()
        tally.add(model, parts["train"], parts["heldout"])
        tally.report(verifier)
        print(f"{out(verifier)}: {os.path.getsize(out(verifier))} bytes", flush=True)


def cross(args):
    torch.set_num_threads(args.threads)
    costs, loaded = load(args)
    tallies = {}
    turns = round(1 / args.heldout) if args.heldout > 0 else 0
    if turns < 2 or abs(turns * args.heldout - 1) > 1e-9:
        raise SystemExit(f"--heldout {args.heldout:g}: cross needs a half, a third, a fourth or so on, so that each prompt is held out once.")
    for turn in range(turns):
        for verifier, model, parts in trained(args, loaded, costs, turn=turn):
            tally = tallies.setdefault(verifier, Tally())
            tally.add(model, parts["train"], parts["heldout"])
    for verifier, tally in tallies.items():
        tally.report(verifier)


def evaluate(args):
    costs, loaded = load(args)
    model, metadata = Selector.load(args.selector)
    for key in ("target", "draft", "vocab"):
        if metadata.get(key) != loaded[3][key]:
            raise SystemExit(
                f"{args.selector} was trained for the {key} \"{metadata.get(key)}\", but the traces are of "
                f"\"{loaded[3][key]}\"."
            )
    # The prompts that it was not trained on.
    args.heldout, args.validation = (float(metadata[key]) for key in ("heldout", "validation"))
    parts, roots = parts_of(args, loaded[1]), roots_of(args, loaded, costs, metadata["verifier"])
    roots.weigh(Regression(roots, parts)(roots.tokens))
    by_part = taken(roots, parts)
    tally = Tally()
    tally.add(model, by_part["train"], by_part["heldout"])
    tally.report(metadata["verifier"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--traces", required=True, help="folder of trace-*.safetensors")
    passes = common.add_mutually_exclusive_group(required=True)
    passes.add_argument("--costs", help="what passes of the traces' models cost, JSON")
    passes.add_argument("--price", help="what passes of other models cost on another machine, JSON: see bench/prices")
    common.add_argument("--choosing", type=float, default=20e-6, help="seconds that a selector takes in each round")
    learning = argparse.ArgumentParser(add_help=False)
    learning.add_argument("--verifier", help="name in the registry, one of the traces'")
    learning.add_argument("--all", action="store_true", help="a selector for every verifier of the traces")
    learning.add_argument("--heldout", type=float, default=0.1, help="share of prompts that are never trained on")
    learning.add_argument("--validation", type=float, default=0.1, help="share that decides when to stop")
    learning.add_argument("--seeds", type=int, default=2, help="how often to train; the best on the validation prompts is kept")
    learning.add_argument("--epochs", type=int, default=50)
    learning.add_argument("--patience", type=int, default=15, help="epochs without a better one before it stops")
    learning.add_argument("--batch", type=int, default=64)
    learning.add_argument("--rate", type=float, default=2e-3)
    learning.add_argument("--decay", type=float, default=0.05)
    learning.add_argument("--dropout", type=float, default=0.1)
    learning.add_argument("--dropout-input", type=float, default=0.5, help="of the standardised hidden states")
    learning.add_argument("--objective", choices=("sums", "roots"), default="sums", help="roots: the paper's")
    learning.add_argument("--smooth", type=float, default=1.0, help="share of the labels that a regression foretells; 0: none")
    learning.add_argument("--warm", type=int, default=25, help="epochs of cross-entropy with good actions before equation 12")
    learning.add_argument("--warm-temperature", type=float, default=0.005, help="gain by which an action is e times as good")
    learning.add_argument("--lambda", dest="penalty", type=float, default=1.0, help="weight of the worst regressions")
    learning.add_argument("--alpha", type=float, default=0.1, help="share of roots that count as worst")
    learning.add_argument("--spread", type=float, default=1.5, help="factor by which latencies are varied")
    learning.add_argument("--scalars-only", action="store_true", help="leave the hidden states out")
    learning.add_argument("--float32", action="store_true", help="weights of 32 bits, not of 4 with row scales")
    learning.add_argument("--threads", type=int, default=1)
    learning.add_argument("--every", type=int, default=5, help="epochs between progress lines and checkpoints")
    c = commands.add_parser("train", parents=[common, learning])
    c.add_argument("--out", required=True, help="selector file; with --all a folder")
    c.set_defaults(run=train)
    c = commands.add_parser("cross", parents=[common, learning])
    c.set_defaults(run=cross)
    c = commands.add_parser("evaluate", parents=[common])
    c.add_argument("--selector", required=True)
    c.set_defaults(run=evaluate)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
