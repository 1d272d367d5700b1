#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Makes tables of prices: what passes of a target and of its draft cost on some machine, by number of rows.

    make.py                        writes the tables of this folder
    make.py --check                says which of them differ from what it would write, and ends with 1 if any does
    make.py --report R --out FILE  the table of another card, from the JSON report R of bench/gpu_check

A program that takes --price reads them. The form is that of the files of `nde costs`, which also measures tables of
the machine at hand.
"""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPORT = HERE.parent.parent / "docs/benchmarks/gpu-nvidia-h100-80gb-hbm3-2026-11-23.json"


def weights(layers, hidden, intermediate, queries, keys, vocabulary):
    """The weights that a pass reads: those of the layers' matrices and of the head.

    A table of embeddings beside the head is not read, but for one row of it."""
    layer = hidden * (2 * queries + 2 * keys + 3 * intermediate)
    return layers * layer + vocabulary * hidden


QWEN3_8B = weights(36, 4096, 12288, 4096, 1024, 151936)
QWEN3_06B = weights(28, 1024, 3072, 2048, 1024, 151936)
BLOCK_DRAFT = weights(5, 4096, 12288, 4096, 1024, 151936)  # 5 of Qwen3-8B's layers and its head
SMOLLM2_17B = weights(24, 2048, 8192, 2048, 2048, 49152)
SMOLLM2_135M = weights(30, 576, 1536, 576, 192, 49152)
LLAMA2_70B = weights(80, 8192, 28672, 8192, 1024, 32000)
LLAMA2_7B = weights(32, 4096, 11008, 4096, 4096, 32000)

ROWS = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024]


def roofline(n_weights, bytes_per_second, products_per_second, bytes_per_weight, rows=ROWS, least=0.0):
    """[rows] seconds of passes that read all weights once and make a product of each weight and each row."""
    reading = max(n_weights * bytes_per_weight / bytes_per_second, least)
    return {n: max(reading, n * n_weights / products_per_second) for n in rows}


class Report:
    """The figures of a report of gpu_check that a table needs."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.report = json.load(file)
        self.card = self.report["machine"]["card"]
        self.date = self.report["machine"]["date"]
        self.target = {}
        for figure in self.figures("measure_forward"):
            rows = figure["key"].removeprefix("forward.")
            if figure["key"].startswith("forward.") and rows.isdigit():
                self.target[int(rows)] = figure["median"] / 1e6
        if not self.target:
            raise SystemExit(f"{path} has no passes of measure_forward: gpu_check --steps build,measure makes them.")
        self.further_kernel = self.one("measure_copy", "launch.further")
        self.round = self.one("measure_round", "round.whole")

    def figures(self, program):
        return self.report["programs"].get(program, {}).get("figures", [])

    def one(self, program, key):
        for figure in self.figures(program):
            if figure["key"] == key:
                return figure["median"] / 1e6
        raise SystemExit(f"the report has no figure {key} of {program}.")

    def table(self, draft, n_weights, layers, where):
        """The table of Qwen3-8B with a draft of this many weights and layers, which is reckoned."""
        kernels = 10 * layers
        share = n_weights / QWEN3_8B
        return {
            "source": f"target and opening measured by {self.report['command']} on {self.date}, {where}: passes after "
            "2048 tokens, and a round without passes; the draft reckoned: the target's seconds by the share of its "
            f"weights, {share:.3f}, and {kernels} launches of {1e6 * self.further_kernel:.2f} us",
            "hardware": self.card,
            "target": "Qwen3-8B's shape, bfloat16",
            "draft": draft,
            "opening_seconds": self.round,
            "draft_pass": {n: share * t + kernels * self.further_kernel for n, t in self.target.items()},
            "target_pass": self.target,
        }


def h100():
    return Report(REPORT).table("Qwen3-0.6B's shape, bfloat16", QWEN3_06B, 28, f"docs/benchmarks/{REPORT.name}")


def h100_block():
    return Report(REPORT).table(
        "a block draft of 5 layers of Qwen3-8B's shape and its head, bfloat16", BLOCK_DRAFT, 5,
        f"docs/benchmarks/{REPORT.name}")


def phone():
    # 4 channels of 16 bits at 4800 MHz, two transfers a clock; SMMLA instructions of 32 products.
    reached = 0.8 * 4800e6 * 2 * 8
    products = 0.6 * 32 * (4 * 3.3e9 + 2 * (3 * 3.2e9 + 2 * 3.0e9))
    return {
        "source": "reckoned, nothing measured: the longer of reading all weights at 0.8 of 76.8 GB/s (64 bits of "
        "LPDDR5X at 4800 MHz) and of making all products at 0.6 of the 1.42e12 a second of its large cores (one "
        "Cortex-X4 at 3.3 GHz, three Cortex-A720 at 3.2 and two at 3.0; 4 and 2 SMMLA instructions of 32 8-bit "
        "products a cycle). Memory and clocks: Qualcomm's announcement of the Snapdragon 8 Gen 3, October 2023; "
        "instructions a cycle: Arm's software optimization guides of the two cores",
        "hardware": "a phone with a Snapdragon 8 Gen 3, its processor",
        "target": "SmolLM2-1.7B's shape, 8 bits a weight",
        "draft": "SmolLM2-135M's shape, 8 bits a weight",
        "opening_seconds": 0.0,
        "draft_pass": roofline(SMOLLM2_135M, reached, products, 1),
        "target_pass": roofline(SMOLLM2_17B, reached, products, 1),
    }


