// SPDX-License-Identifier: BSL-1.0
// The registry's verifiers behind verifier_part.
#include <boost/hana/for_each.hpp>

#include "espalier/registry.hpp"
#include "options_from_text.hpp"
#include "parts.hpp"

namespace parts {

namespace {

template <class VerifierT>
class verifier_of final : public verifier_part {
 public:
  explicit verifier_of(VerifierT verifier) : verifier_(std::move(verifier)) {}

  std::unique_ptr<verifier_part> copy() const override { return std::make_unique<verifier_of>(*this); }
  regime lossless() const override { return VerifierT::lossless; }
  bool argmax_only() const override { return ArgmaxVerifier<VerifierT>; }
  bool target_alone() const override { return espalier::detail::reads_target_alone<VerifierT>(); }
  void reserve(std::int32_t max_nodes, std::int32_t vocab) override { reserve_verifier(verifier_, max_nodes, vocab); }
  verdict verify(tree_view t, const node_rows<float>& draft, target_part<float>& target,
                 philox_chance& chance) override {
    return verifier_.verify(t, draft, target, chance);
  }
  verdict verify(tree_view t, const node_rows<double>& draft, target_part<double>& target,
                 any_chance& chance) override {
    return verifier_.verify(t, draft, target, chance);
  }

 private:
  VerifierT verifier_;
};

}  // namespace

std::vector<std::string_view> verifier_names() {
  std::vector<std::string_view> names;
  boost::hana::for_each(verifiers, [&](const auto& part) { names.push_back(part.name); });
  return names;
}

std::string verifier_options(std::string_view name) {
  std::string words;
  with_part_of(verifiers, "verifier", name, [&](const auto& part) { words = options_in_words(part.options); });
  return words;
}

std::unique_ptr<verifier_part> make_verifier(std::string_view name, std::string_view options) {
  std::unique_ptr<verifier_part> made;
  with_part_of(verifiers, "verifier", name, [&]<class PartT>(const PartT& part) {
    PartT own = part;
    read_options(options, own.options);
    made = std::make_unique<verifier_of<typename PartT::type>>(own.make());
  });
  return made;
}

}  // namespace parts
