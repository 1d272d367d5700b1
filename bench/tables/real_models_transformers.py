#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Measures transformers on the questions of bench_tables_real_models: plain and assisted generation, greedy.

    pip install torch transformers gguf accelerate
    python real_models_transformers.py MODEL [--assistant MODEL] [--threads N] [--json FILE]

MODEL is a folder of Hugging Face, a GGUF file, or a folder whose matrices have 8 bits and row scales, as the bundled
drafts; all are computed in F32. Assisted by prompt look-up (prompt_lookup_num_tokens) and, with --assistant, by a
smaller model of the same vocabulary. Methods take turns on each question. Prints a table: tokens a second over all, ratios
to plain generation, question by question, as means of each kind and of the kinds, and the texts that differ from plain
generation's.
"""
import argparse
import json
import os
import pathlib
import sys
import time

import safetensors.torch
import torch
import transformers

PROMPTS = pathlib.Path(__file__).parents[2] / "examples/models/smollm2/prompts.jsonl"


def load(path):
    if path.endswith(".gguf"):
        folder, name = os.path.split(os.path.abspath(path))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        return model.eval()
    quantised = pathlib.Path(path) / "config.json"
    if not quantised.exists() or "espalier_int8_rows" not in quantised.read_text():
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    config = json.loads(quantised.read_text())
    config.pop("quantization_config")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    tensors = safetensors.torch.load_file(pathlib.Path(path) / "model.safetensors")
    scales = {name: tensors.pop(name) for name in list(tensors) if name.endswith("_scale")}
    floats = {name: t.float() * scales[name + "_scale"][:, None] if name + "_scale" in scales else t
              for name, t in tensors.items()}
    missing = [name for name in model.load_state_dict(floats, strict=False).missing_keys if name != "lm_head.weight"]
    if missing:
        raise SystemExit(f"{path} lacks {', '.join(missing)}.")
    model.tie_weights()
    return model.float().eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of the model, or its name on the hub")
    parser.add_argument("--assistant", help="folder of a smaller model of the same vocabulary")
    parser.add_argument("--prompts", default=PROMPTS, help="questions, JSON lines with domain and text")
    parser.add_argument("--tokens", type=int, default=96, help="tokens a text [96]")
    parser.add_argument("--most", type=int, default=4, help="questions of each kind; 0: all [4]")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice [0]")
    parser.add_argument("--json", help="write the figures to this file, too")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    folder, name = os.path.split(os.path.abspath(given.model))
    of_gguf = given.model.endswith(".gguf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(*([folder] if of_gguf else [given.model]),
                                                           **({"gguf_file": name} if of_gguf else {}))
    model = load(given.model)
    methods = {"plain": {}, "prompt look-up, 10": {"prompt_lookup_num_tokens": 10}}
    if given.assistant:
        methods["assistant"] = {"assistant_model": load(given.assistant)}

    kinds = {}
    for line in open(given.prompts, encoding="utf-8"):
        prompt = json.loads(line)
        questions = kinds.setdefault(prompt["domain"], [])
        if not given.most or len(questions) < given.most:
            questions.append(prompt["text"])

    seconds, written = dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0)
    ratios = {name: {kind: [] for kind in kinds} for name in methods}

    def write(tokens, options, n):
        start = time.perf_counter()
        with torch.inference_mode():
            text = model.generate(**tokens, do_sample=False, max_new_tokens=n, **options)[0]
        return text[tokens["input_ids"].shape[1]:].tolist()[:n], time.perf_counter() - start

    differ = dict.fromkeys(methods, 0)
    n_texts = sum(map(len, kinds.values()))
    done = 0
    for kind, questions in kinds.items():
        for question in questions:
            tokens = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                                   return_tensors="pt", return_dict=True)
            if done == 0:
                for options in methods.values():  # warms up: the first call sets things up
                    write(tokens, options, 8)
            expected, plain_rate = None, 0.0
            for name, options in methods.items():
                text, spent = write(tokens, options, given.tokens)
                seconds[name] += spent
                written[name] += len(text)
                if expected is None:
                    expected, plain_rate = text, len(text) / spent
                ratios[name][kind].append(len(text) / spent / plain_rate)
                differ[name] += text != expected
            done += 1
            print(f"\r{done} of {n_texts} questions", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)

    report = []
    for name in methods:
        ratio = {kind: sum(ratios[name][kind]) / len(ratios[name][kind]) for kind in kinds}
        report.append({"method": name, "tokens_a_second": written[name] / seconds[name],
                       "ratio": sum(ratio.values()) / len(ratio), "ratio_by_kind": ratio, "texts_that_differ": differ[name],
                       "texts": n_texts})
    print("| transformers " + transformers.__version__ + " | tokens a second | of plain | " + " | ".join(kinds) +
          " | texts that differ |")
    print("|---" * (len(kinds) + 4) + "|")
    for row in report:
        print(f"| {row['method']} | {row['tokens_a_second']:.1f} | {row['ratio']:.2f} | " +
              " | ".join(f"{row['ratio_by_kind'][kind]:.2f}" for kind in kinds) +
              f" | {row['texts_that_differ']} of {n_texts} |")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"model": given.model, "transformers": transformers.__version__, "torch": torch.__version__,
                       "threads": torch.get_num_threads(), "tokens": given.tokens, "methods": report}, file, indent=1)


if __name__ == "__main__":
    main()
