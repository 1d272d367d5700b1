# SPDX-License-Identifier: BSL-1.0
"""The program of the README, in Python."""
import espalier
import numpy as np

# [program]
SONG = b"merrily, merrily, merrily, life is but a dream. "


def sing(texts):
    """The target: the logits of the token after each text. This one sings."""
    logits = np.zeros((len(texts), 128), np.float32)
    logits[range(len(texts)), [SONG[len(text) % len(SONG)] for text in texts]] = 9.0
    return logits


# No second model: it drafts what stood in the text before.
decoder = espalier.Decoder("prompt-lookup", "chain length=8", "greedy", espalier.TextModel(sing), vocab_size=128)
text = decoder.add(list(SONG), max_tokens=96)
rounds = 0
while not decoder.idle:
    rounds += any(len(event.tokens) for event in decoder.step())
print(bytes(decoder.written(text).tolist()).decode())
print(f"{len(decoder.written(text)) / rounds:.1f} tokens a pass of the target")
# [program]
