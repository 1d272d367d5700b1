# SPDX-License-Identifier: BSL-1.0
"""The report of bench/gpu_check, in Markdown."""

import collections

TITLES = {
    "measure_copy": "What the card can do at most",
    "measure_top_k": "Top-k with normaliser",
    "measure_tree": "Trees from lists, and their compilation",
    "measure_verify": "Verification",
    "measure_commit": "Compaction of the cache",
    "measure_round": "A whole round without the models' passes",
    "measure_attention": "Tree attention",
    "measure_forward": "Cost of a pass against tree size",
    "measure_decoding": "End to end",
    "measure_serving": "Many texts at once",
    "measure_trees": "Trees over a small model at the cost of Qwen3-8B's passes",
}


def number(value, unit):
    if value is None:
        return ""
    if unit != "us":
        return f"{value:,.0f} {unit}" if value == round(value) or value >= 100 else f"{value:,.2f} {unit}"
    if value >= 10000:
        return f"{value / 1000:,.2f} ms"
    return f"{value:,.1f} µs"


def figures_of_peers(programs):
    return [
        {**figure, "peer": program["peer"]}
        for program in programs.values()
        if program.get("peer")
        for figure in program["figures"]
    ]


def peer_of(figure, peers):
    """The quickest figure of a peer for the same work."""
    same = [p for p in peers if figure["key"] == p["key"] or figure["key"].startswith(p["key"] + ".")]
    return min(same, key=lambda p: p["median"]) if same else None


def judged(programs):
    """Every figure that has a limit, as (figure, limit, the limit in words)."""
    found = []
    peers = figures_of_peers(programs)
    for program in programs.values():
        if program.get("peer"):
            continue
        for figure in program["figures"]:
            if program.get("partial"):
                figure = {**figure, "what": figure["what"] + " (partial)"}
            if figure.get("limit") is not None:
                found.append((figure, figure["limit"], figure.get("target", "")))
            peer = peer_of(figure, peers)
            if peer:
                found.append(
                    (figure, peer["median"], peer["peer"] + (f" ({peer['note']})" if peer.get("note") else ""))
                )
    return found


def is_met(figure, limit):
    return figure["median"] is not None and figure["median"] <= limit


