# SPDX-License-Identifier: BSL-1.0
"""Writes texts with a model of transformers and a tree of a draft's tokens, and compares them with what generate() writes.

    python3 examples/python/hugging_face.py MODEL DRAFT [PROMPT...]

MODEL is a folder, or a GGUF file that transformers reads; DRAFT is a folder with a model of the same tokens, also one of
this repository, such as examples/models/smollm2/draft. ./run demo smollm2 fetches a MODEL for that draft."""
import json
import pathlib
import sys
import time

import espalier
import torch
import transformers
from espalier.hugging_face import HuggingFaceModel
from safetensors.torch import load_file


def place(path):
    """Arguments of from_pretrained(): of a folder, or of a GGUF file in one."""
    path = pathlib.Path(path)
    return (str(path.parent), {"gguf_file": path.name}) if path.suffix == ".gguf" else (str(path), {})


def load(path):
    folder, options = place(path)
    options["dtype"] = torch.float32
    config = pathlib.Path(folder) / "config.json"
    if options.get("gguf_file") or "espalier_int8_rows" not in config.read_text():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    described = json.loads(config.read_text())
    del described["quantization_config"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**described))
    stored = load_file(f"{folder}/model.safetensors")
    for name, tensor in stored.items():
        if tensor.dtype == torch.int8:  # rows of whole numbers, each with its scale
            stored[name] = tensor.float() * stored[name + "_scale"][:, None]
    model.load_state_dict({n: t for n, t in stored.items() if not n.endswith("_scale")}, strict=False)
    return model


def write(model, draft, prompts, n, policy="best-first", context=256, stop=()):
    """Returns the greedy texts after prompts, each of n tokens at most, and the steps that wrote them."""
    decoder = espalier.Decoder(
        HuggingFaceModel(draft, context=context), policy, "greedy",
        HuggingFaceModel(model, context=context), vocab_size=model.config.vocab_size, context=context)
    written, steps = {decoder.add(prompt, n, stop=stop): [] for prompt in prompts}, 0
    while not decoder.idle:
        for event in decoder.step():
            if event.error:
                raise espalier.Error(event.error)
            written[event.text] += event.tokens.tolist()
        steps += 1
    return list(written.values()), steps


def generated(model, prompt, n):
    """The tokens that generate() writes greedily after a prompt."""
    whole = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                           max_new_tokens=n, do_sample=False, repetition_penalty=1.0)
    return whole[0, len(prompt):].tolist()


def main(of_model, of_draft, *prompts):
    model, draft = load(of_model).eval(), load(of_draft).eval()
    folder, options = place(of_model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    end = model.generation_config.eos_token_id
    stop = [] if end is None else end if isinstance(end, list) else [end]
    for prompt in prompts or ("The three largest cities of France are", "A tree is a graph in which"):
        tokens = tokenizer(prompt).input_ids
        begun = time.perf_counter()
        (written,), steps = write(model, draft, [tokens], 48, stop=stop)
        between = time.perf_counter()
        same = written == generated(model, tokens, 48)
        print(f"{prompt}{tokenizer.decode(written)}\n  {len(written)} tokens in {steps} steps, {between - begun:.1f} s; "
              f"generate() {time.perf_counter() - between:.1f} s; {'the same text' if same else 'ANOTHER TEXT'}")
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
