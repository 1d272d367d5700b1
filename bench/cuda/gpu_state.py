# SPDX-License-Identifier: BSL-1.0
"""The state of runs of bench/gpu_check: a JSON file, from which the next run goes on."""

import glob
import hashlib
import json
import os
import threading

import gpu_process

# pieces: results of programs whose texts are measured a few at a time. out_of_time: how often the time of a
# run was over while a program was at work.
EMPTY = {
    **{"tests": {}, "sanitizer": {}, "programs": {}, "pieces": {}, "partial": {}, "notes": {}},
    **{"cut_off": {}, "out_of_time": {}, "running": {}},
}

# What programs of the device are compiled of and read: suffixes by folder. Of the host's tests and benchmarks
# only the headers count, since tests of the device include some.
HEADERS = (".hpp", ".cuh", ".h")
COMPILED = (*HEADERS, ".cu", ".cpp", ".cmake", ".txt")
READ = (".json", ".jsonl", ".safetensors", ".gguf")
SOURCES = {
    "include": COMPILED,
    "cmake": COMPILED,
    "tests": HEADERS,
    "tests/cuda": COMPILED,
    "tests/gpu": COMPILED,
    "tests/data": READ,
    "bench": HEADERS,
    "bench/cuda": (*COMPILED, *READ, ".py"),
    "bench/prices": READ,
    "examples/c": COMPILED,
    "examples/models": (*HEADERS, *READ),
}


def sources(root):
    """The paths of all files that results on the device depend on, in order."""
    paths = {os.path.join(root, "CMakeLists.txt"), os.path.join(root, "tests", "main.cpp")}
    for folder, suffixes in SOURCES.items():
        for where, _, names in os.walk(os.path.join(root, folder)):
            paths |= {
                os.path.join(where, name)
                for name in names
                if name.endswith(suffixes) and not name.startswith("gpu_")
            }
    return sorted(filter(os.path.isfile, paths))


def digest(root, *more):
    """A digest of the sources, and of more that results depend on."""
    found = hashlib.sha256()
    for path in sources(root):
        found.update(os.path.relpath(path, root).encode() + b"\0")
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                found.update(piece)
    found.update(str(more).encode())
    return found.hexdigest()


class State:
    def __init__(self, folder, of_reports, name, of, again):
        """folder: where the state lies. of_reports: where it is looked for if it is not there.
        name: the report's, without suffix. of: a digest of what results depend on. again: begin anew."""
        self.lock = threading.RLock()
        self.found = None
        # A run that goes on after midnight keeps the same file.
        for place in () if again else (folder, of_reports):
            paths = sorted(glob.glob(os.path.join(place, "*.json")))
            same = [path for path in paths if self.read(path).get("of") == of]
            if same:
                self.found = self.read(same[-1])
                name = os.path.basename(same[-1])[: -len(".json")]
                break
        self.path = os.path.join(folder, name + ".json")
        self.all = {"of": of, **{k: dict((self.found or {}).get(k, v)) for k, v in EMPTY.items()}}

    @staticmethod
    def read(path):
        try:
            with open(path) as file:
                found = json.load(file)
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def __getitem__(self, kind):
        return self.all[kind]

    @property
    def name(self):
        return os.path.basename(self.path)[: -len(".json")]

    def goes_on(self):
        return any(self.all[k] for k in ("tests", "sanitizer", "programs", "pieces"))

    def forget(self, names):
        """Drops results and notes of these tests and programs, also under compute-sanitizer and with other models."""
        with self.lock:
            for kind in EMPTY:
                for key in list(self.all[kind]):
                    if any(key == name or key.startswith((name + ",", name + " ")) for name in names):
                        del self.all[kind][key]

    def forget_notes(self, name):
        with self.lock:
            for key in list(self.all["notes"]):
                if key == name or key.startswith(name + ","):
                    del self.all["notes"][key]

    def note(self, of, text):
        with self.lock:
            self.all["notes"][of] = text

    def save(self, path=None):
        """Writes the state, or a copy of it to another path."""
        path = path or self.path
        with self.lock:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".part", "w") as file:
                json.dump(self.all, file, indent=1)
                file.write("\n")
            os.replace(path + ".part", path)

    # ---- the programs that are running, in case the run itself is ended

    def begin(self, name, pid):
        with self.lock:
            self.all["running"][name] = [pid, gpu_process.start_time(pid)]
            self.save()

    def end(self, name, kind=None, result=None):
        with self.lock:
            self.all["running"].pop(name, None)
            if kind:
                self.all[kind][name] = result
                self.all["cut_off"].pop(name, None)
            self.save()

    def end_leftovers(self):
        """Ends programs that an earlier run left running when it was ended itself, and returns their names. They come
        last from now on, since one of them may have stopped the machine."""
        left = self.all["running"]
        self.all["running"] = {}
        for name, (pid, begun) in left.items():
            if begun is not None and gpu_process.start_time(pid) == begun:
                gpu_process.end_group(pid, patience=0)
            self.all["cut_off"][name] = self.all["cut_off"].get(name, 0) + 1
        self.save()
        return list(left)
