#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Measures what a memory of texts brings to examples/serve where many texts share a subject, and whether texts stay the same.

    bench/shared_subject.py build/examples/serve/serve --model MODEL --drafter text [arguments of serve ...]
                            [--memory 262144] [--tokens 96] [--at-once 1,8,64]

It asks 64 questions about one subject, greedily, of a server without a memory and of one with it, for each number of
questions asked at once. It prints tokens a round and seconds of both, their quotients, and how many texts differ. The
exit status is 1 if a text differs.
"""
import argparse
import concurrent.futures
import itertools
import json
import sys
import time

from hostile_clients import ask, server

ASPECTS = ["climate", "rivers", "trees", "animals", "birds", "people", "soil", "future"]
FORMS = [
    "Describe the {} of the Amazon rain forest.",
    "What should a visitor know about the {} of the Amazon rain forest?",
    "Write a short lesson for children about the {} of the Amazon rain forest.",
    "Why do the {} of the Amazon rain forest matter to the rest of the world?",
    "List five facts about the {} of the Amazon rain forest.",
    "How have the {} of the Amazon rain forest changed in the last hundred years?",
    "What threatens the {} of the Amazon rain forest, and what can be done about it?",
    "Compare the {} of the Amazon rain forest with those of a forest in Europe.",
]
QUESTIONS = [form.format(aspect) for form, aspect in itertools.product(FORMS, ASPECTS)]


def answered(command, at_once, n_tokens):
    """The texts, and tokens a round and seconds of all of them, of a server that is started with command."""
    served = server(command)
    try:

        def one(question):
            status, reply = ask(
                served.port,
                {"messages": [{"role": "user", "content": question}], "max_tokens": n_tokens, "temperature": 0},
                path="/v1/chat/completions",
            )
            if status != 200:
                sys.exit(f"the server answers {status}: {reply.decode()}")
            return json.loads(reply)["choices"][0]["message"]["content"]

        one(QUESTIONS[0][: len(QUESTIONS[0]) // 2])  # the first text also pays for measuring costs
        before, begun = served.counted(), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            texts = list(pool.map(one, QUESTIONS))
        seconds = time.monotonic() - begun
        after = served.counted()
        tokens, rounds = (after[n] - before[n] for n in ("espalier_tokens_written_total", "espalier_rounds_total"))
        return texts, tokens / rounds, seconds
    finally:
        served.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("serve", help="the program")
    parser.add_argument("--memory", type=int, default=262144, help="tokens of the memory")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a text")
    parser.add_argument("--at-once", default="1,8,64", help="numbers of questions asked at once")
    args, more = parser.parse_known_args()
    command = [args.serve, *more]
    n_different = 0
    print("| at once | tokens a round: without, with | quotient | seconds: without, with | quotient | texts that differ |")
    print("|---|--:|--:|--:|--:|--:|")
    for at_once in map(int, args.at_once.split(",")):
        plain, plain_rate, plain_seconds = answered(command, at_once, args.tokens)
        texts, rate, seconds = answered([*command, "--memory", str(args.memory)], at_once, args.tokens)
        different = sum(a != b for a, b in zip(plain, texts))
        n_different += different
        print(
            f"| {at_once} | {plain_rate:.2f}, {rate:.2f} | {rate / plain_rate:.2f} | {plain_seconds:.1f}, {seconds:.1f} "
            f"| {plain_seconds / seconds:.2f} | {different} of {len(texts)} |",
            flush=True,
        )
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
