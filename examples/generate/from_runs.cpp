// SPDX-License-Identifier: BSL-1.0
#include <utility>

#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "policy_of.hpp"
#include "write_with.hpp"

namespace generate {

written_text write_from_runs(const assignment& work) {
  written_text result;
  with_policy(work.arguments, work.method, [&]<class PartT>(const PartT& part) {
    if constexpr (espalier::TreePolicy<typename PartT::type, espalier::prompt_lookup, espalier::philox_chance>) {
      auto policy = policy_of(part, work);
      result = work.arguments.drafter == drafter_kind::ngram
                   ? write_with(espalier::ngram(work.arguments.ngram), std::move(policy), work)
                   : write_with(espalier::prompt_lookup(work.arguments.prompt_lookup), std::move(policy), work);
    }
  });
  return result;
}

}  // namespace generate
