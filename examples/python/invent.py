# SPDX-License-Identifier: BSL-1.0
"""A policy of one's own in 30 lines, and its proof."""
import math

import espalier

# [policy]
class Wide(espalier.TreePolicy):
    """Two draws after the root, and one after each of their tokens."""
    sampling, max_nodes = "iid", 4

    def take(self, tree, rows, chance):
        if tree.n_nodes == 1:
            return sorted({espalier.draw(tree, rows, 0, chance) for _ in range(2)})
        for u in sorted(set(tree.draws(0))):
            espalier.draw(tree, rows, u, chance)


print(espalier.check_lossless(Wide(), "specinfer", max_outcomes=400))
# [policy]


# [biased]
class Hopeful(Wide):
    """Drops tokens that the draft gives little: they would be rejected anyway."""

    def take(self, tree, rows, chance):
        token = chance.pick(rows[0], node=0, slot=0)
        if rows[0][token] > 0.3:
            tree.draw(0, token, math.log(rows[0][token]))


try:
    espalier.check_lossless(Hopeful(), "specinfer", max_outcomes=400)
except espalier.LawError as error:
    print(error)
# [biased]
