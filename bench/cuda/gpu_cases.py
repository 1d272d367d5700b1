# SPDX-License-Identifier: BSL-1.0
"""The cases of a program of Catch2 2 or 3: their names, running some of them, and in which one a program stopped."""

import os
import re
import shutil
import tempfile

import gpu_process

DURATION = re.compile(r"^\s*([0-9]+\.[0-9]+) s: (.*)$", re.M)
FATAL = re.compile(r"due to a fatal error condition")


class NotListed(Exception):
    """A program did not list its cases. outcome: how it ended."""

    def __init__(self, outcome):
        super().__init__(outcome.text)
        self.outcome = outcome


def listed(runner, command, tag=None):
    """The names of a program's cases that have a tag; [] if it has none; None if there is no GPU for it.

    Raises NotListed for a program that fails or is stopped.
    """
    chosen = [f"[{tag}]"] if tag else []
    outcome = runner.run([*command, *chosen, "--list-tests", "--verbosity", "quiet"], 60)
    # The words decide: the status of Catch2 2 is the number of cases.
    if outcome.status == 77 and outcome.text.startswith("SKIPPED: "):
        return None
    if re.match(r"(All available|Matching) test cases:", outcome.text):  # Catch2 2
        outcome = runner.run([*command, *chosen, "--list-test-names-only"], 60)
        if outcome.status is None or outcome.status < 0:
            raise NotListed(outcome)
        return [line for line in outcome.text.splitlines() if line.strip()]
    if outcome.status != 0:
        raise NotListed(outcome)
    return [line.strip() for line in outcome.text.splitlines() if line.strip()]


def unbuffered(command):
    """A command whose output is not buffered, so that nothing is lost when the program is ended."""
    return ["stdbuf", "-oL", *command] if is_unbuffered() else command


def is_unbuffered():
    """Whether unbuffered() works here: then a program writes a line as soon as a case has ended."""
    return shutil.which("stdbuf") is not None


def complaints(text):
    """Catch2's output without the times of cases."""
    return "\n".join(line for line in text.splitlines() if not DURATION.match(line))


class Cases:
    """A command that runs these cases, and says how long each took, as long as the object lives."""

    def __init__(self, command, cases=None):
        self.file = None
        self.command = [*command, "--durations", "yes"]
        if cases is not None:
            handle, self.file = tempfile.mkstemp(prefix="cases")
            with os.fdopen(handle, "w") as file:
                # Quoted: a name may begin as a comment does.
                file.writelines('"' + re.sub(r'([\\"])', r"\\\1", case) + '"\n' for case in cases)
            self.command += ["-f", self.file]

    def __enter__(self):
        return self.command

    def __exit__(self, *_):
        if self.file:
            os.unlink(self.file)


def durations(text, cases):
    """Seconds by case, of the finished cases. If several lines have one name, the last counts; others are sections."""
    known = set(cases)
    return {name.rstrip(): float(seconds) for seconds, name in DURATION.findall(text) if name.rstrip() in known}


def stopped_in(outcome, cases):
    """The case in which a program was stopped, or stopped itself without a summary; None if it came to its end."""
    if outcome.ended == gpu_process.Ended.ITSELF and outcome.status >= 0 and not FATAL.search(outcome.text):
        return None
    finished = durations(outcome.text, cases)
    left = [case for case in cases if case not in finished]
    # Catch2 names the case above its message about a signal.
    named = [case for case in left if re.search(r"^-{10,}\n" + re.escape(case) + r"$", outcome.text, re.M)]
    return (named or left or [None])[-1 if named else 0]
