# SPDX-License-Identifier: BSL-1.0
"""Biased verifiers, policies and samplers, each wrong in a way that looks right, must all be found; sound ones must pass.
The same zoo as tests/zoo, in Python."""
import espalier
import numpy as np
import pytest


# ---- verifiers ----

class Walk(espalier.OwnVerifier):
    """SpecInfer that tests the draws of a node in order: lossless for independent draws, except for the flaw."""
    lossless = ("iid", "single_path")

    def __init__(self, flaw=None):
        self.flaw, self.round = flaw, 0

    def verify(self, tree, draft, target, chance):
        self.round += 1
        u = 0
        while True:
            p, draws = target[u], tree.draws(u)
            if not draws:
                parent = max(int(tree.parent[u]), 0)
                if self.flaw == "leaf_of_parent":
                    p = target[parent]
                if self.flaw == "leaf_of_draft" and u:
                    p = draft[parent]
                return u, chance.pick(p, u, 0)
            token = self.choose(tree, u, p, draft[u], draws, chance)
            child = tree.find_child(u, token)
            if child < 0:
                return u, token
            u = child

    def choose(self, tree, u, p, q, draws, chance):
        is_ = lambda flaw: flaw == self.flaw
        rest, seen = p.copy(), set()
        for i, child in enumerate(draws):
            x = int(tree.token[child])
            if is_("once") and x in seen:
                continue
            seen.add(x)
            if not (is_("skips_second") and i == 1) and self.accepts(p, q, rest, x, u, i, chance):
                return x
            if is_("residual_not_updated") or (is_("third_draw") and i == 2) or (is_("first_residual") and i > 0):
                continue
            rest = np.maximum(rest - q, 0)
            if rest.sum() == 0:
                break
            rest /= rest.sum()
        w = rest
        if is_("no_residual") or (is_("deep_residual") and tree.depth[u] >= 4):
            w = p
        elif is_("smoothed"):
            w = rest + 1e-3
        elif is_("sharpened"):
            w = rest * rest
        elif is_("reversed_residual"):
            w = np.maximum(q - p, 0)
        elif is_("no_child"):
            w = p.copy()
            w[[tree.token[v] for v in draws]] = 0
        elif is_("argmax_last"):
            return int(np.argmax(rest))
        token = chance.pick(w, u, 0)
        return token if token >= 0 else chance.pick(p, u, 1)

    def accepts(self, p, q, rest, x, u, i, chance):
        is_, at = (lambda flaw: flaw == self.flaw), 0 if self.flaw == "one_key" else i
        if is_("accepts_likelier"):
            return p[x] >= q[x]
        if is_("inverted"):
            return chance.accept(q[x], p[x], u, at)
        if is_("accepts_first") or (is_("stateful") and self.round % 4 == 0):
            return p[x] > 0
        if is_("typical"):
            return p[x] > 0.3
        if is_("best_two"):
            return p[x] > 0 and (p > p[x]).sum() < 2
        if is_("halved"):
            return chance.accept(rest[x] / 2, q[x], u, at)
        if is_("shifted"):
            return chance.accept(rest[x], q[(x + 1) % len(q)], u, at)
        return chance.accept(rest[x], q[x], u, at)


BIASED_VERIFIERS = [
    "one_key", "third_draw", "deep_residual", "no_residual", "residual_not_updated", "first_residual", "accepts_likelier",
    "inverted", "accepts_first", "typical", "best_two", "leaf_of_draft", "leaf_of_parent", "smoothed", "shifted",
    "sharpened", "argmax_last", "stateful", "once", "reversed_residual", "halved", "skips_second", "no_child"]


@pytest.mark.parametrize("flaw", BIASED_VERIFIERS)
def test_biased_verifiers_are_found(flaw):
    told = "two things with one key" if flaw == "one_key" else "not lossless for trees"
    with pytest.raises(espalier.LawError, match=told):
        espalier.check_verifier(Walk(flaw))


def test_a_sound_verifier_passes():
    covered = espalier.check_verifier(Walk(), max_outcomes=300)
    assert covered.n_outcomes > 2000 and covered.draws == 3 and covered.depth == 11 and covered.largest_difference < 1e-12
    print(covered)


@pytest.mark.parametrize("name", ["greedy", "target-only", "naive", "naive-tree", "spectr", "specinfer", "khisti",
                                  "block-verification", "multi-path-block", "traversal", "traversal-distinct",
                                  "residual-walk"])
