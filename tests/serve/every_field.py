# SPDX-License-Identifier: BSL-1.0
"""every_field.py SERVE MODELS [FIELDS]: asks the server for every path and every field, and checks what is done with it.

FIELDS is examples/serve/known_fields.hpp: each field that it lists must be asked for here."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys

PORT = 0
n_asked = 0
asked_fields = set()


def request(method, path, body=None, headers=None):
    global n_asked
    n_asked += 1
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    data = None if body is None else json.dumps(body).encode()
    connection.request(method, path, data, {**({"Content-Type": "application/json"} if data else {}), **(headers or {})})
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, reply.headers, text


def post(path, **body):
    if path.startswith("/v1/"):
        asked_fields.update(body)
    status, _, text = request("POST", path, body)
    return status, json.loads(text)


def completion(**body):
    return post("/v1/completions", **{"prompt": "The king", "max_tokens": 6, "temperature": 0, "seed": 1, **body})


def chat(**body):
    return post("/v1/chat/completions", **{"messages": [{"role": "user", "content": "How much are 3 pencils?"}],
                                           "max_tokens": 6, "temperature": 0, "seed": 1, **body})


def taken(reply):
    status, body = reply
    assert status == 200, body
    return body


def refused(reply, *names, status=400):
    assert reply[0] == status, reply
    message = reply[1]["error"]["message"]
    assert message.endswith(".") and all(name in message for name in names), (names, message)
    return message


def texts(body):
    return [choice["text"] for choice in body["choices"]]


def stream(path, **body):
    status, _, text = request("POST", path, {**body, "stream": True})
    assert status == 200, text
    events = [line[6:] for line in text.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]", text
    return [json.loads(event) for event in events[:-1]]


def check_prompts():
    one, two = taken(completion()), taken(completion(prompt="A"))
    both = taken(completion(prompt=["The king", "A"]))
    assert texts(both) == texts(one) + texts(two), (both, one, two)
    assert both["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"] + two["usage"]["prompt_tokens"]
    tokens = taken(post("/tokenize", prompt="The king"))["tokens"]
    assert texts(taken(completion(prompt=tokens))) == texts(one)
    assert texts(taken(completion(prompt=[tokens, tokens]))) == 2 * texts(one)
    samples = taken(completion(prompt=["The king", "A"], n=2, temperature=1))
    assert [c["index"] for c in samples["choices"]] == [0, 1, 2, 3]
    assert texts(samples)[:2] == texts(taken(completion(n=2, temperature=1)))
    assert texts(samples)[2:] == texts(taken(completion(prompt="A", n=2, temperature=1)))
    pieces = ["", "", "", ""]
    for chunk in stream("/v1/completions", prompt=["The king", "A"], n=2, temperature=1, seed=1, max_tokens=6):
        for choice in chunk["choices"]:
            pieces[choice["index"]] += choice["text"]
    assert pieces == texts(samples)
    refused(completion(prompt=[]), "prompt")
    refused(completion(prompt=["a", [1]]), "prompt[1]")
    refused(completion(prompt=["a"] * 200), "200 prompts")


def check_echo():
    plain, echoed = taken(completion()), taken(completion(echo=True))
    assert texts(echoed) == ["The king" + texts(plain)[0]]
    assert "".join(c["text"] for chunk in stream("/v1/completions", prompt="The king", max_tokens=6, temperature=0, echo=True)
                   for c in chunk["choices"]) == texts(echoed)[0]
    scored = taken(completion(echo=True, logprobs=2, n=2))
    for choice in scored["choices"]:
        found = choice["logprobs"]
        assert "".join(found["tokens"]) == choice["text"]
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        assert all(p < 0 for p in found["token_logprobs"][1:])
        assert len(found["tokens"]) == len(found["text_offset"]) == len(found["top_logprobs"])
    # The log-probabilities of a text are the same, be it written or read.
    written = taken(completion(logprobs=0))["choices"][0]
    read = taken(completion(prompt="The king" + written["text"], max_tokens=0, echo=True, logprobs=0))["choices"][0]
    assert read["text"] == "The king" + written["text"] and read["finish_reason"] == "length"
    n = len(written["logprobs"]["tokens"])
    if read["logprobs"]["tokens"][-n:] == written["logprobs"]["tokens"]:
        for a, b in zip(read["logprobs"]["token_logprobs"][-n:], written["logprobs"]["token_logprobs"]):
            assert abs(a - b) < 1e-3, (a, b)
    nothing = taken(completion(max_tokens=0))
    assert texts(nothing) == [""] and nothing["usage"]["completion_tokens"] == 0
    assert texts(taken(completion(max_tokens=0, n=3))) == ["", "", ""]
    assert texts(taken(completion(max_tokens=0, echo=True, n=2))) == ["The king"] * 2
    refused(chat(echo=True), "echo")


def check_best():
    asked = dict(temperature=1, max_tokens=8)
    all_texts = taken(completion(**asked, n=4, logprobs=0))["choices"]
    mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
    best = sorted(all_texts, key=mean, reverse=True)
    found = taken(completion(**asked, n=2, best_of=4))
    assert texts(found) == [c["text"] for c in best[:2]], (found, best)
    assert found["choices"][0]["logprobs"] is None
    assert found["usage"]["completion_tokens"] == 32
    refused(completion(best_of=1, n=2), "best_of")
    refused(completion(best_of=2, stream=True), "best_of")


def check_log_probs():
    found = taken(completion(prompt="\U0001F600 \u65e5\u672c \U0001F600 \u65e5\u672c", max_tokens=12, logprobs=2))
    log_probs = found["choices"][0]["logprobs"]
    for token, best in zip(log_probs["tokens"], log_probs["top_logprobs"]):
        assert "\ufffd" not in token and len(best) == 2, (token, best)


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                   "required": ["city", "days"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now"}}


def check_call(choice, names):
    assert choice["finish_reason"] == "tool_calls", choice
    assert choice["message"]["content"] is None
    for call in choice["message"]["tool_calls"]:
        assert call["type"] == "function" and call["id"] and call["function"]["name"] in names
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "weather":
            assert arguments["city"] in ("Rome", "Oslo") and arguments["days"] in range(1, 10)  # 1.0 is a whole number, too
        else:
            assert arguments == {}


def check_tools():
    for seed in range(4):
        asked = dict(tools=[WEATHER, NOW], max_tokens=200, temperature=1, seed=seed)
        found = taken(chat(**asked, tool_choice="required", n=2))
        for choice in found["choices"]:
            check_call(choice, ("weather", "now"))
        name = "now" if seed % 2 else "weather"
        named = dict(tool_choice={"type": "function", "function": {"name": name}})
        whole = taken(chat(**asked, **named))["choices"][0]
        check_call(whole, (name,))
        chunks = stream("/v1/chat/completions", messages=[{"role": "user", "content": "How much are 3 pencils?"}],
                        **asked, **named)
        calls = [call for chunk in chunks for c in chunk["choices"] for call in c["delta"].get("tool_calls", [])]
        assert [c["function"] for c in calls] == [c["function"] for c in whole["message"]["tool_calls"]]
        assert [c["index"] for c in calls] == list(range(len(calls)))
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    free = taken(chat(tools=[WEATHER], tool_choice="auto"))["choices"][0]
    assert free["message"]["content"] and "tool_calls" not in free["message"]
    assert taken(chat(tools=[WEATHER], tool_choice="none")) ["choices"][0]["message"] == taken(chat())["choices"][0]["message"]
    assert taken(chat(tools=[WEATHER], parallel_tool_calls=False))
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}
    assert taken(chat(messages=[{"role": "user", "content": "The weather?"},
                                {"role": "assistant", "content": None, "tool_calls": [call]},
                                {"role": "tool", "tool_call_id": "1", "content": "sunny"},
                                {"role": "assistant", "content": None},
                                {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]}]))
    refused(chat(tool_choice="required"), "tool_choice")
    refused(chat(tools=[WEATHER], response_format={"type": "json_object"}), "response_format", "tools")
    refused(chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), "image_url")


def check_tokens():
    found = taken(post("/tokenize", content="The king"))
    assert set(found) == {"tokens"}
    pieces = taken(post("/tokenize", content="The king", with_pieces=True))["tokens"]
    assert [p["id"] for p in pieces] == found["tokens"] and "".join(p["piece"] for p in pieces) == "The king"
    byte_pieces = taken(post("/tokenize", content="\U0001F600", with_pieces=True))["tokens"]
    assert any(isinstance(p["piece"], list) for p in byte_pieces)
    whole = taken(post("/tokenize", prompt="The king", return_token_strs=True))
    assert whole["count"] == len(whole["tokens"]) == len(whole["token_strs"]) and whole["max_model_len"] > 0
    assert taken(post("/tokenize", prompt="The king", add_special_tokens=False))["tokens"] == found["tokens"]
    assert taken(post("/tokenize", content="The king", add_special=True))["tokens"] == whole["tokens"]
    messages = [{"role": "user", "content": "How much are 3 pencils?"}]
    n = taken(post("/tokenize", messages=messages))["count"]
    assert taken(chat())["usage"]["prompt_tokens"] == n
    assert taken(post("/tokenize", messages=messages, tools=[WEATHER]))["count"] > n
    assert taken(post("/detokenize", tokens=found["tokens"])) == {"prompt": "The king", "content": "The king"}
    refused(post("/tokenize", text="a"), "text")
    refused(post("/tokenize", content="a", add_special_tokens=True), "add_special_tokens goes not with content")
    refused(post("/tokenize", content="a", return_token_strs=False), "return_token_strs")
    refused(post("/tokenize", prompt="a", with_pieces=True), "with_pieces goes only with content")
    refused(post("/tokenize", messages=messages, add_special=False), "add_special")
    refused(post("/tokenize"), "prompt")
    refused(post("/tokenize", content="a", prompt="a"), "prompt")
    refused(post("/tokenize", content=1), "content")
    refused(post("/detokenize", tokens=[-1]), "tokens[0]")
    refused(post("/detokenize", tokens="a"), "tokens")
    refused(post("/detokenize"), "tokens")


def check_paths():
    name = json.loads(request("GET", "/v1/models")[2])["data"][0]["id"]
    for method, path, status in [
            ("GET", "/health", 200), ("HEAD", "/health", 200), ("GET", "/metrics", 200), ("GET", "/v1/models", 200),
            ("GET", "/v1/models/" + name, 200), ("GET", "/v1/models/nope", 404), ("GET", "/", 404),
            ("GET", "/v1/completions", 405), ("GET", "/tokenize", 405), ("PUT", "/detokenize", 405),
            ("POST", "/v1/responses", 404), ("GET", "/v1/responses/1", 404), ("POST", "/v1/embeddings", 404),
            ("OPTIONS", "/v1/chat/completions", 405), ("DELETE", "/v1/models/" + name, 405)]:
        found, headers, text = request(method, path, {} if method in ("POST", "PUT") else None)
        assert found == status, (method, path, found, text)
        if status == 405:
            assert headers["Allow"] == ("GET, HEAD" if "/models" in path else "POST"), headers
        assert "Access-Control-Allow-Origin" not in headers
    refused(post("/v1/responses", input="a"), "/v1/chat/completions", "Responses", status=404)
    refused(completion(model="nope"), "nope", status=404)
    taken(completion(model=name))


# Values of fields that are taken without another field, and of those that are refused.
TAKEN = dict(
    max_completion_tokens=6, n_predict=6, min_tokens=2, ignore_eos=True, top_p=0.5, top_k=5, min_p=0.1, seed=7, stop=["z"],
    stop_token_ids=[5], presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.5, logit_bias={"5": 1},
    allowed_token_ids=list(range(3, 900)), bad_words=["king"], response_format={"type": "text"},
    structured_outputs={"regex": "a+"}, json_schema={"type": "boolean"}, guided_json={"type": "boolean"},
    guided_regex="a+", guided_choice=["a", "b"], stream=False, logprobs=1, documents=[], chat_template_kwargs={},
    continue_final_message=False, add_generation_prompt=True, top_logprobs=0,
    parallel_tool_calls=False)
REFUSED = dict(guided_grammar=5, grammar=5, reasoning_effort="low")


def check_fields(path):
    """Asks for each field of the list: it is taken, or refused by its name."""
    with open(path) as file:
        listed = file.read().split("request_fields = {")[1].split("};")[0]
    entries = re.findall(r'(of_completions|of_chat|known_field)\(?\{"(\w+)"(?:, detail::(\w+)(?:, "((?:[^"\\]|\\.)*)")?)?', listed)
    assert len(entries) > 90, len(entries)
    for where, name, use, neutral in entries:
        for ask in [chat] if where == "of_chat" else [completion] if where == "of_completions" else [completion, chat]:
            if use == "without_effect":
                taken(ask(**{name: {"another": "value"}}))
            elif use == "unsupported":
                refused(ask(**{name: {"another": "value"}}), name)
                for value in json.loads(neutral.replace('\\"', '"') or "[]"):
                    taken(ask(**{name: value}))
            elif name in TAKEN:
                value = TAKEN[name] if (ask, name) != (chat, "logprobs") else True
                if ask is chat and name == "min_tokens":
                    value = 0  # a chat of this model ends at a label
                extra = {"max_tokens": None} if name in ("n_predict", "max_completion_tokens") else {}
                taken(ask(**{name: value, **extra}))
                # An object may be a schema, with a keyword that no draft of JSON schema knows.
                wrong = 5 if name in ("json_schema", "guided_json") else {"no": "such value"}
                refused(ask(**{name: wrong}), name)
            elif name in REFUSED:
                refused(ask(**{name: REFUSED[name]}), name)
            else:
                refused(ask(**{name: -5}), name)
    for ask in (completion, chat):
        refused(ask(temprature=1), "temprature", "temperature")
        refused(ask(nonsense_field=1), "nonsense_field")
    missing = {name for _, name, _, _ in entries} - asked_fields
    assert not missing, missing


def check_cors():
    origin = {"Origin": "https://a.example"}
    status, headers, _ = request("OPTIONS", "/v1/chat/completions", None, {
        **origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-a"})
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "https://a.example", (status, headers)
    assert headers["Access-Control-Allow-Headers"] == "authorization,x-a" and "POST" in headers["Access-Control-Allow-Methods"]
    key = {"Authorization": "Bearer key"}
    for path, more, status in [("/v1/models", key, 200), ("/v1/models", {}, 401), ("/nope", key, 404)]:
        found, headers, _ = request("GET", path, None, {**origin, **more})
        assert found == status and headers["Access-Control-Allow-Origin"] == "https://a.example", (path, found)
        assert headers["Vary"] == "Origin"
    _, headers, _ = request("GET", "/v1/models", None, {**key, "Origin": "https://b.example"})
    assert "Access-Control-Allow-Origin" not in headers
    status, headers, text = request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, {**key, **origin})
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "https://a.example" and b"[DONE]" in text


def start(program, models, *arguments, **environment):
    global PORT
    process = subprocess.Popen([program, "--model", models, "--port", "0", "--policy", "chain", *arguments],
                               stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    line = process.stdout.readline()
    assert " at http://" in line, line
    PORT = int(line.rsplit(":", 1)[1])
    return process


def end(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def main():
    program, models = sys.argv[1:3]
    process = start(program, models)
    try:
        for check in (check_prompts, check_echo, check_best, check_log_probs, check_tools, check_tokens, check_paths):
            check()
        if len(sys.argv) > 3:
            check_fields(sys.argv[3])
        end(process)
        process = start(program, models, "--cors", "https://a.example,http://localhost:3000", ESPALIER_API_KEY="key")
        check_cors()
        end(process)
        wrong = subprocess.run([program, "--cors", "a.example"], capture_output=True, text=True)
        assert wrong.returncode == 2 and "--cors" in wrong.stderr, wrong
    finally:
        process.kill()
    print(f"{n_asked} requests were answered as they should be.")


main()
