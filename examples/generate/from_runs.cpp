// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "write_with.hpp"

namespace generate {

written_text write_from_runs(const assignment& work) {
  written_text result;
  with_policy(work.arguments, work.method, [&]<class PartT>(const PartT& part) {
    if constexpr (espalier::TreePolicy<typename PartT::type, espalier::prompt_lookup, espalier::philox_chance>) {
      result = work.arguments.drafter == drafter_kind::ngram
                   ? write_with(espalier::ngram(work.arguments.ngram), part.make(), work)
                   : write_with(espalier::prompt_lookup(work.arguments.prompt_lookup), part.make(), work);
    }
  });
  return result;
}

}  // namespace generate
