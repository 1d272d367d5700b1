#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains the selector of delayed trees from traces and the costs of passes.

    pip install torch
    train.py train --traces DIR --costs FILE --verifier specinfer --out FILE
    train.py train --traces DIR --costs FILE --all --out FOLDER
    train.py evaluate --traces DIR --costs FILE --selector FILE

Prompts are parted by their traces' `prompt`: those held out are neither trained on nor looked at until the end, and of the others
some decide when to stop. Training resumes from FILE.checkpoint-SEED when it is started again with the same options."""

import argparse
import copy
import hashlib
import json
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

from selector import ACTIONS, LENGTHS, SCALARS, STATES, Selector, read_safetensors

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


def part_of(prompt, heldout, validation):
    """Which part a prompt belongs to, whatever other prompts there are."""
    u = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") / 2**64
    return "heldout" if u < heldout else "validation" if u < heldout + validation else "train"


class Roots:
    """Roots with what their actions bring and cost."""

    def __init__(self, tensors, prompts, domains, costs, verifier, names):
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
        # A selector asks for the root's row even where it then drafts nothing.
        self.asked_seconds = torch.where(passes > 0, 0, self.one[:, :1] + opening).float()
        self.settings = [tuple(s) for s in tensors["scalars"][:, [TEMPERATURE, TOP_P]].tolist()]

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


def figures(chosen, roots, baseline, delayed, one):
    """Throughput of the chosen actions, as ratios: over all roots, and the mean over sampling settings."""
    tokens, still, asked = roots.tokens, roots.seconds(), roots.seconds(True)
    others = {
        "best undelayed": static_of(baseline, roots),
        "best delayed": static_of(delayed, roots),
        "one delayed for all": static_of({None: one}, roots),
        "oracle": (tokens / asked).argmax(1),
    }
    out = {}
    groups = list(roots.by_setting([]).values())
    for name, action in others.items():
        cost = asked if name == "oracle" else still
        every = throughput(tokens, asked, chosen) / throughput(tokens, cost, action)
        each = [
            throughput(tokens[i], asked[i], chosen[i]) / throughput(tokens[i], cost[i], action[i]) for i in groups
        ]
        out[name] = (every, sum(each) / len(each))
    base = static_of(baseline, roots)[:, None]
    out["tokens a round over best undelayed"] = (
        (tokens.gather(1, chosen[:, None]).sum() / tokens.gather(1, base).sum()).item(),
        math.nan,
    )
    return out


def report(model, parts, title):
    train, heldout = parts["train"], parts["heldout"]
    baseline, delayed = best_static(train, UNDELAYED), best_static(train, EVERY)
    print(f"\n{title}: throughput of the chosen trees on {len(heldout.tokens)} roots of held-out prompts\n")
    print("| over | all roots | mean over sampling settings |\n|---|--:|--:|")
    found = figures(choices(model, heldout), heldout, baseline, delayed, delayed[None])
    for name, (every, each) in found.items():
        print(f"| {name} | {every:.3f} | {'' if math.isnan(each) else f'{each:.3f}'} |")
    return found


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
    """What actions bring, foretold from the scalars. What four trees bring says little of a root; many like it say more."""

    def __init__(self, train, validation, args, seed):
        torch.manual_seed(seed)
        x, y = self.inputs(train), train.tokens
        self.offset, self.deviation = x.mean(0), x.std(0) + 1e-9
        self.mean, self.spread = y.mean(0), y.std(0) + 1e-6
        x, y = self.standardised(train), (y - self.mean) / self.spread
        held = (validation.tokens - self.mean) / self.spread
        best = (math.inf, None)
        self.layers = nn.Sequential(
            nn.Linear(x.shape[1], 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, y.shape[1])
        )
        optimizer = torch.optim.AdamW(self.layers.parameters(), lr=2e-3, weight_decay=0.01)
        for _ in range(args.teacher_epochs):
            self.layers.train()
            for index in torch.randperm(len(x)).split(128):
                loss = F.mse_loss(self.layers(x[index]), y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            self.layers.eval()
            with torch.no_grad():
                error = F.mse_loss(self.layers(self.standardised(validation)), held).item()
            if error < best[0]:
                best = (error, {k: v.clone() for k, v in self.layers.state_dict().items()})
        self.layers.load_state_dict(best[1])
        self.error = best[0]

    @staticmethod
    def inputs(roots):
        x = roots.scalars[:, : len(SCALARS) - 2]
        return torch.cat([x, x[:, :LENGTH].clamp_min(1e-3).log()], 1)

    def standardised(self, roots):
        return ((self.inputs(roots) - self.offset) / self.deviation).clamp(-8, 8)

    @torch.no_grad()
    def __call__(self, roots):
        return (self.layers(self.standardised(roots)) * self.spread + self.mean).clamp_min(1)


def smoothed(args, parts):
    """The same roots, with tokens that are the mean of some regressions, as far as --smooth asks."""
    if args.smooth == 0:
        return parts
    teachers = [Regression(parts["train"], parts["validation"], args, seed) for seed in range(args.teachers)]
    print(f"teachers leave {sum(t.error for t in teachers) / len(teachers):.3f} of the variance", flush=True)
    out = dict(parts)
    for name in ("train", "validation"):
        foretold = sum(teacher(parts[name]) for teacher in teachers) / len(teachers)
        out[name] = copy.copy(parts[name])
        out[name].tokens = torch.lerp(parts[name].tokens, foretold, args.smooth)
    return out


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
    model = Selector(train.states[0].shape[1], train.states[1].shape[1], args.dropout, args.dropout_input)
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
    settings |= {"seed": seed, "origin": origin, "seconds": train.seconds().sum().item()}
    if os.path.exists(checkpoint):
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
            torch.save(state, checkpoint + ".partial")
            os.replace(checkpoint + ".partial", checkpoint)
    model.load_state_dict(best[2])
    return model.eval(), best[0]


def parted(args, verifier, loaded, costs):
    tensors, prompts, domains, common = loaded
    names = common["verifiers"].split(",")
    roots = Roots(tensors, prompts, domains, costs, verifier, names)
    index = {"train": [], "validation": [], "heldout": []}
    for i, prompt in enumerate(prompts):
        index[part_of(prompt, args.heldout, args.validation)].append(i)
    for part, these in index.items():
        if not these:
            raise SystemExit(f"there are too few prompts: none of {len(set(prompts))} is in the part \"{part}\".")
    return {part: roots.take(torch.tensor(these)) for part, these in index.items()}


def load(args):
    costs, loaded = read_costs(args.costs), read_traces(args.traces)
    for key in ("target", "draft"):
        if costs[0].get(key) != loaded[3][key]:
            raise SystemExit(
                f"{args.costs} has the costs of the {key} \"{costs[0].get(key)}\", but the traces are of "
                f"\"{loaded[3][key]}\"."
            )
    return costs, loaded


def train(args):
    torch.set_num_threads(args.threads)
    costs, loaded = load(args)
    common = loaded[3]
    if not args.all and not args.verifier:
        raise SystemExit(f"--verifier or --all is needed; the traces have {common['verifiers']}.")
    verifiers = common["verifiers"].split(",") if args.all else [args.verifier]
    if args.all:
        os.makedirs(args.out, exist_ok=True)
    for verifier in verifiers:
        out = os.path.join(args.out, verifier + ".safetensors") if args.all else args.out
        parts = parted(args, verifier, loaded, costs)
        print(f"{verifier}: " + ", ".join(f"{len(p.tokens)} {name} roots" for name, p in parts.items()), flush=True)
        taught = smoothed(args, parts)
        checkpoints = [f"{out}.checkpoint-{seed}" for seed in range(args.seeds)]
        metadata = {key: common[key] for key in ("target", "draft", "vocab")} | {"verifier": verifier}
        metadata |= {"heldout": str(args.heldout), "validation": str(args.validation)}
        origin = (metadata, fingerprint(parts))
        found = [fit(args, taught, seed, checkpoint, origin) for seed, checkpoint in enumerate(checkpoints)]
        model = min(found, key=lambda entry: entry[1])[0]
        model.save(out, metadata, args.float32)
        for checkpoint in filter(os.path.exists, checkpoints):
            os.remove(checkpoint)
        model = Selector.load(out)[0]
        report(model, parts, verifier)
        print(f"{out}: {os.path.getsize(out)} bytes", flush=True)


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
    parts = parted(args, metadata["verifier"], loaded, costs)
    report(model, parts, metadata["verifier"])
    chosen = choices(model, parts["heldout"])
    common = torch.bincount(chosen, minlength=len(ACTIONS)).topk(8)
    print("\nMost often chosen (paths, trunk, length):", end=" ")
    print(", ".join(f"{ACTIONS[a]} {n / len(chosen):.1%}" for n, a in zip(*map(torch.Tensor.tolist, common)) if n))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--traces", required=True, help="folder of trace-*.safetensors")
    common.add_argument("--costs", required=True, help="what passes cost, JSON")
    c = commands.add_parser("train", parents=[common])
    c.add_argument("--out", required=True, help="selector file; with --all a folder")
    c.add_argument("--verifier", help="name in the registry, one of the traces'")
    c.add_argument("--all", action="store_true", help="a selector for every verifier of the traces")
    c.add_argument("--heldout", type=float, default=0.15, help="share of prompts that are never trained on")
    c.add_argument("--validation", type=float, default=0.15, help="share that decides when to stop")
    c.add_argument("--seeds", type=int, default=2, help="how often to train; the best on the validation prompts is kept")
    c.add_argument("--epochs", type=int, default=50)
    c.add_argument("--patience", type=int, default=15, help="epochs without a better one before it stops")
    c.add_argument("--batch", type=int, default=64)
    c.add_argument("--rate", type=float, default=2e-3)
    c.add_argument("--decay", type=float, default=0.05)
    c.add_argument("--dropout", type=float, default=0.1)
    c.add_argument("--dropout-input", type=float, default=0.5, help="of the standardised hidden states")
    c.add_argument("--objective", choices=("sums", "roots"), default="sums", help="roots: the paper's")
    c.add_argument("--smooth", type=float, default=1.0, help="share of the labels that regressions foretell; 0: none")
    c.add_argument("--teachers", type=int, default=4, help="regressions")
    c.add_argument("--teacher-epochs", type=int, default=50)
    c.add_argument("--warm", type=int, default=25, help="epochs of cross-entropy with good actions before equation 12")
    c.add_argument("--warm-temperature", type=float, default=0.005, help="gain by which an action is e times as good")
    c.add_argument("--lambda", dest="penalty", type=float, default=1.0, help="weight of the worst regressions")
    c.add_argument("--alpha", type=float, default=0.1, help="share of roots that count as worst")
    c.add_argument("--spread", type=float, default=1.5, help="factor by which latencies are varied")
    c.add_argument("--scalars-only", action="store_true", help="leave the hidden states out")
    c.add_argument("--float32", action="store_true", help="store weights as they are, not as bytes with row scales")
    c.add_argument("--threads", type=int, default=1)
    c.add_argument("--every", type=int, default=5, help="epochs between progress lines and checkpoints")
    c.set_defaults(run=train)
    c = commands.add_parser("evaluate", parents=[common])
    c.add_argument("--selector", required=True)
    c.set_defaults(run=evaluate)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
