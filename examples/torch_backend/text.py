#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Text to tokens and back, by the tokenizer of a model of Hugging Face.

    python text.py FOLDER encode "Gravity is" | torch_backend model.pt | python text.py FOLDER decode
"""
import sys

import transformers


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in ("encode", "decode"):
        sys.exit(__doc__)
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    if sys.argv[2] == "encode":
        print(*tokenizer.encode(" ".join(sys.argv[3:])))
    else:
        print(tokenizer.decode([int(token) for token in sys.stdin.read().split()]))


if __name__ == "__main__":
    main()
