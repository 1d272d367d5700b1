// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "host_model.hpp"

namespace generate {

//! A StepDrafter on the host, without its type: all methods grow from this one, so that a drafter is compiled once, and
//! not with each method.
class host_drafter {
 public:
  //! Holds this drafter.
  template <class DrafterT>
  explicit host_drafter(DrafterT&& drafter) requires(!std::is_same_v<std::remove_cvref_t<DrafterT>, host_drafter>)
      : drafter_(std::make_unique<held<std::remove_cvref_t<DrafterT>>>(std::forward<DrafterT>(drafter))) {}

  std::int32_t vocab_size() const { return drafter_->vocab_size(); }
  std::int32_t capacity() const { return drafter_->capacity(); }
  void reserve(std::int32_t max_nodes) { drafter_->reserve(max_nodes); }
  void begin(std::span<const espalier::token_id> context) { drafter_->begin(context); }
  bool read_prompt(std::int32_t n) { return drafter_->read_prompt(n); }
  void process_rows(espalier::row_processor<float> process) { drafter_->process_rows(process); }
  void propose(espalier::tree_view tree, std::span<const espalier::node_id> nodes) { drafter_->propose(tree, nodes); }
  void renumber(std::span<const espalier::node_id> was) { drafter_->renumber(was); }
  espalier::node_rows<float> rows() const { return drafter_->rows(); }
  void commit(espalier::tree_view tree, espalier::verdict v) { drafter_->commit(tree, v); }
  double forward_seconds() const { return drafter_->forward_seconds(); }

  //! The states that policies read which choose by a network. A drafter that is no model has none: no such policy is
  //! made for one.
  void keep_states() { drafter_->keep_states(); }
  std::int32_t hidden_size() const { return drafter_->hidden_size(); }
  espalier::model_state<float> root_state() const { return drafter_->root_state(); }
  espalier::model_state<float> previous_state() const { return drafter_->previous_state(); }

 protected:
  class any {
   public:
    virtual ~any() = default;
    virtual std::int32_t vocab_size() const = 0;
    virtual std::int32_t capacity() const = 0;
    virtual void reserve(std::int32_t max_nodes) = 0;
    virtual void begin(std::span<const espalier::token_id> context) = 0;
    virtual bool read_prompt(std::int32_t n) = 0;
    virtual void process_rows(espalier::row_processor<float> process) = 0;
    virtual void propose(espalier::tree_view tree, std::span<const espalier::node_id> nodes) = 0;
    virtual void renumber(std::span<const espalier::node_id> was) = 0;
    virtual espalier::node_rows<float> rows() const = 0;
    virtual void commit(espalier::tree_view tree, espalier::verdict v) = 0;
    virtual double forward_seconds() const = 0;
    virtual std::int32_t max_rows() const = 0;
    virtual std::int32_t n_read() const = 0;
    virtual void read(const host_model& target, std::span<const std::int32_t> rows) = 0;
    virtual void keep_states() = 0;
    virtual std::int32_t hidden_size() const = 0;
    virtual espalier::model_state<float> root_state() const = 0;
    virtual espalier::model_state<float> previous_state() const = 0;
  };

  template <class DrafterT>
  class held final : public any {
    static constexpr bool keeps = requires(DrafterT & drafter) { drafter.keep_states(); };
    static constexpr bool reads = espalier::FeatureDrafter<DrafterT, host_model>;

   public:
    explicit held(DrafterT drafter) : drafter_(std::move(drafter)) {}

    std::int32_t vocab_size() const override { return drafter_.vocab_size(); }
    std::int32_t capacity() const override { return drafter_.capacity(); }
    void reserve(std::int32_t max_nodes) override { drafter_.reserve(max_nodes); }
    void begin(std::span<const espalier::token_id> context) override { drafter_.begin(context); }
    bool read_prompt(std::int32_t n) override {
      if constexpr (espalier::PromptDrafter<DrafterT>) return drafter_.read_prompt(n);
      return false;
    }
    void process_rows(espalier::row_processor<float> process) override { drafter_.process_rows(process); }
    void propose(espalier::tree_view tree, std::span<const espalier::node_id> nodes) override {
      drafter_.propose(tree, nodes);
    }
    void renumber(std::span<const espalier::node_id> was) override { drafter_.renumber(was); }
    espalier::node_rows<float> rows() const override { return drafter_.rows(); }
    void commit(espalier::tree_view tree, espalier::verdict v) override { drafter_.commit(tree, v); }
    double forward_seconds() const override { return espalier::forward_seconds_of(drafter_); }

    std::int32_t max_rows() const override {
      if constexpr (espalier::detail::FollowsPath<DrafterT>) return drafter_.max_rows();
      return 0;
    }
    std::int32_t n_read() const override {
      if constexpr (reads) return drafter_.n_read();
      return 0;
    }
    void read(const host_model& target, std::span<const std::int32_t> rows) override {
      if constexpr (reads) drafter_.read(target, rows);
    }

    void keep_states() override {
      if constexpr (keeps) drafter_.keep_states();
    }
    std::int32_t hidden_size() const override {
      if constexpr (keeps) return drafter_.hidden_size();
      return 0;
    }
    espalier::model_state<float> root_state() const override {
      if constexpr (keeps) return drafter_.root_state();
      return {};
    }
    espalier::model_state<float> previous_state() const override {
      if constexpr (keeps) return drafter_.previous_state();
      return {};
    }

   private:
    DrafterT drafter_;
  };

  std::unique_ptr<any> drafter_;
};

static_assert(espalier::RenumberingDrafter<host_drafter>);

//! A host_drafter that drafts from the target's hidden states, which its decoder has the target write for it.
class host_feature_drafter : public host_drafter {
 public:
  //! Holds this drafter, a FeatureDrafter.
  template <class DrafterT>
  requires espalier::FeatureDrafter<DrafterT, host_model>
  explicit host_feature_drafter(DrafterT drafter) : host_drafter(std::move(drafter)) {}

  std::int32_t n_read() const { return drafter_->n_read(); }
  void read(const host_model& target, std::span<const std::int32_t> rows) { drafter_->read(target, rows); }
};

static_assert(espalier::FeatureStepDrafter<host_feature_drafter, host_model>);

//! A host_drafter whose rows depend on tokens alone, so that it can draft ahead.
class host_path_drafter : public host_drafter {
 public:
  static constexpr bool follows_path = true;

  template <class DrafterT>
  requires espalier::detail::FollowsPath<DrafterT>
  explicit host_path_drafter(DrafterT drafter) : host_drafter(std::move(drafter)) {}
  host_path_drafter(host_path_drafter&&) = default;

  std::int32_t max_rows() const { return drafter_->max_rows(); }
};

}  // namespace generate
