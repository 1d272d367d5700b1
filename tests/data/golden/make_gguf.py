#!/usr/bin/env python3
"""Writes a GGUF twin, model.gguf, beside the safetensors of some of the reference models in this folder.

    pip install gguf numpy safetensors
    python make_gguf.py

Names, metadata and the order of rows are those of llama.cpp's convert_hf_to_gguf.py: the rows of queries and keys of
the architectures of Llama (Mistral, too), Granite and SmolLM3 are reordered so that the two that turn together are
neighbours, GPT-NeoX's query_key_value is divided, a layer's experts are stacked in one tensor for each of their
matrices, Gemma's norms are written whole, and what slows down the rotary embedding of Llama 3 and Phi-3 are tensors of
divisors. Tensors keep the type that they are stored in.
"""
import glob
import json
import math
import os
import re

import gguf
import numpy as np
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = ["llama_f16", "llama3", "mistral", "qwen2", "qwen3", "gemma", "gemma3", "gpt_neox", "phi3", "phi4_mini",
           "olmo2", "olmo3", "granite", "smollm3", "glm4", "mixtral", "qwen3_moe", "gpt_oss"]
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3", "gpt_neox": "gptneox", "olmo3": "olmo2",
                 "mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}
TOP = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
       "gpt_neox.embed_in": "token_embd", "embed_out": "output", "gpt_neox.final_layer_norm": "output_norm"}
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "attention.query_key_value": "attn_qkv",
         "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
         "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp"}
EXPERT = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
          "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}
GPT_OSS = {"post_attention_layernorm": "post_attention_norm"}
GEMMA3 = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
          "post_feedforward_layernorm": "post_ffw_norm"}
GLM4 = {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}


def load(path):
    tensors = {}
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with safe_open(file, "np") as f:
            tensors.update({name: f.get_tensor(name) for name in f.keys()})
    return tensors


def stacked(tensors):
    experts, out = {}, {}
    for name, w in tensors.items():
        if ".mlp.experts.gate_up_proj" in name or ".mlp.experts.down_proj" in name:  # gpt-oss
            layer, part = name.split(".mlp.experts.")
            kind = "bias" if part.endswith("_bias") else "weight"
            w = w if kind == "bias" else w.swapaxes(1, 2)
            if part.startswith("gate_up"):
                out[f"{layer}.ffn_gate_exps.{kind}"], out[f"{layer}.ffn_up_exps.{kind}"] = w[:, ::2], w[:, 1::2]
            else:
                out[f"{layer}.ffn_down_exps.{kind}"] = w
            continue
        if name.endswith(".sinks"):
            out[name.replace("self_attn.sinks", "attn_sinks.weight")] = w
            continue
        found = re.fullmatch(r"(.*layers\.\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight", name)
        if found:
            experts.setdefault(f"{found[1]}.{EXPERT[found[3]]}.weight", {})[int(found[2])] = w
        else:
            out[name] = w
    return {**out, **{name: np.stack([of[e] for e in range(len(of))]) for name, of in experts.items()}}


def in_pairs(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def divided(w, heads):
    parts = w.reshape(heads, 3, w.shape[0] // heads // 3, *w.shape[1:])
    return np.concatenate([parts[:, i].reshape(-1, *w.shape[1:]) for i in range(3)])


def llama3_divisors(rope, theta, dims):
    old, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    divisors = []
    for i in range(0, dims, 2):
        wavelength = 2 * math.pi * theta ** (i / dims)
        if wavelength < old / high:
            divisors.append(1)
        elif wavelength > old / low:
            divisors.append(factor)
        else:
            share = (old / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - share) / factor + share))
    return np.array(divisors, np.float32)


def make(folder):
    path = os.path.join(HERE, folder)
    c = json.load(open(os.path.join(path, "config.json")))
    arch = ARCHITECTURES.get(c["model_type"], c["model_type"])
    heads, kv_heads = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    w = gguf.GGUFWriter(os.path.join(path, "model.gguf"), arch)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    if arch == "gptneox":
        w.add_layer_norm_eps(c["layer_norm_eps"])
        w.add_parallel_residual(c["use_parallel_residual"])
        w.add_rope_dimension_count(int(head_dim * c["rotary_pct"]))
        w.add_rope_freq_base(c["rotary_emb_base"])
    else:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_rope_dimension_count(int(head_dim * c.get("partial_rotary_factor", 1.0)))
        w.add_rope_freq_base(c["rope_theta"])
        if "head_dim" in c:
            w.add_key_length(head_dim)
            w.add_value_length(head_dim)
    rope = c.get("rope_scaling") or {}
    if arch == "phi3":
        original = c["original_max_position_embeddings"]
        factor = c["max_position_embeddings"] / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0)
        for length in ("long", "short"):
            w.add_tensor(f"rope_factors_{length}.weight", np.array(rope[length + "_factor"], np.float32))
    if arch == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if rope.get("rope_type") in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope.get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(rope, c["rope_theta"], head_dim))
    if c.get("sliding_window") or arch == "phi3":
        w.add_sliding_window(c["sliding_window"] or 0)
    if "layer_types" in c:
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
        w.add_rope_freq_base_swa(500000.0)  # the default of OLMo 3
    if arch == "gemma3":
        w.add_uint32("gemma3.attention.sliding_window_pattern", c["sliding_window_pattern"])
        w.add_float32("gemma3.rope.freq_base_swa", c["rope_local_base_freq"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if "num_experts_per_tok" in c:
        w.add_expert_count(c.get("num_experts") or c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c or arch == "gpt-oss":
        w.add_expert_feed_forward_length(c.get("moe_intermediate_size", c["intermediate_size"]))
    w.add_tokenizer_model("none")
    w.add_vocab_size(c["vocab_size"])
    names = {**LAYER, **{"gemma3": GEMMA3, "olmo2": GEMMA3, "glm4": GLM4, "gpt-oss": GPT_OSS}.get(arch, {})}
    for name, tensor in sorted(stacked(load(path)).items()):
        base, kind = name.rsplit(".", 1)
        if base in TOP:
            new = TOP[base]
        else:
            number, part = base.split("layers.")[1].split(".", 1)
            new = f"blk.{number}.{names.get(part, part)}"
        if arch in ("llama", "granite", "smollm3") and base.endswith(("q_proj", "k_proj")):
            tensor = in_pairs(tensor, heads if base.endswith("q_proj") else kv_heads)
        if base.endswith("query_key_value"):
            tensor = divided(tensor, heads)
        if arch.startswith("gemma") and base.endswith("norm"):
            tensor = tensor + np.float32(1)
        if tensor.ndim == 1 or kind == "bias":
            tensor = tensor.astype(np.float32)
        w.add_tensor(f"{new}.{kind}", np.ascontiguousarray(tensor))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{folder:12s} {os.path.getsize(os.path.join(path, 'model.gguf')) / 1000:6.1f} kB  {arch}")


if __name__ == "__main__":
    for each in FOLDERS:
        make(each)
