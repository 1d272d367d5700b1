#!/usr/bin/env python3
"""Writes the reference models of this folder: tiny random weights, and what Hugging Face transformers computes from them.

    pip install torch transformers safetensors numpy
    python make_golden.py            # rewrites every folder beside this script; the seed is fixed
    python make_golden.py qwen2      # or only those that are named

Each folder has config.json, model.safetensors and golden.json:

    tokens         [n_tokens]                     one sequence, positions 0, 1, ...
    logits         [n_tokens][vocab]              row i: after tokens 0..i
    argmax         [n_tokens]                     of each row of logits
    hidden_states  [layers][n_tokens][hidden]     the residual stream after each layer, before the final norm
    tree           prefix [n_prefix]; tokens, parents, depths, positions [n_nodes]; logits [n_nodes][vocab]
                   Node 0 is the root (parent -1) and stands right after the prefix. Row u was computed by running the
                   plain sequence prefix + path from the root to u, on its own, and taking its last row.

Of a model whose files hold a head that drafts (tensors mtp.*), head.json has

    text           [n_text]                       the tokens above
    logits         [steps][...][vocab]            logits[k][j]: the head's row after the first j + 2 tokens of the text and
                                                  the k tokens after them as a drafted path
    drafts         [n_text - 1][steps]            what the head drafts greedily after the first j + 2 tokens

The arithmetic is float64 throughout, on weights that were first rounded to the stored type (numbers keep 8 decimals): transformers itself
computes norms, rotary angles, softmaxes and Mamba's scan in float32, so those are replaced here, and the results are compared with the
unaltered float32 model (deviation printed, and at most 1e-4 of the largest logit).

Stored types: F32 nearly everywhere; for llama also F16, BF16 and int8 rows. In the last, each matrix W [rows, cols] is an I8
tensor beside a F32 tensor W_scale [rows], value = q * scale of its row; vectors (norms) stay F32. gpt_oss is
F16; the experts of gpt_oss_mxfp4 are MXFP4 and all else in it BF16, as in the published checkpoints.
"""
import json
import math
import os
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.bamba import modeling_bamba
from transformers.models.gemma import modeling_gemma
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.glm4 import modeling_glm4
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.granite import modeling_granite
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.olmo3 import modeling_olmo3
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.smollm3 import modeling_smollm3

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = [1, 17, 5, 42, 42, 63, 8, 0, 29, 51, 3, 70]
TREE = {"prefix": [1, 33, 7, 60, 12], "tokens": [21, 4, 55, 4, 9, 66, 2, 30], "parents": [-1, 0, 0, 1, 1, 2, 3, 3]}

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 72, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "float32"}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 72, "hidden_size": 36,
    "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
    "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": False, "attention_bias": False, "use_sliding_window": False, "bos_token_id": 1,
    "eos_token_id": 2, "torch_dtype": "float32"}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 72, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "gelu",
    "max_position_embeddings": 64, "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000,
    "use_parallel_residual": True, "tie_word_embeddings": False, "attention_bias": True, "bos_token_id": 0,
    "eos_token_id": 0, "torch_dtype": "float32"}

SMALL = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
LLAMA3 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **SMALL,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 128}, "tie_word_embeddings": True}
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", **SMALL,
    "sliding_window": 4, "tie_word_embeddings": False}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", **SMALL,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "tie_word_embeddings": False}
GEMMA = {
    "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh", **SMALL,
    "tie_word_embeddings": True}
GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", **SMALL,
    "query_pre_attn_scalar": 12, "sliding_window": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0,
    "tie_word_embeddings": True}
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
    **SMALL, "query_pre_attn_scalar": 8, "sliding_window": 4, "sliding_window_pattern": 2, "rope_theta": 1000000.0,
    "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "final_logit_softcapping": 5.0, "tie_word_embeddings": True}
BAMBA = {
    "architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_act": "silu", **SMALL,
    "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2,
    "mamba_d_state": 20, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8, "mamba_conv_bias": True,
    "mamba_proj_bias": False, "time_step_limit": [0.05, 3.0], "tie_word_embeddings": False}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", **SMALL,
    "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None, "tie_word_embeddings": False}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", **SMALL,
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False, "use_sliding_window": False,
    "tie_word_embeddings": False}
