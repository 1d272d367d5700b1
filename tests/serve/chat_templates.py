# SPDX-License-Identifier: BSL-1.0
"""chat_templates.py SERVE MODELS: what the server does with the chat template in a model's files. Functions are called
with templates of two usual kinds, from the request with tools to the call in the reply, and to the prompt of the next
turn; a template that cannot be run costs chats alone."""

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile

# Calls between tags, several if need be, results as messages of the user.
TAGS = """{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{ '\\n' + message.content }}{% endif %}
{%- for call in message.tool_calls %}
{%- if call.function %}{% set call = call.function %}{% endif %}
{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}{{ call.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.previtem and loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
TAGS_TURN = """<|im_start|>user
Weather?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "weather", "arguments": {"city": "Rome"}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Oslo"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
sun
</tool_response>
<tool_response>
rain
</tool_response><|im_end|>
<|im_start|>assistant
"""

# One call, which is the whole message and says "parameters"; results have a role of their own.
HEADERS = """{{- '<|begin|>' }}
{%- if messages[0]['role'] == 'system' %}{% set said = messages[0]['content'] %}{% set messages = messages[1:] %}
{%- else %}{% set said = '' %}{% endif %}
{%- if tools is not none or said %}<|header|>system<|/header|>\n\n{{ said }}
{%- if tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}{% endif %}<|eot|>
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'ipython' or message.role == 'tool' %}
{{- '<|header|>ipython<|/header|>\\n\\n' }}
{%- if message.content is mapping or message.content is iterable and message.content is not string %}
{{- message.content | tojson }}{% else %}{{ message.content }}{% endif %}<|eot|>
{%- elif 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('there is one call at a time') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|header|>assistant<|/header|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}
{{- '}<|eot|>' }}
{%- else %}{{ '<|header|>' + message['role'] + '<|/header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\\n\\n' }}{% endif %}
"""
HEADERS_TURN = """<|header|>user<|/header|>

Weather?<|eot|><|header|>assistant<|/header|>

{"name": "weather", "parameters": {"city": "Rome"}}<|eot|><|header|>ipython<|/header|>

sun<|eot|><|header|>assistant<|/header|>

"""

TOOLS = [{"type": "function", "function": {
    "name": name, "description": "Tells it.", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": False}}} for name in ("weather", "time")]
QUESTION = {"role": "user", "content": "Weather?"}


class server:
    def __init__(self, program, models, template):
        self.folder = tempfile.TemporaryDirectory()
        for name in os.listdir(models):
            os.symlink(os.path.join(models, name), os.path.join(self.folder.name, name))
        with open(os.path.join(self.folder.name, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write(template)
        self.process = subprocess.Popen([program, "--model", self.folder.name, "--port", "0", "--policy", "chain"],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert " at http://" in line, line
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        self.folder.cleanup()
        assert status == 0, status

    def send(self, path, **body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        status, data = reply.status, reply.read()
        connection.close()
        return (status, json.loads(data)) if not body.get("stream") or status != 200 else (status, data.decode())

    def post(self, path, **body):
        status, reply = self.send(path, **body)
        assert status == 200, reply
        return reply

    def chat(self, **more):
        return self.post("/v1/chat/completions", **{"messages": [QUESTION], "tools": TOOLS, "max_tokens": 100, **more})

    def prompt(self, messages, **more):
        return self.post("/detokenize", tokens=self.post("/tokenize", messages=messages, **more)["tokens"])["prompt"]


def call_of(choice):
    """The name and the arguments of the only call of a reply."""
    assert choice["finish_reason"] == "tool_calls", choice
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None and call["type"] == "function" and call["id"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def check_calls(of, turn, results):
    """Calls of functions, whole and streamed; then `turn` must be the prompt after as many calls as there are results."""
    names = set()
    for seed in range(4):
        name, arguments = call_of(of.chat(tool_choice="required", seed=seed, parallel_tool_calls=False)["choices"][0])
        names.add(name)
        assert list(arguments) == ["city"] and arguments["city"] in ("Rome", "Oslo"), arguments
        events = of.chat(tool_choice="required", seed=seed, parallel_tool_calls=False, stream=True).split("\n\n")
        deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events if event.startswith("data: {")]
        streamed = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
        assert [(one["name"], json.loads(one["arguments"])) for one in streamed] == [(name, arguments)], streamed
        assert not any(delta.get("content") for delta in deltas), deltas
    assert names <= {"weather", "time"}
    only_time = {"type": "function", "function": {"name": "time"}}
    assert call_of(of.chat(tool_choice=only_time, seed=1, parallel_tool_calls=False)["choices"][0])[0] == "time"
    free = of.chat(tool_choice="auto", seed=1, max_tokens=8)["choices"][0]
    assert free["finish_reason"] in ("length", "stop", "tool_calls"), free

    cities = ["Rome", "Oslo"][:len(results)]
    calls = [{"id": f"call{i}", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": c})}}
             for i, c in enumerate(cities)]
    turns = [QUESTION, {"role": "assistant", "content": None, "tool_calls": calls}]
    turns += [{"role": "tool", "tool_call_id": f"call{i}", "content": result} for i, result in enumerate(results)]
    assert of.prompt(turns).endswith(turn), of.prompt(turns)
    told = of.prompt(turns, tools=TOOLS)
    assert told.endswith(turn) and '"time"' in told, told
    assert of.chat(messages=turns, max_tokens=4)["choices"][0]["message"]["role"] == "assistant"


def check_refusal(program, models):
    """Completions are written though the template cannot be run; chats are refused with its line."""
    with server(program, models, "{{ messages }}\n{% include 'other' %}\n") as of:
        assert of.post("/v1/completions", prompt="The king", max_tokens=4)["usage"]["completion_tokens"] == 4
        assert of.post("/tokenize", prompt="The king")["count"] > 1
        for path, more in (("/v1/chat/completions", {}), ("/v1/chat/completions", {"stream": True}), ("/tokenize", {}),
                           ("/v1/chat/completions", {"tools": TOOLS, "tool_choice": "required"})):
            status, reply = of.send(path, messages=[QUESTION], **more)
            message = reply["error"]["message"]
            assert status == 400 and "line 2" in message and "include" in message, (status, message)


def main():
    program, models = sys.argv[1], os.path.abspath(sys.argv[2])
    with server(program, models, TAGS) as of:
        check_calls(of, TAGS_TURN, ["sun", "rain"])
    with server(program, models, HEADERS) as of:
        check_calls(of, HEADERS_TURN, ["sun"])
    check_refusal(program, models)
    print("calls of functions with two templates, and a template that is refused")


main()
