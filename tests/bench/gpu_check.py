# SPDX-License-Identifier: BSL-1.0
"""bench/gpu_check without a GPU: what it does is told by programs that stand for nvcc, CMake, the tests and the card.

python3 tests/bench/gpu_check.py [NAME...]
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "cuda"))

import gpu_models  # noqa: E402
import gpu_process  # noqa: E402
import gpu_state  # noqa: E402

UNDER = ("plain", "memcheck", "racecheck", "synccheck")

# One program stands for all: by the name that it is called by. What it is asked is a line of the file `calls`; what it
# is to do besides is in the file `orders`, by name.
STAND_IN = r"""
import json, os, re, signal, sys, time
place = os.environ["STAND_IN"]
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.path.join(place, "orders")) as file:
    orders = json.load(file)

def call(what):
    with open(os.path.join(place, "calls"), "a") as file:
        file.write(what + "\n")

def cases_of(program):
    return orders["cases"].get(program, [])

def chosen(program):
    cases = cases_of(program)
    if "-f" in words:
        with open(words[words.index("-f") + 1]) as file:
            wanted = [re.sub(r"\\(.)", r"\1", line.strip()[1:-1]) for line in file]
        cases = [case for case in cases if case in wanted]
    return cases

def test(program):
    cases = chosen(program)
    if "[refused]" in words:
        cases = [case for case in cases if case in orders["refused"]]
    if "--list-tests" in words and program in orders["unlisted"]:
        return sys.exit(2)
    if "--list-tests" in words and orders["catch"] == 3:
        return print("\n".join(cases))
    if "--list-tests" in words:
        print("All available test cases:\n" + "\n".join("  " + case for case in cases))
        return sys.exit(len(cases))
    if "--list-test-names-only" in words:
        print("\n".join(cases))
        return sys.exit(len(cases))
    under = next((tool for tool in ("memcheck", "racecheck", "synccheck") if tool in words), "plain")
    status = 0
    for case in cases:
        order = orders["of"].get(f"{under}: {case}") or orders["of"].get(case, "")
        if order == "vanish":
            continue
        call(f"{under}: {case}")
        if order == "hang":
            def say(*_):
                line = "-" * 79
                print(f"{line}\n{case}\n{line}\nx: FAILED:\ndue to a fatal error condition:\n  SIGTERM", flush=True)
                os._exit(1)
            signal.signal(signal.SIGTERM, say if orders["speaks"] else signal.SIG_IGN)
            time.sleep(1000)
        if order == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "fail":
            print(f"{case}: FAILED")
            status = 1
        if order == "wait":
            time.sleep(orders["wait"])
        if order == "refused" and under == "memcheck" and "--report-api-errors" not in words:
            print("========= Program hit cudaErrorMemoryAllocation (error 2) on CUDA API call to cudaMalloc.")
            print("========= ERROR SUMMARY: 1 error")
            sys.exit(9)
        print(f"0.010 s: {case}", flush=True)
    if under != "plain":
        print("========= " + ("RACECHECK SUMMARY: 0 hazards" if under == "racecheck" else "ERROR SUMMARY: 0 errors"))
    sys.exit(status)

def programs():
    return [os.path.join(orders["build"], "tests", "gpu", p) for p in orders["cases"]]