# Of four layers, only the second has experts.
QWEN3_MOE_PLAIN = {
    **QWEN3_MOE, "num_hidden_layers": 4, "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [3],
    "use_sliding_window": True, "sliding_window": 4, "tie_word_embeddings": True}
# Key heads are shared by two value heads. The gates of attention and of the shared expert matter, too.
DELTA = {
    **{k: v for k, v in SMALL.items() if k != "rope_theta"}, "hidden_act": "silu", "partial_rotary_factor": 0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 10, "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4, "tie_word_embeddings": False}
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", **DELTA, "num_hidden_layers": 3, "full_attention_interval": 3,
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
# Only the second layer has experts. Keys and values are of different sizes.
QWEN3_NEXT_PLAIN = {
    **QWEN3_NEXT, "norm_topk_prob": False, "decoder_sparse_step": 2, "attention_bias": True,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"], "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 2, "tie_word_embeddings": True}
# The language model of a model that sees pictures, as it is published.
QWEN3_5 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_5_text", **DELTA, "num_hidden_layers": 3, "mtp_num_hidden_layers": 1, "tie_word_embeddings": True,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"]}}
QWEN3_5_MOE = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
    **{k: v for k, v in DELTA.items() if k != "intermediate_size"}, "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"], "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "shared_expert_intermediate_size": 12}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_act": "silu", **SMALL, "hidden_size": 32,
    "intermediate_size": 32, "rms_norm_eps": 1e-5, "num_local_experts": 5, "num_experts_per_tok": 2,
    "sliding_window": 4, "attention_bias": True, "swiglu_limit": 7.0, "rope_theta": 150000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                     "original_max_position_embeddings": 64}, "tie_word_embeddings": False}

# Without head_dim, as these families are published; every text is longer than the original context of Phi-3.
DIVIDED = {**{k: v for k, v in SMALL.items() if k != "head_dim"}, "hidden_size": 32, "pad_token_id": None}
PHI3 = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu", **DIVIDED,
    "max_position_embeddings": 64, "original_max_position_embeddings": 5, "sliding_window": 9, "tie_word_embeddings": False,
    "rope_scaling": {"type": "longrope", "long_factor": [1.0, 1.5, 2.75, 8.0], "short_factor": [1.0, 1.0, 1.25, 2.0]}}
