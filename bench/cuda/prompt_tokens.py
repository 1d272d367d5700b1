# SPDX-License-Identifier: BSL-1.0
"""Writes prompts.jsonl beside this file: the first prompts of each domain of examples/models as tokens, for machines without SentencePiece.

    python3 bench/cuda/prompt_tokens.py [N]     N prompts a domain, default 4; needs the package sentencepiece
"""

import json
import os
import sys

import sentencepiece

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "..", "examples", "models")


def main():
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=os.path.join(MODELS, "tokenizer.model"))
    count = {}
    with open(os.path.join(MODELS, "prompts.jsonl")) as prompts, open(os.path.join(HERE, "prompts.jsonl"), "w") as out:
        for line in prompts:
            prompt = json.loads(line)
            domain = prompt["domain"]
            count[domain] = count.get(domain, 0) + 1
            if count[domain] > most:
                continue
            tokens = tokenizer.encode(prompt["text"])
            if tokenizer.bos_id() >= 0:
                tokens.insert(0, tokenizer.bos_id())
            out.write(json.dumps({"domain": domain, "tokens": tokens}) + "\n")


if __name__ == "__main__":
    main()