def stand(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        os.symlink(os.path.realpath(sys.argv[0]), path)

if name == "nvidia-smi":
    print("A Card, 580.0, 9.0, 81559 MiB")
elif name == "nvcc":
    print("Cuda compilation tools, release 13.0, V13.0.88")
elif name == "cmake" and "--version" in words:
    print("cmake version 3.28.0")
elif name == "cmake" and "help" in words:
    print("\n".join([*orders["cases"], *orders["measures"], "other"]).replace("\n", ": phony\n"))
elif name == "cmake" and "--build" in words:
    call("build")
    if orders["of"].get("build") == "wait":
        time.sleep(orders["wait"])
    for path in programs() + [os.path.join(orders["build"], "bench", "cuda", m) for m in orders["measures"]]:
        stand(path)
elif name == "cmake":
    call("configure")
elif name == "ctest":
    tests = [{"name": "gpu." + os.path.basename(p)[4:], "command": [p]} for p in programs()]
    tests += [{"name": n, "command": ["cmake", "-E", "echo", why]} for n, why in orders["left out"].items()]
    print(json.dumps({"tests": tests}))
elif name == "compute-sanitizer":
    at = next(i for i, word in enumerate(words) if os.sep in word)
    if "measure_copy" in words[at]:
        sys.exit(0)
    test(os.path.basename(words[at]))
elif name.startswith(("measure_", "emulated_")):
    call(name + (" of " + words[words.index("--models") + 1] if "--models" in words else ""))
    order = orders["of"].get(name)
    texts = []
    if "--times-plain" in words:
        with open(words[words.index("--prompts") + 1]) as file:
            texts = [json.loads(line)["tokens"][0] for line in file]
        call(f"texts {texts}")
        order = orders["of"].get(f"text {texts[0]}", order)
    if order == "wait":
        time.sleep(orders["wait"])
    def figure(key, what, unit, value, **more):
        return {"key": key, "what": what, "unit": unit, "median": value, "low": 1, "high": 3, "n": 3, **more}
    figures = [figure(name, name, "us", 9 if order == "miss" else 2, limit=5)]
    if texts:
        note = "9.99 times plain; 4.00 tokens a round; every text is plain decoding's"
        figures = [
            figure("decoding.0", "plain, greedy", "tokens/s", 10.0, note=note),
            figure("decoding.1", "best_first (DDTree), greedy", "tokens/s", 10.0 * texts[0], note=note),
            figure("decoding.differing.1", "texts that differ", "texts", 1),
            figure("decoding.published.0", "the best tree", "of plain", 1 / texts[0], limit=1 / 7.52),
        ]
    if order != "fail":
        with open(words[words.index("--json") + 1], "w") as file:
            json.dump({"program": name, "card": "A Card", "figures": figures}, file)
    sys.exit(1 if order in ("fail", "throw") else 0)
elif name.startswith("gpu_"):
    test(name)
"""


class Scene:
    """A machine of stand-ins in a folder of its own, with few sources."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="gpu_check")
        self.root = os.path.join(self.folder, "root")
        os.makedirs(os.path.join(self.root, "bench", "cuda"))
        os.makedirs(os.path.join(self.root, "include"))
        shutil.copy(os.path.join(ROOT, "bench", "gpu_check"), os.path.join(self.root, "bench"))
        for name in os.listdir(os.path.join(ROOT, "bench", "cuda")):
            if name.endswith((".py", ".jsonl")):
                shutil.copy(os.path.join(ROOT, "bench", "cuda", name), os.path.join(self.root, "bench", "cuda"))
        self.add("bench/cuda/gpu_peers.py", "\nPEERS = []\n")
        models = os.path.join("examples", "models")
        os.makedirs(os.path.join(self.root, models))
        os.symlink(os.path.join(ROOT, models, "smollm2"), os.path.join(self.root, models, "smollm2"))
        self.build = os.path.join(self.folder, "build")
        self.out = os.path.join(self.folder, "out")
        os.makedirs(os.path.join(self.folder, "bin"))
        own = os.path.join(self.folder, "bin", "stand_in")
        with open(own, "w") as file:
            file.write(f"#!{sys.executable} -IS\n{STAND_IN}")  # starts in half the time
        os.chmod(own, os.stat(own).st_mode | stat.S_IXUSR)
        for name in ("nvidia-smi", "nvcc", "cmake", "ctest", "compute-sanitizer"):
            os.symlink(own, os.path.join(self.folder, "bin", name))
        self.orders = {
            "build": self.build,
            "cases": {
                "gpu_core": ["one", "two, with a comma", "three [not a tag]"],
                "gpu_other": ["four", "five"],
                "gpu_linked": [],
            },
            "measures": ["measure_copy", "measure_tree", "measure_decoding"],
            "refused": [],
            "unlisted": [],
            "left out": {},
            "of": {},
            "catch": 2,
            "speaks": True,
            "wait": 0,
        }
        self.limits = {"PROGRAMS": dict.fromkeys(self.orders["measures"], 30)}
        self.said = ""

    def add(self, path, text):
        os.makedirs(os.path.dirname(os.path.join(self.root, path)), exist_ok=True)
        with open(os.path.join(self.root, path), "a") as file:
            file.write(text)

    def start(self, *arguments):
        with open(os.path.join(self.folder, "orders"), "w") as file:
            json.dump(self.orders, file)
        environment = {**os.environ, "STAND_IN": self.folder, "PYTHON": os.path.join(self.folder, "none")}
        environment["PATH"] = os.path.join(self.folder, "bin") + os.pathsep + environment["PATH"]
        environment["GPU_CHECK_LIMITS"] = json.dumps(self.limits)
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                SHORT_LIMITS,
                os.path.join(self.root, "bench", "gpu_check"),
                "--build",
                self.build,
                "--out",
                self.out,
                "--no-pip",
                "--jobs",
                "4",
                *arguments,
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments, seconds=60):
        process = self.start(*arguments)
        self.said, _ = process.communicate(timeout=seconds)
        return process.returncode

    def calls(self):
        path = os.path.join(self.folder, "calls")
        if not os.path.exists(path):
            return []
        with open(path) as file:
            return file.read().splitlines()

    def new_calls(self):
        before, self.seen = getattr(self, "seen", 0), len(self.calls())
        return self.calls()[before:]

    def state(self):
        folder = os.path.join(self.build, "gpu_check.state")
        name = next(name for name in os.listdir(folder) if name.endswith(".json"))
        with open(os.path.join(folder, name)) as file:
            return json.load(file)

    def report(self):
        name = next(name for name in os.listdir(self.out) if name.endswith(".md"))
        with open(os.path.join(self.out, name)) as file:
            return file.read()

    def remove(self):
        shutil.rmtree(self.folder)


