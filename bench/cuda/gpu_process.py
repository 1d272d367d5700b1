# SPDX-License-Identifier: BSL-1.0
"""Programs that may hang, run with a limit of their own and inside the limit of a whole run."""

import contextlib
import enum
import os
import signal
import subprocess
import threading
import time
from typing import NamedTuple


class Ended(enum.Enum):
    ITSELF = 0
    ITS_LIMIT = 1  # stopped: its own time was over
    RUN_LIMIT = 2  # stopped, or never started: the run's time was over
    NEVER = 3  # it could not be ended: the card must not be used after that


class Outcome(NamedTuple):
    status: int | None  # None: it did not end by itself
    text: str
    seconds: float
    ended: Ended


def status_of(pid):
    """The fields of /proc/PID/stat from the state on; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def start_time(pid):
    """The time at which a process began, in the kernel's ticks, or None. No two processes share number and time."""
    status = status_of(pid)
    return int(status[19]) if status else None


def is_at_work(group):
    """Whether a process of this group has not ended."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        status = status_of(pid)
        if status and int(status[2]) == group and status[0] not in "ZX":
            return True
    return False


def end_group(group, patience=3.0):
    """Asks a group of processes to end, so that Catch2 tells its case; then ends it. False if a process is left."""
    for with_signal, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(group, with_signal)
        except ProcessLookupError:
            return True
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not is_at_work(group):
                return True
            time.sleep(0.05)
    return False


class Runner:
    def __init__(self, root, environment, left, say):
        """left() gives the seconds that the run has left; say(text) reports steps that take long."""
        self.root = root
        self.environment = environment
        self.left = left
        self.say = say

    def run(self, command, limit, log=None, progress=None, begun=lambda pid: None, quiet=None):
        """Runs a command, and calls begun(pid) as soon as its process exists. quiet: the seconds after which
        a program that writes nothing is stopped, as at its limit."""
        start = time.monotonic()
        most = min(limit, self.left() - 5)
        if most <= 1:
            return Outcome(None, "there was no time left", 0.0, Ended.RUN_LIMIT)
        try:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            return Outcome(127, str(error), 0.0, Ended.ITSELF)
        begun(process.pid)
        lines = []
        wrote = start

        def read():
            nonlocal wrote
            said = time.monotonic()
            for line in process.stdout:
                lines.append(line)
                wrote = time.monotonic()
                if progress and time.monotonic() - said > 15:
                    said = time.monotonic()
                    self.say(f"  {progress}: {line.strip()[:100]}")

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        ended = Ended.ITSELF
        status = None
        while ended == Ended.ITSELF:
            until = min(start + most, wrote + quiet) if quiet else start + most
            if time.monotonic() >= until:
                ended = Ended.ITS_LIMIT if until < start + most or most == limit else Ended.RUN_LIMIT
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=until - time.monotonic())
                break
        if ended != Ended.ITSELF:
            if end_group(process.pid):
                process.wait()
            else:
                ended = Ended.NEVER
        reader.join(timeout=2)
        text = "".join(list(lines))
        if log:
            with open(log, "w") as file:
                file.write(text)
        return Outcome(status, text, time.monotonic() - start, ended)
