// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "espalier/cost/cost_model.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/registry.hpp"
#include "model_set.hpp"
#include "offline_rounds.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "sampled_writer.hpp"
#include "verifier_results.hpp"

namespace bench {

//! The seed of everything that is done after one prompt: verifiers differ in their decisions, not in their random
//! numbers.
inline std::uint64_t seed_of(std::size_t sampling, std::size_t domain, std::size_t prompt, bool choosing) {
  return ((sampling * 64 + domain) * 4096 + prompt) * 2 + (choosing ? 1 : 0);
}

//! Shows the progress.
inline void say(const sampling_setting& sampling, const prompt_domain& domain, std::size_t prompt, const char* what) {
  progress(
      fmt::format("{}: {} {}, prompt {} of {}", sampling.name, what, domain.name, prompt + 1, domain.prompts.size()));
}

//! Rounds of every static tree at roots along texts that the target writes.
class offline_texts {
 public:
  offline_texts(models::model_set& models, const verifier_run& how, const espalier::cost_model& costs, int threads)
      : how_(how),
        writer_(models),
        rounds_(models, costs, how.trials,
                espalier::thread_team::shared(
                    threads > 0 ? threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency())))) {}

  //! Writes a text and measures along it. Returns one result for each way of drafting.
  std::vector<offline_sums> run(const sampling_setting& sampling, const std::vector<espalier::token_id>& prompt,
                                std::uint64_t seed) {
    writer_.write(espalier::part<espalier::traversal>{}, {.paths = 1, .trunk = 0, .length = 5},
                  {sampling.target, sampling.drafts.back()}, prompt, how_.tokens, seed);
    return rounds_.run(writer_.text(), prompt.size(), static_cast<std::size_t>(how_.spacing), sampling.drafts,
                       sampling.target, seed);
  }

  //! The results on the prompts by which settings are chosen.
  //!
  //! Shapes      [drafts][prompts]
  std::vector<std::vector<offline_sums>> choosing(const sampling_setting& sampling, std::size_t place,
                                                  const std::vector<prompt_domain>& domains) {
    std::vector<std::vector<offline_sums>> all(sampling.drafts.size());
    for (std::size_t d = 0; d < domains.size(); ++d) {
      for (std::size_t p = 0; p < domains[d].prompts.size(); ++p) {
        say(sampling, domains[d], p, "choosing by");
        const auto sums = run(sampling, domains[d].prompts[p], seed_of(place, d, p, true));
        for (std::size_t i = 0; i < sums.size(); ++i)
          all[i].push_back(sums[i]);
      }
    }
    return all;
  }

 private:
  verifier_run how_;
  sampled_writer writer_;
  offline_rounds rounds_;
};

}  // namespace bench
