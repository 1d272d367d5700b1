# SPDX-License-Identifier: BSL-1.0
"""Runs examples/models/train.py in the test's own process."""

import contextlib
import io
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples", "models"))
import train  # noqa: E402


def run(*arguments):
    """What a command of train.py prints."""
    sys.argv = ["train.py", *map(str, arguments)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        train.main()
    return said.getvalue()


def refusal(*arguments):
    """The sentence with which a command of train.py ends."""
    try:
        run(*arguments)
    except SystemExit as sentence:
        return str(sentence)
    raise AssertionError("nothing was refused")


def write_small_target(folder, layers):
    """Writes a target of random weights and 64 tokens into folder/target, and 33 prompts. Returns the arguments that name them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, max_position_embeddings=32, initializer_range=0.3, **sizes)
    target, prompts = os.path.join(folder, "target"), os.path.join(folder, "prompts")
    LlamaForCausalLM(config).save_pretrained(target)
    with open(prompts, "w") as f:
        for i in range(33):
            f.write(json.dumps({"tokens": [1, *range(3 + i % 5, 3 + i % 5 + 1 + i // 5)]}) + "\n")
    return ("--target", target, "--prompts", prompts)


SMALL = "--texts 12 --batch 5 --new 12 --longest 8 --vocab 40 --micro 64 --accumulate 1 --show 2 --precision fp32"


def train_small(command, folder, minutes, *more):
    """The arguments of train.py with which a command trains a draft of the target in folder, in folder/work, and writes it to
    folder/out."""
    work, out = (os.path.join(folder, n) for n in ("work", "out"))
    small = ("--work", work, "--threads", "1", command, *SMALL.split(), "--device", "cpu", "--minutes", minutes)
    return (*small, "--out", out, *more)


def check_training(command, folder, target):
    """Trains a draft of 40 tokens and resumes it, and checks that the loss falls, that training goes on where it ended, and that
    the exported folder has what was trained, up to the rounding to int8, with the target's row of the output matrix for each
    token that d2t names. Returns the folder's config."""
    import re

    import torch
    from model import dequantised
    from transformers import AutoModelForCausalLM

    said = run(*train_small(command, folder, 0.1, *target))
    losses = [float(x) for x in re.findall(r"loss (\S+)", said)]
    assert losses[-1] < 0.8 * losses[0], losses
    assert "on 3 prompts kept apart: position 1" in said, said
    more = run(*train_small(command, folder, 0.13, *target))
    step = re.search(r"resumed at step (\d+)", more)
    assert int(step[1]) > 0 and min(map(int, re.findall(r"step +(\d+) loss", more))) > int(step[1]), more
    trained = torch.load(os.path.join(folder, "work", f"{command}.pt"))["model"]
    written = dequantised(os.path.join(folder, "out"))
    kept = written.pop("d2t") + torch.arange(40)
    assert kept.dtype == torch.int64 and (kept[1:] > kept[:-1]).all() and 0 <= kept[0] and kept[-1] < 64
    output = AutoModelForCausalLM.from_pretrained(target[1]).get_output_embeddings().weight
    assert torch.equal(trained["lm_head.weight"], output[kept])
    assert set(written) == set(trained)
    for name, values in written.items():
        assert (values - trained[name]).abs().max() <= 0.01 * trained[name].abs().max(), name
    with open(os.path.join(folder, "out", "config.json")) as f:
        return json.load(f)
