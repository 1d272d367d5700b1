# SPDX-License-Identifier: BSL-1.0
"""Enumerates the rejection samplers of other projects, from their own sources, with check_sampler().

    PYTHONPATH=examples/python ESPALIER_LIBRARY=build/examples/c/libespalier_c.so \\
      python3 tests/python/others_samplers.py transformers | vllm FOLDER | sglang FOLDER

FOLDER holds the unpacked package (pip download vllm, sglang); transformers is imported. Kernels of Triton are run as the
Python that they are, in float64, by the stand-in of triton.language below. SGLang's kernel for trees is compiled for the
host, beside a stand-in of what it takes from FlashInfer and CUDA. Uniform numbers have no values, or values of which each
comparison is seen."""
import ast
import ctypes
import pathlib
import subprocess
import sys
import tempfile
import types

import espalier
import numpy as np
from espalier.proof import _largest_difference
from espalier.sglang import padded


# ---- Triton's language over numpy ----

class Pointer:
    """An address in a flat array."""
    dtype = types.SimpleNamespace(element_ty=np.int64)

    def __init__(self, array, at=0):
        self.array, self.at = array, at

    def __add__(self, offset):
        return Pointer(self.array, self.at + offset)


class Language:
    """What the kernels use of triton.language, for one program of a grid."""
    constexpr, float32, float64, int32, int64 = None, np.float64, np.float64, np.int64, np.int64
    where = staticmethod(lambda c, a, b: (a if c else b) if np.ndim(c) == 0 else np.where(c, a, b)
                         if not isinstance(a, Race) else a)
    maximum, minimum, arange = staticmethod(np.maximum), staticmethod(np.minimum), staticmethod(np.arange)
    sum, cumsum, argmax = staticmethod(np.sum), staticmethod(np.cumsum), staticmethod(np.argmax)
    static_range = staticmethod(range)
    zeros, full = staticmethod(lambda shape, dtype: 0), staticmethod(lambda shape, value, dtype: value)

    def __init__(self):
        self.program = (0, 0)

    def program_id(self, axis):
        return self.program[axis]

    @staticmethod
    def load(pointer, mask=None, other=None):
        if mask is None:
            return pointer.array[pointer.at]
        at = np.where(mask, pointer.at, 0)
        if pointer.array.dtype == object:
            return pointer.array[0]  # a race is read as a whole
        return np.where(mask, pointer.array[at], other)

    @staticmethod
    def store(pointer, value, mask=None):
        pointer.array[pointer.at] = value

    @staticmethod
    def max(x, axis=0, return_indices=False):
        return x.won() if return_indices else np.max(x)


class Race:
    """Numbers 1 / e, e exponential, times weights: the largest is that of i with probability weights[i] / sum."""

    def __init__(self, by, weights=None):
        self._by, self._weights = by, weights

    def __rmul__(self, weights):
        return Race(self._by, np.asarray(weights, float))

    __array_ufunc__ = None

    def won(self):
        below = next(self._by) * self._weights.sum() < np.cumsum(self._weights)
        return 1.0, int(np.argmax(below))


