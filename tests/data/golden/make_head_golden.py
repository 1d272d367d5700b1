# SPDX-License-Identifier: BSL-1.0
"""make_head_golden.py: writes heads/: a tiny random target, EAGLE-3, P-EAGLE and MTP heads on it in every layout and with
every switch, another target whose own files hold an MTP head, DFlash and DFlash2 blocks in both of their layouts,
DSpark blocks with each kind of Markov head, and XPress blocks, with what speculators' and dflash's own classes compute with them.

Needs speculators 0.9.0 and dflash 0.1.0 with torch, transformers, safetensors. In golden.json, logits[k][j] is the row of the head after
the text's first j + 2 tokens and the k tokens after them as a drafted path; drafts[j] is what the head drafts greedily
after the first j + 2 tokens, as tokens of the target. For a block, "blocks" has the rows after a pending token; those of
a DSpark, DFlash2 or XPress block are along the drafted tokens of "path", as tokens of the target, and null is minus infinity.
"tokens" has the token of each column, if columns are not tokens. variants.json has what the same weights give with
changes to the config, each a JSON merge patch.
"""

import json
import pathlib
import shutil

import speculators.models.dflash.core as dflash_core
import speculators.models.dflash2.core as dflash2_core
import speculators.models.dspark.core as dspark_core
import speculators.models.peagle.core as peagle_core
import speculators.models.xpress.core as xpress_core
import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.convert.dflash.converter import DFlashConverter
from speculators.models.dflash import DFlashDraftModel as SpeculatorsDFlash
from speculators.models.dflash import DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel as SpeculatorsDFlash2
from speculators.models.dflash2 import DFlash2SpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.models.xpress import XPressDraftModel, XPressSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

ROOT = pathlib.Path(__file__).parent / "heads"
VOCAB, WIDTH, LAYERS, STEPS = 96, 32, 7, 3
TEXT = [5, 17, 80, 3, 41, 41, 62, 9, 95, 0, 33, 12]


def randomise(model, seed):
    """Gives every weight a random number that BF16 holds."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        around = 1.0 if name.endswith("norm.weight") or ".fc_norm." in f".{name}" else 0.0
        scale = 0.1 if around else 1.3 / weight.shape[-1] ** 0.5
        values = around + scale * torch.randn(weight.shape, generator=generator)
        weight.data = values.to(torch.bfloat16).to(torch.float64)


def shape(cls, layers, **more):
    return cls(vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=layers,
               num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
               rms_norm_eps=1e-5, tie_word_embeddings=False, **more)


def target(name, cls, config, seed):
    """The states of the text, of which state i is the input of layer i, then the final norm's input, and its output."""
    torch.manual_seed(0)
    model = cls(config).double()
    randomise(model, seed)
    model.eval()
    last = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0].detach()))
    with torch.no_grad():
        states = model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    embedding, output = model.model.embed_tokens.weight.data.clone(), model.lm_head.weight.data.clone()
    model.to(torch.bfloat16).save_pretrained(ROOT / name)  # last: it rounds the angles, too
    return [*states[:-1], last[0], states[-1]], embedding, output


def speculating(algorithm, tokens=STEPS):
    return SpeculatorsConfig(
        algorithm=algorithm, proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=tokens)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]))


def reduce_vocabulary(model, columns, seed):
    """Gives a model's columns random tokens, and returns these."""
    if columns == VOCAB:
        return torch.arange(VOCAB)
    tokens = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:columns].sort().values
    model.d2t.copy_(tokens - torch.arange(columns))
    model.t2d.copy_(torch.isin(torch.arange(VOCAB), tokens))
    return tokens


def short(rows):
    return [[None if x == -float("inf") else float(f"{x:.7g}") for x in row] for row in rows.tolist()]


