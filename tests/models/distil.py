#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Distils a draft for a small target of random weights. Without torch or transformers it exits with 77: skipped."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

try:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ImportError:
    sys.exit(77)

from trainer import refusal, run  # noqa: E402 (the examples are importable from here on)

from distil import Target  # noqa: E402
from model import Llama, begin, dequantised, exported  # noqa: E402
import train  # noqa: E402

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL = "--texts 12 --batch 5 --new 12 --longest 8 --width 16 --layers 1 --heads 2 --micro 64 --accumulate 1 --show 2"


def write_tokenizer(folder, size):
    words = {**{f"w{i}": i for i in range(size - 2)}, "<user>": size - 2, "</user>": size - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    reader = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0")
    reader.chat_template = "{% for m in messages %}<user> {{ m['content'] }} </user>{% endfor %}{% if add_generation_prompt %} w1{% endif %}"
    reader.save_pretrained(folder)


with tempfile.TemporaryDirectory() as folder:
    target, prompts, work, out, bad, words = (
        os.path.join(folder, n) for n in ("target", "prompts", "work", "out", "bad", "words")
    )
    with open(words, "w") as f:
        f.write('{"text": "w5 w6"}')
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=64, max_position_embeddings=32, initializer_range=0.3, **SIZES)
    LlamaForCausalLM(config).save_pretrained(target)
    with open(prompts, "w") as f:
        for i in range(33):
            f.write(json.dumps({"tokens": [1, *range(3 + i % 5, 3 + i % 5 + 1 + i // 5)]}) + "\n")

    def distil(minutes, *more):
        small = ("distil", *SMALL.split(), "--device", "cpu", "--minutes", minutes)
        return (
            "--work",
            work,
            "--threads",
            "1",
            *small,
            "--target",
            target,
            "--prompts",
            prompts,
            "--out",
            out,
            "--vocab",
            "20",
            *more,
        )

    said = run(*distil(0.05))
    losses = [float(x) for x in re.findall(r"divergence (\S+)", said)]
    assert losses[-1] < 0.8 * losses[0], losses
    assert "on 3 prompts kept apart: first choice" in said, said
    assert "20 tokens of 64 are drafted: " in said, said
    with open(os.path.join(out, "head_tokens.json")) as f:
        listed = json.load(f)["head_tokens"]
    assert len(listed) == 20 and listed == sorted(set(listed)) and listed[-1] < 64, listed

    # Where the texts are cut short they are written again, the whole ones kept; the training goes on.
    path = os.path.join(work, "texts.jsonl")
    with open(path, "rb") as f:
        texts = f.read()
    assert texts.count(b"\n") == 13
    with open(path, "wb") as f:
        f.write(texts[:-20])
    more = run(*distil(0.08))
    with open(path, "rb") as f:
        again = f.read()
    assert again.count(b"\n") == 13 and again.split(b"\n")[:12] == texts.split(b"\n")[:12]
    step = re.search(r"resumed at step (\d+)", more)
    assert int(step[1]) > 0 and min(map(int, re.findall(r"step +(\d+) loss", more))) > int(step[1]), more

    # What is exported is what was trained: of a matrix each number is rounded to the nearest of its row's 255.
    with open(os.path.join(out, "config.json")) as f:
        settings = json.load(f)
    assert settings["vocab_size"] == 64 and settings["max_position_embeddings"] == 32
    trained = Llama(settings)
    trained.load_state_dict(torch.load(os.path.join(work, "distil.pt"))["model"])
    # A checkpoint is not gone on with by another training of a draft of the same sizes.
    try:
        begin(argparse.Namespace(fresh=False), trained, None, os.path.join(work, "distil.pt"), "text alone")
    except SystemExit as fault:
        assert "is of a draft for target; --fresh begins anew, another --work leaves it" in str(fault), fault
    else:
        raise AssertionError("distil.pt was taken for a draft's that learns from text alone")
    found = dequantised(out)
    assert set(found) == set(trained.state_dict())
    for name, w in trained.state_dict().items():
        if w.dim() == 2:
            step = w.abs().amax(1, keepdim=True) / 127
            assert ((found[name] - w).abs() <= 0.5001 * step).all() and (found[name] != w).any(), name
        else:
            assert torch.equal(found[name], w), name
    model = exported(out, settings)
    with torch.no_grad():
        assert model.logits(model.hidden(torch.arange(3, 20)[None])).isfinite().all()

    # Greedy texts of a batch are those of each prompt alone, and end where they should.
    plain = Target(target, torch.float32, "cpu")
    starts = [[1, 5], [1, 6, 7, 8, 9], [1, 30, 31]]
    plain.ends = []
    written = plain.write(starts, torch.zeros(3), 12)
    plain.ends = [written[0][7]]
    for start, text in zip(starts, written):
        likeliest = plain.model(input_ids=torch.tensor([text])).logits[0].argmax(-1).tolist()
        assert len(text) == len(start) + 12 and likeliest[len(start) - 1 : -1] == text[len(start) :]
    ended = plain.write(starts, torch.zeros(3), 12)[0]
    assert ended == written[0][: written[0].index(plain.ends[0], 2) + 1]

    # Texts that another program wrote after the prompts take the place of those that the target would write.
    other, theirs = os.path.join(folder, "other"), os.path.join(folder, "theirs.jsonl")

    def from_written(*lines):
        with open(theirs, "w") as f:
            f.writelines(line + "\n" for line in lines)
        return ("--work", other, *distil(0.02, "--written-texts", theirs)[2:])

    def line_of(start, **more):
        line = {"target": "llama 1x32, 64 tokens, 0123456789abcdef", "prompt": len(start)}
        return json.dumps({**line, "tokens": [*start, 7, 8, 9, 7, 8], **more})

    with open(prompts) as f:
        starts = [json.loads(line)["tokens"] for line in f]
    apart, learnt = starts[::16], [s for s in starts if s not in starts[::16]]
    assert len(apart) == 3
    lines = [line_of(s) for s in (*learnt[:12], *apart, [1, 60, 61])]
    said = run(*from_written(*lines[:5], "", *lines[5:]))
    n = sum(len(s) <= 8 for s in learnt[:12])
    assert n > 5 and f"theirs.jsonl: {n} of 16 texts are of prompts to learn from" in said, said
    assert f"{n} texts, {5 * n} tokens written" in said, said
    assert "greedy texts of 0 of 3 prompts kept apart" in said, said
    assert sorted(os.listdir(other)) == ["distil.pt", "held_out.jsonl"]
    # So do its greedy texts of the prompts kept apart, if there is one for each of those that are short enough.
    greedy = [line_of(s, sampling=n) for s, n in zip(apart, ("0", "0:0.9", "0"))]
    os.remove(os.path.join(other, "held_out.jsonl"))
    said = run(*from_written(*lines, *greedy))
    assert "texts kept apart: 3 texts, 15 tokens written" in said, said
    assert os.listdir(other) == ["distil.pt"]
    said = run(*from_written(*lines, *greedy[1:]))
    assert "greedy texts of 2 of 3 prompts kept apart" in said, said
    assert sorted(os.listdir(other)) == ["distil.pt", "held_out.jsonl"]
    for line, why in (
        (line_of([1, 4], tokens=[1, 4]), "line 2: the text has no tokens after its prompt"),
        (line_of([1, 4], tokens=[1, 4, 64]), "line 2: token 64 is not of the target's vocabulary, 0 to 63"),
        (line_of([1, 4], tokens=[1, 4, 2.5]), "line 2: token 2.5 is not of the target's vocabulary"),
        (line_of([1, 4], tokens=7), 'line 2 has "tokens" that are no list'),
        (line_of([1, 4], target="llama 2x32, 64 tokens, 0"), "line 2 is of the target llama 2x32, 64 tokens, 0, not"),
        ('{"prompt": 1}', 'line 2 is no text: it must be an object with "target", "prompt" and "tokens"'),
        (lines[0][:30], "line 2 is cut short or no JSON"),
    ):
        assert why in refusal(*from_written(lines[0], line)), line
    twice = from_written(lines[0], *greedy, line_of(apart[1], sampling="0", tokens=[*apart[1], 9, 8]))
    assert "line 5 is another greedy text of a prompt kept apart" in refusal(*twice)
    run(*from_written(*lines, *greedy, greedy[1]))
    assert "has no text of a prompt that --prompts has" in refusal(*from_written(line_of(apart[0])))

    # A worker that is killed is not waited for, whichever it is.
    for which in ("first", "second"):
        small = ("--work", os.path.join(folder, which), "--threads", 2, *distil(10)[4:])
        command = [sys.executable, train.__file__, *map(str, small)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
            while not first.stdout.readline().startswith("step"):
                assert first.poll() is None, first.stderr.read()
            with open(f"/proc/{first.pid}/task/{first.pid}/children") as f:
                (second,) = map(int, f.read().split())
            os.kill(second if which == "second" else first.pid, signal.SIGKILL)
            # The pipes end when both workers have.
            said = first.communicate(timeout=60)[1]
            assert first.returncode == (1 if which == "second" else -signal.SIGKILL)
            assert "A worker was killed or failed" in said, said

    # What does not fit is refused in a sentence.
    for line, why in (
        ('{"tokens": [1, 64]}', "token 64 is not of the target's vocabulary, 0 to 63"),
        ('{"tokens": [1, 2', "line 1 is cut short or no JSON"),
        ('{"domain": "chat"}', "line 1 is no prompt"),
        ('{"text": "w5"}', "has no tokenizer"),
        ("", "has no prompt of at most 8 tokens"),
    ):
        with open(bad, "w") as f:
            f.write(line + "\n")
        assert why in refusal(*distil(0.1, "--held-out", bad)), (line, why)
    write_tokenizer(target, 64)
    assert Target(target, torch.float32, "cpu").encode("w5 w6") == [62, 5, 6, 63, 1]
    write_tokenizer(target, 65)
    assert "has 65 tokens, more than the target's 64" in refusal(*distil(0.1, "--held-out", words))
    assert "--width 48 is more than the target's, 32" in refusal(*distil(0.1, "--width", 48))
    assert "is of a model of other sizes" in refusal(*distil(0.1, "--width", 8))
    assert "was written with other new tokens" in refusal(*distil(0.1, "--new", 8))
    assert "is neither a folder nor a GGUF file" in refusal(*distil(0.1, "--target", bad + "x"))
    with open(path, "wb") as f:
        f.write(texts[:300] + b"\n" + texts[300:])
    assert "texts.jsonl is damaged" in refusal(*distil(0.1))
    weights = os.path.join(target, "model.safetensors")
    with open(weights, "r+b") as f:
        f.truncate(os.path.getsize(weights) // 2)
    assert "cannot be loaded" in refusal(*distil(0.1))
