// SPDX-License-Identifier: BSL-1.0
#include "methods.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "espalier/forward/prefill.hpp"
#include "espalier/registry.hpp"
#include "on_device.hpp"
#include "pairings.hpp"
#include "write_with.hpp"

namespace generate {

void check_method(const arguments& arguments, const std::string& method, const std::string& verifier) {
  with_policy(arguments, method, [&](const auto& part) {
    try {
      (void)part.make();
    } catch (const espalier::option_error& error) {
      throw usage_error(fmt::format("--method {}: {}", method, error.what()));
    }
  });
  const std::vector<std::string>& sampling = find_method(method).sampling_verifiers;
  if (arguments.target.text.sampling.temperature > 0.0F &&
      std::find(sampling.begin(), sampling.end(), verifier) == sampling.end()) {
    throw usage_error(
        fmt::format("--verifier {} writes the most probable token: it goes with --temperature 0 only.", verifier));
  }
}

std::int32_t longest_pass(const arguments& arguments, const std::string& method) {
  std::int32_t rows = 0;
  with_policy(arguments, method,
              [&](const auto& part) { rows = part.make().max_nodes() + espalier::prefill::default_chunk; });
  return rows;
}

written_text write(models::model_set& models, const arguments& arguments, const std::string& method,
                   const std::string& verifier, std::span<const espalier::token_id> prompt,
                   const round_watcher& watch) {
  const assignment work{{arguments, method, verifier, prompt, watch, models.text}, models};
  if (arguments.device == device_kind::cuda) return write_on_device(work);
  if (is_sequence(arguments.drafter)) return write_from_runs(work);
  return arguments.drafter == drafter_kind::block ? write_from_block(work) : write_from_model(work);
}

}  // namespace generate
