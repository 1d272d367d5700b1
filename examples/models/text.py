# SPDX-License-Identifier: BSL-1.0
"""The four domains: their documents, the tokenizer, training windows and prompts."""

import json
import os
import re
import shutil

import numpy as np
import torch

DOMAINS = ("gsm8k", "python", "shakespeare", "wikitext")
UNK, BOS, EOS = 0, 1, 2
UPSAMPLE = {"gsm8k": 1.0, "python": 1.0, "shakespeare": 2.0, "wikitext": 2.0}


def read(data, name):
    with open(os.path.join(data, name), encoding="utf-8", newline="") as f:
        return f.read()


def split_before(pattern, text):
    """Cuts text in front of every match of pattern."""
    starts = [0] + [m.start() for m in re.finditer(pattern, text) if m.start() > 0]
    return [text[a:b] for a, b in zip(starts, starts[1:] + [len(text)]) if text[a:b].strip()]


def documents(data, domain, split):
    """The documents of one domain; split is 'train' or 'heldout'. The two never share a line of source text."""
    train = split == "train"
    if domain == "gsm8k":
        items = [
            json.loads(line)
            for line in read(data, "gsm8k_train.jsonl" if train else "gsm8k_test.jsonl").splitlines()
        ]
        return [
            "Question: %s\nAnswer: %s" % (i["question"], re.sub(r"<<.*?>>", "", i["answer"])) for i in items
        ]
    if (
        domain == "python"
    ):  # the modules stand one after another; a docstring, a #! or an import after two blank lines begins one
        text = read(data, "python_code_train.txt" if train else "python_code_test.txt")
        return split_before(r'(?<=\n\n\n)(?=r?"""|#!|from |import )', text)
    if domain == "wikitext":
        text = read(data, "wikitext2_raw_valid.txt" if train else "wikitext2_raw_test.txt")
        return split_before(r"(?m)^ = [^=\n]+ = $", text)
    if domain == "shakespeare":
        text = read(data, "tinyshakespeare.txt")
        cut = int(0.93 * len(text))
        return [text[:cut] if train else text[cut:]]
    raise ValueError(domain)