# gpu_check itself, with limits that a test can wait for.
SHORT_LIMITS = r"""
import json, os, re, sys
sys.argv = sys.argv[1:]
own = open(sys.argv[0]).read()
for name, value in json.loads(os.environ["GPU_CHECK_LIMITS"]).items():
    old = re.compile(rf"\n{name} = (\{{\n.*?\n\}}|[^\n]*)", re.S)
    own, found = old.subn(lambda _: f"\n{name} = {value!r}", own, count=1)
    assert found, name
exec(compile(own, sys.argv[0], "exec"), {"__name__": "__main__", "__file__": sys.argv[0]})
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.scene = Scene()
        self.addCleanup(self.scene.remove)

    def in_report(self, words):
        self.assertIn(words, self.scene.report())

    def test_a_whole_run_and_then_nothing_is_left_to_do(self):
        for catch in (2, 3):
            with self.subTest(catch=catch):
                scene = self.scene if catch == 2 else Scene()
                scene.orders["catch"] = catch
                self.assertEqual(scene.run(), 0, scene.said)
                calls = scene.new_calls()
                for case in ("one", "two, with a comma", "three [not a tag]", "four", "five"):
                    for under in UNDER:
                        self.assertEqual(calls.count(f"{under}: {case}"), 1, scene.said)
                self.assertEqual(calls[:2], ["configure", "build"])
                tools = [call.partition(":")[0] for call in calls if "check:" in call]
                self.assertNotIn("synccheck", tools[:10])
                state = scene.state()
                self.assertEqual({t["result"] for t in state["tests"].values()}, {"passed"})
                self.assertEqual(set(state["programs"]), {"measure_copy", "measure_tree", "measure_decoding"})
                self.assertEqual(state["running"], {})
                self.assertIn("| measure_tree | 2.0 µs |", scene.report())
                self.assertEqual(scene.run(), 0)
                self.assertEqual(scene.new_calls(), [])
                self.assertEqual(scene.run("--again", "measure_tree,gpu.other"), 0)
                calls = [f"{under}: {case}" for under in UNDER for case in ("four", "five")]
                self.assertEqual(sorted(scene.new_calls()), sorted(["measure_tree", *calls]))
                if scene is not self.scene:
                    scene.remove()

    def test_a_run_that_is_killed_goes_on_where_it_was(self):
        for step, at, finished, rest in (
            ("build", "build", [], ["configure", "build", "plain: one"]),
            ("tests", "four", ["plain: one"], ["plain: four", "measure_copy"]),
            ("programs", "measure_tree", ["plain: one", "measure_copy"], ["measure_tree", "measure_decoding"]),
            ("sanitizer", "racecheck: five", ["plain: one", "measure_tree"], ["racecheck: five"]),
        ):
            with self.subTest(step=step):
                scene = Scene()
                scene.orders["of"][at] = "wait"
                scene.orders["wait"] = 1000
                process = scene.start()
                waited = "plain: four" if at == "four" else at
                until = time.monotonic() + 40
                while waited not in scene.calls() and time.monotonic() < until:
                    time.sleep(0.05)
                time.sleep(0.7)
                process.send_signal(signal.SIGKILL)
                process.communicate()
                before = scene.new_calls()
                self.assertIn(waited, before)
                for call in finished:
                    self.assertIn(call, before)
                left = [pid for pid, _ in scene.state()["running"].values()] if os.path.isdir(scene.out) else []
                scene.orders["of"] = {}
                self.assertEqual(scene.run(), 0, scene.said)
                after = scene.new_calls()
                for call in finished:
                    self.assertNotIn(call, after)
                for call in rest:
                    self.assertIn(call, after)
                # What it left running was ended.
                self.assertFalse(any(gpu_process.is_at_work(pid) for pid in left))
                scene.remove()

    def test_a_hang_is_ended_and_named_and_the_cases_after_it_run(self):
        for speaks in (True, False):
            with self.subTest(speaks=speaks):
                scene = Scene()
                scene.limits["HANG_SECONDS, HANGS, TEST_SECONDS"] = (5, 2, 60)
                scene.orders["speaks"] = speaks
                scene.orders["of"]["plain: two, with a comma"] = "hang"
                self.assertEqual(scene.run("--steps", "build,test", seconds=60), 1)
                calls = scene.new_calls()
                self.assertEqual(calls.count("plain: one"), 1)
                self.assertEqual(calls.count("plain: two, with a comma"), 1)
                self.assertEqual(calls.count("plain: three [not a tag]"), 1)
                self.assertIn("plain: four", calls)
                self.assertEqual(scene.state()["tests"]["gpu.core"]["result"], "hangs")
                self.assertRegex(
                    scene.report(), r'gpu\.core hangs in "two, with a comma": it was stopped after \d+ s\.'
                )
                self.assertIn("- gpu.core: hangs\n", scene.report())
                self.assertEqual(scene.run("--steps", "build,test,sanitize"), 1)
                self.assertIn('did not come to an end of "two, with a comma": not checked', scene.report())
                cases = scene.state()["sanitizer"]["gpu.core, memcheck"]["cases"]
                self.assertEqual(cases["two, with a comma"], "not run")
                calls = scene.new_calls()
                self.assertFalse([call for call in calls if "two, with a comma" in call or call.startswith("plain")])
                self.assertIn("racecheck: three [not a tag]", calls)
                scene.remove()

    def test_a_program_that_hangs_twice_is_given_up(self):
        self.scene.limits["HANG_SECONDS, HANGS, TEST_SECONDS"] = (4, 2, 60)
        self.scene.orders["cases"] = {"gpu_core": ["one", "two", "three"]}
        self.scene.orders["of"] = {"plain: one": "hang", "plain: two": "hang"}
        self.assertEqual(self.scene.run("--steps", "build,test,sanitize"), 1, self.scene.said)
        self.assertEqual(self.scene.new_calls(), ["configure", "build", "plain: one", "plain: two"])
        cases = self.scene.state()["sanitizer"]["gpu.core, synccheck"]["cases"]
        self.assertEqual(cases, dict.fromkeys(("one", "two", "three"), "not run"))

    def test_other_sources_are_checked_anew(self):
        self.assertEqual(self.scene.run("--steps", "build,test"), 0)
        self.scene.new_calls()
        for path in (
            "include/new.hpp",
            "CMakeLists.txt",
            "bench/cuda/prompts.jsonl",
            "examples/models/prompts_file.hpp",
            "examples/models/target/model.safetensors",
        ):
            with self.subTest(path=path):
                self.scene.add(path, "changed")
                self.assertEqual(self.scene.run("--steps", "build,test"), 0)
                calls = self.scene.new_calls()
                self.assertIn("build", calls)
                self.assertIn("plain: one", calls)

    def test_sources_that_decide_no_result_are_left_out(self):
        self.assertEqual(self.scene.run("--steps", "build,test"), 0)
        self.scene.new_calls()
        for path in (
            "bench/cuda/gpu_report.py",
            "include/notes.md",
            "tests/core/arrays.cpp",
            "tests/CMakeLists.txt",
            "bench/host.cpp",
        ):
            self.scene.add(path, "# changed\n")
        self.assertEqual(self.scene.run("--steps", "build,test"), 0)
        self.assertEqual(self.scene.new_calls(), [])

    def test_failures_and_crashes_are_results_and_told(self):
        self.scene.orders["of"] = {"plain: four": "fail", "plain: one": "crash", "measure_tree": "fail"}
        self.assertEqual(self.scene.run("--steps", "build,test,measure"), 1)
        calls = self.scene.new_calls()
        self.assertEqual(calls.count("plain: three [not a tag]"), 1)
        self.assertEqual(calls.count("plain: five"), 1)
        state = self.scene.state()
        self.assertEqual(state["tests"]["gpu.other"]["result"], "failed")
        self.assertEqual(state["tests"]["gpu.core"]["result"], "failed")
        self.assertEqual(state["tests"]["gpu.core"]["stopped_in"], ["one"])
        self.assertIn("four: FAILED", self.scene.report())
        self.assertIn("measure_tree failed (status 1).", self.scene.report())
        self.assertEqual(self.scene.run("--steps", "build,test,measure"), 1)
        self.assertEqual(self.scene.new_calls(), [])

    def test_what_does_not_fit_the_time_is_left_for_the_next_run(self):
        self.scene.orders["of"] = {"measure_tree": "wait"}
        self.scene.orders["wait"] = 1000
        started = time.monotonic()
        self.scene.run("--time-limit", "20")
        self.assertLess(time.monotonic() - started, 26)
        self.assertNotIn("measure_tree", self.scene.state()["programs"])
        self.assertIn("- measure_tree\n", self.scene.report())
        self.scene.new_calls()
        self.scene.orders["of"] = {}
        self.assertEqual(self.scene.run(), 0)
        after = self.scene.new_calls()
        self.assertIn("measure_tree", after)
        self.assertNotIn("plain: one", after)

    def test_a_refused_call_that_a_test_asks_for_is_no_error(self):
        self.scene.orders["of"] = {"four": "refused"}
        self.assertEqual(self.scene.run("--steps", "build,test,sanitize"), 1)
        self.assertEqual(self.scene.state()["sanitizer"]["gpu.other, memcheck"]["cases"]["four"], "failed")
        scene = Scene()
        self.addCleanup(scene.remove)
        scene.orders["of"] = {"four": "refused"}
        scene.orders["refused"] = ["four"]
        self.assertEqual(scene.run("--steps", "build,test,sanitize"), 0, scene.said)
        self.assertEqual(scene.state()["sanitizer"]["gpu.other, memcheck"]["cases"], {"four": "clean", "five": "clean"})

    def test_a_long_part_is_run_again_case_by_case(self):
        self.scene.limits["CASE_SECONDS, PART_SECONDS"] = (3, 4)
        self.scene.orders["cases"] = {"gpu_other": ["four", "five", "six"]}
        self.scene.orders["of"] = {"racecheck: five": "hang"}
        self.scene.orders["speaks"] = False
        self.assertEqual(self.scene.run("--steps", "build,test,sanitize"), 1, self.scene.said)
        cases = self.scene.state()["sanitizer"]["gpu.other, racecheck"]["cases"]
        self.assertEqual(cases, {"four": "clean", "five": "not finished, nothing found until then", "six": "clean"})

    def test_models_are_measured_with_what_goes_with_them(self):
        folder = os.path.join(self.scene.folder, "smollm2-x")
        os.makedirs(folder)
        alone = os.path.join(self.scene.folder, "alone")
        os.makedirs(alone)
        with open(os.path.join(alone, "prompts.jsonl"), "w") as file:
            file.write('{"tokens": [1]}')
        self.scene.orders["measures"].append("measure_trees")
        models = [word for path in (folder, alone, "/nowhere/x.gguf") for word in ("--models", path)]
        self.assertEqual(self.scene.run("--steps", "build,measure", *models), 1)
        calls = self.scene.new_calls()
        for program, model in (("decoding", folder), ("trees", folder), ("decoding", alone)):
            self.assertIn(f"measure_{program} of {model}", calls)
        self.assertNotIn("measure_trees of " + alone, calls)
        self.in_report("measure_trees of alone: not measured, since no smaller model is given")
        programs = self.scene.state()["programs"]
        self.assertIn(
            "examples/models/smollm2/draft".split("/")[-1], programs["measure_decoding of smollm2-x"]["command"]
        )
        self.assertIn("x.gguf was not measured: there is no /nowhere/x.gguf.", self.scene.report())
        self.assertEqual(self.scene.run("--models", "x,drafts=y"), 2)
        self.assertIn('"drafts=y" is none of draft=PATH, block=PATH, prompts=PATH.', self.scene.said)

    def model_folder(self, name, config):
        """Makes a model's folder that has its configuration alone, and returns its path."""
        path = os.path.join(self.scene.folder, name)
        os.makedirs(path)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump(config, file)
        return path

    def test_published_drafters_are_measured_against_what_was_published(self):
        folder = self.model_folder
        qwen = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36}
        target = folder("qwen", qwen)
        small = folder("small", {**qwen, "hidden_size": 1024})
        dflash = folder("dflash", {"architectures": ["DFlashDraftModel"], "dflash_config": {}})
        dspark = folder("dspark", {"speculators_model_type": "dspark"})
        eagle3 = folder("eagle3", {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"})
        prompts = os.path.join(self.scene.folder, "prompts.jsonl")
        with open(prompts, "w") as file:
            file.write('{"tokens": [1]}')

        def run(*pairs):
            words = [word for pair in pairs for word in ("--published", pair)]
            return self.scene.run("--steps", "build,measure", *words)

        self.assertEqual(run(f"qwen3-8b-dflash={target},block={dflash},prompts={prompts}"), 5)
        self.assertIn("measure_decoding of " + target, self.scene.new_calls())
        self.assertNotIn("measure_trees of " + target, self.scene.calls())
        command = self.scene.state()["programs"]["measure_decoding of qwen3-8b-dflash"]["command"]
        self.assertIn("--times-plain 7.52,6.59", command)
        self.assertIn("--tokens 1024", command)
        report = self.scene.report()
        self.assertNotIn("(--published qwen3-8b-dflash=", report)
        blocks = ("dflash", "dflash-speculators", "dflash-gguf", "dspark", "dflash2", "dflash2-speculators", "xpress")
        for name in blocks:
            self.assertIn(
                f"not measured, since the files are not given (--published {name}=TARGET,block=DRAFT).", report
            )
        for name in ("eagle3", "eagle3-speculators", "eagle3-gguf", "mtp-speculators"):
            self.assertIn(f"(--published {name}=TARGET,draft=DRAFT).", report)
        self.assertIn("(--published peagle-speculators=TARGET,block=DRAFT).", report)
        with_prompts = f",prompts={prompts}"
        self.assertEqual(run(f"eagle3={target},draft={eagle3}{with_prompts}"), 0, self.scene.said)
        command = self.scene.state()["programs"]["measure_decoding of eagle3"]["command"]
        self.assertIn("--draft eagle3 ", command)
        self.assertNotIn("--times-plain", command)
        run(
            f"qwen3-8b-dflash={small},block={dflash}{with_prompts}",
            f"dflash={target},block={dspark}{with_prompts}",
            f"dspark={target},block={self.scene.folder}/nowhere{with_prompts}",
            f"dflash-gguf={target},block={prompts}{with_prompts}",
            f"mtp-speculators={target},draft={eagle3}{with_prompts}",
        )
        report = self.scene.report()
        self.assertIn(f"{small} has hidden_size 1024, but the entry's target has 4096.", report)
        self.assertIn(f"{dspark} is laid out as dspark of speculators, but the entry is about dflash.", report)
        self.assertIn(f"dspark was not measured: there is no {self.scene.folder}/nowhere.", report)
        self.assertIn(f"{prompts} is laid out as no model, but the entry is about GGUF.", report)
        self.assertIn(f"{eagle3} is laid out as eagle3, but the entry is about mtp of speculators.", report)
        for words, complaint in (
            ("dflash3=x", '"dflash3" is none of qwen3-8b-dflash, dflash, dflash-speculators, dflash-gguf, dspark,'),
            ("qwen3-8b-dflash", "its files are not given; the form is NAME=TARGET,block=DRAFT, or"),
            ("qwen3-8b-dflash=x", "the draft is not given; the form is NAME=TARGET,block=DRAFT, or"),
            ("eagle3=x,block=y", "the draft is not given; the form is NAME=TARGET,block=DRAFT, or"),
            ("dflash=x,drafts=y", '--published: "drafts=y" is none of draft=PATH, block=PATH, prompts=PATH.'),
        ):
            self.assertEqual(run(words), 2)
            self.assertIn(complaint, self.scene.said)

    def test_published_texts_are_kept_piece_by_piece(self):
        folder = self.model_folder
        target = folder("qwen", {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36})
        dflash = folder("dflash", {"architectures": ["DFlashDraftModel"], "dflash_config": {}})
        prompts = os.path.join(self.scene.folder, "prompts.jsonl")
        with open(prompts, "w") as file:
            file.writelines('{"tokens": [%d]}\n' % n for n in range(1, 13))
        name = "measure_decoding of qwen3-8b-dflash"
        pair = f"qwen3-8b-dflash={target},block={dflash},prompts={prompts}"
        command = ("--steps", "build,measure", "--published", pair)
        self.scene.orders["of"] = {"text 6": "wait"}
        self.scene.orders["wait"] = 1000
        self.assertEqual(self.scene.run(*command, "--time-limit", "20"), 4, self.scene.said)
        self.assertIn("texts [1, 2, 3, 4, 5]", self.scene.new_calls())
        self.assertEqual(list(self.scene.state()["pieces"]), [f"{name}, texts 1 to 5 of 12"])
        self.in_report("has only 1 of 3 pieces of its texts")
        self.scene.orders["of"] = {}
        self.assertEqual(self.scene.run(*command), 5, self.scene.said)
        calls = [call for call in self.scene.new_calls() if call.startswith("texts")]
        self.assertEqual(calls, ["texts [6, 7, 8, 9, 10]", "texts [11, 12]"])
        state = self.scene.state()
        self.assertEqual((state["pieces"], state["partial"]), ({}, {}))
        figures = {figure["key"]: figure for figure in state["programs"][name]["figures"]}
        tree = figures["decoding.1"]
        self.assertEqual((tree["median"], tree["low"], tree["high"], tree["n"]), (60, 35, 85, 3))
        self.assertIn("6.00 times plain; 4.00 tokens a round; every text is", tree["note"])
        self.assertEqual(figures["decoding.differing.1"]["median"], 3)
        self.assertAlmostEqual(figures["decoding.published.0"]["median"], 1 / 6)
        # A piece that fails ends the measurement, and is told.
        self.scene.orders["of"] = {"text 6": "fail"}
        self.assertEqual(self.scene.run(*command, "--again", name), 1)
        self.assertNotIn("texts [11, 12]", self.scene.new_calls())
        self.in_report("**Partial figures:** the program has only 2 of 3 pieces of its texts.")

    def test_the_status_says_what_is_left_and_what_failed(self):
        scene = self.scene
        steps = ("--steps", "build,measure")
        scene.orders["of"] = {"measure_decoding": "wait"}
        scene.orders["wait"] = 1000
        self.assertEqual(scene.run(*steps, "--time-limit", "20"), 4, scene.said)
        self.in_report("measure_decoding was not finished when the run's time was over, 1 of 2 times")
        # It comes first then, and is given up the second time.
        scene.new_calls()
        self.assertEqual(scene.run(*steps, "--time-limit", "20"), 1, scene.said)
        self.assertEqual(scene.new_calls(), ["measure_decoding"])
        self.in_report("2 of 2 times. It has no figures; --again 'measure_decoding' runs it again.")
        scene.orders["of"] = {"measure_tree": "miss"}
        self.assertEqual(scene.run(*steps, "--again", "measure_decoding,measure_tree"), 5, scene.said)
        self.in_report("**Targets missed:**\n\n- measure_tree\n")
        scene.orders["of"] = {"measure_tree": "throw"}
        self.assertEqual(scene.run(*steps, "--again", "measure_tree"), 1)
        self.in_report("**Partial figures:** the program failed (status 1).")
        self.in_report("| measure_tree (partial) | 2.0 µs |")
        self.assertEqual(scene.state()["programs"]["measure_tree"]["partial"], "failed (status 1)")
        scene.orders["of"] = {}
        self.assertEqual(scene.run(*steps, "--again", "measure_tree"), 0)
        self.in_report("Everything that was asked for has run and passed.")
        # A program that was stopped at its own limit has no figures.
        scene.limits["PROGRAMS"]["measure_tree"] = 2
        scene.orders["of"] = {"measure_tree": "wait"}
        for again in (("--again", "measure_tree"), ()):
            self.assertEqual(scene.run(*steps, *again), 1)
            self.assertIn("measure_tree was stopped after 2 s", scene.report().partition("## What was")[0])
        self.assertEqual(scene.run("--steps", "build"), 0)
        scene.limits["PROGRAMS"] = {"measure_lost": 30}
        self.assertEqual(scene.run(*steps), 1)
        self.in_report("- measure_lost was not built.\n")

    def test_the_emulated_device_runs_programs_alone(self):
        self.scene.orders["measures"] = ["emulated_copy", "emulated_tree", "emulated_decoding"]
        self.assertEqual(self.scene.run("--emulated"), 0, self.scene.said)
        self.assertEqual(self.scene.new_calls(), ["configure", "build", *self.scene.orders["measures"]])

    def test_tests_that_a_run_had_no_time_for_are_left_for_the_next(self):
        self.scene.orders["of"] = {"plain: four": "wait"}
        self.scene.orders["wait"] = 1000
        self.assertEqual(self.scene.run("--steps", "build,test", "--time-limit", "20"), 4, self.scene.said)
        self.assertEqual(set(self.scene.state()["tests"]), {"gpu.core", "gpu.linked"})
        self.in_report("- gpu.other\n")
        self.scene.orders["of"] = {}
        self.assertEqual(self.scene.run("--steps", "build,test"), 0)

    def test_peers_that_fail_count_and_peers_that_are_missing_do_not(self):
        self.scene.add("bench/cuda/a_peer.py", "import sys\nsys.exit(1)\n")
        peers = 'PEERS = [Peer("a_peer.py", "{}", "A peer", 20)]\n'
        self.scene.add("bench/cuda/gpu_peers.py", peers.format("no_such_module"))
        self.assertEqual(self.scene.run("--steps", "build,peers"), 0, self.scene.said)
        self.in_report("A peer was not compared with: no Python here imports no_such_module.")
        self.scene.add("bench/cuda/gpu_peers.py", peers.format("json"))
        self.assertEqual(self.scene.run("--steps", "build,peers"), 1, self.scene.said)
        self.in_report("- a_peer.py failed (status 1)\n")

    def test_cases_that_did_not_run_are_not_clean(self):
        self.scene.orders["of"] = {"memcheck: five": "vanish"}
        self.assertEqual(self.scene.run("--steps", "build,test,sanitize"), 1, self.scene.said)
        cases = self.scene.state()["sanitizer"]["gpu.other, memcheck"]["cases"]
        self.assertEqual(cases, {"four": "clean", "five": "not run"})
        self.in_report("- gpu.other, memcheck: 1 not run\n")

    def test_programs_that_cannot_be_listed_are_named(self):
        self.scene.orders["unlisted"] = ["gpu_other"]
        self.assertEqual(self.scene.run("--steps", "build,test,sanitize"), 1, self.scene.said)
        self.in_report("gpu.other failed: it does not list its cases.")
        self.in_report("gpu.other was not checked by compute-sanitizer: it does not list its cases.")

    def test_77_cases_are_no_missing_gpu(self):
        self.scene.orders["cases"] = {"gpu_other": [f"case {n:02}" for n in range(77)]}
        self.assertEqual(self.scene.run("--steps", "build,test"), 0, self.scene.said)
        self.assertEqual(len(self.scene.state()["tests"]["gpu.other"]["cases"]), 77)

    def test_tests_that_were_not_configured_are_named_with_the_reason(self):
        self.scene.orders["left out"] = {"gpu.nccl": "NCCL was not found"}
        self.assertEqual(self.scene.run("--steps", "build,test,sanitize"), 0, self.scene.said)
        self.in_report("gpu.nccl was not built: NCCL was not found.")
        self.in_report("gpu.nccl was not checked by compute-sanitizer: NCCL was not found.")

    def test_a_new_build_folder_goes_on_from_the_report(self):
        self.assertEqual(self.scene.run("--steps", "build,test"), 0)
        self.scene.new_calls()
        shutil.rmtree(self.scene.build)
        self.assertEqual(self.scene.run("--steps", "build,test"), 0)
        self.assertEqual(self.scene.new_calls(), ["configure", "build"])

    def test_models_are_packed_with_what_is_elsewhere(self):
        self.scene.add("bench/cuda/gpu_pack.py", "\nLIBRARIES = []\n")

        def place(*names):
            return os.path.join(self.scene.folder, *names)

        for folder in ("a", "b", "block"):
            os.makedirs(place(folder))
        sizes = {"a/x.gguf": 3 << 19, "a/draft.gguf": 5 << 19, "b/prompts.jsonl": 10, "block/config.json": 2}
        for path, size in sizes.items():
            with open(place(path), "wb") as file:
                file.write(os.urandom(size))
        given = ",".join([place("a", "x.gguf"), "draft=" + place("a", "draft.gguf"), "block=" + place("block") + "/"])
        pack = ("--pack", place("pack"), "--pieces", "1")
        self.assertEqual(
            self.scene.run(*pack, "--models", f"{given},prompts=" + place("b", "prompts.jsonl")), 0, self.scene.said
        )
        names = ["block", "draft.gguf.1-of-3", "draft.gguf.2-of-3", "draft.gguf.3-of-3", "prompts.jsonl"]
        models = place("pack", "models")
        self.assertEqual(sorted(os.listdir(models)), [*names, "x.gguf.1-of-2", "x.gguf.2-of-2"])
        # And are put together again where they are measured.
        there = f"{models}/x.gguf,draft={models}/draft.gguf,block={models}/block,prompts={models}/prompts.jsonl"
        self.scene.run("--steps", "build,measure", "--models", there)
        joined = os.path.join(self.scene.build, "models")
        self.assertIn(f"measure_decoding of {joined}/x.gguf", self.scene.new_calls())
        for name in ("x.gguf", "draft.gguf"):
            with open(place("a", name), "rb") as before, open(os.path.join(joined, name), "rb") as after:
                self.assertEqual(before.read(), after.read())
        # What would lie in one place, or is not there, is named.
        os.rename(place("b", "prompts.jsonl"), place("b", "x.gguf"))
        self.assertEqual(self.scene.run(*pack, "--models", f"{given},prompts=" + place("b", "x.gguf")), 1)
        self.assertIn(f"{place('a', 'x.gguf')} and {place('b', 'x.gguf')} have one name.", self.scene.said)
        self.assertEqual(self.scene.run(*pack, "--models", f"{given},prompts=" + place("c.jsonl")), 1)
        self.assertIn(f"Not found: {place('c.jsonl')}.", self.scene.said)
        self.assertEqual(self.scene.run(*pack, "--models", "x,drafts=y"), 2)


class Sources(unittest.TestCase):
    def test_all_headers_of_the_device_s_programs_are_among_them(self):
        known = set(gpu_state.sources(ROOT))
        folders = ("include", "tests", "bench/cuda", "bench", "examples/models", "examples/c")
        for path in sorted(known):
            relative = os.path.relpath(path, ROOT)
            if not relative.startswith(("tests/cuda", "tests/gpu", "bench/cuda", "examples/c")):
                continue
            if not path.endswith((*gpu_state.HEADERS, ".cu", ".cpp")):
                continue
            with open(path, encoding="utf-8") as file:
                included = re.findall(r'^\s*#\s*include "([^"]+)"', file.read(), re.M)
            for name in included:
                places = [os.path.dirname(path), *(os.path.join(ROOT, folder) for folder in folders)]
                found = [os.path.normpath(os.path.join(place, name)) for place in places]
                here = next(filter(os.path.isfile, found), None)
                self.assertTrue(here is None or here in known, f"{path} includes {name}")


class Models(unittest.TestCase):
    def test_pieces_are_put_together_when_all_are_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.gguf")
            content = os.urandom(25)
            with open(path, "wb") as file:
                file.write(content)
            pieces = gpu_models.cut(path, os.path.join(folder), 10)
            self.assertEqual([os.path.getsize(piece) for piece in pieces], [10, 10, 5])
            os.remove(path)
            with open(gpu_models.joined(path, os.path.join(folder, "whole")), "rb") as file:
                self.assertEqual(file.read(), content)
            os.remove(pieces[1])
            self.assertEqual(gpu_models.joined(path, os.path.join(folder, "other")), path)


if __name__ == "__main__":
    unittest.main()
