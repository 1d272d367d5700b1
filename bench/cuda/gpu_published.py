# SPDX-License-Identifier: BSL-1.0
"""Published drafters that bench/gpu_check measures by name: the argument --published."""

import collections
import json
import os
import re
import statistics

import gpu_models

# what: what is measured. layout: how the draft's files must be laid out. target: numbers of the target's config.json
# that the entry is about. times_plain: the speeds over plain decoding that were published, greedy and at temperature 1.
# part: the argument that names the draft, block for what drafts all depths in one pass and draft for other heads.
Entry = collections.namedtuple("Entry", ("what", "layout", "target", "times_plain", "part"), defaults=({}, (), "block"))
QWEN3_8B = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36}
ENTRIES = {
    # DDTree's table: Qwen3-8B on MATH-500 with z-lab's DFlash draft, the best of its budgets.
    "qwen3-8b-dflash": Entry("Qwen3-8B with z-lab's DFlash draft, trees as DDTree's", "dflash", QWEN3_8B, (7.52, 6.59)),
    "dflash": Entry("a DFlash draft as z-lab publishes them", "dflash"),
    "dflash-speculators": Entry("a DFlash draft as speculators writes them", "dflash of speculators"),
    "dflash-gguf": Entry("a DFlash, DSpark or DFlash2 draft as llama.cpp's converter writes them", "GGUF"),
    "dspark": Entry("a DSpark draft as speculators writes them", "dspark of speculators"),
    "dflash2": Entry("a DFlash2 draft as z-lab publishes them", "dflash2"),
    "dflash2-speculators": Entry("a DFlash2 draft as speculators writes them", "dflash2 of speculators"),
    "xpress": Entry("an XPress draft as speculators writes them", "xpress of speculators"),
    "eagle3": Entry("an EAGLE-3 head as SafeAILab and SpecForge publish them", "eagle3", part="draft"),
    "eagle3-speculators": Entry("an EAGLE-3 head as speculators writes them", "eagle3 of speculators", part="draft"),
    "eagle3-gguf": Entry("an EAGLE-3 head as llama.cpp's converter writes them", "GGUF", part="draft"),
    "mtp-speculators": Entry("an MTP head as speculators writes them", "mtp of speculators", part="draft"),
    "peagle-speculators": Entry("a P-EAGLE head as speculators writes them", "peagle of speculators"),
}
FORM = "NAME=TARGET,block=DRAFT, or NAME=TARGET,draft=DRAFT for a head"
# Prompts that one call of the program measures, which writes its figures at its end; and the call's seconds.
TEXTS, SECONDS = 5, 1800


def layout_of(path):
    """The layout of a draft's files, in the words of ENTRIES."""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return "GGUF" if file.read(4) == b"GGUF" else "no model"
    config = config_of(path)
    if "speculators_model_type" in config:
        return f"{config['speculators_model_type']} of speculators"
    names = json.dumps(config.get("architectures", []))
    if "dflash_config" in config or "DFlash" in names:
        return "dflash2" if "selector_rank" in {**config, **config.get("dflash_config", {})} else "dflash"
    return "eagle3" if "draft_vocab_size" in config or "Eagle3" in names else config.get("model_type", "no model")


def is_head(path):
    """Whether a draft's files are laid out as those of a head or a block, not of a smaller model."""
    return layout_of(path) in {entry.layout for entry in ENTRIES.values()} - {"GGUF"}


def config_of(folder):
    try:
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


