# SPDX-License-Identifier: BSL-1.0
"""make_head_gguf.py LLAMA_CPP: writes head_gguf/ beside heads/: heads and blocks of heads/ as llama.cpp's own converter
writes them.

Needs llama.cpp's sources, of which LLAMA_CPP is the folder (vendor/llama.cpp in the source package of llama-cpp-python
0.3.36), with torch, transformers, safetensors. The files have no tokenizer but a list of tokens.
"""

import json
import pathlib
import shutil
import sys
import tempfile

LLAMA_CPP = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf  # noqa: E402
from conversion.llama import LlamaModel  # noqa: E402
from conversion.qwen import DFlashModel, DSparkModel  # noqa: E402

HERE = pathlib.Path(__file__).parent
HEADS, OUT = HERE / "heads", HERE / "head_gguf"


def vocabulary(self):
    self.gguf_writer.add_tokenizer_model("gpt2")
    self.gguf_writer.add_token_list([f"t{i}" for i in range(96)])
    mask = self.hparams.get("dflash_config", {}).get("mask_token_id")
    if mask is not None:
        self.gguf_writer.add_mask_token_id(mask)


def convert(cls, name, folder, change={}):
    with tempfile.TemporaryDirectory() as temporary:
        source = pathlib.Path(temporary) / name
        shutil.copytree(folder, source)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, **change}))
        made = type(cls.__name__, (cls,), {"set_vocab": vocabulary, "model_arch": cls.model_arch})
        made(source, gguf.LlamaFileType.MOSTLY_BF16, OUT / f"{name}.gguf", model_name=name,
             target_model_dir=HEADS / "target").write()


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    convert(LlamaModel, "eagle3", HEADS / "plain")
    convert(DFlashModel, "dflash", HEADS / "dflash")
    convert(DFlashModel, "dflash_causal", HEADS / "dflash", {"is_causal": True})
    convert(DFlashModel, "dflash_windows", HEADS / "dflash", {
        "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0, "is_causal": False,
        "layer_types": ["sliding_attention", "sliding_attention"]})
    convert(DFlashModel, "dflash_scaled", HEADS / "dflash", {"dflash_config": {
        "target_layer_ids": [1, 3, 5], "mask_token_id": 94, "input_embedding_scale": 1.5, "output_multiplier": 0.7,
        "final_logit_softcapping": 1.25}})
    convert(DFlashModel, "dflash2", HEADS / "dflash2_zlab")
    convert(DSparkModel, "dspark", HEADS / "dspark_few")
