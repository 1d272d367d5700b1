# SPDX-License-Identifier: BSL-1.0
"""A DFlash block for any causal language model that transformers loads (Chen et al., 2026), in the layout of speculators: a few
layers over the target's states of three of its layers, which draft all tokens of a block in one pass."""

import torch
import torch.nn as nn

from block import BlockLayers
from model import RMSNorm
from states import States, begin_as, sizes_of, train_on_states


class Dflash(BlockLayers):
    """The block, with the tensors' names of speculators' layout. Its rows are the pending token and the mask token as often as
    tokens are drafted; mask is the target's embedding of the latter. Its output matrix has the rows of
    config["draft_vocab_size"] tokens; the embedding is the target's."""

    def __init__(self, c, mask):
        super().__init__(c, 3, lambda: RMSNorm(c["head_dim"], c["rms_norm_eps"]))
        self.lm_head = nn.Linear(c["hidden_size"], c["draft_vocab_size"], bias=False)
        self.register_buffer("mask", mask.float(), persistent=False)
        self.begin()

    def forward(self, tokens, read, anchors, rows):
        """The last states, after the norm, [batch][blocks][rows - 1][width] of the tokens after the pending tokens, which
        stand at anchors [batch][blocks]. tokens [batch][length][width] are embeddings, read [batch][length][3 * width] the
        target's states at the same positions, of which a block sees those in front of its anchor."""
        context = self.hidden_norm(self.fc(read))
        pending = tokens[torch.arange(len(tokens), device=tokens.device)[:, None], anchors]
        masks = self.mask.expand(*anchors.shape, rows - 1, -1)
        return self.through(torch.cat((pending[:, :, None], masks), 2), context, anchors)[:, :, 1:]

    def begin_as(self, layers):
        """Begins with the weights of the target's last layers."""
        for own, layer in zip(self.layers, layers[-len(self.layers) :]):
            begin_as(own, layer.state_dict())

    def rows(self, tokens, read, use, stage):
        """Yields for each token of a block the rows' last states [rows][width] and the places in the flat batch of the target's
        rows that they are to equal. The blocks of a batch are whole, halves or quarters, so that the first tokens are learnt
        most; two rows stand for each place, and the anchors are drawn from the places in use, and from others where these are too
        few; rows are compared at places in use alone."""
        batch, length = use.shape
        rows = self.config["block_size"] >> int(torch.multinomial(torch.tensor((0.25, 0.4, 0.35)), 1))
        anchors = torch.multinomial(use.float() + 1e-9, max(1, 2 * length // rows))
        last = self(tokens, read, anchors, rows)
        for i in range(rows - 1):
            at = anchors + i
            inside = use.gather(1, at.clamp_max(length - 1)) & (at < length) & (anchors > 0)
            places = at + length * torch.arange(batch, device=at.device)[:, None]
            yield last[:, :, i][inside], places[inside]

    def drafted(self, tokens, read, depth):
        """Yields for each of the first depth tokens of a block its row's last state [batch][length][width], where the pending
        token stands at each place."""
        anchors = torch.arange(tokens.shape[1], device=tokens.device).clamp_min(1).expand(len(tokens), -1)
        yield from self(tokens, read, anchors, self.config["block_size"])[:, :, :depth].unbind(2)

    def compile_parts(self):
        """Compiles nothing: blocks of a batch are as many as its longest text has. The loss is compiled by itself."""


def dflash(args):
    if args.block < 8 or args.layers < 1:
        raise SystemExit("--block must be 8 or more, of which 7 drafted tokens are measured, and --layers 1 or more.")
    layers = mask = None

    def make(target, unused):
        nonlocal layers, mask
        layers, mask = States.layers(target), unused
        drafted = {"draft_vocab_size": min(args.vocab, target.vocab), "num_hidden_layers": args.layers}
        return Dflash(drafted | sizes_of(target, args) | {"block_size": args.block}, target.embedding[unused])

    def settings(model):
        own = {n: model.config[n] for n in ("draft_vocab_size", "block_size")}
        layer = {n: value for n, value in model.config.items() if n not in own}
        layer |= {"model_type": "qwen3", "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False}
        return own | {
            "architectures": ["DFlashDraftModel"],
            "speculators_model_type": "dflash",
            "transformer_layer_config": layer,
            "aux_hidden_state_layer_ids": layers,
            "mask_token_id": mask,
            "sample_from_anchor": False,
        }

    train_on_states(args, "dflash", 7, make, settings)