PHI4_MINI = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu", **DIVIDED,
    "num_attention_heads": 2, "num_key_value_heads": 1, "partial_rotary_factor": 0.75, "sliding_window": None,
    "original_max_position_embeddings": 512, "tie_word_embeddings": True,
    "rope_scaling": {"type": "longrope", "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                     "short_factor": [1.0, 1.0, 1.25, 1.5, 2.25, 2.5]}}
OLMO2 = {
    "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "hidden_act": "silu", **DIVIDED,
    "tie_word_embeddings": False}
OLMO3 = {
    "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "hidden_act": "silu", **DIVIDED, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}
GRANITE = {
    "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_act": "silu", **DIVIDED,
    "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 2.5,
    "tie_word_embeddings": True}
SMOLLM3 = {
    "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "hidden_act": "silu", **DIVIDED,
    "hidden_size": 16, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "tie_word_embeddings": True}
GLM4 = {
    "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "hidden_act": "silu", **SMALL, "hidden_size": 24,
    "pad_token_id": None, "attention_bias": True, "partial_rotary_factor": 0.5, "tie_word_embeddings": False}

LESS_ONE = ("Gemma", "Qwen3Next", "Qwen3_5")  # the weights of their norms are scales minus 1

CASES = [
    ("llama", LLAMA, "F32", 1),
    ("llama_f16", LLAMA, "F16", 1),
    ("llama_bf16", LLAMA, "BF16", 1),
    ("llama_int8_rows", LLAMA, "INT8_ROWS", 1),
    ("llama_tied", {**LLAMA, "tie_word_embeddings": True}, "F32", 2),
    ("qwen3", QWEN3, "F32", 3),
    ("gpt_neox", NEOX, "F32", 4),
    ("gpt_neox_sequential", {**NEOX, "use_parallel_residual": False}, "F32", 5),
    ("llama3", LLAMA3, "F32", 6),
    ("mistral", MISTRAL, "F32", 7),
    ("qwen2", QWEN2, "F32", 8, 2),
    ("gemma", GEMMA, "F32", 9),
    ("gemma2", GEMMA2, "F32", 10),
    ("gemma3", GEMMA3, "F32", 11),
    ("bamba", BAMBA, "F32", 12),
    ("phi3", PHI3, "F32", 20),
    ("phi4_mini", PHI4_MINI, "F32", 14),
    ("olmo2", OLMO2, "F32", 15),
    ("olmo3", OLMO3, "F32", 16),
    ("granite", GRANITE, "F32", 17),
    ("smollm3", SMOLLM3, "F32", 18),
    ("glm4", GLM4, "F32", 19),
    ("mixtral", MIXTRAL, "F32", 13),
    ("qwen3_moe", QWEN3_MOE, "F32", 14),
    ("qwen3_moe_plain", QWEN3_MOE_PLAIN, "F32", 15),
    ("qwen3_next", QWEN3_NEXT, "F32", 25, 1, True),
    ("qwen3_next_plain", QWEN3_NEXT_PLAIN, "F32", 22),
    ("qwen3_5", QWEN3_5, "F32", 23, 1, True),
    ("qwen3_5_moe", QWEN3_5_MOE, "F32", 24),
    ("gpt_oss", GPT_OSS, "F16", 16),
    ("gpt_oss_mxfp4", {**GPT_OSS, "swiglu_limit": 1.5, "swiglu_alpha": 1.25}, "MXFP4", 17),
]


def rms_norm(self, x):
    eps = self.variance_epsilon
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def gemma_norm(self, x):
    return (1.0 + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def gated_norm(self, x, gate):
    x = x * torch.nn.functional.silu(gate)
    groups = x.unflatten(-1, (-1, self.group_size))
    return self.weight * (groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).flatten(-2)


def scan(x, dt, A, B, C, chunk_size, D, dt_bias, dt_limit, **kwargs):
    """The recurrence token by token, as Dao and Gu define it (2024, equation 2)."""
    dt = torch.nn.functional.softplus(dt + dt_bias).clamp(*dt_limit)
    heads = x.shape[2] // B.shape[2]
    B, C = B.repeat_interleave(heads, 2), C.repeat_interleave(heads, 2)
    state, rows = torch.zeros(x.shape[0], *x.shape[2:], B.shape[3], dtype=x.dtype), []
    for t in range(x.shape[1]):
        state = state * (dt[:, t] * A).exp()[..., None, None] + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        rows.append((state * C[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(rows, 1)


def delta_norm(self, x, gate):
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * x * torch.nn.functional.silu(gate)


def delta_rule(query, key, value, g, beta, **kwargs):
    """The recurrence token by token, as Yang, Kautz and Hatamizadeh define it (2024, equation 10)."""
    heads = value.shape[2] // key.shape[2]
    query, key = ((x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)).repeat_interleave(heads, 2) for x in (query, key))
    query = query / query.shape[-1] ** 0.5
    state, rows = torch.zeros(*value.shape[:1], *value.shape[2:], key.shape[3], dtype=value.dtype), []
    for t in range(value.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        change = beta[:, t, :, None] * (value[:, t] - (state * key[:, t, :, None]).sum(-1))
        state = state + change[..., None] * key[:, t, :, None]
        rows.append((state * query[:, t, :, None]).sum(-1))
    return torch.stack(rows, 1), None


def rotary(self, x, position_ids, layer_type=None):
    if position_ids.dim() == 3:  # positions in text, height and width, which are the same in a text
        position_ids = position_ids[0]
    prefix = f"{layer_type}_" if layer_type else ""
    rope = self.config.rope_parameters
    if layer_type:
        rope = rope[layer_type]
    inverse = getattr(self, prefix + "inv_freq").double()
    if rope["rope_type"] == "default":  # transformers' own are rounded to float32; so are those that are scaled
        n = 2 * inverse.shape[0]
        inverse = rope["rope_theta"] ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
    if rope["rope_type"] == "longrope":
        n = 2 * inverse.shape[0]
        is_long = position_ids.max() >= rope["original_max_position_embeddings"]
        divisors = torch.tensor(rope["long_factor" if is_long else "short_factor"], dtype=torch.float64)
        inverse = rope["rope_theta"] ** (-torch.arange(0, n, 2, dtype=torch.float64) / n) / divisors
    angle = position_ids[..., None].double() * inverse
    if self.config.model_type != "gpt_oss":
        angle = torch.cat((angle, angle), dim=-1)
    scale = getattr(self, prefix + "attention_scaling")
    return (scale * angle.cos()).to(x.dtype), (scale * angle.sin()).to(x.dtype)


def route(self, x):
    logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight, getattr(self, "bias", None))
    factors, experts = logits.softmax(-1).topk(self.top_k, -1)
    if getattr(self, "norm_topk_prob", True):  # Mixtral's and gpt-oss's always are
        factors = factors / factors.sum(-1, keepdim=True)
    return logits, factors, experts


def attention(module, query, key, value, mask, scaling, dropout=0.0, softcap=None, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + mask
    if hasattr(module, "sinks"):
        sinks = module.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    else:
        scores = scores.softmax(-1)
    return (scores @ value).transpose(1, 2).contiguous(), None


class Float64:
    """While open, transformers' float32 islands compute in the type of their input."""
    modules = [modeling_llama, modeling_mistral, modeling_qwen2, modeling_qwen3, modeling_gemma, modeling_gemma2,
               modeling_gemma3, modeling_gpt_neox, modeling_bamba, modeling_phi3, modeling_olmo2, modeling_olmo3,
               modeling_granite, modeling_smollm3, modeling_glm4, modeling_mixtral, modeling_qwen3_moe,
               modeling_gpt_oss, modeling_qwen3_next, modeling_qwen3_5, modeling_qwen3_5_moe]

    @classmethod
    def islands(cls):
        for module in cls.modules:
            for name in dir(module):
                if name.endswith("RMSNorm"):
                    yield getattr(module, name), "forward", (
                        gemma_norm if name.startswith(LESS_ONE) else rms_norm)
                if name.endswith("RMSNormGated") and name.startswith("Qwen"):
                    yield getattr(module, name), "forward", delta_norm
                if name == "torch_chunk_gated_delta_rule":
                    yield module, name, delta_rule
                if name.endswith("RotaryEmbedding"):
                    yield getattr(module, name), "forward", rotary
                if name.endswith("TopKRouter"):
                    yield getattr(module, name), "forward", route
            yield module, "eager_attention_forward", attention
        yield modeling_bamba.BambaRMSNormGated, "forward", gated_norm
        yield modeling_bamba, "mamba2_chunk_scan", scan
        yield torch.Tensor, "float", lambda x: x  # the decays of Qwen3-Next

    def __enter__(self):
        self.saved = []
        for owner, name, new in self.islands():
            self.saved.append((owner, name, getattr(owner, name)))
            setattr(owner, name, new)

    def __exit__(self, *_):
        for owner, name, old in self.saved:
            setattr(owner, name, old)


def random_weights(model, seed):
    """Weights of a size at which every part matters to the logits; norms and biases away from one and zero."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if p.dim() == 2:
            std = 0.5 if "embed" in name else 1.2 / math.sqrt(p.shape[1])
            p.data = torch.randn(p.shape, generator=g) * std
        elif p.dim() == 3 and "experts" in name:  # gpt-oss's gates: so large that some are beyond the limit
            size = 5.0 if model.config.model_type == "gpt_oss" and "gate" in name else 1.2
            p.data = torch.randn(p.shape, generator=g) * size / math.sqrt(p.shape[2])
        elif p.dim() == 3:  # a convolution
            p.data = torch.randn(p.shape, generator=g) * 0.6
        elif name.endswith("A_log"):  # states that last for some tokens
            p.data = torch.randn(p.shape, generator=g) * 0.5 - 1.5
        elif name.endswith("bias"):
            p.data = torch.randn(p.shape, generator=g) * 0.2
        else:
            less_one = ("gemma", "qwen3_next", "qwen3_5")
            whole = 0.0 if model.config.model_type.startswith(less_one) and "linear_attn" not in name else 1.0
            p.data = whole + torch.randn(p.shape, generator=g) * 0.25


def quantise(w):
    scale = w.abs().amax(1) / 127.0
    return torch.round(w / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


def mxfp4(w):
    """Blocks of 32 inputs as codes, two a byte, and exponents, and what they mean: [experts][outputs][inputs]."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    blocks = w.double().unflatten(-1, (-1, 32))
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1) / 4))
    codes = (blocks[..., None] / exponents.exp2()[..., None, None] - values).abs().argmin(-1)
    packed = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return packed, (exponents + 127).to(torch.uint8), (values[codes] * exponents.exp2()[..., None]).flatten(-2)


def store(tensors, kind):
    """The tensors as stored, and their exact values in float64."""
    out, exact = {}, {}
    for name, w in tensors.items():
        w = w.float().contiguous()
        if kind == "INT8_ROWS" and w.dim() == 2:
            q, scale = quantise(w)
            out[name], out[name + "_scale"] = q, scale
            exact[name] = q.double() * scale.double()[:, None]
            continue
        if kind == "MXFP4" and w.dim() == 3:
            out[name + "_blocks"], out[name + "_scales"], exact_rows = mxfp4(w.mT)
            exact[name] = exact_rows.mT.contiguous()
            continue
        stored = w.to({"F16": torch.float16, "BF16": torch.bfloat16, "MXFP4": torch.bfloat16}.get(kind, torch.float32))
        out[name], exact[name] = stored, stored.double()
    return out, exact


@torch.no_grad()
def run(model, tokens):
    states, hooks = [], []
    body = model.gpt_neox if hasattr(model, "gpt_neox") else model.model
    for layer in body.layers:
        hooks.append(layer.register_forward_hook(lambda m, i, o: states.append((o[0] if isinstance(o, tuple) else o)[0])))
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    for h in hooks:
        h.remove()
    return logits, torch.stack(states)


class Head(torch.nn.Module):
    """A head that drafts, from a target's own files, as llama.cpp computes it (src/models/qwen3next.cpp, qwen35.cpp)."""

    def __init__(self, model):
        super().__init__()
        self.config = config = model.config
        norm, layer, width = type(model.model.norm), type(model.model.layers[0]), config.hidden_size
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            norm(width, eps=config.rms_norm_eps) for _ in range(3))
        self.layers = torch.nn.ModuleList([layer(config, config.layer_types.index("full_attention"))])

    @torch.no_grad()
    def forward(self, model, text, states):
        """The row after a text, of which the first tokens have the target's states and the others the head's own."""
        states = list(states)
        while True:
            n = len(states)
            token = model.model.embed_tokens(torch.tensor(text[1:n + 1]))
            both = torch.cat((self.pre_fc_norm_embedding(token), self.pre_fc_norm_hidden(torch.stack(states))), -1)
            x, positions = self.fc(both)[None], torch.arange(n)[None]
            mask = torch.full((n, n), -torch.inf, dtype=x.dtype).triu(1)[None, None]
            x = self.layers[0](x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask,
                               position_ids=positions)
            states.append(self.norm(x[0, -1]))
            if n + 1 == len(text):
                return model.lm_head(states[-1])


def head_golden(head, model, tokens, last, steps=3):
    states = model.model.norm(last)
    logits = [[head(model, tokens[:j + 2 + k], states[:j + 1]) for j in range(len(tokens) - 1 - k)] for k in range(steps)]
    drafts = []
    for length in range(2, len(tokens) + 1):
        path = []
        for _ in range(steps):
            path.append(int(head(model, tokens[:length] + path, states[:length - 1]).argmax()))
        drafts.append(path)
    return {"text": tokens, "tokens": [], "logits": [numbers(torch.stack(step)) for step in logits], "drafts": drafts}


def published(tensors, family):
    """The tensors as published checkpoints have them: each matrix of each expert apart, except gpt-oss's and
    Qwen3.5's, and GPT-NeoX's, Mixtral's and Qwen3.5's own names."""
    if family == "qwen3_5_text":
        return {n.replace("model.", "model.language_model.", 1): w for n, w in tensors.items()}
    if family in ("gpt_oss", "qwen3_5_moe_text"):
        return tensors
    gate, up, down = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for name, w in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for e, matrix in enumerate(w):
                of_expert = name.replace("gate_up_proj", str(e))
                out[f"{of_expert}.{gate}.weight"], out[f"{of_expert}.{up}.weight"] = (
                    part.contiguous() for part in matrix.chunk(2))
        elif name.endswith("experts.down_proj"):
            for e, matrix in enumerate(w):
                out[name.replace("down_proj", f"{e}.{down}.weight")] = matrix.contiguous()
        else:
            out["embed_out.weight" if family == "gpt_neox" and name == "lm_head.weight" else name] = w
    return {n.replace(".mlp.", ".block_sparse_moe.") if family == "mixtral" else n: w for n, w in out.items()}


def numbers(t):
    return np.round(t.double().numpy(), 8).tolist()


def save(stored, path, n_shards):
    names = sorted(stored)
    if n_shards == 1:
        return save_file(stored, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    weight_map = {}
    for i in range(n_shards):
        file = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        part = names[i::n_shards]
        save_file({n: stored[n] for n in part}, os.path.join(path, file), metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f, indent=1)
        f.write("\n")


def make(folder, config, kind, seed, n_shards=1, has_head=False):
    vocab_size = config.get("text_config", config)["vocab_size"]
    tokens = [t % vocab_size for t in TOKENS]
    tree = {**TREE, **{k: [t % vocab_size for t in TREE[k]] for k in ("prefix", "tokens")}}
    path = os.path.join(HERE, folder)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    config = dict(config)
    if kind != "F32":
        config["torch_dtype"] = {"F16": "float16", "BF16": "bfloat16", "MXFP4": "bfloat16"}.get(kind, "float32")
    if kind == "INT8_ROWS":
        config["quantization_config"] = {"quant_method": "espalier_int8_rows"}
    if kind == "MXFP4":
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    plain = config.get("text_config", config)
    plain = {k: v for k, v in plain.items() if k not in ("quantization_config", "torch_dtype")}
    settings = AutoConfig.for_model(plain.pop("model_type"), **plain)
    settings._attn_implementation = settings._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval().float()
    random_weights(model, seed)
    names = {n for n, _ in model.named_parameters()}
    stored, exact = store({n: w for n, w in model.state_dict().items() if n in names}, kind)
    head = Head(model) if has_head else torch.nn.Module()
    if has_head:
        random_weights(head, seed + 100)
    head_stored, head_exact = store(head.state_dict(), kind)
    save(published({**stored, **{"mtp." + n: w for n, w in head_stored.items()}}, settings.model_type), path, n_shards)

    model.load_state_dict({n: w.float() for n, w in exact.items()}, strict=False)
    plain32, _ = run(model, tokens)
    with Float64():
        model = model.double()
        model.load_state_dict(exact, strict=False)
        logits, states = run(model, tokens)
        if has_head:
            head.double().load_state_dict(head_exact)
            with open(os.path.join(path, "head.json"), "w") as f:
                json.dump(head_golden(head, model, tokens, states[-1]), f, separators=(",", ":"))
                f.write("\n")
        n = len(tree["tokens"])
        depths, rows = [], []
        for u in range(n):
            node, walk = u, []
            while node >= 0:
                walk.append(tree["tokens"][node])
                node = tree["parents"][node]
            depths.append(len(walk) - 1)
            rows.append(run(model, tree["prefix"] + walk[::-1])[0][-1])
    deviation = (plain32.double() - logits).abs().max() / logits.abs().max()
    assert deviation < 1e-4, deviation
    if kind == "MXFP4":
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors
        for name in exact:
            if name + "_blocks" in stored:
                read = convert_moe_packed_tensors(stored[name + "_blocks"], stored[name + "_scales"])
                assert (read.double() == exact[name]).all()
    elif kind != "INT8_ROWS":  # the folder as written, read back by transformers
        again = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        assert (run(again, tokens)[0] - plain32).abs().max() < 1e-5
    golden = {
        "made_with": f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}",
        "stored_as": kind, "tokens": tokens, "logits": numbers(logits), "argmax": logits.argmax(1).tolist(),
        "hidden_states": numbers(states),
        "tree": {**tree, "depths": depths, "positions": [len(tree["prefix"]) + d for d in depths],
                 "logits": numbers(torch.stack(rows))}}
    with open(os.path.join(path, "golden.json"), "w") as f:
        json.dump(golden, f, separators=(",", ":"))
        f.write("\n")
    for file in os.listdir(path):
        os.chmod(os.path.join(path, file), 0o644)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{folder:20s} {size / 1000:6.1f} kB  rope {settings.rope_parameters}  largest logit "
          f"{logits.abs().max():.2f}  deviation from float32 {deviation:.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in CASES:
        if case[0] in (sys.argv[1:] or [c[0] for c in CASES]):
            make(*case)
