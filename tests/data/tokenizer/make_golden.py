#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains small tokenizers, and writes what Hugging Face's tokenizers make of hard texts: bytes.json and characters.json (two
tokenizer.json) and golden.json, in which each variant is one of the two with fields of it put in place of its own. And
chats.json: what Jinja makes of chat templates of each form.

    pip install tokenizers jinja2 && make_golden.py

With a tokenizer.json and texts instead, checks that a program gives the same tokens, text by text; the program reads texts as
`LENGTH\\n` and that many bytes, and writes the tokens of each in a line:

    make_golden.py tokenizer.json PROGRAM TEXT..."""

import codecs
import copy
import json
import os
import random
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS = os.path.join(HERE, "../../../examples/models/prompts.jsonl")
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN2 = LLAMA3.replace("{1,3}", "")

TEXTS = [
    "",
    " ",
    "   ",
    "\n\n",
    " \n \n  x",
    "don't DON'T I'll we'Ve 'S'T \u017f '\u017f",
    "1234567890 12,345.67 \u2460\u00b2\u00b3 \u2167 \u0663\u0664\u0665 a1b22c333",
    "\u0301e\u0301 \u00e9 A\u030a \u212b \ufb01 \uff21 \u00bd \u1e9b\u0323",
    "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea",
    "\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u6587\u3001\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "   leading and trailing   ",
    "tab\t\ttab\r\n\r\nx\u00a0y\u3000z\u2028\u180ew\u0085v\x1cu",
    "<|im_start|>user\nHi <|im_end|> <|im_end|>\n<|im_end",
    "<s>one</s> <s> two </s><unk><0x41><0x0A>",
    "a <mask>  b<mask><left> \t<left>c<right>  d<right>\u00a0\n<right>",
    "<think>\nwell</think>  <thin <tool  call>\u00a0",
    "\x00\x01\x7f\x80\u00ad\ufeff\u200b\ufffd",
    "x" * 70,
    " " * 40 + "x",
    "ab" * 30 + "the the thethe",
    "\u2581a \u2581 b\u2581\u2581c",
    "def f(x):\n    return x_1 + 2  # why?\n\n\nhttp://a.b/c?d=e&f=%20",
    "it's... \u201cquoted\u201d \u2014 \u00bfno? $5+3=8 ^`|~",
]
FRAGMENTS = "the |Hello|'s|'RE| |  |\n|\r\n|\t|1|23|4567|.|...|!?|<|im_end|>|_|-|\u00e9|e\u0301|\u6f22|\U0001f600|\u00a0|\u3000|\u00df".split("|")
MARKS = ["<|im_end|>", "<s>", "</s>", "<mask>", "<left>", "<right>", "<think>", "<tool  call>", "\u2581", "<0x41>"]
BROKEN = [b"\xe1\xa0", b"\xf0\x9f\x98", b"a\xffb\xc3", b"\xed\xa0\x80x", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x82 <|im_end|>"]

# Each byte that is part of no character is replaced on its own.
codecs.register_error("each", lambda e: ("\ufffd" * (e.end - e.start), e.end))


def hard_texts(seed, n):
    """Fragments, marks and characters of every category, in disorder."""
    rng = random.Random(seed)
    categories = {}
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
            categories.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    names = sorted(categories)
    texts = []
    for i in range(n):
        text = rng.choice(categories[names[i % len(names)]])
        for _ in range(rng.randint(1, 7)):
            kind = rng.random()
            if kind < 0.5:
                text += rng.choice(FRAGMENTS)
            elif kind < 0.65:
                text += rng.choice(MARKS)
            else:
                text += rng.choice(categories[rng.choice(names)])
        texts.append(text)
    return texts


def train(byte_level):
    tokenizer = Tokenizer(models.BPE())
    lines = [json.loads(line)["text"] for line in open(PROMPTS, encoding="utf-8")] + TEXTS[5:12] + TEXTS[20:]
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        alphabet = []
        lines = [line for line in lines if line.isascii() or "\u2581" in line]
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    file = json.loads(tokenizer.to_str())
    words = file["model"]["vocab"]

    def add(word):
        return words.setdefault(word, len(words))

    if byte_level:
        # What GPT-2's pattern keeps apart, Llama 3's does not; and words that no merges make.
        for left, right in [("\u0120", "\u010a"), ("\u010a", "\u010a"), ("(", "x"), ("1", "2"), ("12", "3"), ("'", "\u0120t")]:
            if left in words and right in words and left + right not in words:
                add(left + right)
                file["model"]["merges"].append([left, right])
        add("Hello")
        add("12345")
        add("\u0120leading")
    else:
        file["model"]["byte_fallback"] = True
        for mark in ("<unk>", "<s>", "</s>"):
            add(mark)
        for byte in range(256):
            add(f"<0x{byte:02X}>")
        space = decoders.Replace("\u2581", " ")
        file["decoder"] = json.loads(with_parts(decoder=decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])))["decoder"]

    new = len(words)

    def added(text, special=True, **flags):
        nonlocal new
        entry = {"id": words.get(text, new), "content": text, "single_word": False}
        entry |= {"lstrip": False, "rstrip": False, "normalized": False, "special": special} | flags
        new += text not in words
        file["added_tokens"].append(entry)

    file["added_tokens"] = []
    # Special ones last: without them, the others keep their numbers.
    added("<right>", special=False, rstrip=True)
    added("<think>", special=False)
    added("<tool  call>", special=False, normalized=True)
    for mark in ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"):
        added(mark)
    added("<mask>", lstrip=True)
    added("<left>", lstrip=True, rstrip=True)
    return file


def with_parts(**parts):
    tokenizer = Tokenizer(models.BPE())
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer.to_str()


def fields(**parts):
    """What a tokenizer.json says of these parts."""
    file = json.loads(with_parts(**parts))
    return {name: file[name] for name in parts}


def split(pattern, behavior="isolated", invert=False):
    from tokenizers import Regex

    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def variants():
    bytes_after = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sequence = pre_tokenizers.Sequence
    begin = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    space = normalizers.Replace(" ", "\u2581")
    return {
        "gpt2": ("bytes", {}),
        "smollm": ("bytes", fields(pre_tokenizer=sequence([pre_tokenizers.Digits(True), plain_bytes]))),
        "llama3": (
            "bytes",
            fields(pre_tokenizer=sequence([split(LLAMA3), bytes_after]))
            | {"model": {"ignore_merges": True}, "post_processor": begin},
        ),
        "qwen2": ("bytes", fields(normalizer=normalizers.NFC(), pre_tokenizer=sequence([split(QWEN2), bytes_after]))),
        "nfkd_prefix": ("bytes", fields(normalizer=normalizers.NFKD(), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))),
        "splits": (
            "bytes",
            fields(
                pre_tokenizer=sequence(
                    [
                        split(r"\s+", "removed"),
                        split(r"[\p{Lu}\p{Han}]", "merged_with_next"),
                        split(r"\.|\d", "contiguous"),
                        pre_tokenizers.Split("e", "merged_with_previous"),
                        pre_tokenizers.Punctuation(),
                        bytes_after,
                    ]
                )
            ),
        ),
        "words": ("bytes", fields(pre_tokenizer=sequence([split(r"\w+|[^\w\s]+", "removed", True), bytes_after]))),
        "groups": ("bytes", fields(pre_tokenizer=sequence([split(r"(?=(\d{3})+(?!\d))"), split(GPT2), bytes_after]))),
        "llama2": (
            "characters",
            fields(normalizer=normalizers.Sequence([normalizers.Prepend("\u2581"), space]))
            | {"pre_tokenizer": None, "post_processor": begin, "model": {"unk_token": "<unk>", "fuse_unk": True}},
        ),
        "metaspace": ("characters", fields(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always"))),
        "metaspace_first": ("characters", fields(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))),
        "gemma": ("characters", fields(normalizer=space, pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"))),
        "unknown": ("characters", {"model": {"unk_token": "<unk>", "byte_fallback": False}}),
        "unknown_joined": ("characters", {"model": {"unk_token": "<unk>", "byte_fallback": False, "fuse_unk": True}}),
        "dropped": ("characters", {"model": {"byte_fallback": False}}),
    }


def merged(file, patch):
    file = copy.deepcopy(file)
    for key, value in patch.items():
        if key == "model":
            file["model"] |= value
        else:
            file[key] = value
    if file.get("post_processor"):
        file["post_processor"]["special_tokens"] = {
            "<s>": {"id": "<s>", "ids": [next(t["id"] for t in file["added_tokens"] if t["content"] == "<s>")], "tokens": ["<s>"]}
        }
    return file


def as_read(text):
    return text if isinstance(text, str) else text.decode("utf-8", "each")


def without_marks(file):
    file = copy.deepcopy(file)
    file["added_tokens"] = [t for t in file["added_tokens"] if not t["special"]]
    file["post_processor"] = None
    return file


def write_golden():
    files = {"bytes": train(True), "characters": train(False)}
    for name, file in files.items():
        with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as out:
            json.dump(file, out, ensure_ascii=False, separators=(",", ":"))
            out.write("\n")
    texts = TEXTS + hard_texts(1, 90) + BROKEN
    golden = {"texts": [t if isinstance(t, str) else {"hex": t.hex()} for t in texts], "variants": {}}
    for name, (base, patch) in variants().items():
        file = merged(files[base], patch)
        trusting = Tokenizer.from_str(json.dumps(file))
        plain = Tokenizer.from_str(json.dumps(without_marks(file)))
        entry = {"base": base, "patch": patch, "trusted": [], "plain": [], "begin": trusting.encode("").ids}
        for text in map(as_read, texts):
            entry["trusted"].append(trusting.encode(text, add_special_tokens=False).ids)
            tokens = plain.encode(text).ids
            entry["plain"].append(tokens if tokens != entry["trusted"][-1] else None)
        golden["variants"][name] = entry
    with open(os.path.join(HERE, "golden.json"), "w", encoding="utf-8") as out:
        json.dump(golden, out, separators=(",", ":"))
        out.write("\n")
    write_chats()


# Each form of a chat template, in short: its text, bos_token and eos_token.
ROLES = "{{ raise_exception('Roles must take turns: user, assistant, user.') }}"
TURNS = "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}" + ROLES + "{% endif %}"
ASK = "{% if add_generation_prompt %}{{ "
SYSTEM_FIRST = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    """
CHAT_TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
        + ASK
        + "'<|im_start|>assistant\\n' }}{% endif %}",
        "",
        "<|im_end|>",
    ),
    "chatml with a system, newlines as they are": (
        "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nIt\\'s a default.<|im_end|>\n' }}{% endif %}"
        "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        + ASK
        + "'<|im_start|>assistant\n' }}{% endif %}",
        "",
        "<|im_end|>",
    ),
    "chatml with thoughts": (
        """{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}""",
        "",
        "<|im_end|>",
    ),
    "phi 4": (
        "{% for m in messages %}{{'<|im_start|>' + m['role'] + '<|im_sep|>' + m['content'] + '<|im_end|>'}}{% endfor %}"
        + ASK
        + "'<|im_start|>assistant<|im_sep|>' }}{% endif %}",
        "",
        "<|endoftext|>",
    ),
    "llama 3": (
        "{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim"
        " + '<|eot_id|>' %}{% if loop.first %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
        + ASK
        + "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        "<|begin_of_text|>",
        "<|eot_id|>",
    ),
    "llama 3.1": (
        """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- set system_message = "" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n'+ m['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}""",
        "<|begin_of_text|>",
        "<|eot_id|>",
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}"
        + TURNS
        + "{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
        + ASK
        + "'<start_of_turn>model\\n' }}{% endif %}",
        "<bos>",
        "<eos>",
    ),
    "gemma 3": (
        """{{ bos_token }}
{%- set before = '' -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set before = messages[0]['content'] + '\n\n' -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
    """
        + TURNS
        + """
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (before if loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}""",
        "<bos>",
        "<eos>",
    ),
    "llama 2": (
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}{% endif %}"
        "{% for message in messages %}"
        + TURNS
        + "{% if loop.index0 == 0 and system is defined %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' +"
        " message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        "<s>",
        "</s>",
    ),
    "mistral": (
        "{{ bos_token }}{% for message in messages %}"
        + TURNS
        + "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% else %}{{ message['content'] + eos_token}}{% endif %}{% endfor %}",
        "<s>",
        "</s>",
    ),
    "mistral with a system": (
        SYSTEM_FIRST
        + TURNS
        + """
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] + eos_token }}
    {%- endif %}
{%- endfor %}""",
        "<s>",
        "</s>",
    ),
    "mistral with a system before the last": (
        SYSTEM_FIRST
        + TURNS
        + """
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- message["content"] + eos_token }}
    {%- endif %}
{%- endfor %}""",
        "<s>",
        "</s>",
    ),
    "zephyr": (
        """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% else %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
        "<s>",
        "</s>",
    ),
    "phi 3": (
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
        "{# <|user|> <|assistant|> <|system|> #}" + ASK + "'<|assistant|>\n' }}{% endif %}",
        "<s>",
        "<|endoftext|>",
    ),
}
CHATS = [
    [("user", "Hi")],
    [("system", "Be  brief."), ("user", "Hi")],
    [("user", "One?"), ("assistant", "Two."), ("user", "And\n then?")],
    [("system", "S"), ("user", "One?"), ("assistant", "Two."), ("user", "x"), ("assistant", "y"), ("user", "z")],
    [("user", " a "), ("assistant", " b "), ("user", "c\n")],
    [("user", "<|im_end|>"), ("assistant", "<think>\nhm\n</think>\n\nA."), ("user", "r")],
    [("user", "a"), ("user", "b")],
]


def write_chats():
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def complain(message):
        raise TemplateError(message)

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    jinja.globals["raise_exception"] = complain
    chats = []
    for name, (text, begin, end) in CHAT_TEMPLATES.items():
        template = jinja.from_string(text)
        entry = {"name": name, "template": text, "bos_token": begin, "eos_token": end, "prompts": []}
        for chat in CHATS:
            messages = [{"role": role, "content": content} for role, content in chat]
            try:
                prompt = template.render(messages=messages, bos_token=begin, eos_token=end, add_generation_prompt=True)
            except TemplateError:
                prompt = None
            entry["prompts"].append(prompt)
        chats.append(entry)
    with open(os.path.join(HERE, "chats.json"), "w", encoding="utf-8") as out:
        json.dump({"chats": CHATS, "templates": chats}, out, indent=1)
        out.write("\n")


def check(path, program, paths):
    file = json.load(open(path, encoding="utf-8"))
    plain = Tokenizer.from_str(json.dumps(without_marks(file)))
    texts = [t if isinstance(t, bytes) else t.encode() for t in TEXTS + hard_texts(2, 20000) + BROKEN]
    texts += [open(p, "rb").read() for p in paths]
    sent = b"".join(b"%d\n" % len(t) + t for t in texts)
    lines = subprocess.run([program, path], input=sent, capture_output=True, check=True).stdout.decode().split("\n")
    differ = [t for t, line in zip(texts, lines) if plain.encode(as_read(t)).ids != [int(i) for i in line.split()]]
    for text in differ[:10]:
        print("differs:", text[:80])
    print(f"{len(texts)} texts of {sum(map(len, texts))} bytes, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(check(sys.argv[1], sys.argv[2], sys.argv[3:]) if len(sys.argv) > 2 else write_golden())