def test_the_librarys_verifiers_pass(name):
    covered = espalier.check_verifier(name, max_outcomes=40)
    assert covered.n_outcomes > 200
    assert set(espalier.verifiers()) >= {name}


def test_a_verifier_that_claims_another_regime_is_found():
    class Claims(Walk):
        lossless = "without_replacement"

    with pytest.raises(espalier.LawError, match="drawn without replacement"):
        espalier.check_verifier(Claims())


# ---- policies ----

class Sure(espalier.TreePolicy):
    """Invented for this test: draws two paths where the draft is unsure of the next token, one where it is sure, down to
    depth 2. How sure it is does not depend on which tokens were drawn."""
    sampling, max_nodes = "iid", 4

    def __init__(self, flaw=None):
        self.flaw = flaw

    def take(self, tree, rows, chance):
        level = [u for u in range(tree.n_nodes) if tree.depth[u] == tree.depth.max()]
        below = []
        for u in level:
            row = rows[u]
            n = 1 if row.max() > 0.6 or tree.depth[u] > 0 else 2
            for slot in range(n):
                child = self.drawn(tree, rows, u, slot, chance)
                if child >= 0 and child not in below:
                    below.append(child)
                if self.flaw == "stops_when_likely" and child >= 0 and row[tree.token[child]] > 0.4:
                    break
        return below if tree.depth.max() < 2 else None

    def drawn(self, tree, rows, u, slot, chance):
        row, flaw = rows[u], self.flaw
        log = lambda t: float(np.log(row[t]))
        if flaw in ("squares", "roots"):
            t = chance.pick(row ** (2 if flaw == "squares" else 0.5), u, slot)
            return tree.draw(u, t, log(t))
        if flaw == "argmax":
            t = int(np.argmax(row))
            return tree.draw(u, t, log(t))
        if flaw == "drops_unlikely":
            t = chance.pick(row, u, slot)
            return tree.draw(u, t, log(t)) if row[t] > 0.3 else -1
        if flaw == "likelier_of_two":
            t = max(chance.pick(row, u, 2 * slot), chance.pick(row, u, 2 * slot + 1), key=lambda i: row[i])
            return tree.draw(u, t, log(t))
        if flaw == "same_key":
            t = chance.pick(row, u, 0)
            return tree.draw(u, t, log(t))
        if flaw == "root_row" and u:
            t = chance.pick(rows[0], u, slot)
            return tree.draw(u, t, log(t))
        if flaw == "log_prob":
            t = chance.pick(row, u, slot)
            return tree.draw(u, t, 0.0)
        if flaw == "without_best":
            w = row.copy()
            w[np.argmax(w)] = 0
            t = chance.pick(w if w.sum() > 0 else row, u, slot)
            return tree.draw(u, t, log(t))
        return espalier.draw(tree, rows, u, chance)


BIASED_POLICIES = {
    "squares": "from other weights", "roots": "from other weights", "argmax": "picks the tokens",
    "drops_unlikely": "picks the tokens", "likelier_of_two": "picks the tokens", "same_key": "one key",
    "root_row": "from other weights|probability 0", "log_prob": "log-probability", "without_best": "from other weights",
    "stops_when_likely": "the pair is not lossless"}


@pytest.mark.parametrize("flaw", BIASED_POLICIES)
def test_biased_policies_are_found(flaw):
    with pytest.raises(espalier.LawError, match=BIASED_POLICIES[flaw]):
        espalier.check_lossless(Sure(flaw), "specinfer", max_outcomes=400)


def test_an_invented_policy_is_proven_with_the_librarys_verifier():
    covered = espalier.check_lossless(Sure(), "specinfer", max_outcomes=400)
    assert covered.limit >= 2 and covered.budget == 4 and covered.largest_difference < 1e-9
    print(covered)


@pytest.mark.parametrize("check", [
    lambda most: espalier.check_lossless("iid-paths", "specinfer", max_outcomes=most),
    lambda most: espalier.check_lossless(Sure(), Walk(), max_outcomes=most),
    lambda most: espalier.check_verifier("specinfer", max_outcomes=most),
    lambda most: espalier.check_sampler(rejection, max_outcomes=most)])