def functions_of(path, *names, **known):
    """The functions of a source file, without decorators; x.to(type) of the language becomes a call."""
    class Casts(ast.NodeTransformer):
        def visit_Call(self, node):
            self.generic_visit(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
                return ast.Call(ast.Name("_to", ast.Load()), [node.func.value, *node.args], [])
            return node

    wanted = [f for f in ast.walk(ast.parse(pathlib.Path(path).read_text()))
              if isinstance(f, ast.FunctionDef) and f.name in names]
    for f in wanted:
        f.decorator_list = []
        for argument in f.args.args + f.args.kwonlyargs:
            argument.annotation = None
        f.returns = None
    scope = {"_to": lambda x, dtype: np.asarray(x).astype(dtype), **known}
    exec(compile(ast.fix_missing_locations(Casts().visit(ast.Module(wanted, []))), str(path), "exec"), scope)
    return [scope[name] for name in names]


def of_objects(uniforms):
    made = np.empty(len(uniforms), object)
    made[:] = uniforms
    return made


def picked(row, uniform):
    return int(np.argmax(uniform * row.sum() < np.cumsum(row)))


# ---- samplers ----

def of_transformers():
    import torch
    import transformers
    from transformers.generation import utils

    def sampler(target, draft, draws, uniforms, **options):
        n, by = len(draws), uniforms

        class Rolls:
            """What torch.rand_like gives: compared with the ratios."""

            def __init__(self, like):
                self.shape = like.shape

            def __le__(self, ratios):
                return torch.tensor([bool(next(by) < float(x)) for x in ratios.ravel()]).reshape(ratios.shape)

        stand_in = types.SimpleNamespace(rand_like=lambda like, **_: Rolls(like),
                                         multinomial=lambda p, num_samples=1: torch.tensor([[picked(p[0].numpy(), next(by))]]))
        of = utils._speculative_sampling
        speculative_sampling = types.FunctionType(of.__code__, {**vars(utils), "torch": _Either(stand_in, torch)}, None,
                                                  of.__defaults__)
        ids = torch.tensor([[0, *draws]])
        with np.errstate(divide="ignore"):
            logs = [torch.from_numpy(np.log(rows))[None] for rows in (draft, target)]
        tokens, accepted = speculative_sampling(ids, logs[0], n, logs[1], **options)
        return tokens[0].tolist()

    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    yield "_speculative_sampling", sampler
    yield "assistant_ensemble_weight=0.5", lambda *rows: sampler(*rows, assistant_ensemble_weight=0.5)


class _Either:
    """A module of which some names are others."""

    def __init__(self, first, then):
        self._of = first, then

    def __getattr__(self, name):
        return getattr(self._of[0], name, None) or getattr(self._of[1], name)


def of_vllm(folder):
    path = pathlib.Path(folder) / "vllm/v1/sample/rejection_sampler.py"
    tl = Language()
    accept, recover = functions_of(path, "rejection_random_sample_kernel", "sample_recovered_tokens_kernel", tl=tl)

    def sampler(target, draft, draws, uniforms, has_probabilities=True):
        n, vocab = len(draws), target.shape[1]
        coins = of_objects([next(uniforms) for _ in range(n)])
        tokens, recovered = np.full(n + 1, -1), np.full(n, -1)
        flat = Pointer(draft.ravel()) if has_probabilities else None
        ends, drafted, rows = Pointer(np.array([n])), Pointer(draws), Pointer(target[:n].ravel())
        for i in range(n):  # whose races are one in vLLM: only one of these tokens is used, whichever the coins choose
            tl.program = 0, i
            recover(Pointer(recovered), ends, drafted, flat, rows, Pointer(of_objects([Race(uniforms)])), vocab, 8,
                    not has_probabilities, True)
        accept(Pointer(tokens), ends, drafted, flat, rows, Pointer(np.array([picked(target[n], next(uniforms))])),
               Pointer(recovered), Pointer(coins), Pointer(np.array([False])), n, vocab, None, not has_probabilities, False)
        return tokens.tolist()

    yield "rejection_random_sample_kernel, draws from the draft, with its probabilities", sampler
    yield "the same, the most probable tokens without probabilities", (
        lambda *rows: sampler(*rows, has_probabilities=False)), "deterministic"
    yield "the same, draws from the draft without probabilities", lambda *rows: sampler(*rows, has_probabilities=False)


def of_sglang(folder):
    package = pathlib.Path(folder) / "sglang"
    chain, = functions_of(package / "kernels/ops/speculative/reject_sampling.py", "speculative_sampling_classic_kernel",
                          tl=Language())

    def sampler(target, draft, draws, uniforms, block=False):
        n, vocab = len(draws), target.shape[1]
        predicts, accepted, count = np.full(n + 1, -1), np.full(n + 1, -1), np.zeros(1, int)
        arrays = [predicts, accepted, count, np.array([0, *draws]), np.arange(n + 1),
                  of_objects([next(uniforms) for _ in draws]), of_objects([next(uniforms)]), target.ravel(), draft.ravel()]
        chain(*map(Pointer, arrays), n + 1, 1, n + 1, 1, n, 1, target.size, vocab, 1, draft.size, vocab, 1, n + 1, vocab, 4,
              block, 8)
        return predicts[accepted[:count[0] + 1]].tolist()

    yield "speculative_sampling_classic_kernel", sampler
    yield "the same, block_verification", lambda *rows: sampler(*rows, block=True)
    yield "_sparse_rejection_from_support (UNO)", of_uno(package / "srt/speculative/uno_utils.py")
    kernels = package / "kernels/jit"
    library = compiled(kernels / "include/sgl_kernel/speculative/sampling.cuh", kernels / "csrc/ngram_corpus/result.cpp")
    yield "tree_speculative_sampling_target_only, a chain", lambda target, draft, draws, uniforms: walked(
        library.walk, np.array([0, *draws]), [-1, *range(len(draws))], target, uniforms)
    trees(library)
    padding(library)


def seen(uniforms, n, run):
    """Runs a function of numbers, which returns what it writes and the comparisons that it has made, as (number, bound):
    each bound within the range where a number may lie is decided, until none is left."""
    low, high = np.zeros(n), np.ones(n)
    while True:
        written, compared = run((low + high) / 2)
        inside = next(((i, x) for i, x in compared if low[i] < x < high[i]), None)
        if inside is None:
            return written
        i, x = inside
        if bool(uniforms[i] < x):
            high[i] = x
        else:
            low[i] = x


def of_uno(path):
    import torch
    from torch.overrides import TorchFunctionMode
    reject, = functions_of(path, "_sparse_rejection_from_support", torch=torch, _to=None)
    reject.__globals__["_to"] = lambda x, dtype: x.to(dtype)

    class Watch(TorchFunctionMode):
        """Sees the comparisons of uniform numbers, or multiples of one, with others."""

        def __init__(self, coins, final):
            super().__init__()
            self.coins, self.final, self.compared = coins, final, []

        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            name = function.__name__.strip("_")
            if name in ("lt", "le") and not isinstance(args[1], torch.Tensor):
                pass  # of counts
            elif name == "lt":
                self.compared += [(i, float(x)) for i, x in enumerate(args[1].ravel())]
            elif name == "le":
                scale = float(args[1].ravel()[0]) / self.final
                self.compared += [(len(self.coins), float(x) / scale) for x in args[0].ravel()]
            return function(*args, **(kwargs or {}))

    def sampler(target, draft, draws, uniforms):
        n, vocab = len(draws), target.shape[1]
        ids = torch.arange(vocab)

        def run(values):
            with Watch(values[:n], values[n]) as watch:
                count, bonus = reject(torch.tensor([[0, *draws]]), ids.expand(1, n + 1, vocab), torch.from_numpy(target)[None],
                                      ids.expand(1, n, vocab), torch.from_numpy(draft)[None], torch.from_numpy(values[None, :n]),
                                      torch.from_numpy(values[n:]))
            return [*draws[:int(count[0])], int(bonus[0])], watch.compared
        return seen(uniforms, n + 1, run)
    return sampler


# ---- SGLang's kernel for trees, on the host ----

STAND_IN = r"""
#include <cstdint>
#include <cstddef>
#include <vector>
#include <utility>
struct number { double v = 0; int coin = -1; double scale = 1; number() = default; number(double x) : v(x) {} };
std::vector<std::pair<int, double>> compared;
inline bool less(number a, number b) {
  if (a.coin >= 0) compared.push_back({a.coin, b.v / a.scale});
  if (b.coin >= 0) compared.push_back({b.coin, a.v / b.scale});
  return a.v < b.v;
}
inline bool operator<(number a, number b) { return less(a, b); }
inline bool operator>(number a, number b) { return less(b, a); }
inline bool operator>=(number a, number b) { return !less(a, b); }
inline number operator+(number a, number b) { return a.v + b.v; }
inline number operator-(number a, number b) { return a.v - b.v; }
inline number operator/(number a, number b) { return a.v / b.v; }
inline number& operator+=(number& a, number b) { return a = a + b; }
inline number operator*(number a, number b) { number r(a.v * b.v); r.coin = a.coin; r.scale = a.scale * b.v; return r; }
inline number max(number a, number b) { return a.v < b.v ? b : a; }
#define __global__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
inline void __syncthreads() {}
struct { unsigned x = 0; } blockIdx, threadIdx;
namespace cub { enum BlockScanAlgorithm { scan_any }; enum BlockReduceAlgorithm { reduce_any }; }
namespace flashinfer {
using cub::BlockScanAlgorithm; using cub::BlockReduceAlgorithm;
inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
template <class T, size_t N> struct vec_t {
  T data[N];
  void fill(T x) { for (T& d : data) d = x; }
  void load(const T* from) { for (size_t i = 0; i < N; ++i) data[i] = from[i]; }
  T& operator[](size_t i) { return data[i]; }
};
template <class T, uint32_t N, cub::BlockReduceAlgorithm A> struct BlockReduce {
  template <class S> explicit BlockReduce(S&) {}
  template <int M> T Sum(T (&x)[M]) { T s(0); for (T& y : x) s += y; return s; }
};
namespace sampling {
template <uint32_t N, cub::BlockScanAlgorithm S, cub::BlockReduceAlgorithm R> struct SamplingTempStorage {
  struct { int reduce; } block_prim; struct { number value; } block_aggregate; int sampled_id, last_valid_id;
};
template <uint32_t V, uint32_t N, cub::BlockScanAlgorithm S, cub::BlockReduceAlgorithm R, bool D, class P, class T, class St>
void DeviceSamplingFromProb(uint32_t i, uint32_t d, P valid, T u, vec_t<T, V> p, T& sum, St* storage) {
  for (uint32_t j = 0; j < V && i * V + j < d; ++j) {
    if (!valid(p[j])) continue;
    storage->last_valid_id = i * V + j;
    if (storage->sampled_id == int(d) && sum + p[j] > u) storage->sampled_id = i * V + j;
    sum += p[j];
  }
}
}}
"""

ENTRY = r"""
namespace sglang { namespace speculative_sampling { uint8_t smem_sampling[4096] __attribute__((aligned(16))); } }
extern "C" int walk(int n, int d, int* predicts, int* accept_index, int* count, int64_t* candidates, int64_t* index,
                    int64_t* next_token, int64_t* next_sibling, double* coins, double* target, int* which, double* bound) {
  std::vector<number> u(n + 1), p(target, target + n * d), q(n * d);
  for (int i = 0; i <= n; ++i) { u[i] = number(coins[i]); u[i].coin = i; }
  compared.clear();
  sglang::speculative_sampling::TreeSpeculativeSamplingTargetOnly<1, cub::scan_any, cub::reduce_any, 1, true, number, int,
      int64_t>(predicts, accept_index, count, candidates, index, next_token, next_sibling, u.data(), u.data() + n, p.data(),
               q.data(), 1, n, n, d, number(1.0), number(1.0));
  for (size_t i = 0; i < compared.size() && i < 4096; ++i) { which[i] = compared[i].first; bound[i] = compared[i].second; }
  return int(compared.size());
}
extern "C" void fill(int last_token, int n, int64_t* tokens, int64_t* mask) {
  std::vector<sglang::ngram::Node> nothing(1);
  const auto filled = sglang::ngram::fillResult(last_token, n, nothing, 0);
  for (int i = 0; i < n; ++i) tokens[i] = filled.token[i];
  for (int i = 0; i < n * n; ++i) mask[i] = filled.mask[i];
}
"""


def compiled(kernel, corpus):
    """SGLang's kernel, and what makes trees of its corpus, as functions of the host. g++ asks for the word template before
    the name of a member template."""
    text = kernel.read_text().replace("#include <flashinfer/sampling.cuh>", "").replace(".Sum<", ".template Sum<")
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "walk.cpp").write_text(f'#include "{corpus.with_suffix(".h").resolve()}"\n' + STAND_IN + text + ENTRY)
    subprocess.run(["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-o", folder / "walk.so", folder / "walk.cpp",
                    corpus], check=True)
    return ctypes.CDLL(str(folder / "walk.so"))


