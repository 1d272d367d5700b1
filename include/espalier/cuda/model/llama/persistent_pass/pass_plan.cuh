// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "espalier/cuda/model/llama/persistent_pass/pass_job.cuh"

namespace espalier::cuda::detail {

// Spreads a product over blocks: rows and columns are divided so that the slowest block has the least to do. Sums do
// not depend on it.
inline pass_product plan_product(pass_product product, std::int32_t n_rows, std::int32_t n_blocks) {
  const auto up = [](std::int32_t n, std::int32_t by) { return (n + by - 1) / by; };
  const std::int32_t n_groups = up(std::max(n_rows, 1), pass_tile_rows);
  const auto room = static_cast<std::int32_t>(pass_weight_bytes / 512) / product.n_chunks();
  const std::int32_t most = std::clamp(room, 1, pass_max_units);
  std::int32_t best = 0;
  for (std::int32_t group_blocks = 1; group_blocks <= std::min(n_groups, n_blocks); ++group_blocks) {
    const std::int32_t across = n_blocks / group_blocks;
    const std::int32_t tile_units = std::min(up(product.units, across), most), n_tiles = up(product.units, tile_units);
    const std::int32_t tile_blocks = std::min(across, n_tiles);
    // To bring the rows and to leave the sums takes as long as some ten units.
    const std::int32_t time = up(n_groups, group_blocks) * up(n_tiles, tile_blocks) * (10 + tile_units);
    if (best != 0 && time >= best) continue;
    best = time;
    product.tile_units = tile_units;
    product.n_tiles = n_tiles;
    product.tile_blocks = tile_blocks;
    product.group_blocks = group_blocks;
  }
  return product;
}

}  // namespace espalier::cuda::detail
