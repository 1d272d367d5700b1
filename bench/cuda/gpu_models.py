# SPDX-License-Identifier: BSL-1.0
"""Models of the user that bench/gpu_check measures: the argument --models, and files that come in pieces."""

import os
import re
import shutil

PIECE = re.compile(r"\.(\d+)-of-(\d+)$")
PARTS = ("draft", "block", "prompts")


class Model:
    """PATH[,draft=PATH][,block=PATH][,prompts=FILE]: a GGUF file or a folder: a model's, or target, draft, block."""

    def __init__(self, text, root, argument="--models"):
        self.path, *given = text.split(",")
        self.parts = {}
        for part in given:
            name, equals, value = part.partition("=")
            if name not in PARTS or not equals or not value:
                raise ValueError(f'{argument}: "{part}" is none of {", ".join(p + "=PATH" for p in PARTS)}.')
            self.parts[name] = value
        self.given = [self.path, *self.parts.values()]
        name = os.path.basename(os.path.normpath(self.path))
        self.name = name
        if "smollm2" in name.lower():
            # The draft is bundled, the model itself is not.
            self.parts.setdefault("draft", os.path.join(root, "examples", "models", "smollm2", "draft"))
            self.parts.setdefault("prompts", os.path.join(root, "bench", "cuda", "smollm2_prompts.jsonl"))
        beside = os.path.join(self.path, "prompts.jsonl")
        if os.path.isfile(beside):
            self.parts.setdefault("prompts", beside)

    def join(self, folder):
        """Puts files together in `folder` that are only there in pieces."""
        self.path = joined(self.path, folder)
        self.parts = {name: joined(path, folder) for name, path in self.parts.items()}

    def complaint(self):
        """The name of a missing file, or None."""
        for path in (self.path, *self.parts.values()):
            if not os.path.exists(path):
                return f"there is no {path}"
        if "prompts" not in self.parts:
            return "no prompts are given as its tokens (prompts=FILE, as prompt_tokens writes them)"
        return None

    def small_model(self):
        """The path of a draft that was named or lies beside the target in a folder of several; else None."""
        if "draft" in self.parts:
            return self.parts["draft"]
        beside = os.path.join(self.path, "draft")
        return beside if os.path.isdir(os.path.join(self.path, "target")) and os.path.isdir(beside) else None

    def arguments(self):
        return ["--models", self.path, *(word for name, path in self.parts.items() for word in (f"--{name}", path))]


def joined(path, folder):
    """The path of a file. If there are only pieces, PATH.1-of-N and so on, they are put together in `folder`."""
    pieces = pieces_of(path)
    if os.path.exists(path) or not pieces:
        return path
    os.makedirs(folder, exist_ok=True)
    whole = os.path.join(folder, os.path.basename(path))
    size = sum(os.path.getsize(piece) for piece in pieces)
    if not os.path.exists(whole) or os.path.getsize(whole) != size:
        with open(whole + ".part", "wb") as out:
            for piece in pieces:
                with open(piece, "rb") as file:
                    shutil.copyfileobj(file, out, 1 << 20)
        os.replace(whole + ".part", whole)
    return whole


def pieces_of(path):
    """All pieces of a file in order, or [] if one is missing."""
    folder, name = os.path.split(path)
    found = {}
    for other in os.listdir(folder or ".") if os.path.isdir(folder or ".") else []:
        match = PIECE.search(other)
        if match and other[: match.start()] == name:
            found[int(match[1]), int(match[2])] = os.path.join(folder, other)
    count = max((n for _, n in found), default=0)
    wanted = [(i, count) for i in range(1, count + 1)]
    return [found[w] for w in wanted] if wanted and all(w in found for w in wanted) else []


def cut(path, folder, piece_bytes):
    """Writes a file to a folder in pieces of at most so many bytes, and returns the names that it has written."""
    size = os.path.getsize(path)
    count = max(1, -(-size // piece_bytes))
    name = os.path.basename(path)
    written = []
    with open(path, "rb") as file:
        for i in range(1, count + 1):
            to = os.path.join(folder, name if count == 1 else f"{name}.{i}-of-{count}")
            with open(to, "wb") as out:
                out.write(file.read(piece_bytes))
            written.append(to)
    return written
