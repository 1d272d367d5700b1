# SPDX-License-Identifier: BSL-1.0
"""The state of runs of bench/gpu_check: a JSON file beside the report, from which the next run goes on."""

import glob
import json
import os
import threading

import gpu_process

EMPTY = {"tests": {}, "sanitizer": {}, "programs": {}, "partial": {}, "notes": {}, "cut_off": {}, "running": {}}


class State:
    def __init__(self, folder, name, of, again):
        """name: the report's, without suffix. of: a digest of everything that results depend on. again: begin anew."""
        self.folder = folder
        self.lock = threading.RLock()
        self.found = None
        # A run that goes on after midnight keeps the same file.
        same = (
            []
            if again
            else [path for path in sorted(glob.glob(os.path.join(folder, "*.json"))) if self.read(path).get("of") == of]
        )
        if same:
            self.path = same[-1]
            self.found = self.read(self.path)
        else:
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
        return any(self.all[k] for k in ("tests", "sanitizer", "programs"))

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

    def save(self):
        with self.lock:
            os.makedirs(self.folder, exist_ok=True)
            with open(self.path + ".part", "w") as file:
                json.dump(self.all, file, indent=1)
                file.write("\n")
            os.replace(self.path + ".part", self.path)

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
