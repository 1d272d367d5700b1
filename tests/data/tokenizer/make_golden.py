#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Trains small tokenizers, and writes what Hugging Face's tokenizers make of hard texts: bytes.json, characters.json,
unigram.json and word_pieces.json (four tokenizer.json) and golden.json, in which each variant is one of them with fields of it
put in place of its own. And unigram.model, a model of SentencePiece, and chats.json: what Jinja makes of chat templates of each form.

    pip install tokenizers sentencepiece jinja2 && make_golden.py

With the file src/llama-vocab.cpp of llama.cpp, writes cuts.json: the names of tokenizer.ggml.pre, and how Hugging Face's
tokenizers cut texts by the patterns that each stands for (those of the models' own files, where that file quotes them):

    make_golden.py cuts llama-vocab.cpp

With a tokenizer.json and texts instead, checks that a program gives the same tokens, text by text; the program reads texts as
`LENGTH\\n` and that many bytes, and writes the tokens of each in a line:

    make_golden.py tokenizer.json PROGRAM TEXT..."""

import base64
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

    return add_marks(file, words)


def add_marks(file, words):
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


def lines_to_train():
    return [json.loads(line)["text"] for line in open(PROMPTS, encoding="utf-8")] + TEXTS[20:]


def train_unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    unknown = "<unknown>"
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=[unknown], unk_token=unknown, show_progress=False)
    tokenizer.train_from_iterator(lines_to_train(), trainer)
    file = json.loads(tokenizer.to_str())
    words = file["model"]["vocab"]
    words += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    return add_marks(file, {word: i for i, (word, _) in enumerate(words)})


def train_word_pieces():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(lines_to_train(), trainer)
    file = json.loads(tokenizer.to_str())
    return add_marks(file, dict(file["model"]["vocab"]))


# Characters of the texts that are newer than the tables of Unicode by which tokenizers changes and cuts texts for BERT.
NEWER = "\U00011c41\U00011073\U00010f58"

# Replacements for a table of SentencePiece's: tabs and wide spaces become spaces, some characters become others or none.
RULES = {"\t": " ", "\u3000": " ", "\u00a0": " ", "\u2460": "1", "\ufb01": "fi", "\uff21": "A", "\u200b": "", "e\u0301": "\u00e9"}


def sentencepiece_model():
    import io
    import tempfile

    import sentencepiece

    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for text, to in RULES.items():
            rules.write(" ".join(f"{ord(c):x}" for c in text) + "\t" + " ".join(f"{ord(c):x}" for c in to) + "\n")
        rules.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines_to_train()),
            model_writer=model,
            vocab_size=500,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_tsv=rules.name,
            minloglevel=2,
        )
    return model.getvalue()


def charsmap():
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(sentencepiece_model()).normalizer_spec.precompiled_charsmap


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
        "metaspace_digits": (
            "characters",
            fields(pre_tokenizer=sequence([pre_tokenizers.Digits(True), pre_tokenizers.Metaspace(prepend_scheme="always")])),
        ),
        "metaspace_between": (
            "characters",
            fields(
                pre_tokenizer=sequence(
                    [
                        split(r"[!-/:-@]"),
                        pre_tokenizers.Metaspace(prepend_scheme="always", split=False),
                        pre_tokenizers.Digits(False),
                    ]
                )
            ),
        ),
        "metaspace_never": (
            "characters",
            fields(
                pre_tokenizer=sequence([split(r"\p{Lu}", "merged_with_next"), pre_tokenizers.Metaspace(prepend_scheme="never")])
            ),
        ),
        "gemma": ("characters", fields(normalizer=space, pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"))),
        "unknown": ("characters", {"model": {"unk_token": "<unk>", "byte_fallback": False}}),
        "unknown_joined": ("characters", {"model": {"unk_token": "<unk>", "byte_fallback": False, "fuse_unk": True}}),
        "dropped": ("characters", {"model": {"byte_fallback": False}}),
        "unigram": ("unigram", {}),
        "unigram_bytes": ("unigram", {"model": {"byte_fallback": True}, "post_processor": begin}),
        "unigram_words": (
            "unigram",
            fields(pre_tokenizer=sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])),
        ),
        "unigram_cuts": (
            "unigram",
            fields(
                pre_tokenizer=sequence(
                    [
                        pre_tokenizers.WhitespaceSplit(),
                        pre_tokenizers.Metaspace(prepend_scheme="always"),
                        split(r"[!-/:-@]"),
                    ]
                )
            ),
        ),
        "unigram_normal": (
            "unigram",
            fields(
                normalizer=normalizers.Sequence(
                    [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip(True, False)]
                )
            ),
        ),
        "unigram_table": (
            "unigram",
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap()).decode()},
                        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                    ],
                }
            },
        ),
        "word_pieces": ("word_pieces", {}),
        "word_pieces_cased": (
            "word_pieces",
            fields(
                normalizer=normalizers.BertNormalizer(handle_chinese_chars=False, lowercase=False),
                pre_tokenizer=sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]),
            )
            | {"model": {"max_input_chars_per_word": 12}},
        ),
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
    files = {"bytes": train(True), "characters": train(False), "unigram": train_unigram(), "word_pieces": train_word_pieces()}
    for name, file in files.items():
        with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as out:
            json.dump(file, out, ensure_ascii=False, separators=(",", ":"))
            out.write("\n")
    with open(os.path.join(HERE, "unigram.model"), "wb") as out:
        out.write(sentencepiece_model())
    texts = TEXTS + hard_texts(1, 90) + BROKEN
    golden = {"texts": [t if isinstance(t, str) else {"hex": t.hex()} for t in texts], "variants": {}}
    for name, (base, patch) in variants().items():
        file = merged(files[base], patch)
        trusting = Tokenizer.from_str(json.dumps(file))
        plain = Tokenizer.from_str(json.dumps(without_marks(file)))
        entry = {"base": base, "patch": patch, "trusted": [], "plain": [], "begin": trusting.encode("").ids}
        for text in map(as_read, texts):
            if base in ("unigram", "word_pieces") and set(NEWER) & set(text):
                entry["trusted"].append(None)
                entry["plain"].append(None)
                continue
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


# Characters of each kind that a pattern tells apart, none newer than Unicode 14.
CUT_TEXTS = TEXTS[1:12] + TEXTS[15:] + [
    "Gr\u00f6\u00dfe \u00c9COLE \u00c9cole MacBook iPhone ABCdef XMLHttp \u01c5ep \u0394\u03b5\u03bb\u03c4\u03b1's O'RE o'Neil's",
    "1 12 123 1234 12345 123456 1234567 1234567x 12345.678 \u0663\u0664\u0665\u0666 7th a1b2 100,000,000",
    "\u4e2d\u65871\u4e2d \u304b\u306a\u30ab\u30ca\uff76 \ud55c\uad6d\uc5b4 \u3105\u3106 \u0e44\u0e17\u0e22\u0e40\u0e01 \u1780\u17d2\u1798",
    "\u0915\u094d\u0937\u093f \u0939\u093f\u0928\u094d\u0926\u0940 \u1000\u103c\u1014\u103a \u0627\u0644\u0639\u064e\u0631\u0628\u06d4 \u0964",
    "a.b, c! d? e\u2026 (f) [g] {h} \"i\" #j @k $l %m ^n &o *p -q +r =s ~t `u |v \\w /x <y> ;z: \u20acA \u00a9B",
    "x\n\ny\r\n  z \n\t \n   w\n",
    "\uff01\uff0c\uff1a\u3002\u300a\u4e66\u300b\u201c\u5f15\u201d\u2018\u53f7\u2019\u2014\u2014 \ufe30",
    "<sentinel:12> IMGIMGABCZ IMGIMGZ  tab\tend    four",
    "https://a.b/c//d/\ne/ \n\n/ f  /",
    " " * 20 + "x" + " " * 7 + "\n" + " " * 600 + "y ",
    "'s 'S 're 'LL 'Ve'd ''t '\u017f don'tcan't",
]
# What llama.cpp has functions for instead of patterns; tiktoken has the first as its pattern of Kimi K2.
WRITTEN_OUT = {
    r"\p{Han}+": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{AFMoE_digits}": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
}


def llama_cpp_cuts(path):
    """The kinds of cuts, each a list of patterns, and the kind and the flags of each name."""
    import re

    def unquoted(line):
        text = line[line.index('"') : line.rindex('"') + 1]
        return text[1:-1].encode().decode("unicode_escape").encode("latin-1").decode()

    text = open(path, encoding="utf-8").read()
    kinds, names, patterns, quoted = {}, [], [], None
    begin = text.index("llm_tokenizer_bpe(const llama_vocab & vocab)")
    for line in map(str.strip, text[begin : text.index("std::vector<std::string> regex_exprs;", begin)].split("\n")):
        if line.startswith(("case ", "default:")):
            names.append(line.removeprefix("case LLAMA_VOCAB_PRE_TYPE_").removesuffix(":").upper())
        elif re.match(r'// *(original regex from tokenizer.json: )?"', line):
            quoted = unquoted(line).replace("?+", "?").replace("++", "+")
        elif line.startswith('"'):
            pattern = quoted or unquoted(line)
            patterns.append(WRITTEN_OUT.get(pattern, pattern))
            quoted = None
        elif line == "break;":
            kinds |= dict.fromkeys(names, patterns)
            names, patterns, quoted = [], [], None
    kinds["GRANITE_EMB_MULTI"] = kinds["GPT4O"]  # the pattern that llama.cpp writes out for it has \\p{M}, as this one
    read, names = {}, []
    begin = text.index("if (tokenizer_pre.empty()) {")
    for line in text[begin : text.index("unknown pre-tokenizer type", begin)].split("\n"):
        names += re.findall(r'tokenizer_pre == "([^"]*)"', line)
        if found := re.search(r"pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);", line):
            read |= {name: {"kind": found[1]} for name in names}
            flagged, names = names, []
        for flag in ("ignore_merges", "add_bos"):
            if re.search(flag + " = true;", line):
                for name in flagged:
                    read[name][flag] = True
    return kinds, read


def write_cuts(path):
    kinds, names = llama_cpp_cuts(path)
    cuts = {}
    for kind in sorted({entry["kind"] for entry in names.values()}):
        cutter = pre_tokenizers.Sequence([split(pattern) for pattern in kinds[kind]])
        cuts[kind] = [[len(word.encode()) for word, _ in cutter.pre_tokenize_str(text)] for text in CUT_TEXTS]
    with open(os.path.join(HERE, "cuts.json"), "w", encoding="utf-8") as out:
        json.dump({"names": names, "texts": CUT_TEXTS, "cuts": cuts}, out, separators=(",", ":"))
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
    if sys.argv[1:2] == ["cuts"]:
        sys.exit(write_cuts(sys.argv[2]))
    sys.exit(check(sys.argv[1], sys.argv[2], sys.argv[3:]) if len(sys.argv) > 2 else write_golden())
