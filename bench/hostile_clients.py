#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Measures what eight hostile clients cost the other clients of examples/serve, and whether texts are mixed up.

    bench/hostile_clients.py build/examples/serve/serve [arguments of serve ...] [--texts 1000] [--seconds 20]

It starts the server, and measures for some seconds each the time a token of four texts that are streamed all the time:
alone, beside eight hostile clients, beside eight ordinary ones, and alone again. Each hostile client asks, again and
again, for what takes long or much: rules with huge automata, distinct schemas, prompts of a megabyte, replies that
nobody reads. The ordinary clients ask for as many tokens a second as were written for the hostile ones, without rules,
so the quotient of the two times is what hostility costs beyond the share of the models that any client has. Both kinds
run in a process that gives way to all others, since real ones would be other machines. Then it sends a number of short
texts, each with a prompt and a seed of its own, first without the hostile clients and then beside them: each must be
the same text. It prints the times, the resident memory before and after, and the number of texts that differ. The exit
status is 1 if one of the limits is not kept: a quotient of 1.2, memory back to within 10 %, no text.
"""
import argparse
import concurrent.futures
import http.client
import json
import multiprocessing
import os
import random
import socket
import statistics
import string
import subprocess
import sys
import threading
import time

HOST = "127.0.0.1"


class server:
    def __init__(self, command):
        self.process = subprocess.Popen(command + ["--port", "0"], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if " at http://" not in line:
            sys.exit("the server does not start: " + line)
        self.port = int(line.rsplit(":", 1)[1])

    def memory(self):
        """MiB that are resident."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024

    def counted(self):
        """The server's metrics of one number each, by name."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=300)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return {name: float(value) for name, value in (line.split() for line in lines if line[:1] != "#" and "{" not in line)}

    def tokens(self):
        """Tokens that were written for all clients so far."""
        return self.counted()["espalier_tokens_written_total"]

    def end(self):
        self.process.terminate()
        self.process.wait()


def ask(port, body, timeout=300, path="/v1/completions"):
    """The status and the reply of a request; status 0 if there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def text_of(reply):
    status, body = reply
    return json.loads(body)["choices"][0]["text"] if status == 200 else f"status {status}"


def streamed(port, seed, n_tokens):
    """Seconds from the first to the last event of a streamed text, and the tokens between them."""
    connection = http.client.HTTPConnection(HOST, port, timeout=300)
    body = {"prompt": "The king", "max_tokens": n_tokens, "temperature": 1, "seed": seed, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    first = last = None
    written = n_first = 0
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("usage"):
            written = event["usage"]["completion_tokens"]
        elif event["choices"] and event["choices"][0]["text"]:
            last = time.monotonic()
            if first is None:
                first = last
    connection.close()
    return (last - first, written - 1) if first is not None and last > first else (0, 0)


def seconds_a_token(port, seconds, n_clients=4):
    """Of texts that are streamed all the time: the whole time by the whole number of tokens, and that number."""
    end = time.monotonic() + seconds
    sums = [[0.0, 0] for _ in range(n_clients)]

    def stream(i):
        seed = i
        while time.monotonic() < end:
            spent, n = streamed(port, seed, 64)
            sums[i][0] += spent
            sums[i][1] += n
            seed += n_clients

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    n_tokens = sum(n for _, n in sums)
    return sum(s for s, _ in sums) / max(1, n_tokens), n_tokens


def schema(of, **more):
    return dict({"prompt": "The king", "max_tokens": 40, "json_schema": of}, **more)


def hostile_requests():
    """What the eight clients ask for: functions of the number of the request."""
    letters = string.ascii_lowercase
    words = "|".join(c + "[a-z]{20}" for c in letters)
    long_words = "|".join(c + "[a-z]{200}" for c in letters)
    return [
        lambda i: {"prompt": "x", "max_tokens": 40, "guided_regex": f"([a-z]?){{{4000 - i}}}({words})*"},
        lambda i: {"prompt": "x", "max_tokens": 40, "guided_regex": f"((.?a?)?b?){{0,{1200 + i}}}"},
        lambda i: {"prompt": "x", "max_tokens": 40, "guided_regex": f"[a-z]*({long_words}){{{1 + i % 2}}}"},
        lambda i: schema({"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 2000 + i}},
                          "required": [f"p{i}"], "additionalProperties": False}),
        lambda i: schema({"enum": [f"v{j:06d}{i}" for j in range(25000)]}),
        lambda i: {"prompt": " " * 1000000 + str(i), "max_tokens": 4},
        lambda i: schema({"anyOf": [{"type": "string", "pattern": f"^.*{letters[j % 26]}.{{{10 + j + i % 7}}}$"}
                                    for j in range(200)]}),
        lambda i: {"prompt": "The king", "max_tokens": 400, "n": 2, "stream": True, "ignore_eos": True},
    ]


def ordinary_request(n_tokens):
    return {"prompt": "The king", "max_tokens": n_tokens, "temperature": 1, "ignore_eos": True}


def leave_unread(port, body, stopped):
    """Asks for texts and reads nothing."""
    data = json.dumps(body).encode()
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(data) + data)
        stopped.wait(1)


