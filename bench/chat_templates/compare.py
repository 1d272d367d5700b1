#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Compares the library's chat templates with jinja2, on every template in a folder.

    compare.py RENDER FOLDER

RENDER is the program made of render.cpp. FOLDER has templates (*.jinja). Each is given the conversations below, with
and without tools, as transformers would give them, and counts as
  equal    every prompt is jinja2's, or refused where jinja2 refuses it
  refused  RENDER does not read it, or stops with an error where jinja2 writes a prompt
  wrong    a prompt differs, or is written where jinja2 refuses
  void     jinja2 cannot read it, or refuses every conversation
The exit status is 1 if one is wrong. Needs jinja2 (3.1).
"""
import datetime
import json
import os
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = 1774008000  # 2026-03-20

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, number=0):
    return {"type": "function", "id": f"call{number:05}", "function": {"name": name, "arguments": arguments}}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Tells the weather; \"now\" & <later>, à Zürich.",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "A place, e.g. 'Ulm'"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "array", "items": {"type": "integer"}, "description": "Days"},
        "deep": {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "number"}}}}}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "Tells the time", "parameters": {"type": "object", "properties": {}}}}

TOOL_CHAT = [
    said("user", "Weather?"),
    said("assistant", "", tool_calls=[call("get_weather", {"place": "Zürich", "days": [1, 2], "x": 1.5, "on": True,
                                                            "none": None, "deep": {"b": "<&'\">"}}, 1)]),
    said("tool", "{\"sky\": \"blue\"}", name="get_weather", tool_call_id="call00001"),
    said("assistant", "It is blue."),
    said("user", "And the time?")]

CHATS = [
    [said("user", "Hi")],
    [said("system", "Be brief."), said("user", "Hi")],
    [said("user", "Hi"), said("assistant", "Yo"), said("user", "Bye")],
    [said("system", " S \n"), said("user", " Hi \n"), said("assistant", "\n Yo "), said("user", "Bye ")],
    [said("user", "")],
    [said("user", "Hi"), said("assistant", "Yo")],
    [said("user", "Hi"), said("user", "You?")],
    [said("assistant", "Hi"), said("user", "You?")],
    [said("developer", "Be kind."), said("user", "Grüße, 世界 🙂 \"quoted\" <b>&amp;</b> {{ x }} 'it'")],
    [said("user", "1+1?"), said("assistant", "<think>\nOne and one.\n</think>\n\n2"), said("user", "+1? /no_think")],
    [said("user", "1+1?"), said("assistant", "2", reasoning_content="One and one."), said("user", "+1?")],
    [said("user", [{"type": "text", "text": "See "}, {"type": "image"}, {"type": "text", "text": "this"}])],
    [said("system", [{"type": "text", "text": "Be brief."}]), said("user", [{"type": "text", "text": "Hi"}])],
    TOOL_CHAT,
    [said("system", "Use tools.")] + TOOL_CHAT[:3],
    TOOL_CHAT[:2],
    [said("user", "Both?"), said("assistant", None, tool_calls=[call("clock", {}, 1), call("get_weather", {"place": "Ulm"}, 2)]),
     said("tool", "12:00", tool_call_id="call00001"), said("tool", "rain", tool_call_id="call00002")],
    [said("user", "Text?"), said("assistant", "So.", tool_calls=[call("clock", "{\"zone\": 1}", 1)]),
     said("tool", [{"type": "text", "text": "12:00"}], tool_call_id="call00001"), said("assistant", "Noon.")],
    [said("user", "Odd"), said("king", "Hm")],
    [],
]


class Generation(jinja2.ext.Extension):
    """{% generation %} as transformers has it: it marks what the assistant says, and writes it."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_say"), [], [], body).set_lineno(line)

    def _say(self, caller):
        return caller()


def environment():
    """The environment of transformers' apply_chat_template."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return env


def requests(template):
    for messages in CHATS:
        for more in ({"tools": None, "add_generation_prompt": True, "variables": {}},
                     {"tools": [WEATHER, CLOCK], "add_generation_prompt": False, "variables": {
                         "enable_thinking": False, "documents": [{"title": "A", "text": "Some text"}],
                         "reasoning_effort": "high", "builtin_tools": ["python"]}}):
            yield {"template": template, "special": SPECIAL, "messages": messages, "now": NOW, **more}


def wanted(request, template):
    variables = {"documents": None, **SPECIAL, **request["variables"]}
    try:
        return template.render(messages=request["messages"], tools=request["tools"],
                               add_generation_prompt=request["add_generation_prompt"], **variables)
    except Exception as error:  # whatever a template raises, transformers hands on
        return {"error": f"{type(error).__name__}: {error}"}


def main(render, folder):
    names = sorted(name for name in os.listdir(folder) if name.endswith(".jinja"))
    counts = {"equal": 0, "refused": 0, "wrong": 0, "void": 0}
    pairs = {"equal": 0, "refused": 0, "wrong": 0, "both refuse": 0}
    for name in names:
        sys.stdout.flush()
        with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
            text = file.read()
        try:
            template = environment().from_string(text)
        except jinja2.TemplateError as error:
            print(f"void     {name}: {error}")
            counts["void"] += 1
            continue
        asked = list(requests(text))
        lines = "".join(json.dumps(request) + "\n" for request in asked)
        done = subprocess.run([render], input=lines, capture_output=True, text=True)
        given = [json.loads(line) for line in done.stdout.splitlines()]
        if len(given) != len(asked):
            print(f"wrong    {name}: {render} ended early: {done.stderr[-200:]}")
            counts["wrong"] += 1
            continue
        verdict, note, is_void = "equal", "", True
        for request, got in zip(asked, given):
            want = wanted(request, template)
            is_void = is_void and isinstance(want, dict)
            if isinstance(want, dict) and isinstance(got, dict):
                pairs["both refuse"] += 1
            elif want == got:
                pairs["equal"] += 1
            elif isinstance(got, dict):
                pairs["refused"] += 1
                if verdict == "equal":
                    verdict, note = "refused", str(got)
            else:
                pairs["wrong"] += 1
                if verdict != "wrong":
                    verdict, note = "wrong", f"\n  chat {json.dumps(request['messages'])[:300]}\n  want {want!r}\n  got  {got!r}"
        if is_void and verdict == "equal":
            verdict, note = "void", str(want)
        counts[verdict] += 1
        if verdict != "equal":
            print(f"{verdict:8} {name}: {note}")
    rendered = sum(counts.values()) - counts["void"]
    print(f"{len(names)} templates: {counts}; equal: {100 * counts['equal'] / max(1, rendered):.1f} % of {rendered}")
    print(f"prompts: {pairs}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
