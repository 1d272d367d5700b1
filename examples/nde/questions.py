#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Questions in six kinds for a model that chats, as `nde collect` takes them: tokens and a kind, JSON lines.

    pip install tokenizers
    questions.py --tokenizer FILE --data DATA [--count N] [--longest N] --to FILE

FILE is a tokenizer.json; turns are written as ChatML, after the system prompt of SmolLM2. DATA holds gsm8k_train.jsonl,
whose questions are those of mathematics, and wikitext2_raw_valid.txt, of whose paragraphs the texts to translate, sum up,
ask about and rewrite are cut. Kinds take turns, so that a collection that is stopped early is a sample of all of them.
"""
import argparse
import json
import os
import random

from tokenizers import Tokenizer

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
REQUESTS = (
    "Write a short story about {}.",
    "Explain {} to a child.",
    "Give me five tips about {}.",
    "Write an email to a friend about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a dialogue between two people who talk about {}.",
)
TOPICS = (
    "the sea", "a lost robot", "bread", "bees", "volcanoes", "the water cycle", "trains", "job interviews", "chess",
    "the moon", "friendship", "solar panels", "sleep", "bicycles", "a magic forest", "the printing press", "coffee",
    "libraries", "recursion", "public speaking",
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    parser.add_argument("--data", required=True, help="folder of gsm8k_train.jsonl and wikitext2_raw_valid.txt")
    parser.add_argument("--count", type=int, default=400, help="questions of each kind [400]")
    parser.add_argument("--longest", type=int, default=160, help="tokens; longer questions are left out [160]")
    parser.add_argument("--seed", type=int, default=11, help="equal seeds ask the same [11]")
    parser.add_argument("--to", required=True, help="file to write")
    given = parser.parse_args()
    tokenizer = Tokenizer.from_file(given.tokenizer)
    with open(os.path.join(given.data, "gsm8k_train.jsonl"), encoding="utf-8") as file:
        problems = [json.loads(line)["question"] for line in file]
    with open(os.path.join(given.data, "wikitext2_raw_valid.txt"), encoding="utf-8") as file:
        paragraphs = [p.strip() for p in file.read().split("\n") if len(p.strip()) > 200]
    chance = random.Random(given.seed)

    def passage(least, most):
        text = chance.choice(paragraphs)
        return " ".join(text.split()[: chance.randint(least, most)])

    def either(*requests):
        return chance.choice(list(requests))

    kinds = {
        "chat": lambda: either(*REQUESTS).format(chance.choice(TOPICS)),
        "translation": lambda: f"Translate into {either('French', 'Spanish', 'German')}: {passage(10, 20)}",
        "summary": lambda: f"Summarize the following text in two sentences.\n\n{passage(40, 70)}",
        "question answering": lambda: either(
            "What are the main facts in this text?", "Write three questions about this text, with answers."
        ) + f"\n\n{passage(30, 60)}",
        "mathematics": lambda: chance.choice(problems),
        "editing and copying": lambda: either(
            "Copy this text and correct every mistake.", "Rewrite this text in simple words."
        ) + f"\n\n{passage(30, 60)}",
    }
    with open(given.to, "w", encoding="utf-8") as out:
        for _ in range(given.count):
            for kind, ask in kinds.items():
                turns = f"{SYSTEM}<|im_start|>user\n{ask()}<|im_end|>\n<|im_start|>assistant\n"
                tokens = tokenizer.encode(turns).ids
                if len(tokens) <= given.longest:
                    out.write(json.dumps({"domain": kind, "tokens": tokens}) + "\n")


if __name__ == "__main__":
    main()
