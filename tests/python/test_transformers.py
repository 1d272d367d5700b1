# SPDX-License-Identifier: BSL-1.0
"""Models of transformers: their greedy texts with a tree beside those of generate(), and what is refused."""
import os
import pathlib

import espalier
import hugging_face  # of examples/python
import numpy as np
import pytest
import torch
import transformers
from espalier.hugging_face import HuggingFaceModel


def tiny(**changes):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**({
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3, "bos_token_id": 1,
        "eos_token_id": None, "pad_token_id": 0} | changes))
    return transformers.LlamaForCausalLM(config).eval()


def blurred(model):
    """The model, with a little noise: it drafts what the model writes, and errs now and then."""
    draft = tiny()
    draft.load_state_dict(model.state_dict())
    with torch.no_grad():
        for p in draft.parameters():
            p.add_(0.03 * torch.randn_like(p))
    return draft


def test_100_of_100_texts_are_those_of_generate():
    model, chance = tiny(), np.random.default_rng(1)
    prompts = [chance.integers(0, 64, chance.integers(1, 20)).tolist() for _ in range(100)]
    written, steps = hugging_face.write(model, blurred(model), prompts, 16, context=64)
    assert [hugging_face.generated(model, prompt, 16) for prompt in prompts] == written
    assert steps < 120  # 8 texts a step; without drafts 13 times 17


def test_a_model_that_cannot_move_rows_forwards_them_again():
    model = tiny()
    whole = HuggingFaceModel(model, context=64)
    decoder = espalier.Decoder(HuggingFaceModel(blurred(model), context=64), "eagle2", "greedy", lambda rows: whole(rows),
                               vocab_size=64, context=64)
    assert decoder.generate([5, 9], 20).tolist() == hugging_face.generated(model, [5, 9], 20)


def test_what_is_refused():
    model = tiny()
    for wrong, options, sentence in ((tiny(attn_implementation="flex_attention"), {}, "must be sdpa or eager"),
                                     (model, {"context": 0}, "must be 1 at least")):
        with pytest.raises(espalier.OptionError, match=sentence):
            HuggingFaceModel(wrong, **options)
    sliding = transformers.MistralForCausalLM(transformers.MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, sliding_window=8))
    with pytest.raises(espalier.OptionError, match="a sliding window"):
        HuggingFaceModel(sliding)
    decoder = espalier.Decoder(None, "plain", "greedy", HuggingFaceModel(model, context=16, max_texts=1), vocab_size=64)
    text = decoder.add(range(15), 40)
    with pytest.raises(espalier.InputError, match="slot 16 of text 0, but the model has 16 slots"):
        while not decoder.idle:
            decoder.step()
    assert decoder.written(text).tolist() == hugging_face.generated(model, list(range(15)), 2)


def test_smollm2():
    file = pathlib.Path(os.environ.get("ESPALIER_SMOLLM2", "-"))
    if not file.is_file():
        pytest.skip("there is no SmolLM2: ./run demo smollm2 fetches it.")
    for package in ("accelerate", "gguf"):  # by which transformers reads GGUF files
        pytest.importorskip(package)
    model = hugging_face.load(file).eval()
    draft = hugging_face.load(pathlib.Path(hugging_face.__file__).parents[1] / "models/smollm2/draft").eval()
    prompts = [[504, 1735, 314], [28, 253, 905, 4052, 327], [1, 4093, 198]]
    written, steps = hugging_face.write(model, draft, prompts, 24)
    assert [hugging_face.generated(model, prompt, 24) for prompt in prompts] == written
    assert steps < 24