def head(name, cls, states, seed, draft_vocab=VOCAB, layers=1, layer_ids=None, embedding=None, **switches):
    layer = shape(cls, layers, **({"attention_bias": True} if switches.pop("biases", False) else {}))
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=draft_vocab, eagle_aux_hidden_state_layer_ids=layer_ids,
        speculators_config=speculating("eagle3"), **switches)
    model = Eagle3DraftModel(config).double().eval()
    randomise(model, seed)
    if embedding is not None:
        model.embed_tokens.weight.data = embedding.clone()
    tokens = reduce_vocabulary(model, draft_vocab, seed)
    read = layer_ids or [2, LAYERS // 2, LAYERS - 3]
    features = torch.cat([states[i] for i in read], dim=-1)

    rows = []
    model.lm_head.register_forward_hook(lambda _, __, logits: rows.append(logits[0].detach()))

    def run(text, steps):
        """The logits of each step: row j of step k is after text[: j + 2] and the k tokens after it."""
        rows.clear()
        n = len(text) - 1
        known = torch.zeros(1, n, features.shape[-1], dtype=torch.float64)
        known[:, : min(n, len(TEXT))] = features[:, : min(n, len(TEXT))]
        with torch.no_grad():
            model(hidden_states=known, input_ids=torch.tensor([text[1:]]),
                  document_ids=torch.zeros(1, n, dtype=torch.long), ttt_steps=steps)
        return [r.clone() for r in rows]

    by_step = run(TEXT, STEPS)
    logits = [by_step[k][: len(TEXT) - 1 - k].tolist() for k in range(STEPS)]
    drafts = []
    for length in range(2, len(TEXT) + 1):
        path = []
        for k in range(STEPS):
            row = run(TEXT[:length] + path, k + 1)[k][length - 2]
            path.append(int(tokens[row.argmax()]))
        drafts.append(path)
    folder = ROOT / name
    model.to(torch.bfloat16).save_pretrained(folder)
    write_golden(folder, tokens.tolist() if draft_vocab < VOCAB else [], logits, drafts)
    return folder


def mtp(name, layers, last, embedding, output, seed):
    layer = shape(Qwen3Config, layers)
    layer._attn_implementation = "eager"
    config = MTPSpeculatorConfig(transformer_layer_config=layer, speculators_config=speculating("mtp"))
    model = MTPDraftModel(config).double().eval()
    del model.verifier_lm_head
    randomise(model, seed)
    model.embed_tokens.weight.data, model.lm_head.weight.data = embedding.clone(), output.clone()

    def row(text, known):
        """The row after a text, whose first tokens have the target's states and the others the head's own."""
        inputs = list(last[0, :known])
        while True:
            n = len(inputs)
            with torch.no_grad():
                hidden = torch.stack(inputs)[None]
                mask = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
                positions = torch.arange(n)[None]
                out = model.mtp_layers[0](
                    hidden_states=hidden, token_embeddings=model.embed_tokens(torch.tensor([text[1 : n + 1]])),
                    attention_mask=mask, position_ids=positions,
                    position_embeddings=model.rotary_emb(hidden, positions))
                if n + 1 == len(text):
                    return model.lm_head(out[0, -1])
            inputs.append(out[0, -1])

    logits = [[row(TEXT[: j + 2 + k], j + 1).tolist() for j in range(len(TEXT) - 1 - k)]
                          for k in range(STEPS)]
    drafts = []
    for length in range(2, len(TEXT) + 1):
        path = []
        for _ in range(STEPS):
            path.append(int(row(TEXT[:length] + path, length - 1).argmax()))
        drafts.append(path)
    folder = ROOT / name
    model.to(torch.bfloat16).save_pretrained(folder)
    write_golden(folder, [], logits, drafts)
    return folder


def write_golden(folder, tokens, logits, drafts):
    (folder / "golden.json").write_text(json.dumps(
        {"text": TEXT, "tokens": tokens, "logits": [[[float(f"{x:.7g}") for x in row] for row in step] for step in logits],
         "drafts": drafts}))


def put_beside(folder, target_folder):
    """Moves an MTP head into its target's own files, under the names that Qwen3-Next has there.

    Such a head reads the last state after the final norm (llama.cpp, src/models/qwen35.cpp); one of speculators the state
    before it, as its training gives both to verifier_norm and to the head.
    """
    layer = "mtp_layers.0."
    names = {"input_proj": "fc", "final_layernorm": "norm", "hidden_layernorm": "pre_fc_norm_hidden",
             "token_layernorm": "pre_fc_norm_embedding"}

    def renamed(name):
        part = name.removeprefix(layer)
        return "mtp." + (names[part.split(".")[0]] + ".weight" if part.split(".")[0] in names else "layers.0." + part)

    weights = load_file(target_folder / "model.safetensors")
    for name, weight in load_file(folder / "model.safetensors").items():
        weights[renamed(name)] = weight
    save_file(weights, target_folder / "model.safetensors")
    shutil.move(folder / "golden.json", target_folder / "golden.json")
    shutil.rmtree(folder)


def peagle(name, cls, states, seed, depths=4, draft_vocab=VOCAB, layers=1, layer_ids=None, **switches):
    """A P-EAGLE head, with its rows after each pending token."""
    layer = shape(cls, layers)
    layer._attn_implementation = "eager"
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=draft_vocab, eagle_aux_hidden_state_layer_ids=layer_ids,
        mask_token_id=94, speculators_config=speculating("peagle", depths), **switches)
    model = PEagleDraftModel(config).double().eval()
    randomise(model, seed)
    tokens = reduce_vocabulary(model, draft_vocab, seed)
    features = torch.cat([states[i] for i in layer_ids or [2, LAYERS // 2, LAYERS - 3]], dim=-1)
    kept = []

    def keep(logits, **_):
        kept.append(logits[0].detach())
        return None, {}

    peagle_core.compute_metrics = keep
    blocks = []
    for at in (1, 2, 5, len(TEXT) - 1):
        anchors = [*range(at), *[at - 1] * (depths - 1)]
        depth = [*[0] * at, *range(1, depths)]
        # The sequence is longer than the rows that are sampled of it: they are placed by number.
        n = at + depths
        known = torch.zeros(1, n, features.shape[-1], dtype=torch.float64)
        known[:, :at] = features[:, :at]
        peagle_core.generate_cod_sample_indices = lambda a=anchors, d=depth, **_: (torch.tensor(a), torch.tensor(d))
        with torch.no_grad():
            model(known, torch.tensor([[*TEXT[1 : at + 1], *[0] * (n - at)]]), torch.zeros(1, n, dtype=torch.long),
                  verifier_last_hidden_states=torch.zeros(1, n, WIDTH, dtype=torch.float64))
        blocks.append({"pending_at": at, "logits": short(kept.pop()[at - 1 :])})
    folder = ROOT / name
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "golden.json").write_text(json.dumps(
        {"text": TEXT, "tokens": tokens.tolist() if draft_vocab < VOCAB else [], "blocks": blocks}))


def dflash(name, states, embedding, output, seed):
    config = shape(Qwen3Config, 2, block_size=5, num_target_layers=LAYERS,
                   dflash_config={"target_layer_ids": [1, 3, 5], "mask_token_id": 94})
    model = DFlashDraftModel(config).double().eval()
    randomise(model, seed)
    folder = ROOT / name
    (folder).mkdir()
    blocks = rows_of_dflash(model, states, embedding, output)
    variants = []
    for change in ({"is_causal": True},
                   {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
                    "layer_types": ["full_attention", "sliding_attention"]},
                   {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0, "is_causal": False,
                    "layer_types": ["sliding_attention", "sliding_attention"]},
                   {"dflash_config": {"input_embedding_scale": 1.5, "output_multiplier": 0.7,
                                      "final_logit_softcapping": 1.25}},
                   {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                        "original_max_position_embeddings": 32}}):
        own = {**config.dflash_config, **change.get("dflash_config", {})}
        other = DFlashDraftModel(shape(Qwen3Config, 2, block_size=5, num_target_layers=LAYERS,
                                       **{**change, "dflash_config": own})).double().eval()
        other.load_state_dict(model.state_dict())
        variants.append({"config": change, "blocks": rows_of_dflash(other, states, embedding, output)})
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "golden.json").write_text(json.dumps({"text": TEXT, "blocks": blocks}))
    (folder / "variants.json").write_text(json.dumps(variants))
    return folder