def table(head, rows, words=("", "figure", "test", "which is", "result")):
    """A table with columns of words to the left and figures to the right."""
    lines = ["| " + " | ".join(head) + " |", "|" + "".join("---|" if h in words else "--:|" for h in head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def quartiles(figure):
    if figure["n"] < 2:
        return ""
    return f"{number(figure['low'], figure['unit'])} to {number(figure['high'], figure['unit'])}"


def title_of(name):
    program, of, model = name.partition(" of ")
    return TITLES[program] + (f": {model}" if of else "")


def heading(name, program):
    """The heading of a program's figures, its command, and what they lack, if they are partial."""
    title = f"{program['peer']}: {name}" if program.get("peer") else title_of(name)
    pieces = f"Medians of {program['pieces']} pieces of the texts.\n" if program.get("pieces") else ""
    partial = f"**Partial figures:** the program {program['partial']}.\n" if program.get("partial") else ""
    return "\n".join(filter(None, [f"## {title}\n\n`{program['command']}`\n", pieces, partial]))


def summary(verdict):
    """The part of the report that says whether all has run and passed. verdict: lists of words by kind."""
    said = []
    for key, words in (("failed", "Failed"), ("to do", "Not run yet"), ("missed", "Targets missed")):
        if verdict.get(key):
            said.append(f"**{words}:**\n\n" + "\n".join(f"- {line}" for line in verdict[key]) + "\n")
    if verdict.get("to do"):
        said.append("The same command, run again, goes on with what has not run yet.\n")
    return "## Summary\n\n" + ("\n".join(said) or "Everything that was asked for has run and passed.\n")


def of_cases(cases):
    """The number of cases by result, and the names of the cases that are not clean."""
    count = collections.Counter(cases.values())
    words = ", ".join(f"{n} {result}" for result, n in sorted(count.items()))
    others = [case for case, result in cases.items() if result != "clean"]
    return words + (": " + "; ".join(others[:4]) + ("; ..." if len(others) > 4 else "") if others else "")


def markdown(state, programs, pictures):
    """The whole report. state: as gpu_state.State has it. programs: all that were measured, also in part."""
    machine, command, tests = state["machine"], state["command"], state["tests"]
    out = [f"<!-- {command} -->\n\n# {machine['card'] or 'No GPU'}, {machine['date']}\n"]
    out.append(
        "Written by `"
        + command
        + "`. Times are medians of repetitions that take turns, from event to event on the device, with other data in "
        "the second-level cache before each; beside them the quartiles. Work of the library and, where nothing else is "
        "said, of peers is replayed as a CUDA graph. Reading: what the bytes take at the bandwidth of a copy that the "
        "same program measured.\n"
    )
    out.append(table(["", "of this run"], [[k, str(v)] for k, v in machine.items() if v], ("", "of this run")))
    out.append(summary(state.get("verdict", {})))
    rows = []
    for figure, limit, target in judged(programs):
        rows.append(
            [
                figure["what"],
                number(figure["median"], figure["unit"]),
                quartiles(figure),
                number(limit, figure["unit"]),
                "yes" if is_met(figure, limit) else "**no**",
                target,
            ]
        )
    out.append("## What was asked for\n")
    out.append(
        table(["figure", "median", "quartiles", "at most", "met", "which is"], rows)
        if rows
        else "Nothing was measured.\n"
    )
    peers = figures_of_peers(programs)
    order = list(TITLES)
    own = [name for name, program in programs.items() if not program.get("peer")]
    for name in sorted(own, key=lambda name: (order.index(name.partition(" of ")[0]), name)):
        program = programs[name]
        if not program["figures"]:
            continue
        out.append(heading(name, program))
        rows = []
        for figure in program["figures"]:
            peer = peer_of(figure, peers)
            reading = figure.get("reading")
            rows.append(
                [
                    figure["what"],
                    number(figure["median"], figure["unit"]),
                    quartiles(figure),
                    number(reading, figure["unit"]),
                    f"{figure['median'] / reading:.2f}" if reading and figure["median"] else "",
                    number(peer["median"], peer["unit"]) if peer else "",
                    peer["peer"] if peer else "",
                    figure.get("note", ""),
                ]
            )
        out.append(
            table(["", "median", "quartiles", "reading", "in readings", "best peer", "which", ""], rows, ("", "which"))
        )
        if name in pictures:
            out.append(f"![The timeline of one round, station by station]({pictures[name]})\n")
    for name, program in programs.items():
        if not program.get("peer") or not program["figures"]:
            continue
        out.append(heading(name, program))
        out.append(
            table(
                ["", "median", "quartiles"],
                [[f["what"], number(f["median"], f["unit"]), quartiles(f)] for f in program["figures"]],
            )
        )
    out.append("## Tests on the device\n")
    rows = [[name, t["result"], str(len(t.get("cases", {})) or ""), f"{t['seconds']:.1f}"] for name, t in tests.items()]
    out.append(table(["test", "result", "cases finished", "seconds"], rows) if rows else "None ran.\n")
    out.append("## compute-sanitizer\n")
    rows = []
    for name, t in sorted(state["sanitizer"].items()):
        rows.append([name, of_cases(t["cases"]) or "not run yet", f"{t['seconds']:.1f}"])
    out.append(table(["test", "result", "seconds of its parts"], rows) if rows else "Did not run.\n")
    if state["notes"]:
        out.append(
            "## What was left out or failed\n\n" + "\n".join(f"- {note}" for note in state["notes"].values()) + "\n"
        )
    return "\n".join(out)