def walked(walk, tokens, parents, rows, uniforms):
    """The tokens that the kernel writes: a tree by its parents, and the target's rows of its nodes."""
    n, vocab = rows.shape
    next_token, next_sibling, last = np.full(n, -1), np.full(n, -1), {}
    for u in range(1, n):
        if parents[u] in last:
            next_sibling[last[parents[u]]] = u
        else:
            next_token[parents[u]] = u
        last[parents[u]] = u
    of_ints = [np.array(a, np.int64) for a in (tokens, range(n), next_token, next_sibling)]
    rows = np.ascontiguousarray(rows, np.float64)

    def run(values):
        predicts, accepted, count = np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.zeros(1, np.int32)
        which, bound = np.zeros(4096, np.int32), np.zeros(4096)
        given = [predicts, accepted, count, *of_ints, np.ascontiguousarray(values), rows, which, bound]
        k = walk(n, vocab, *[ctypes.c_void_p(a.ctypes.data) for a in given])
        return predicts[accepted[:count[0] + 1]].tolist(), list(zip(which[:k].tolist(), bound[:k].tolist()))
    return seen(uniforms, n + 1, run)


def trees(library):
    """Prints how far what the kernel writes is from the target, over trees of 4 drafted tokens."""
    worst, n = 0.0, 0
    for model in espalier.tiny_models(3):
        tree, _, _ = espalier.build("best-first budget=4", 0,
                                    lambda paths: np.array([model.draft(tuple(path)) for path in paths], np.float32))
        rows = np.stack([model.target(tuple(tree.token[tree.path(u)[1:]].tolist())) for u in range(tree.n_nodes)])
        by, emitted = espalier.Enumerator(), {}
        while by.more():
            text = tuple(walked(library.walk, tree.token, tree.parent.tolist(), rows, espalier.Uniforms(by)))
            emitted[text] = emitted.get(text, 0.0) + by.probability()
            n += 1
        _, written, expected = _largest_difference(emitted, model.target, model.vocab)
        worst = max(worst, abs(written - expected))
    print(f"  the same, trees of 4 drafted tokens: every outcome: {n}; largest difference {worst:.3g}")


