// SPDX-License-Identifier: BSL-1.0
// The registry's policies behind policy_part.
#include <boost/hana/for_each.hpp>

#include "espalier/registry.hpp"
#include "options_from_text.hpp"
#include "parts.hpp"

namespace parts {

namespace {

template <class PolicyT>
class policy_of final : public policy_part {
 public:
  explicit policy_of(PolicyT policy) : policy_(std::move(policy)) {}

  std::unique_ptr<policy_part> copy() const override { return std::make_unique<policy_of>(*this); }
  regime sampling() const override { return PolicyT::sampling; }
  bool takes_runs() const override {
    return requires(PolicyT & p, tree<> & t, const token_run& run, philox_chance& chance) {
      p.take(t, run, chance);
    };
  }
  std::int32_t max_nodes() const override { return policy_.max_nodes(); }
  std::int32_t max_asked() const override { return most_asked(policy_); }
  void open(const round_start& start) override {
    if constexpr (OpeningPolicy<PolicyT>) policy_.open(start);
  }
  void reset() override {
    if constexpr (ResettingPolicy<PolicyT>) policy_.reset();
  }
  std::span<const node_id> begin(tree<>& t) override { return policy_.begin(t); }
  std::span<const node_id> take(tree<>& t, const node_rows<float>& rows, philox_chance& chance) override {
    return answered(t, rows, chance);
  }
  std::span<const node_id> take(tree<>& t, const node_rows<double>& rows, any_chance& chance) override {
    return answered(t, rows, chance);
  }
  std::span<const node_id> take(tree<>& t, const token_run& run, philox_chance& chance) override {
    return answered(t, run, chance);
  }
  std::span<const node_id> was() const override {
    if constexpr (RebuildingPolicy<PolicyT>) return policy_.was();
    return {};
  }
  void observe(tree_view t, verdict v) override { policy_.observe(t, v); }

 private:
  template <class AnswerT, class ChanceT>
  std::span<const node_id> answered(tree<>& t, const AnswerT& answer, ChanceT& chance) {
    if constexpr (requires { policy_.take(t, answer, chance); })
      return policy_.take(t, answer, chance);
    else
      raise<option_error>("this policy cannot grow from ",
                          std::is_same_v<AnswerT, token_run> ? "runs of tokens" : "rows", ".");
  }

  PolicyT policy_;
};

}  // namespace

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names;
  boost::hana::for_each(tree_policies, [&](const auto& part) { names.push_back(part.name); });
  return names;
}

std::string policy_options(std::string_view name) {
  std::string words;
  with_part_of(tree_policies, "policy", name, [&](const auto& part) { words = options_in_words(part.options); });
  return words;
}

std::unique_ptr<policy_part> make_policy(std::string_view name, std::string_view options) {
  std::unique_ptr<policy_part> made;
  with_part_of(tree_policies, "policy", name, [&]<class PartT>(const PartT& part) {
    PartT own = part;
    read_options(options, own.options);
    made = std::make_unique<policy_of<typename PartT::type>>(own.make());
  });
  return made;
}

}  // namespace parts