def offloaded():
    # The mean of the six baselines of Table 3; they write a token in a pass.
    step = sum([5.59650, 5.34781, 5.52462, 5.30340, 5.31049, 5.29280]) / 6
    products = 0.5 * 312e12 / 2
    rows = ROWS + [4096, 8192]
    return {
        "source": "as DySpec's paper reports its setting, not measured here: a pass of the target over one row takes "
        f"{step:.2f} s, the mean of the baselines of its Table 3, since all weights come over the bus; one of the "
        "draft 25 ms; reckoned beyond one row: both as long as products at half of the card's 312 TFLOP/s in bfloat16 "
        "(NVIDIA's data sheet of the A100) take no longer",
        "hardware": "NVIDIA A100 40GB, the target's weights in the host's memory",
        "target": "Llama2-70B's shape, 16 bits a weight",
        "draft": "Llama2-7B's shape, 16 bits a weight",
        "opening_seconds": 0.0,
        "draft_pass": roofline(LLAMA2_7B, 1.0, products, 0, rows, least=0.025),
        "target_pass": roofline(LLAMA2_70B, 1.0, products, 0, rows, least=step),
    }


def epyc():
    # docs/benchmarks/forward_passes.md, as stored, integer products.
    target = {1: 0.0101, 2: 0.0112, 4: 0.0133, 8: 0.0231, 16: 0.0423, 32: 0.0831}
    # nde costs, 2026-11-24, on an EPYC (Zen 4) with 2 threads, after 16 tokens, when the draft had all 49,152 tokens:
    # microseconds of its passes by rows, and seconds of a pass of the target over one row and of opening a round.
    draft = {
        1: 334.862, 2: 384.9415, 3: 475.772, 4: 584.9135, 6: 706.314, 8: 881.334, 12: 1224.8645,
        16: 1551.4995, 24: 2253.272, 32: 2976.9415, 48: 4517.079, 64: 6050.732
    }
    ratio, opening = target[1] / 0.003080115, 0.000282735
    return {
        "source": "target measured by bench_micro_weight_forms --threads 1 --rounds 7 --rows 1,2,4,8,16,32 on "
        "2026-11-25, docs/benchmarks/forward_passes.md: processor time, nothing else running; the draft and the "
        "opening reckoned: nde costs, 2026-11-24, another EPYC, after 16 tokens, a draft of all tokens, "
        f"times {ratio:.2f}, by which the target's pass over one row is longer here; lscpu: AMD EPYC, family 25, "
        "model 1 (Zen 3), AVX2",
        "hardware": "AMD EPYC (Zen 3), 1 thread",
        "target": "SmolLM2-135M, Q4_1, integer products",
        "draft": "the bundled draft of SmolLM2",
        "opening_seconds": ratio * opening,
        "draft_pass": {n: ratio * 1e-6 * t for n, t in draft.items()},
        "target_pass": target,
    }


TABLES = {
    "h100_qwen3_8b.json": h100,
    "h100_qwen3_8b_block.json": h100_block,
    "phone_smollm2_1.7b.json": phone,
    "offloaded_llama2_70b.json": offloaded,
    "epyc_smollm2_135m.json": epyc,
}


def text(table):
    """The table as a file: a line for each number of rows."""
    def curve(passes):
        seconds = ",\n      ".join(f"[{t:.6g}]" for t in passes.values())
        return f'{{\n    "rows": {list(passes)},\n    "contexts": [0],\n    "seconds": [\n      {seconds}\n    ]\n  }}'

    lines = ['"format": "espalier-costs 1"']
    for key, value in table.items():
        if isinstance(value, dict):
            lines.append(f'"{key}": {curve(value)}')
        else:
            lines.append(f'"{key}": {json.dumps(float(f"{value:.6g}") if isinstance(value, float) else value)}')
    return "{\n  " + ",\n  ".join(lines) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
    parser.add_argument("--report", help="JSON report of bench/gpu_check")
    parser.add_argument("--out", help="the table to write from --report")
    arguments = parser.parse_args()
    if bool(arguments.report) != bool(arguments.out):
        parser.error("--report and --out go together.")
    if arguments.report:
        report = Report(arguments.report)
        made = report.table("Qwen3-0.6B's shape, bfloat16", QWEN3_06B, 28, pathlib.Path(arguments.report).name)
        pathlib.Path(arguments.out).write_text(text(made), encoding="utf-8")
        return 0
    differing = 0
    for name, make in TABLES.items():
        path = HERE / name
        made = text(make())
        if not arguments.check:
            path.write_text(made, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != made:
            differing += 1
            print(f"{path} differs from what {HERE.name}/make.py writes.")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