def rows_of_dflash(model, states, embedding, output):
    """The rows of a block of z-lab's class after four pending tokens; with its greedy path for DFlash2."""
    features = torch.cat([states[i + 1] for i in model.target_layer_ids], dim=-1)
    size, scale = model.block_size, model.config.dflash_config.get("input_embedding_scale", 1.0)
    head = torch.nn.Linear(WIDTH, VOCAB, bias=False).double()
    head.weight.data = output
    blocks = []
    for at in (0, 1, 4, len(TEXT) - 1):
        block = torch.tensor([[TEXT[at]] + [94] * (size - 1)])
        with torch.no_grad():
            hidden = model(position_ids=torch.arange(at + size)[None], noise_embedding=embedding[block] * scale,
                           target_hidden=features[:, :at])[:, 1:]
            made = {"pending_at": at}
            if isinstance(model, DFlash2DraftModel):
                made["path"] = model.propose(hidden, block[:, 0], head, 0.0)[0][0].tolist()
            else:
                made["logits"] = short(model.compute_logits(hidden, head)[0])
        blocks.append(made)
    return blocks


def dflash2_of_zlab(name, other, states, embedding, output):
    """A DFlash2 block of speculators' layout in that of z-lab, with the paths that z-lab's class drafts."""
    of = json.loads((other / "config.json").read_text())
    config = shape(Qwen3Config, 1, num_target_layers=LAYERS, block_size=of["block_size"], dflash_config={
        "target_layer_ids": [i - 1 for i in of["aux_hidden_state_layer_ids"]], "mask_token_id": of["mask_token_id"],
        **{key: of[key] for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")}})
    config.architectures = ["DFlash2DraftModel"]
    model = DFlash2DraftModel(config).double().eval()
    weights = load_file(other / "model.safetensors")
    for table in ("predecessor_codebook", "successor_codebook"):
        weights[f"candidate_selector.{table}.weight"] = weights.pop(f"candidate_selector.{table}")
    model.load_state_dict(weights)
    blocks = rows_of_dflash(model.double(), states, embedding, output)
    folder = ROOT / name
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "golden.json").write_text(json.dumps({"text": TEXT, "blocks": blocks}))


def as_speculators(folder, other):
    """Writes a block of z-lab's layout in that of speculators."""
    DFlashConverter().convert(folder, other, str(ROOT / "target"), validate=False)
    config = json.loads((other / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = None  # a path of the machine that wrote it
    (other / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def block_of_speculators(name, kind, states, embedding, output, seed, block=4, columns=VOCAB, layers=1, layer={},
                         variants=(), **switches):
    """A block of speculators, with its rows along the path that it drafts greedily and along another."""
    algorithm, cls, config_cls, core = {
        "dflash": ("dflash", SpeculatorsDFlash, DFlashSpeculatorConfig, dflash_core),
        "dflash2": ("dflash2", SpeculatorsDFlash2, DFlash2SpeculatorConfig, dflash2_core),
        "dspark": ("dspark", DSparkDraftModel, DSparkSpeculatorConfig, dspark_core),
        "xpress": ("xpress", XPressDraftModel, XPressSpeculatorConfig, xpress_core)}[kind]

    def made(layer, switches):
        transformer = shape(Qwen3Config, layers, **layer)
        transformer._attn_implementation = "eager"
        model = cls(config_cls(transformer_layer_config=transformer, draft_vocab_size=columns, block_size=block,
                               mask_token_id=94, aux_hidden_state_layer_ids=[2, 5],
                               speculators_config=speculating(algorithm), **switches)).double().eval()
        randomise(model, seed)
        if kind == "xpress":  # else its rows have numbers near 100, for which a float is too coarse
            refiner = model.refiner_head
            for weight in (refiner.mix_l, refiner.mlp_gate.weight, refiner.mlp_up.weight):
                weight.data *= 0.5
        model.embed_tokens.weight.data = embedding.clone()
        if columns == VOCAB:
            model.lm_head.weight.data = output.clone()
        return model, reduce_vocabulary(model, columns, seed)

    def blocks_of(model, tokens):
        config = model.config
        features = torch.cat([states[2], states[5]], dim=-1)
        length = block if config.sample_from_anchor else block - 1
        logits, last_pass = [], []

        def keep(rows=None, passes=None, *_, unary_logits=None, candidate_logits=None, training_candidate_ids=None, **__):
            if unary_logits is not None:  # the candidates' scores, and nothing else
                k = config.selector_top_k
                best = unary_logits.topk(k, dim=-1).indices
                scores = model.candidate_selector.score_candidates(*scored, best)
                rows = torch.full_like(unary_logits, -torch.inf).scatter(-1, best, scores)
            logits.append(rows[0, block - length :].detach())
            if kind == "xpress":
                last_pass[:] = passes[-1][0, block - length :].detach()
            return None, {}

        core.compute_metrics = keep
        scored = []
        if kind == "dflash2":
            score = type(model.candidate_selector).score_candidates

            def remember(self, unary, hidden, before, ids):
                scored[:] = unary, hidden, before
                return score(self, unary, hidden, before, ids)

            type(model.candidate_selector).score_candidates = remember

        def rows_along(at, path):
            """The rows after the pending token TEXT[at] and the tokens of the path, which may be shorter than the block."""
            text = TEXT[: at + 1] + path + [0] * (block + 1 - len(path))
            known = torch.zeros(1, len(text), features.shape[-1], dtype=torch.float64)
            known[:, :at] = features[:, :at]
            anchor = torch.zeros(1, len(text))
            anchor[0, at] = 1
            more = {"consistency_passes": block} if kind == "xpress" else {}
            with torch.no_grad():
                model(known, torch.tensor([text]), anchor, torch.zeros(1, len(text), WIDTH, dtype=torch.float64),
                      torch.zeros(1, len(text), dtype=torch.long), max_anchors=1, **more)
            return logits.pop()

        blocks = []
        for at in (0, 1, 4, len(TEXT) - 1):
            greedy = []
            while len(greedy) < length:
                greedy.append(int(tokens[rows_along(at, greedy)[len(greedy)].argmax()]))
            if kind == "xpress":  # where the passes of its inference end
                assert torch.allclose(rows_along(at, greedy), torch.stack(last_pass))
            for path in (greedy, [7, 90, 33, 51][:length]):
                blocks.append({"pending_at": at, "path": path, "is_greedy": path is greedy,
                               "logits": short(rows_along(at, path))})
        if kind == "dflash2":
            type(model.candidate_selector).score_candidates = score
        return blocks

    model, tokens = made(layer, switches)
    blocks = blocks_of(model, tokens)
    folder = ROOT / name
    folder.mkdir()
    changed = []
    for change in variants:
        other = {**switches, **{key: value for key, value in change.items() if key != "transformer_layer_config"}}
        changed.append({"config": change,
                        "blocks": blocks_of(*made({**layer, **change.get("transformer_layer_config", {})}, other))})
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "golden.json").write_text(json.dumps(
        {"text": TEXT, "tokens": tokens.tolist() if columns < VOCAB else [], "blocks": blocks}))
    if changed:
        (folder / "variants.json").write_text(json.dumps(changed))
    return folder


def rewrite(folder, change):
    path = folder / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    save_file({new: weight for name, weight in weights.items() if (new := change(name))}, path)


def as_midlayer(folder, other):
    """Writes a head of speculators in the layout of SafeAILab and SpecForge."""
    shutil.copytree(folder, other)
    config = json.loads((folder / "config.json").read_text())
    layer = config["transformer_layer_config"]
    (other / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu", "vocab_size": VOCAB,
        "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": layer["rms_norm_eps"],
        "draft_vocab_size": config["draft_vocab_size"], "torch_dtype": "bfloat16"}, indent=2))
    rewrite(other, lambda name: name.replace("layers.0.", "midlayer."))


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir()
    states, embedding, output = target("target", LlamaForCausalLM, shape(LlamaConfig, LAYERS), 1)
    plain = head("plain", LlamaConfig, states, 2, draft_vocab=40)
    as_midlayer(plain, ROOT / "midlayer")
    head("each", Qwen3Config, states, 3, layers=2, fc_norm=True, norm_before_residual=True)
    together = head("together", LlamaConfig, states, 4, draft_vocab=64, layer_ids=[1, 4, 6], biases=True,
                    embedding=embedding, norm_before_fc=True, norm_output=True)
    rewrite(together, lambda name: None if name == "embed_tokens.weight" else name)
    mtp("mtp", LAYERS, states[-2], embedding, output, 5)
    block = dflash("dflash", states, embedding, output, 8)
    as_speculators(block, ROOT / "dflash_speculators")
    block_of = lambda *arguments, **more: block_of_speculators(*arguments[:2], states, embedding, output,
                                                               *arguments[2:], **more)
    block_of("dspark", "dspark", 9, markov_rank=6)
    block_of("dspark_gated", "dspark", 10, markov_rank=6, markov_head_type="gated", sample_from_anchor=False,
             confidence_head_with_markov=False)
    block_of("dspark_rnn", "dspark", 11, markov_rank=6, markov_head_type="rnn", enable_confidence_head=False)
    block_of("dspark_few", "dspark", 12, columns=40, markov_rank=6)
    windows = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1,
               "layer_types": ["full_attention", "sliding_attention"]}
    block_of("dflash_few", "dflash", 13, columns=64, layers=2, variants=(
        {"sample_from_anchor": True}, {"transformer_layer_config": windows},
        {"transformer_layer_config": windows, "sliding_window_non_causal": True}))
    selector = {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 5}
    block2 = block_of("dflash2", "dflash2", 14, **selector, variants=({"sample_from_anchor": True},))
    block_of("xpress", "xpress", 17, xpress_rank=6, variants=({"sample_from_anchor": True, "num_jacobi_passes": 2},))
    block_of("xpress_few", "xpress", 18, columns=40, layers=2, xpress_rank=8, xpress_mlp_ratio=4,
             sample_from_anchor=True, variants=(
                 {"sample_from_anchor": False}, {"transformer_layer_config": windows, "sliding_window_non_causal": True}))
    dflash2_of_zlab("dflash2_zlab", block2, states, embedding, output)
    peagle("peagle", LlamaConfig, states, 15, draft_vocab=40)
    peagle("peagle_each", Qwen3Config, states, 16, layers=2, layer_ids=[1, 4], fc_norm=True, norm_before_residual=True)
    states, embedding, output = target("beside", Qwen3ForCausalLM, shape(Qwen3Config, 2), 6)
    put_beside(mtp("moved", 2, states[-1], embedding, output, 7), ROOT / "beside")
    for written_beside in (*ROOT.glob("*/config.py"), *ROOT.glob("*/generation_config.json")):
        written_beside.unlink()  # nothing reads it


if __name__ == "__main__":
    main()
