# SPDX-License-Identifier: BSL-1.0
"""What docs/python.md shows: parts on arrays, a decoder over a model of Python, a sampler under the enumerator."""
import espalier
import numpy as np

VOCAB = 16


def logits_of(texts):
    """Stands for your model: the logits of the token after each text."""
    seen = np.array([sum(37**i * t for i, t in enumerate(text[-3:])) for text in texts])[:, None]
    t = np.arange(VOCAB)
    return (0.4 * ((seen * 13 + t * t * 7 + seen % 5 * t) % 17)).astype(np.float32)


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


text = [3, 1, 4, 1, 5]

# [build]
policy = espalier.Policy("eagle2", budget=12)
tree, rows, row_of = espalier.build(policy, root=text[-1], draft=lambda paths: softmax(
    0.6 * logits_of([text + path for path in paths])), seed=7, length=len(text))
# [build]

# [compile]
batch, logits_rows = espalier.compile_trees([tree], prefixes=[len(text) - 1])
mask = batch.dense_mask()                       # [n_rows, slots], 1 where a row sees a slot
packed, mask_indptr = batch.flashinfer_mask()   # FlashInfer's custom mask
bias = batch.additive_mask()                    # 0 and minus infinity: vLLM's tree attention, torch
positions, index, next_token, next_sibling = batch.sglang_tree(tree.n_nodes)
# [compile]

# [verify]
target = logits_of([text + [int(tree.token[v]) for v in tree.path(u)[1:]] for u in range(tree.n_nodes)])
accepted, token = espalier.Verifier("greedy").verify(tree, target, sampling={"temperature": 0.0})
text += tree.committed(accepted, token)
policy.observe(tree, accepted, token)
# [verify]
assert len(text) > 5 and mask.shape[0] == len(positions[0]) and len(logits_rows[0]) == tree.n_nodes

# [decode]
decoder = espalier.Decoder(
    espalier.TextModel(lambda texts: 0.6 * logits_of(texts)), "best-first", "target-only",
    espalier.TextModel(logits_of), vocab_size=VOCAB)
for token in decoder.stream(text, max_tokens=20, temperature=0.8, seed=1):
    print(token, end=" ", flush=True)
# [decode]
print()


# [sampler]
def rejection(target, draft, draws, uniforms):
    for i, x in enumerate(draws):
        if uniforms[2 * i] * draft[i][x] < target[i][x]:
            continue
        left = np.maximum(target[i] - draft[i], 0)
        return [*draws[:i], int(np.argmax(uniforms[2 * i + 1] * left.sum() < np.cumsum(left)))]
    return [*draws, int(np.argmax(uniforms[2 * len(draws)] < np.cumsum(target[-1])))]


print(espalier.check_sampler(rejection))
# [sampler]