def test_too_few_outcomes_for_any_check_are_refused(check):
    for most in (-1, 0):
        with pytest.raises(espalier.OptionError, match=f"max_outcomes is {most}, which is too few"):
            check(most)


def test_too_few_outcomes_for_rounds_without_drafted_tokens_are_refused():
    with pytest.raises(espalier.OptionError, match="max_outcomes is 2, which is too few .* without drafted tokens"):
        espalier.check_lossless("iid-paths", "specinfer", max_outcomes=2)


def test_a_pair_that_does_not_fit_is_refused():
    with pytest.raises(espalier.OptionError, match="lossless for"):
        espalier.check_lossless("eagle2", Walk(), max_outcomes=10)


# ---- samplers ----

def rejection(target, draft, draws, uniforms, flaw=None):
    """Rejection sampling of a path, as engines write it."""
    for i, x in enumerate(draws):
        p, q, u = target[i], draft[i], uniforms[2 * i]
        if flaw == "inverted":
            accepted = u * p[x] < q[x]
        elif flaw == "one_uniform":
            accepted = uniforms[0] * q[x] < p[x]
        elif flaw == "shifted_row":
            accepted = u * q[x] < target[i + 1][x]
        else:
            accepted = u * q[x] < p[x]
        if accepted:
            continue
        w = np.maximum(p - q, 0)
        if flaw == "no_residual" or w.sum() == 0:
            w = p
        if flaw == "residual_of_draft":
            w = np.maximum(q - p, 0) if (q > p).any() else p
        if flaw == "unscaled":
            return [*draws[:i], pick(w, uniforms[2 * i + 1], total=1.0)]
        return [*draws[:i], pick(w, uniforms[2 * i if flaw == "reused" else 2 * i + 1])]
    last = draft[-1] if flaw == "bonus_of_draft" else target[len(draws)]
    return [*draws, pick(last, uniforms[2 * len(draws)])]


def pick(weights, u, total=None):
    below = u * (weights.sum() if total is None else total) < np.cumsum(weights)
    return int(np.argmax(below)) if below.any() else len(weights) - 1


def test_a_sound_sampler_passes():
    covered = espalier.check_sampler(rejection)
    assert covered.n_outcomes > 500 and covered.depth == 6 and covered.largest_difference < 1e-12
    print(covered)


def test_a_sound_sampler_in_vectors_passes():
    def vectors(target, draft, draws, uniforms):
        n = len(draws)
        ratios = target[np.arange(n), draws] / draft[np.arange(n), draws]
        accepted = (uniforms[:n] < ratios).astype(bool)
        k = n if accepted.all() else int(np.argmin(accepted))
        w = target[n] if k == n else np.maximum(target[k] - draft[k], 0)
        return [*draws[:k], pick(w if w.sum() > 0 else target[k], uniforms[n])]

    assert espalier.check_sampler(vectors).largest_difference < 1e-12


@pytest.mark.parametrize("flaw", ["inverted", "one_uniform", "shifted_row", "no_residual", "residual_of_draft", "unscaled",
                                  "reused", "bonus_of_draft"])
def test_biased_samplers_are_found(flaw):
    with pytest.raises(espalier.LawError, match="the sampler is not lossless"):
        espalier.check_sampler(lambda *rows: rejection(*rows, flaw=flaw))


def test_a_sampler_that_writes_other_tokens_than_drafted_is_found():
    with pytest.raises(espalier.LawError, match="where .* were drafted"):
        espalier.check_sampler(lambda target, draft, draws, uniforms: [1 - min(draws[0], 1), 0, 0])


def test_a_sampler_that_needs_values_is_told_so():
    with pytest.raises(TypeError, match="draw_lossless"):
        espalier.check_sampler(lambda target, draft, draws, uniforms: [int(np.searchsorted(target[0], float(uniforms[0])))])


def drawn(flaw=None, seed=5):
    random = np.random.default_rng(seed)

    def sampler(target, draft, draws):
        u = random.random(2 * len(draws) + 1)
        return rejection(target.astype(np.float64), draft.astype(np.float64), draws, u, flaw)
    return sampler


def test_drawn_samplers():
    assert espalier.draw_lossless(drawn(), 1000).n_rounds > 10000
    for flaw in ("no_residual", "inverted", "bonus_of_draft"):
        with pytest.raises(espalier.LawError, match="standard errors"):
            espalier.draw_lossless(drawn(flaw), 1000)
