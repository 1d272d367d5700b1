// SPDX-License-Identifier: BSL-1.0
#include "methods.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "assignment.hpp"
#include "espalier/core/error.hpp"
#include "espalier/forward/prefill.hpp"
#include "on_device.hpp"
#include "text_verifier.hpp"

namespace generate {

void check_pairing(const arguments& arguments, const pairing& used) {
  const method& grown = find_method(arguments.parts, used.method);
  const verifier& verifies = *arguments.parts.verifiers.find(used.verifier);
  const auto check = [](const char* flag, const std::string& name, const auto& make) {
    try {
      make();
    } catch (const espalier::option_error& error) {
      throw usage_error(fmt::format("--{} {}: {}", flag, name, error.what()));
    }
  };
  check("method", used.method, [&] { (void)grown.max_nodes(); });
  if (const std::string& name = arguments.text_method; !name.empty())
    check("text-method", name, [&] { (void)find_method(arguments.parts, name).max_nodes(); });
  check("verifier", used.verifier, [&] { (void)verifies.make(); });
  if (arguments.target.text.sampling.temperature > 0.0F && verifies.argmax_only) {
    throw usage_error(
        fmt::format("--verifier {} writes the most probable token: it goes with --temperature 0 only.", used.verifier));
  }
}

std::int32_t longest_pass(const arguments& arguments, const std::string& method) {
  const std::string& other = arguments.text_method;
  return find_method(arguments.parts, method).max_nodes() +
         (other.empty() ? 0 : find_method(arguments.parts, other).max_nodes()) + espalier::prefill::default_chunk;
}

written_text write(models::model_set& models, const arguments& arguments, const std::string& method,
                   const std::string& verifier, std::span<const espalier::token_id> prompt,
                   const round_watcher& watch) {
  priced_models passes(models, arguments.price.get());
  espalier::statistics priced;
  const round_watcher watch_priced = [&](const espalier::round_record& r) {
    const espalier::round_record round = passes.priced(r);
    priced(round);
    watch(round);
  };
  const assignment work{
      {arguments, method, verifier, prompt, arguments.price ? watch_priced : watch, models.text}, models, passes};
  if (arguments.device == device_kind::cuda) return write_on_device(work);
  written_text result = find_method(arguments.parts, method).write(work);
  if (arguments.price) result.statistics = priced;
  return result;
}

}  // namespace generate
