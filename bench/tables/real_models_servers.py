#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""bench_tables_real_models beside llama.cpp's own speculative and look-up decoding: starts llama.cpp's server once for
each of its settings, on loopback, and the benchmark, which takes turns between its methods and all servers.

    pip install gguf numpy
    python real_models_servers.py --server llama-server --bench build/bench/bench_tables_real_models \\
        --model TARGET.gguf --draft examples/models/smollm2/draft [--files OTHER.gguf,...] [-- BENCHMARK'S ARGUMENTS]

The draft, a folder in Hugging Face's layout (Llama, matrices as they are or of 8 bits with row scales), is written as a
GGUF of Q8_0 with the target's tokenizer, for llama.cpp; --keep names the file. llama-server is of llama.cpp's sources,
for example those in the sdist of llama-cpp-python 0.3.36:

    cmake -S vendor/llama.cpp -B b -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF && cmake --build b -t llama-server
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import gguf
import numpy as np

# Beside plain decoding: the defaults of each of llama.cpp's ways, and shorter n-grams and runs, since long runs are
# expensive in rounds of a small model.
SETTINGS = {
    "plain": [],
    "ngram-simple": ["--spec-type", "ngram-simple"],
    "ngram-simple 3 4": ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "4"],
    "ngram-simple 2 8": ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "8"],
    "ngram-map-k 3 8": ["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "3", "--spec-ngram-map-k-size-m", "8"],
    "ngram-mod": ["--spec-type", "ngram-mod"],
    "ngram-cache": ["--spec-type", "ngram-cache"],
}
DRAFTED = {f"draft {n}": ["--spec-type", "draft-simple", "--spec-draft-n-max", str(n)] for n in (2, 3, 4, 8)}
DRAFTED["draft 8 p 0.5"] = [*DRAFTED["draft 8"], "--spec-draft-p-min", "0.5"]


def tensors_of(folder):
    """Names and F32 arrays of a safetensors file; int8 rows times their scales."""
    blob = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header, data = json.loads(blob[8 : 8 + length]), blob[8 + length :]
    types = {"F32": np.float32, "F16": np.float16, "I8": np.int8}
    raw = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in types:
            raise SystemExit(f"{folder}: tensor {name} is of type {entry['dtype']}; F32, F16 and I8 are known.")
        begin, end = entry["data_offsets"]
        raw[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"]).astype(np.float32)
    scaled = {}
    for name, values in raw.items():
        if not name.endswith(".weight_scale"):
            scale = raw.get(name.removesuffix(".weight") + ".weight_scale")
            scaled[name] = values if scale is None else values * scale[:, None]
    return scaled


def write_draft(folder, target, path):
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    if config.get("model_type") != "llama" or not config.get("tie_word_embeddings"):
        raise SystemExit(f"{folder} is no Llama with one matrix for both ends of its vocabulary; others are not written.")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    for field in gguf.GGUFReader(target).fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            out.add_key_value(field.name, field.contents(), kind, sub)

    def interleaved(rows, n):  # llama.cpp rotates neighbours, Hugging Face halves
        return rows.reshape(n, 2, rows.shape[0] // n // 2, -1).swapaxes(1, 2).reshape(rows.shape)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, values in tensors_of(folder).items():
        if name.endswith("q_proj.weight"):
            values = interleaved(values, heads)
        if name.endswith("k_proj.weight"):
            values = interleaved(values, kv_heads)
        to = names.get_name(name, try_suffixes=(".weight",))
        if values.ndim == 1:
            out.add_tensor(to, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            out.add_tensor(to, gguf.quantize(values, kind), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def wait_for(url, process, name, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"llama-server, {name}, has ended with status {process.returncode}; --logs FOLDER keeps what it said.")
        try:
            with urllib.request.urlopen(url + "/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"llama-server, {name}, is not ready after {seconds} s.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--server", required=True, help="llama.cpp's program llama-server")
    parser.add_argument("--bench", required=True, help="bench_tables_real_models")
    parser.add_argument("--model", required=True, help="GGUF of the target")
    parser.add_argument("--draft", help="folder of the draft")
    parser.add_argument("--files", default="", help="other GGUF files of the target, for llama.cpp alone, with commas")
    parser.add_argument("--keep", help="where the draft's GGUF is written, and left")
    parser.add_argument("--logs", help="folder for what the servers say")
    parser.add_argument("--port", type=int, default=18100, help="the first of the ports [18100]")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each engine [one a processor]")
    parser.add_argument("rest", nargs="*", help="further arguments of the benchmark, after --")
    given = parser.parse_args()

    files = [given.model, *filter(None, given.files.split(","))]
    settings = dict(SETTINGS)
    servers, named = [], []
    with tempfile.TemporaryDirectory() as folder:
        if given.draft:
            draft = given.keep or os.path.join(folder, "draft.gguf")
            write_draft(given.draft, given.model, draft)
            settings |= {name: [*options, "--model-draft", draft] for name, options in DRAFTED.items()}
        threads = ["--threads", str(given.threads), "--threads-batch", str(given.threads)]
        threads_draft = ["--spec-draft-threads", str(given.threads), "--spec-draft-threads-batch", str(given.threads)]
        try:
            for file in files:
                for name, options in settings.items():
                    port = given.port + len(servers)
                    shown = f"llama-server {name} {pathlib.Path(file).name}".replace(",", " ")
                    log = open(os.path.join(given.logs, f"{port}.log"), "w") if given.logs else subprocess.DEVNULL
                    command = [given.server, "--model", file, "--host", "127.0.0.1", "--port", str(port), "--ctx-size", "2048",
                               "--parallel", "1", *threads, *(threads_draft if "--model-draft" in options else []), *options]
                    servers.append(subprocess.Popen(command, stdout=log, stderr=log))
                    named.append(f"{shown}=http://127.0.0.1:{port}")
                    wait_for(f"http://127.0.0.1:{port}", servers[-1], shown)
                    print(f"\r{len(servers)} of {len(files) * len(settings)} servers", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
            command = [given.bench, "--model", given.model, "--threads", str(given.threads)]
            command += ["--draft", given.draft] if given.draft else []
            return subprocess.call([*command, "--llama-server", ",".join(named), *given.rest])
        finally:
            for server in servers:
                server.terminate()
            for server in servers:
                server.wait()


if __name__ == "__main__":
    sys.exit(main())
