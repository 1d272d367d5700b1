#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Writes texts for `nde replay`, one a line in JSON, of the kinds that drafters without a model are for:

  code        modules of Python's own library, replayed from some lines on
  edits       such a piece written again with two names changed, two lines removed and one added
  agents      the messages of an agent that lists, reads, changes and tests files, with the tools' answers between
  multi-turn  the answers of a talk in which a function is changed again and again
  answers     questions and their answers, of a file of JSON lines (--questions), such as GSM8K's

    replay_texts.py --questions gsm8k_test.jsonl > texts.jsonl

Equal seeds and equal versions of Python write equal texts."""

import argparse
import json
import pathlib
import random
import re
import sysconfig

NAMES = re.compile(r"\b[a-z_]{4,}\b")
WORDS = ("result value item entry record source target buffer count index label total first second offset limit "
         "state token parser reader writer cache bucket window").split()


def pieces(random_, n, length):
    """Beginnings of `n` modules, cut at an end of line."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(errors="ignore")
        lines = text[: length * 8].splitlines(keepends=True)
        start = random_.randrange(0, max(1, len(lines) - 80))
        piece = "".join(lines[start:])[:length]
        if len(piece) == length:
            found.append((path.name, piece))
    random_.shuffle(found)
    return found[:n]


def changed(random_, piece):
    """The piece with two names changed, two lines removed and one added."""
    names = sorted({w for w in NAMES.findall(piece) if piece.count(w) > 1})
    for word in random_.sample(names, min(2, len(names))):
        piece = re.sub(rf"\b{word}\b", word + "_new", piece)
    lines = piece.split("\n")
    for _ in range(2):
        if len(lines) > 4:
            del lines[random_.randrange(len(lines))]
    lines.insert(random_.randrange(len(lines)), "    # changed here")
    return "\n".join(lines)


def call(tool, **arguments):
    return json.dumps({"tool": tool, "arguments": arguments}, indent=1)


def agent(random_, files):
    """The steps of an agent: pairs of what it says and what it is answered."""
    name, text = random_.choice(files)
    path = f"src/{random_.choice(WORDS)}/{name}"
    lines = text.splitlines()
    first = random_.randrange(0, max(1, len(lines) - 24))
    shown = lines[first : first + 20]
    old = random_.choice([line for line in shown if line.strip()] or shown)
    names = NAMES.findall(old) or ["value"]
    new = old.replace(random_.choice(names), random_.choice(WORDS), 1)
    test = f"tests/test_{name}"
    numbered = "\n".join(f"{first + i + 1:5}  {line}" for i, line in enumerate(shown))
    failure = (f"{test}:{random_.randrange(9, 200)}: AssertionError\n"
               f"FAILED {test}::test_{random_.choice(WORDS)} - in {path}, line {first + 7}\n1 failed, 12 passed")
    yield ("I look for the file first.\n" + call("list_files", folder=str(pathlib.PurePath(path).parent)),
           f"{path}\n" + "\n".join(f"{pathlib.PurePath(path).parent}/{n}" for n, _ in random_.sample(files, 5)))
    yield (f"The tests say what is wrong.\n" + call("run_tests", path=test), failure)
    yield (f"The failure is in {path}, line {first + 7}. I read that part of it.\n" +
           call("read_file", path=path, first=first + 1, last=first + 20), numbered)
    yield (f"The line that has to change is\n{old}\nI replace it.\n" +
           call("replace", path=path, old=old, new=new), "replaced 1 occurrence")
    yield ("I read the part again, to be sure.\n" + call("read_file", path=path, first=first + 1, last=first + 20),
           numbered.replace(old, new, 1))
    yield ("Now the tests again.\n" + call("run_tests", path=test), "13 passed")
    yield (f"The tests pass. In {path} I have replaced\n{old}\nby\n{new}\nand changed nothing else.", "")


def turns(random_, files):
    """A talk in which a piece of code is changed again and again: pairs of what is asked and what is answered."""
    _, code = random_.choice(files)
    code = code[:900]
    yield ("Here is a function of mine:\n```python\n" + code + "\n```\nSay it back to me, please.",
           "Here it is:\n```python\n" + code + "\n```\nTell me what you would like to be changed.")
    for _ in range(3):
        names = sorted({w for w in NAMES.findall(code) if code.count(w) > 1}) or ["self"]
        old, new = random_.choice(names), random_.choice(WORDS)
        code = re.sub(rf"\b{old}\b", new, code)
        yield (f"Please call {old} {new} instead.",
               f"I have renamed `{old}` to `{new}` everywhere:\n```python\n{code}\n```\n"
               "Tell me what else you would like to be changed.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", help="JSON lines with question and answer")
    parser.add_argument("--count", type=int, default=100, help="texts of a kind, about [100]")
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    random_ = random.Random(given.seed)
    files = pieces(random_, given.count, 2400)

    def write(kind, prompt, text):
        if prompt and text:
            print(json.dumps({"kind": kind, "prompt": prompt, "text": text}))

    for _, piece in files:
        write("code", piece[:800], piece[800:])
    for _, piece in files:
        write("edits", f"Change this code:\n{piece}\nHere it is changed:\n", changed(random_, piece))
    for _ in range(given.count // 2):
        log = "You work on a repository. Call a tool with each message, as JSON.\n\nTask: make the tests pass.\n\n"
        for said, answer in agent(random_, files):
            write("agents", log + "agent: ", said + "\n")
            log += f"agent: {said}\ntool: {answer}\n\n"
    for _ in range(given.count // 4):
        talk = ""
        for asked, answer in turns(random_, files):
            talk += f"user: {asked}\nassistant: "
            write("multi-turn", talk, answer + "\n")
            talk += answer + "\n"
    if given.questions:
        with open(given.questions, encoding="utf-8") as lines:
            for line, _ in zip(lines, range(4 * given.count)):
                row = json.loads(line)
                write("answers", f"Question: {row['question']}\nAnswer: ", re.sub(r"<<.*?>>", "", row["answer"]))


main()