class Pair(gpu_models.Model):
    """NAME=TARGET,block=DRAFT[,prompts=FILE], with draft= in place of block= for a head; NAME is one of ENTRIES."""

    def __init__(self, text, root):
        name, equals, files = text.partition("=")
        if name not in ENTRIES:
            raise ValueError(f'--published: "{name}" is none of {", ".join(ENTRIES)}.')
        if not equals or not files:
            raise ValueError(f"--published {name}: its files are not given; the form is {FORM}.")
        super().__init__(files, root, "--published")
        if ENTRIES[name].part not in self.parts:
            raise ValueError(f"--published {name}: the draft is not given; the form is {FORM}.")
        self.name = name
        self.entry = ENTRIES[name]

    def complaint(self):
        """What is missing or does not fit the entry, or None."""
        draft = self.parts[self.entry.part]
        for path in (self.path, draft):
            if not os.path.exists(path):
                return f"there is no {path}"
        layout = layout_of(draft)
        if layout != self.entry.layout:
            return f"{draft} is laid out as {layout}, but the entry is about {self.entry.layout}"
        config = config_of(self.path)
        for key, value in self.entry.target.items():
            if config.get(key) != value:
                return f"{self.path} has {key} {json.dumps(config.get(key))}, but the entry's target has {value}"
        return super().complaint()

    def arguments(self):
        claims = ",".join(map(str, self.entry.times_plain))
        more = ["--tokens", "1024", "--repetitions", "30"]  # each text once
        return [*super().arguments(), *more, *(["--times-plain", claims] if claims else [])]

    def pieces(self, folder):
        """The arguments for each few of the prompts, by words for these. Writes the prompts to `folder`."""
        with open(self.parts["prompts"]) as file:
            lines = [line for line in file if line.strip()]
        found = {}
        for first in range(0, len(lines), TEXTS):
            some = lines[first : first + TEXTS]
            path = os.path.join(folder, f"prompts of {self.name} from {first + 1}.jsonl")
            with open(path, "w") as file:
                file.writelines(some)
            arguments = self.arguments()
            arguments[arguments.index("--prompts") + 1] = path
            found[f"texts {first + 1} to {first + len(some)} of {len(lines)}"] = arguments
        return found


def combined(pieces):
    """The result of a program whose texts were measured in pieces: medians and quartiles of the pieces'
    medians, and sums of what was counted."""
    by_key = {}
    for piece in pieces:
        for figure in piece["figures"]:
            by_key.setdefault(figure["key"], []).append(figure)
    figures = [over(same) for same in by_key.values()]
    plain, best = None, {}
    for figure in figures:
        method, _, temperature = figure["what"].rpartition(", ")
        if figure["unit"] != "tokens/s" or not figure["median"]:
            continue
        plain = figure["median"] if method.startswith("plain") else plain
        times = figure["median"] / plain if plain else None
        if times and "times plain" in figure.get("note", ""):
            figure["note"] = f"{times:.2f} times plain; " + figure["note"].partition("; ")[2]
        if times and "(DDTree)" in method:
            best[temperature] = max(best.get(temperature, 0.0), times)
    for key, temperature in (("decoding.published.0", "greedy"), ("decoding.published.1", "temperature 1")):
        for figure in figures:
            if figure["key"] == key and temperature in best:
                figure.update({**dict.fromkeys(("median", "low", "high"), 1 / best[temperature]), "n": 1})
    return {
        **pieces[0],
        "figures": figures,
        "seconds": sum(piece["seconds"] for piece in pieces),
        "status": next((piece["status"] for piece in pieces if piece["status"] != 0), 0),
        "pieces": len(pieces),
    }


def over(same):
    """One figure of the same figure of several pieces."""
    values = [figure["median"] for figure in same if figure["median"] is not None]
    if not values:
        return dict(same[0])
    if same[0]["unit"] == "texts":
        return {**same[0], **dict.fromkeys(("median", "low", "high"), sum(values))}
    quartiles = statistics.quantiles(values * 2 if len(values) == 1 else values, n=4, method="inclusive")
    low, high = quartiles[0], quartiles[2]
    found = {**same[0], "median": statistics.median(values), "low": low, "high": high, "n": len(values)}
    notes = [figure.get("note", "") for figure in same]
    rounds = [float(n[1]) for n in (re.search(r"([0-9.]+) tokens a round", note) for note in notes) if n]
    if rounds:
        differing = [note for note in notes if "some texts differ" in note]
        mean = f"{statistics.mean(rounds):.2f} tokens a round"
        found["note"] = re.sub(r"[0-9.]+ tokens a round", mean, (differing or notes)[0])
    return found


def not_given(pairs):
    """For each entry that was not given, a sentence that says how to."""
    given = {pair.name for pair in pairs}
    return {
        name: f"{entry.what}: not measured, since the files are not given "
        f"(--published {name}=TARGET,{entry.part}=DRAFT)."
        for name, entry in ENTRIES.items()
        if name not in given
    }