def padding(library):
    """Prints what the kernel writes where the corpus matches nothing, and a text has room for 3 candidates: as the corpus
    pads, and as espalier.sglang.padded() does."""
    row, tokens, mask = np.array([0.4, 0.6]), np.zeros(3, np.int64), np.zeros((3, 3), np.int64)
    library.fill(1, 3, ctypes.c_void_p(tokens.ctypes.data), ctypes.c_void_p(mask.ctypes.data))
    tree = espalier.Tree(0)
    tree.reset(1)
    for how, (tokens, mask) in (("fillResult", (tokens, mask)), ("espalier.sglang.padded", padded(tree, 3))):
        parents = [int(max(np.flatnonzero(mask[u, :u]), default=-1)) for u in range(3)]
        by, first = espalier.Enumerator(), np.zeros(2)
        while by.more():
            text = walked(library.walk, tokens, parents, np.stack([row] * 3), espalier.Uniforms(by))
            first[text[0]] += by.probability()
        print(f"  the same, candidates {tokens.tolist()} below {parents} by {how}: token 0 with {first[0]:.4g} for "
              f"{row[0]:.4g}")


def main(name, *folders):
    for what, sampler, *regime in {"transformers": of_transformers, "vllm": of_vllm, "sglang": of_sglang}[name](*folders):
        try:
            print(f"  {what}: {espalier.check_sampler(sampler, *regime)}", flush=True)
        except espalier.LawError as error:
            print(f"  {what}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
