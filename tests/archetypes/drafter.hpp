// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/concepts/drafter.hpp"

namespace archetypes {

//! A Drafter with nothing superfluous: for compiling only. It proposes nothing.
struct drafter {
  void begin(std::span<const espalier::token_id> context);
  void commit(espalier::tree_view, espalier::verdict);
  void reserve(std::int32_t n_nodes);
  std::int32_t capacity() const;
};
static_assert(espalier::Drafter<drafter>);

struct step_drafter : drafter {
  std::int32_t vocab_size() const;
  void propose(espalier::tree_view, std::span<const espalier::node_id>);
  espalier::node_rows<float> rows() const;
};
static_assert(espalier::StepDrafter<step_drafter>);

// The target that a feature_step_drafter reads.
struct states {};

struct feature_step_drafter : step_drafter {
  std::int32_t n_read() const;
  void read(const states&, std::span<const std::int32_t> rows);
};
static_assert(espalier::FeatureStepDrafter<feature_step_drafter, states>);

struct block_drafter : drafter {
  std::int32_t vocab_size() const;
  std::int32_t block_length() const;
  espalier::vocab_rows<float> propose_block();
};
static_assert(espalier::BlockDrafter<block_drafter>);

struct conditioned_block_drafter : block_drafter {
  void correct(espalier::tree_view, espalier::node_id, std::span<float> row);
};
static_assert(espalier::ConditionedBlockDrafter<conditioned_block_drafter>);

// Its correct() takes rows of another number type.
struct wrongly_conditioned_block_drafter : block_drafter {
  void correct(espalier::tree_view, espalier::node_id, std::span<double> row);
};

struct sequence_drafter : drafter {
  espalier::token_run propose_run(std::int32_t max_tokens);
};
static_assert(espalier::SequenceDrafter<sequence_drafter>);

static_assert(!espalier::StepDrafter<block_drafter> && !espalier::BlockDrafter<sequence_drafter> &&
              !espalier::SequenceDrafter<step_drafter> && !espalier::FeatureStepDrafter<step_drafter, states> &&
              !espalier::FeatureStepDrafter<feature_step_drafter, int> &&
              !espalier::ConditionedBlockDrafter<block_drafter> &&
              !espalier::ConditionedBlockDrafter<wrongly_conditioned_block_drafter>);

}  // namespace archetypes
