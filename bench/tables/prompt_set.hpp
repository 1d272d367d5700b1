// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "model_set.hpp"
#include "prompts_file.hpp"

namespace bench {

//! The prompts of one domain, as tokens.
struct prompt_domain {
  std::string name;
  std::vector<std::vector<espalier::token_id>> prompts;
  float temperature = 1;  //!< temperature of the target, if it samples and the program does not set another
};

//! Reads prompts by domain, in the order of the file; if the file names no domains, all prompts are of one.
//! encode(text) turns a text into tokens.
//!
//! Errors      input_error for a file that cannot be read, a domain that it does not have or that has several
//!             temperatures, or a prompt after which `max_tokens` more tokens do not fit the models
template <class EncodeT>
std::vector<prompt_domain> read_prompt_domains(const std::string& path, const models::model_set& models,
                                               const std::vector<std::string>& wanted, int max_tokens,
                                               const EncodeT& encode) {
  std::vector<prompt_domain> domains;
  const auto find = [&](const std::string& name) {
    return std::find_if(domains.begin(), domains.end(), [&](const prompt_domain& d) { return d.name == name; });
  };
  for (const models::prompt& prompt : models::read_prompts(path)) {
    const std::string name = prompt.domain.empty() ? "all" : prompt.domain;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    if (find(name) == domains.end()) domains.push_back({name, {}, prompt.temperature.value_or(1.0F)});
    if (find(name)->temperature != prompt.temperature.value_or(1.0F)) {
      espalier::raise<espalier::input_error>(path, ", line ", prompt.line, ": the domain ", name,
                                             " has prompts of several temperatures; it must have one.");
    }
    auto tokens = prompt.tokens.empty() ? encode(prompt.text) : prompt.tokens;
    if (static_cast<int>(tokens.size()) + max_tokens > models.context()) {
      espalier::raise<espalier::input_error>(path, ", line ", prompt.line, ": ", tokens.size(), " tokens and ",
                                             max_tokens, " more do not fit the models' context of ", models.context(),
                                             ".");
    }
    find(name)->prompts.push_back(std::move(tokens));
  }
  for (const std::string& name : wanted) {
    if (find(name) == domains.end()) espalier::raise<espalier::input_error>(path, " has no domain ", name, ".");
  }
  return domains;
}

//! Reads prompts that are texts to be continued as they are.
inline std::vector<prompt_domain> read_prompt_domains(const std::string& path, const models::model_set& models,
                                                      const std::vector<std::string>& wanted, int max_tokens) {
  return read_prompt_domains(path, models, wanted, max_tokens,
                             [&](const std::string& text) { return models.text.encode_prompt(text); });
}

//! Takes the first n prompts of each domain away and returns them, to choose settings by; the others are measured.
//!
//! Errors      input_error for a domain of n prompts or fewer
inline std::vector<prompt_domain> take_first_prompts(std::vector<prompt_domain>& domains, int n) {
  std::vector<prompt_domain> taken = domains;
  for (std::size_t d = 0; d < domains.size(); ++d) {
    auto& prompts = domains[d].prompts;
    if (std::ssize(prompts) <= n) {
      espalier::raise<espalier::input_error>("the domain ", domains[d].name, " has ", prompts.size(),
                                             " prompts; it needs more than the ", n, " that settings are chosen by.");
    }
    taken[d].prompts.resize(static_cast<std::size_t>(n));
    prompts.erase(prompts.begin(), prompts.begin() + n);
  }
  return taken;
}

}  // namespace bench
