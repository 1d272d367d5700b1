# SPDX-License-Identifier: BSL-1.0
"""Published drafters that bench/gpu_check measures by name: the argument --published."""

import collections
import json
import os

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
SECONDS = 3600


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
        return [*super().arguments(), "--tokens", "1024", *(["--times-plain", claims] if claims else [])]


def not_given(pairs):
    """For each entry that was not given, a sentence that says how to."""
    given = {pair.name for pair in pairs}
    return {
        name: f"{entry.what}: not measured, since the files are not given "
        f"(--published {name}=TARGET,{entry.part}=DRAFT)."
        for name, entry in ENTRIES.items()
        if name not in given
    }
