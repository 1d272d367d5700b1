# SPDX-License-Identifier: BSL-1.0
"""openai_client.py SERVE MODELS: what OpenAI's own Python client gets from the server. 77 where it is not installed."""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys

try:
    import openai
except ImportError:
    print("Skipped: pip install openai brings what this test needs.")
    sys.exit(77)

KEY = "a key"


def start(program, models, *arguments):
    process = subprocess.Popen(
        [program, "--model", models, "--model-name", "tiny", "--port", "0", "--policy", "chain", *arguments],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "ESPALIER_API_KEY": KEY})
    line = process.stdout.readline()
    assert " at http://" in line, line
    return process, line.split(" at ")[1].strip() + "/v1"


def end(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def check_completions(client):
    asked = dict(model="tiny", prompt="The king", max_tokens=12, temperature=0.8, seed=7)
    whole = client.completions.create(**asked)
    assert whole.object == "text_completion" and whole.model == "tiny"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    assert whole.usage.total_tokens == 12 + whole.usage.prompt_tokens
    text = whole.choices[0].text
    assert client.completions.create(**asked).choices[0].text == text
    assert client.completions.create(**{**asked, "seed": 8}).choices[0].text != text

    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == text
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len(chunks) > 3

    several = client.completions.create(**asked, n=3)
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert several.choices[0].text == text
    assert len({c.text for c in several.choices}) == 3
    assert several.usage.completion_tokens == 36

    stop = text[4:6]
    stopped = client.completions.create(**asked, stop=[stop, "never"])
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    chunks = client.completions.create(**asked, stop=stop, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == text[: text.index(stop)]

    scored = client.completions.create(**asked, logprobs=2).choices[0]
    assert "".join(scored.logprobs.tokens) == scored.text == text
    assert all(p < 0 for p in scored.logprobs.token_logprobs)
    assert all(len(best) == 2 for best in scored.logprobs.top_logprobs)

    by_tokens = client.completions.create(**{**asked, "prompt": [1, 300, 400], "temperature": 0})
    assert by_tokens.usage.prompt_tokens == 3


def check_chat(client):
    asked = dict(model="tiny", messages=[{"role": "system", "content": "Count."},
                                         {"role": "user", "content": "How much are 2 pencils?"}],
                 max_completion_tokens=10, temperature=0)
    whole = client.chat.completions.create(**asked)
    assert whole.object == "chat.completion"
    message = whole.choices[0].message
    assert message.role == "assistant" and message.content
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].object == "chat.completion.chunk" and chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    scored = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in scored).decode() == message.content
    assert all(t.top_logprobs[0].token == t.token and len(t.top_logprobs) == 3 for t in scored)
    # A stream that is left: the server goes on.
    with client.chat.completions.create(**{**asked, "max_completion_tokens": 500}, stream=True) as stream:
        next(iter(stream))


def check_tools(client):
    tools = [{"type": "function", "function": {
        "name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
                                          "required": ["city"], "additionalProperties": False}}}]
    asked = dict(model="tiny", messages=[{"role": "user", "content": "The weather?"}], tools=tools, seed=3,
                 tool_choice="required", max_completion_tokens=100)
    choice = client.chat.completions.create(**asked).choices[0]
    call = choice.message.tool_calls[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    chunks = list(client.chat.completions.create(**asked, stream=True))
    streamed = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    assert [c.function.arguments for c in streamed] == [call.function.arguments]
    turns = asked["messages"] + [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client.chat.completions.create(**{**asked, "messages": turns, "tool_choice": "none"}).choices[0]
    assert answer.message.content and answer.message.tool_calls is None

    both = client.completions.create(model="tiny", prompt=["The king", "A"], max_tokens=3, echo=True, temperature=0)
    assert [c.text.split()[0] for c in both.choices] == ["The", "A"]
    raised(openai.NotFoundError, client.responses.create, model="tiny", input="a")


def raised(kind, call, **asked):
    try:
        call(**asked)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} for {asked}")


def check_errors(client):
    create = client.completions.create
    error = raised(openai.BadRequestError, create, model="tiny", prompt="a", temperature=3)
    assert error.param == "temperature" and error.code == "invalid_value"
    assert error.type == "invalid_request_error" and "from 0 to 2" in error.message
    assert raised(openai.BadRequestError, create, model="tiny", prompt="a " * 3000).code == "context_length_exceeded"
    raised(openai.BadRequestError, client.chat.completions.create, model="tiny", messages=[])
    assert raised(openai.NotFoundError, create, model="huge", prompt="a").code == "model_not_found"
    stranger = client.with_options(api_key="another")
    assert raised(openai.AuthenticationError, stranger.models.list).code == "invalid_api_key"
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "espalier"


def check_queue(client):
    """More at once than the server takes: the others are told so, and nobody else is hurt."""
    def ask(seed):
        try:
            return client.completions.create(model="tiny", prompt="The king", max_tokens=100, seed=seed).choices[0].text
        except openai.RateLimitError as error:
            assert error.code == "queue_full"
            return None

    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        texts = list(threads.map(ask, range(12)))
    assert None in texts and len([t for t in texts if t]) >= 2, texts


def main():
    program, models = sys.argv[1:]
    process, url = start(program, models)
    try:
        client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60)
        check_completions(client)
        check_chat(client)
        check_tools(client)
        check_errors(client)
        end(process)
        process, url = start(program, models, "--max-texts", "1", "--max-waiting", "1")
        check_queue(openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60))
        end(process)
    finally:
        process.kill()
    print(f"openai {openai.__version__} is served.")


main()
