#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Draws the pictures of README.md and docs/design.md: python3 docs/pictures/draw.py [FOLDER]

They go to FOLDER, by default the folder of this file. speed.svg has the figures of
docs/benchmarks/tables_real_models.json.
"""
import json
import pathlib
import sys

LIGHT = """.back { fill: #ffffff } text { fill: #1c1f24 } .soft { fill: #5f6772 } .line { stroke: #dfe3e8 }
.bold { font-weight: 600 } .mid { text-anchor: middle } .end { text-anchor: end }
.box { fill: #f4f6f8; stroke: #b9c1ca } .node { fill: #e3f1e6; stroke: #3f9a5a }
.root { fill: #e6edf8; stroke: #2c5aa0 }
.kept { fill: #f9ebcc; stroke: #b07a14 } .bar { fill: #8fb4e8 } .hit { fill: #3f9a5a } .none { fill: #eef1f4 }
.edge { fill: none; stroke: #5f6772; stroke-width: 1.3 } .path { fill: none; stroke: #b07a14; stroke-width: 2.4 }"""
DARK = """.back { fill: #14171b } text { fill: #e8ebef } .soft { fill: #a2abb6 } .line { stroke: #31373f }
.box { fill: #1d2228; stroke: #49525d } .node { fill: #1d3a26; stroke: #5fbf7c }
.root { fill: #1c2b44; stroke: #7aa7ee }
.kept { fill: #44351a; stroke: #d9a441 } .bar { fill: #3c5f96 } .hit { fill: #5fbf7c } .none { fill: #20262d }
.edge { stroke: #a2abb6 } .path { stroke: #d9a441 }"""
NODE_WIDTH, NODE_HEIGHT = 74, 32
HERE = pathlib.Path(__file__).parent
OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE


class Picture:
    """An SVG that follows the reader's light or dark theme, with its title and a sentence on top."""

    def __init__(self, width, height, title, sentence):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}"\n  role="img" font-family="system-ui, sans-serif" font-size="13">\n'
            f'<title>{title}</title>\n<style>\n{LIGHT}\n'
            f"@media (prefers-color-scheme: dark) {{\n{DARK}\n}}\n</style>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4"'
            ' markerWidth="7" markerHeight="7" orient="auto">\n<path d="M0 0.5 7.5 4 0 7.5z" class="soft"/></marker>'
            '</defs>\n<rect class="back" width="100%" height="100%"/>']
        self.text(18, 28, title, "bold", 17)
        self.text(18, 50, sentence, "soft")

    def text(self, x, y, text, classes="", size=None):
        classes = f' class="{classes}"' if classes else ""
        size = f' font-size="{size}"' if size else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{classes}{size}>{text}</text>')

    def rect(self, x, y, width, height, classes, radius=3):
        self.parts.append(
            f'<rect class="{classes}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>')

    def line(self, path, classes, arrow=False):
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self.parts.append(f'<path class="{classes}" d="{path}"{tip}/>')

    def legend(self, x, y, classes, text, radius=3):
        self.rect(x, y, 14, 14, classes, radius)
        self.text(x + 20, y + 12, text)

    def node(self, x, y, token, number, classes="node"):
        self.rect(x - NODE_WIDTH / 2, y - NODE_HEIGHT / 2, NODE_WIDTH, NODE_HEIGHT, classes, 7)
        self.text(x, y + 5, token, "mid bold")
        self.text(x + NODE_WIDTH / 2 - 3, y - NODE_HEIGHT / 2 - 4, number, "soft mid", 11)

    def edge(self, parent, child, classes="edge", shift=0, turn=0):
        """A curve between two nodes; of two between the same nodes, one is shifted at the child and turns elsewhere."""
        (x, y), (to_x, to_y) = parent, child
        x, to_x, to_y = x + NODE_WIDTH / 2, to_x - NODE_WIDTH / 2, to_y + shift
        middle = (x + to_x) / 2
        self.line(f"M{x:g} {y:g}C{middle + turn:g} {y:g} {middle + turn:g} {to_y:g} {to_x:g} {to_y:g}", classes)

    def table(self, x, heads, rows, steps, width, marked=()):
        for head, step in zip(heads, steps):
            self.text(x + step, 108, head, "soft", 12)
        self.line(f"M{x} 113H{x + width}", "line")
        for i, row in enumerate(rows):
            if i in marked:
                self.rect(x - 6, 114.5 + 20 * i, width + 12, 18, "kept", 4)
            for value, step in zip(row, steps):
                self.text(x + step, 128 + 20 * i, value)

    def save(self, name):
        (OUT / name).write_text("\n".join(self.parts) + "\n</svg>\n")


def draws_and_nodes():
    p = Picture(880, 400, "Draws and nodes",
                'Three draws after "the": cat, dog, cat. The second cat is a draw of its own, but not a new node.')
    at = [(70, 200), (220, 150), (220, 270), (380, 110), (380, 190), (380, 270)]
    tokens, parents, depths = ["the", "cat", "dog", "sat", "ran", "ran"], ["-", 0, 0, 1, 1, 2], [0, 1, 1, 2, 2, 2]
    p.text(18, 84, "The tree", "bold")
    p.edge(at[0], at[1], shift=-7, turn=-7)
    p.edge(at[0], at[1], shift=7, turn=7)
    for u in range(2, 6):
        p.edge(at[parents[u]], at[u])
    for draw, (x, y) in enumerate([(133, 168), (146, 238), (158, 182), (300, 130), (300, 170), (300, 270)]):
        p.rect(x - 9, y - 9, 18, 18, "kept", 9)
        p.text(x, y + 4, draw, "mid", 11)
    for u in range(6):
        p.node(*at[u], tokens[u], u, "node" if u else "root")
    p.text(70, 236, "root: pending", "mid soft", 11)
    p.legend(18, 340, "node", "node, with its number: a row of the forward pass")
    p.legend(18, 364, "kept", "draw, with its number: one choice from the row of its parent", 7)
    p.text(470, 84, "Nodes: one a path", "bold")
    nodes = list(zip(range(6), tokens, parents, depths))
    p.table(470, ["node", "token", "parent", "depth"], nodes, [0, 56, 122, 190], 224)
    p.text(740, 84, "Draws: in order", "bold")
    draws = [(0, 0, 1), (1, 0, 2), (2, 0, 1), (3, 1, 3), (4, 1, 4), (5, 2, 5)]
    p.table(740, ["draw", "of", "node"], draws, [0, 44, 80], 106, marked=(0, 2))
    for i, sentence in enumerate(["The target scores 6 rows: the root and 5 nodes.",
                                  "A budget counts draws: this tree has spent 6.",
                                  "A verifier of independent draws reads three draws",
                                  'after "the", in this order, cat twice.']):
        p.text(470, 284 + 20 * i, sentence)
    p.save("draws_and_nodes.svg")


def mask_and_slots():
    p = Picture(880, 560, "Mask and slots", "A row sees the committed prefix, its ancestors and itself. "
                "Rows of the pass lie in scratch slots after the prefix.")
    at = [(70, 190), (200, 150), (200, 250), (330, 116), (330, 184), (330, 250)]
    tokens, parents, accepted = ["the", "cat", "dog", "sat", "ran", "ran"], [None, 0, 0, 1, 1, 2], [0, 1, 4]
    p.text(18, 84, "The tree, numbered as rows of the pass", "bold")
    for u in range(1, 6):
        p.edge(at[parents[u]], at[u], "path" if u in accepted else "edge")
    for u in range(6):
        p.node(*at[u], tokens[u], u, "kept" if u in accepted else "node")
    p.text(70, 226, "pending", "mid soft", 11)
    p.legend(18, 296, "kept", 'accepted by the verifier, which adds "away"')

    left, top, cell = 500, 124, 26
    p.text(430, 84, "The mask: bit j of a row stands for scratch slot j", "bold")
    p.text(left + 1.5 * cell, top - 8, "prefix", "mid soft", 11)
    for row in range(6):
        y = top + row * cell
        p.text(left + 110 + (row + 0.5) * cell, top - 8, row, "mid soft", 11)
        p.text(left - 12, y + 17, f"{row} {tokens[row]}", "end", 12)
        p.text(left + 3 * cell + 14, y + 17, "...", "mid soft")
        seen, u = set(), row
        while u is not None:
            seen.add(u)
            u = parents[u]
        for column in range(3):
            p.rect(left + column * cell + 1, y + 1, cell - 3, cell - 3, "bar")
        for column in range(6):
            p.rect(left + 110 + column * cell + 1, y + 1, cell - 3, cell - 3, "hit" if column in seen else "none")
    p.legend(left, 296, "bar", "always seen")
    p.legend(left + 110, 296, "hit", "bit set: seen")
    p.legend(left + 230, 296, "none", "hidden")

    def slots(y, name, what, kept, after=()):
        p.text(18, y + 20, name)
        p.text(18, y + 36, what, "soft", 11)
        cells = [("on", "bar"), ("to", "bar")] + [(tokens[r], "kept" if r in accepted else "box") for r in kept]
        for i, (token, classes) in enumerate(cells):
            p.rect(270 + 66 * i, y, 62, 30, classes, 4)
            p.text(301 + 66 * i, y + 20, token, "mid")
        for i, sentence in enumerate(after):
            p.text(278 + 66 * len(cells), y + 20 + 18 * i, sentence, "soft", 11 if i else None)

    p.line("M18 330H862", "line")
    p.text(18, 356, "The cache, slot by slot", "bold")
    slots(372, "during the pass", "one scratch slot a row", range(6))
    p.text(334, 418, "committed", "mid soft", 11)
    p.text(598, 418, "scratch", "mid soft", 11)
    slots(434, "commit, compacting store", "accepted rows move together, in place", [0, 1, 4], ["next pending: away"])
    slots(492, "commit, truncating store", "keeps the longest leading run", [0, 1],
          ["next pending: ran, away", "both go in front of the next tree"])
    p.save("mask_and_slots.svg")


def regimes():
    p = Picture(880, 500, "Regimes: how the children of a node came about",
                "One row of the draft, four ways to make children of it. A verifier must know which, or it is biased.")
    tokens, draft = ["cat", "dog", "bird", "fish"], [0.5, 0.3, 0.15, 0.05]

    def panel(x, y, title, verifiers):
        p.rect(x, y, 414, 204, "box", 8)
        p.text(x + 14, y + 24, title, "bold", 14)
        p.text(x + 14, y + 192, verifiers, "soft", 12)

    def labelled_row(x, y, chosen):
        for i, (token, probability) in enumerate(zip(tokens, draft)):
            height = 150 * probability
            p.rect(x + 40 * i + 3, y - height, 24, height, "hit" if i in chosen else "bar", 2)
            p.text(x + 40 * i + 15, y - height - 5, f"{probability:.2f}"[1:], "mid soft", 10)
            p.text(x + 40 * i + 15, y + 14, token, "mid", 11)

    def small_row(x, y, row, chosen):
        for i, probability in enumerate(row):
            if probability == 0:
                p.line(f"M{x + 18 * i + 1} {y}h14", "line")
            else:
                p.rect(x + 18 * i, y - 60 * probability, 15, 60 * probability, "hit" if i == chosen else "bar", 2)

    def child(x, y, token):
        p.rect(x, y, 54, 28, "node", 6)
        p.text(x + 27, y + 19, token, "mid bold")

    panel(18, 70, "Deterministic", "lossless: verifiers that look at the target alone, as target-only")
    labelled_row(36, 200, (0, 1))
    p.line("M196 172H216", "edge", True)
    p.text(226, 146, "the 2 most probable", "soft", 11)
    for i, token in enumerate(["cat", "dog"]):
        child(226 + 62 * i, 158, token)

    panel(448, 70, "Independent draws", "lossless: also spectr, specinfer, traversal and others")
    labelled_row(466, 200, (0, 1))
    p.line("M626 172H646", "edge", True)
    p.text(656, 146, "3 draws, each from the same row", "soft", 11)
    for i, token in enumerate(["cat", "dog", "cat"]):
        child(656 + 62 * i, 158, token)

    panel(18, 284, "Without replacement", "lossless: also residual-walk and others")
    left = list(draft)
    for i, chosen in enumerate([0, 2, 1]):
        x = 36 + 126 * i
        small_row(x, 376, [probability / sum(left) for probability in left], chosen)
        left[chosen] = 0
        p.text(x + 35, 392, tokens[chosen], "mid bold")
        p.text(x + 35, 408, "from the rest" if i else "from the row", "mid soft", 11)
        if i < 2:
            p.line(f"M{x + 84} 356H{x + 112}", "edge", True)
        child(36 + 62 * i, 426, tokens[chosen])
    p.text(226, 447, "different children, in draw order", "soft", 11)

    panel(448, 284, "One path", "lossless: every verifier")
    rows = [draft, [0.2, 0.6, 0.15, 0.05], [0.1, 0.2, 0.6, 0.1]]
    for i, token in enumerate(["cat", "sat", "on"]):
        x = 466 + 126 * i
        small_row(x, 376, rows[i], i)
        child(x + 8, 392, token)
        if i < 2:
            p.line(f"M{x + 66} 406H{x + 126}", "edge", True)
    p.text(466, 447, "one draw a node, each from the row of its own node", "soft", 11)
    p.save("regimes.svg")


def speed():
    """What the recorded table of real models says of some of its methods, greedy, as means of its six kinds."""
    methods = [("plain", "plain decoding", "no draft"),
               ("chain 4, draft", "chain", "4 tokens, one after the other"),
               ("adaptive-chain, draft", "adaptive_chain", "as long as lately accepted"),
               ("best-first 16, draft", "best_first", "a tree of 16 tokens"),
               ("dynatree, draft", "dynatree", "a tree shaped by confidence"),
               ("cost-aware, draft", "cost_aware", "a tree as large as pays here")]
    recorded = json.loads((HERE.parent / "benchmarks" / "tables_real_models.json").read_text())["greedy"]
    top, step = 112, 42
    p = Picture(880, top + step * len(methods) + 16, "One model, decoded in six ways",
                "SmolLM2-135M, 4-bit weights, on two cores. Every method writes exactly the same texts.")
    p.text(250, 90, "Tokens a pass of the target", "bold")
    p.text(490, 90, "Speed: tokens a second, plain decoding = 1", "bold")
    wide = max(recorded[name]["mean"]["tokens_per_round"] for name, _, _ in methods)
    fast = max(sum(recorded[name]["mean"]["speedup"]) for name, _, _ in methods)
    for i, (name, method, about) in enumerate(methods):
        y = top + step * i
        mean = recorded[name]["mean"]
        (speedup, interval), tokens = mean["speedup"], mean["tokens_per_round"]
        assert recorded[name]["differing_texts"] == 0
        p.text(18, y + 13, method, "bold")
        p.text(18, y + 29, about, "soft", 11)
        width = 170 * tokens / wide
        p.rect(250, y, width, 24, "bar")
        p.text(258 + width, y + 17, f"{tokens:.2f}")
        width = 280 * speedup / fast
        p.rect(490, y, width, 24, "hit" if method == "cost_aware" else "bar")
        end = width
        if interval > 0:
            low, end = 280 * (speedup - interval) / fast, 280 * (speedup + interval) / fast
            p.line(f"M{490 + low:g} {y + 12}H{490 + end:g}M{490 + low:g} {y + 7}v10M{490 + end:g} {y + 7}v10", "edge")
        p.text(498 + end, y + 17, f"{speedup:.2f}" + (f" \u00b1 {interval:.2f}" if interval > 0 else ""))
    plain = 490 + 280 / fast
    p.line(f"M{plain:g} {top - 6}V{top + step * len(methods) - 10}", "line")
    p.save("speed.svg")


draws_and_nodes()
mask_and_slots()
regimes()
speed()
