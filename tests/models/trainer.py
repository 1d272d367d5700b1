# SPDX-License-Identifier: BSL-1.0
"""Runs examples/models/train.py in the test's own process."""

import contextlib
import io
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples", "models"))
import train  # noqa: E402


def run(*arguments):
    """What a command of train.py prints."""
    sys.argv = ["train.py", *map(str, arguments)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        train.main()
    return said.getvalue()


def refusal(*arguments):
    """The sentence with which a command of train.py ends."""
    try:
        run(*arguments)
    except SystemExit as sentence:
        return str(sentence)
    raise AssertionError("nothing was refused")
