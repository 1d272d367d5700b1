# SPDX-License-Identifier: BSL-1.0
"""Measures peers in Python as the programs beside this file measure the library: in turns, with other data in the
second-level cache before each, as medians and quartiles."""

import argparse
import json
import os
import statistics
import sys
import time

import torch


def arguments(what):
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--json", help="write the figures there")
    parser.add_argument("--inputs", help="folder of inputs that a program of this folder wrote")
    parser.add_argument("--repetitions", type=int, default=101)
    parser.add_argument(
        "--tiny", action="store_true", help="small sizes, once, on the CPU if there is no GPU: shows that it works"
    )
    chosen = parser.parse_args()
    if chosen.tiny:
        chosen.repetitions = 1
    if not torch.cuda.is_available() and not chosen.tiny:
        sys.exit("PyTorch finds no GPU.")
    return chosen


def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def quartiles(values):
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


class Race:
    """Measures entries in turns, in microseconds."""

    def __init__(self, repetitions):
        self.repetitions = repetitions
        self.entries = []
        self.found = []
        if torch.cuda.is_available():
            cache = torch.cuda.get_device_properties(0).L2_cache_size
            self.flushed = torch.ones(4 * cache // 4, dtype=torch.int32, device=device())
        else:
            self.flushed = torch.ones(1024, dtype=torch.int32)

    def add(self, key, what, work, graph=False, host=False, note=""):
        """Adds work. graph: it is replayed as a CUDA graph. host: it is timed by the host's clock, with a wait at the
        end, since the host does a part of it."""
        for _ in range(3):
            work()
        wait()
        run = work
        if graph and torch.cuda.is_available():
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                self.kept = work()
            run = captured.replay
        self.entries.append(
            {
                "key": key,
                "what": what,
                "run": run,
                "host": host or not torch.cuda.is_available(),
                "note": note,
                "times": [],
            }
        )

    def try_add(self, key, what, work, check, note):
        """Adds work as a graph if it runs and check(its result) does not raise. Otherwise reports it: a peer's version
        or a card may lack it."""
        try:
            check(work())
            self.add(key, what, work, graph=True, note=note)
        except (RuntimeError, TypeError, AttributeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"  {what} does not work: {reason}", file=sys.stderr)

    def measure(self):
        """Measures the entries so far and frees them, to make room for others."""
        for repetition in range(-3, self.repetitions):
            for entry in self.entries:
                self.flushed.sum()
                if entry["host"]:
                    wait()
                    start = time.perf_counter()
                    entry["run"]()
                    wait()
                    taken = 1e6 * (time.perf_counter() - start)
                else:
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    entry["run"]()
                    end.record()
                    wait()
                    taken = 1e3 * begin.elapsed_time(end)
                if repetition >= 0:
                    entry["times"].append(taken)

        for entry in self.entries:
            low, median, high = quartiles(entry["times"])
            self.found.append(
                {
                    "key": entry["key"],
                    "what": entry["what"],
                    "unit": "us",
                    "median": median,
                    "low": low,
                    "high": high,
                    "n": len(entry["times"]),
                    "note": entry["note"],
                }
            )
        self.entries = []

    def finish(self, path):
        """Measures the remaining entries, and writes all figures to stderr and to a file."""
        self.measure()
        for figure in self.found:
            print(f"  {figure['what']:<72} {figure['median']:10.2f} {figure['unit']}", file=sys.stderr)
        if path:
            card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
            program = os.path.basename(sys.argv[0])
            with open(path, "w") as file:
                json.dump({"program": program, "card": card, "figures": self.found}, file, indent=1)
                file.write("\n")