class LongestPiece:
    """A tokenizer of few lines: the longest piece that fits comes next. Pieces are bytes; the first three, of unknown, beginning and
    end, are empty."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.pieces = [p.encode() for p in json.load(f)]
        known = sorted((p for p in self.pieces if p), key=len, reverse=True)
        self.next = re.compile(b"|".join(map(re.escape, known)) + b"|.", re.DOTALL)
        self.ids = {p: i for i, p in enumerate(self.pieces) if p}

    def piece_to_id(self, piece):
        return self.ids.get(piece.encode(), UNK)

    def encode(self, text):
        if isinstance(text, list):
            return [self.encode(t) for t in text]
        return [self.ids.get(p, UNK) for p in self.next.findall(text.encode())]

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")


def load_tokenizer(folder):
    """The tokenizer of a folder: SentencePiece, or a list of pieces."""
    import sentencepiece as spm

    few = os.path.join(folder, "pieces.json")
    if os.path.exists(few):
        return LongestPiece(few)
    return spm.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))


def train_tokenizer(args):
    import sentencepiece as spm

    pieces = []
    for domain in args.domains:
        for doc in documents(args.data, domain, "train"):
            lines = doc.splitlines(keepends=True)
            for i in range(0, len(lines), 8):  # the trainer takes strings of moderate length
                pieces.append("".join(lines[i : i + 8])[:4000])
    out = os.path.join(args.work, "tokenizer")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(pieces),
        model_prefix=out,
        vocab_size=args.sizes["target"]["vocab_size"],
        model_type="bpe",
        byte_fallback=not args.tiny,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        user_defined_symbols=["\n"],
        character_coverage=1.0 if args.tiny else 0.9998,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=-1,
        max_sentence_length=1 << 16,
        num_threads=2,
        shuffle_input_sentence=False,
    )
    if args.tiny:
        sp = spm.SentencePieceProcessor(model_file=out + ".model")
        few = ["" if i <= EOS else sp.id_to_piece(i).replace("\u2581", " ") for i in range(sp.vocab_size())]
        with open(os.path.join(args.out, "pieces.json"), "w", encoding="utf-8") as f:
            json.dump(few, f, ensure_ascii=False)
    elif os.path.abspath(args.out) != os.path.abspath(args.work):
        os.makedirs(args.out, exist_ok=True)
        shutil.copy(out + ".model", os.path.join(args.out, "tokenizer.model"))
    sp = load_tokenizer(args.out)
    for domain in args.domains:
        for split in ("train", "heldout"):
            docs = documents(args.data, domain, split)
            ids = sp.encode(docs)
            bad = sum(sp.decode(i) != d for i, d in zip(ids, docs))
            n, b = sum(map(len, ids)), sum(len(d.encode()) for d in docs)
            unk = sum(i.count(UNK) for i in ids)
            print(
                f"{domain:12s} {split:8s} documents {len(docs):6d} tokens {n:8d} bytes {b:8d} "
                f"bytes/token {b / n:.3f} unknown {unk} not restored {bad}",
                flush=True,
            )
            stream = np.concatenate([np.array(i + [EOS], dtype=np.uint16) for i in ids])
            np.save(os.path.join(args.work, f"{domain}_{split}.npy"), stream)


class Windows:
    """Windows of length tokens, beginning with bos, from the training streams: each stream is walked through in shuffled
    windows at a random phase, then again. Windows of gsm8k begin at a document."""

    def __init__(self, work, length, seed, domains=DOMAINS):
        self.length, self.rng = length, np.random.default_rng(seed)
        self.streams = {d: np.load(os.path.join(work, f"{d}_train.npy")).astype(np.int64) for d in domains}
        self.starts = {
            d: np.concatenate(([0], np.flatnonzero(s == EOS)[:-1] + 1)) for d, s in self.streams.items()
        }
        size = np.array([len(self.streams[d]) * UPSAMPLE[d] for d in domains])
        self.domains, self.p = list(domains), size / size.sum()
        self.queue = {d: [] for d in domains}
        self.credit = np.zeros(len(domains))

    def one(self):
        self.credit += self.p
        i = int(self.credit.argmax())
        self.credit[i] -= 1
        d = self.domains[i]
        s, n = self.streams[d], self.length
        if not self.queue[d]:
            offsets = np.arange(int(self.rng.integers(n)), len(s) - 2 * n, n)
            self.queue[d] = list(self.rng.permutation(offsets))
        o = int(self.queue[d].pop())
        if d == "gsm8k":
            j = np.searchsorted(self.starts[d], o)
            o = int(self.starts[d][min(j, len(self.starts[d]) - 1)])
            o = min(o, len(s) - n)
        return np.concatenate(([BOS], s[o : o + n]))

    def draw(self, tokens):
        return [self.one() for _ in range(max(1, tokens // self.length))]

    def fetch(self, drawn):
        w = torch.from_numpy(np.stack(drawn))
        return w[:, :-1], w[:, 1:]


class Pool:
    """Texts (rows of ids, of which each has a valid length) with more about each of their tokens, in shuffled order, again
    and again."""

    def __init__(self, rng, rows, valid, *more):
        self.rng, self.rows, self.valid, self.more, self.queue = rng, rows, valid, more, []

    def draw(self, tokens):
        count = min(max(1, tokens // self.rows.shape[1]), len(self.rows))
        if len(self.queue) < count:
            self.queue = list(self.rng.permutation(len(self.rows)))
        return [self.queue.pop() for _ in range(count)]

    def fetch(self, drawn):
        """ids [batch][length], what more there is, and 1 for each token whose next one is of the text, else 0."""
        i = torch.tensor(drawn)
        ids = self.rows[i].long()
        use = (torch.arange(ids.shape[1])[None] < self.valid[i, None] - 1).float()
        return ids, *(part[i].bfloat16() for part in self.more), use


def cut_prompts(work, sp, split, count, domain, rng, shortest=24, longest=96):
    """Prompts of one domain: for gsm8k, two in three are whole questions; the rest begin after a line's end."""
    s = np.load(os.path.join(work, f"{domain}_{split}.npy")).astype(np.int64)
    newline = sp.piece_to_id("\n")
    answer = sp.encode("\nAnswer:")
    begins = np.flatnonzero((s == newline) | (s == EOS)) + 1
    begins = begins[begins < len(s) - longest - 1]
    if domain == "gsm8k":
        begins = np.concatenate(([0], np.flatnonzero(s[: -longest * 2] == EOS) + 1))
    out = []
    while len(out) < count:
        o = int(rng.choice(begins))
        p = s[o : o + int(rng.integers(shortest, longest + 1))].tolist()
        if domain == "gsm8k" and rng.random() < 0.67:
            q = s[o : o + 200].tolist()
            at = next((i for i in range(len(q)) if q[i : i + len(answer)] == answer), None)
            if at is None or at + len(answer) > longest + 24:
                continue
            p = q[: at + len(answer)]
        if EOS not in p:
            out.append([BOS] + p)
    return out


def make_prompts(args):
    """Prompts of 30 to 120 tokens that begin and end at natural places: held-out ones, or some of the training text."""
    sp = load_tokenizer(args.out)
    rng, out = np.random.default_rng(args.seed), []
    for d in args.domains:
        found = []
        for doc in documents(args.data, d, args.split):
            if d == "gsm8k":
                found.append(doc[: doc.index("\nAnswer:") + len("\nAnswer:")])
                continue
            begin = {
                "shakespeare": r"(?<=\n\n)(?=[A-Z][A-Za-z ]*:\n)",
                "wikitext": r"(?<=\n )(?=[A-Z][^\n=]{200})",
                "python": r"(?m)^(?=(?:    )?(?:def|class) )",
            }[d]
            stop = {"shakespeare": r"(?<=[.!?;:])\n", "wikitext": r" \.(?= [A-Z])", "python": r"(?<!\n)\n"}[d]
            for m in re.finditer(begin, doc):
                piece = doc[m.start() : m.start() + 400]
                ends = [e.end() for e in re.finditer(stop, piece)]
                want = int(rng.integers(35, 115))
                ends = [e for e in ends if len(sp.encode(piece[:e])) <= want]
                if ends:
                    found.append(piece[: ends[-1]])
        found = [t for t in found if 30 <= len(sp.encode(t)) <= 120]
        chosen = rng.permutation(len(found))[: args.count]
        if args.split == "heldout":
            chosen = np.sort(chosen)
        out.append([{"domain": d, "text": found[i]} for i in chosen])
        print(f"{d} {len(found)} candidates")
    if args.split == "train":  # the domains take turns, so that the first prompts are a sample of all
        out = zip(*out)
    with open(args.prompts_file or os.path.join(args.out, "prompts.jsonl"), "w") as f:
        for o in (o for some in out for o in some):
            f.write(json.dumps(o) + "\n")