def be_hostile(port, number, stopped):
    """Asks until it is told to stop; returns the status of each reply and its seconds."""
    request, answers = hostile_requests()[number], []
    while not stopped.is_set():
        body = request(len(answers))
        begin = time.monotonic()
        if body.get("stream"):
            leave_unread(port, body, stopped)
            status = "unread"
        else:
            status = ask(port, body, timeout=30)[0]
        answers.append((status, time.monotonic() - begin))
    return answers


def be_ordinary(port, tokens_a_second, stopped):
    """Asks for so many tokens a second until it is told to stop, 40 at once or as many as a second has."""
    n_tokens = min(400, max(40, int(tokens_a_second)))
    begin, n_asked = time.monotonic(), 0
    while not stopped.wait(max(0, begin + n_asked / tokens_a_second - time.monotonic())):
        n_asked += n_tokens
        ask(port, ordinary_request(n_tokens))


class eight_clients:
    """Clients in a process that gives way to all others: client(port, i, stopped) for each i, until the end of the block."""

    def __init__(self, port, client):
        self.stopped, self.results = multiprocessing.Event(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=self.run, args=(port, client))

    def run(self, port, client):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.results.put(list(pool.map(lambda i: client(port, i, self.stopped), range(8))))

    def __enter__(self):
        self.process.start()
        time.sleep(1)
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.answers = self.results.get()
        self.process.join()


def short_text(number):
    return {"prompt": f"Number {number}: the {random.Random(number).choice(['king', 'cat', 'ship', 'house'])}",
            "max_tokens": 8, "temperature": 1, "seed": number, "ignore_eos": True}


def write_all(of, n):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda number: text_of(ask(of.port, short_text(number))), range(n)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("serve")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    options, arguments = parser.parse_known_args()
    of = server([options.serve] + arguments)
    try:
        seconds_a_token(of.port, 3)
        with eight_clients(of.port, lambda port, i, stopped: be_ordinary(port, 400, stopped)):
            expected = write_all(of, options.texts)
            time.sleep(3)
        memory_before = of.memory()
        alone = [seconds_a_token(of.port, options.seconds / 2)[0]]
        with eight_clients(of.port, be_hostile) as hostile:
            n_tokens, begin = of.tokens(), time.monotonic()
            beside, n_own = seconds_a_token(of.port, options.seconds)
            theirs = (of.tokens() - n_tokens - n_own) / (time.monotonic() - begin)
            peak = of.memory()
            texts = write_all(of, options.texts)
        with eight_clients(of.port, lambda port, i, stopped: be_ordinary(port, max(1, theirs) / 8, stopped)):
            n_tokens, begin = of.tokens(), time.monotonic()
            ordinary, n_own = seconds_a_token(of.port, options.seconds)
            as_many = (of.tokens() - n_tokens - n_own) / (time.monotonic() - begin)
        alone.append(seconds_a_token(of.port, options.seconds / 2)[0])
        memory_after = of.memory()
        for number, answers in enumerate(hostile.answers):
            kinds = sorted({str(status) for status, _ in answers})
            longest = max((seconds for _, seconds in answers), default=0)
            print(f"hostile client {number}: {len(answers)} requests, answered {', '.join(kinds)}, longest {longest:.1f} s")
        differing = sum(one != other for one, other in zip(expected, texts))
        mean = statistics.mean(alone)
        print(f"time a token: {1e3 * alone[0]:.2f} and {1e3 * alone[1]:.2f} ms alone; {1e3 * beside:.2f} ms, "
              f"{beside / mean:.2f} times, beside hostile clients of {theirs:.0f} tokens a second; {1e3 * ordinary:.2f} ms, "
              f"{ordinary / mean:.2f} times, beside ordinary ones of {as_many:.0f}: quotient {beside / ordinary:.2f}")
        print(f"memory: {memory_before:.0f} MiB before, {peak:.0f} with them, {memory_after:.0f} after: "
              f"{memory_after / memory_before - 1:+.1%}")
        print(f"texts that differ: {differing} of {options.texts}")
        return 0 if beside <= 1.2 * ordinary and memory_after <= 1.1 * memory_before and differing == 0 else 1
    finally:
        of.end()


if __name__ == "__main__":
    sys.exit(main())
