// SPDX-License-Identifier: BSL-1.0
// Methods in place of the program's: chain writes plain decoding's text, fixed another, a longer one, dynatree another
// from its second text on.
#include "generate/methods.hpp"

#include <map>

namespace generate {

std::vector<std::string> all_methods() {
  return {"plain", "chain", "fixed", "dynatree"};
}

std::string verifier_name(const arguments&) {
  return "greedy";
}

void check_method(const arguments&, const std::string&) {}

std::int32_t longest_pass(const arguments&, const std::string&) {
  return 1;
}

written_text write(models::model_folder&, const arguments&, const std::string& method,
                   std::span<const espalier::token_id>, const round_watcher& watch) {
  static std::map<std::string, int> texts_of;
  const bool first = texts_of[method]++ == 0;
  written_text result{.tokens = {300, 301, 302}, .end = espalier::status::length, .statistics = {}};
  if (method == "fixed") result.tokens = {300, 400, 302, 303};
  if (method == "dynatree" && !first) result.tokens = {300, 301};
  espalier::round_record round;
  round.committed = result.tokens;
  round.seconds.target_forward = 1e-3;
  result.statistics(round);
  watch(round);
  return result;
}

}  // namespace generate
