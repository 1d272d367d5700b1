// SPDX-License-Identifier: BSL-1.0
// The program with methods that pretend: chain writes plain decoding's text, fixed another, a longer one, dynatree
// another from its second text on. Where the environment has OWN_PART, one more method has that name.
#include <boost/hana/for_each.hpp>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "espalier/registry.hpp"
#include "generate/assignment.hpp"
#include "generate/part_with.hpp"
#include "generate/run_program.hpp"

namespace generate {

namespace {

written_text written_by(const assignment& work) {
  static std::map<std::string, int> texts_of;
  const bool first = texts_of[work.method]++ == 0;
  written_text result{.tokens = {300, 301, 302}, .end = espalier::status::length, .statistics = {}};
  if (work.method == "fixed") result.tokens = {300, 400, 302, 303};
  if (work.method == "dynatree" && !first) result.tokens = {300, 301};
  espalier::round_record round;
  round.committed = result.tokens;
  round.seconds.target_forward = 1e-3;
  result.statistics(round);
  work.watch(round);
  return result;
}

template <class PartT>
struct pretending_method final : method_with<PartT> {
  using method_with<PartT>::method_with;

  std::unique_ptr<method> copy() const override { return std::make_unique<pretending_method>(*this); }
  written_text write(const assignment& work) const override { return written_by(work); }
  std::shared_ptr<const chosen_policy> over_text(const assignment&) const override { return nullptr; }
};

template <class PartT>
struct unused_verifier final : verifier_with<PartT> {
  using verifier_with<PartT>::verifier_with;

  std::unique_ptr<verifier> copy() const override { return std::make_unique<unused_verifier>(*this); }
  std::unique_ptr<text_verifier> make() const override { return nullptr; }
};

}  // namespace

parts library_parts() {
  parts all;
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    all.methods.add(std::make_unique<pretending_method<PartT>>(part));
  });
  boost::hana::for_each(espalier::verifiers, [&]<class PartT>(const PartT& part) {
    all.verifiers.add(std::make_unique<unused_verifier<PartT>>(part));
  });
  return all;
}

}  // namespace generate

int main(int argc, char** argv) {
  generate::parts own;
  if (const char* name = std::getenv("OWN_PART")) {
    using part = espalier::part<espalier::plain>;
    own.methods.add(std::make_unique<generate::pretending_method<part>>(part{name, "a part of one's own"}));
  }
  return generate::run_program(argc, argv, own);
}
