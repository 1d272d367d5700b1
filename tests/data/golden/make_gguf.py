#!/usr/bin/env python3
"""Writes a GGUF twin, model.gguf, beside the safetensors of some of the reference models in this folder.

    pip install gguf numpy safetensors
    python make_gguf.py              # or only the folders that are named

Names, metadata and the order of rows are those of llama.cpp's convert_hf_to_gguf.py: the rows of queries and keys of
the architectures of Llama (Mistral, too), Granite and SmolLM3 are reordered so that the two that turn together are
neighbours, GPT-NeoX's query_key_value is divided, a layer's experts are stacked in one tensor for each of their
matrices, Gemma's and Qwen3-Next's norms are written whole, the projection of Qwen3-Next's delta networks is divided and
the value heads of Qwen3.5's are put in another order, and what slows down the rotary embedding of Llama 3 and Phi-3 are tensors of
divisors. Tensors keep the type that they are stored in.
"""
import glob
import json
import math
import os
import re
import sys

import gguf
import numpy as np
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = ["llama_f16", "llama3", "mistral", "qwen2", "qwen3", "gemma", "gemma3", "gpt_neox", "phi3", "phi4_mini",
           "olmo2", "olmo3", "granite", "smollm3", "glm4", "mixtral", "qwen3_moe", "gpt_oss", "qwen3_next", "qwen3_5",
           "qwen3_5_moe"]
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3", "gpt_neox": "gptneox", "olmo3": "olmo2",
                 "mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "qwen3_next": "qwen3next",
                 "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
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
DELTA = {"post_attention_layernorm": "post_attention_norm", "linear_attn": "ssm_a", "linear_attn.conv1d": "ssm_conv1d",
         "linear_attn.dt_proj": "ssm_dt", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
         "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
         "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm",
         "norm": "nextn.shared_head_norm", "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"}
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


def delta_networks(tensors, c):
    """The tensors of delta networks in their order and under the names that the converter first gives them."""
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    key_dim, value_dim, each = c["linear_key_head_dim"], c["linear_value_head_dim"], values // keys

    def tiled(w, dim):  # value heads 0, each, 2 each, ..., then 1, each + 1, ...
        if c["model_type"] == "qwen3_next":
            return w
        return w.reshape(keys, each, dim, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)

    out = {}
    head = f"model.layers.{c['num_hidden_layers']}."  # a head that drafts is one more layer
    for name, w in tensors.items():
        name = name.replace("model.language_model.", "model.").replace("mtp.layers.0.", head).replace("mtp.", head)
        base, part = name.split(".linear_attn.") if ".linear_attn." in name else (name, "")
        if part == "A_log":
            out[base + ".linear_attn.weight"] = tiled(-np.exp(w), 1)
        elif part == "dt_bias":
            out[base + ".linear_attn.dt_proj.bias"] = tiled(w, 1)
        elif part in ("conv1d.weight", "in_proj_qkv.weight"):
            w = w.reshape(w.shape[0], -1)
            first = 2 * keys * key_dim
            out[name] = np.concatenate([w[:first], tiled(w[first:], value_dim)])
        elif part in ("in_proj_a.weight", "in_proj_b.weight", "in_proj_z.weight"):
            out[name] = tiled(w, value_dim if "_z" in part else 1)
        elif part == "out_proj.weight":
            out[name] = tiled(w.T, value_dim).T
        elif part == "in_proj_qkvz.weight":
            ends = np.cumsum([key_dim, key_dim, each * value_dim])
            groups = np.split(w.reshape(keys, -1, w.shape[1]), ends, axis=1)
            q, k, v, z = (group.reshape(-1, w.shape[1]) for group in groups)
            out[f"{base}.linear_attn.in_proj_qkv.weight"] = np.concatenate([q, k, v])
            out[f"{base}.linear_attn.in_proj_z.weight"] = z
        elif name.endswith("mlp.experts.gate_up_proj"):
            out[name.replace("mlp.experts.gate_up_proj", "ffn_gate_exps.weight")], \
                out[name.replace("mlp.experts.gate_up_proj", "ffn_up_exps.weight")] = np.split(w, 2, axis=1)
        elif name.endswith("mlp.experts.down_proj"):
            out[name.replace("mlp.experts.down_proj", "ffn_down_exps.weight")] = w
        elif (name.endswith("norm.weight") or ".pre_fc_norm_" in name) and not part:
            out[name] = w + np.float32(1)
        elif name.endswith("shared_expert_gate.weight") and c["model_type"] == "qwen3_next":
            out[name] = w[0]  # as older versions of the converter have it
        else:
            out[name] = w
    return out


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
    c = c.get("text_config", c)
    arch = ARCHITECTURES.get(c["model_type"], c["model_type"])
    heads, kv_heads = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    w = gguf.GGUFWriter(os.path.join(path, "model.gguf"), arch)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    tensors = load(path)
    draft_layers = 1 if "mtp.fc.weight" in tensors else 0
    w.add_block_count(c["num_hidden_layers"] + draft_layers)
    if draft_layers:
        w.add_nextn_predict_layers(draft_layers)
    if "intermediate_size" in c:
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
        w.add_rope_freq_base(c["rope_theta"] if "rope_theta" in c else c["rope_parameters"]["rope_theta"])
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
    delta = arch in ("qwen3next", "qwen35", "qwen35moe")
    if delta:
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        if "layer_types" in c:
            w.add_array(f"{arch}.attention.recurrent_layers",
                        [kind == "linear_attention" for kind in c["layer_types"]] + [False] * draft_layers)
        w.add_uint32(f"{arch}.full_attention_interval", c.get("full_attention_interval", 4))
        if arch != "qwen3next":
            w.add_rope_dimension_sections([11, 11, 10, 0])
        if "shared_expert_intermediate_size" in c:
            w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    elif "layer_types" in c:
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
        w.add_expert_feed_forward_length(c.get("moe_intermediate_size") or c["intermediate_size"])
    w.add_tokenizer_model("none")
    w.add_vocab_size(c["vocab_size"])
    names = {**LAYER, **{"gemma3": GEMMA3, "olmo2": GEMMA3, "glm4": GLM4, "gpt-oss": GPT_OSS}.get(
        arch, DELTA if delta else {})}
    tensors = delta_networks(tensors, c) if delta else tensors
    for name, tensor in sorted(stacked(tensors).items()):
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
        w.add_tensor(new if new.endswith("ssm_a") else f"{new}.{kind}", np.ascontiguousarray(tensor))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{folder:12s} {os.path.getsize(os.path.join(path, 'model.gguf')) / 1000:6.1f} kB  {arch}")


if __name__ == "__main__":
    for each in sys.argv[1:] or FOLDERS:
        make(each)
