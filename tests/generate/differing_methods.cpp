// SPDX-License-Identifier: BSL-1.0
// Methods in place of the program's: chain writes plain decoding's text, fixed another, a longer one, dynatree another
// from its second text on.
#include "generate/methods.hpp"

#include <map>

namespace generate {

void check_method(const arguments&, const std::string&, const std::string&) {}

std::int32_t longest_pass(const arguments&, const std::string&) {
  return 1;
}

written_text write(models::model_set&, const arguments&, const std::string& method, const std::string&,
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
