// SPDX-License-Identifier: BSL-1.0
#include "run_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "arguments.hpp"
#include "chat.hpp"
#include "compare.hpp"
#include "espalier/core/option.hpp"
#include "methods.hpp"
#include "pairings.hpp"
#include "write_text.hpp"

namespace generate {

namespace {

// The threads of the target's passes: while a draft model drafts ahead, all processors but one, unless a flag says how
// many.
int threads_of(const arguments& arguments) {
  if (!arguments.ahead || arguments.threads > 0) return arguments.threads;
  return (std::max)(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
}

models::model_set load_models(const arguments& arguments) {
  models::require_drafter(arguments.drafter, arguments.models, "--block");
  std::int32_t rows = 0;
  for (const pairing& used : pairings(arguments)) {
    check_pairing(arguments, used);
    rows = (std::max)(rows, longest_pass(arguments, used.method));
  }
  auto models =
      models::model_set::load(arguments.models,
                              {.threads = threads_of(arguments),
                               .max_rows = rows,
                               .arithmetic = arguments.arithmetic,
                               .weights = arguments.weights},
                              {.drafter = arguments.drafter, .ahead = arguments.ahead, .self = arguments.self});
  const bool on_device = arguments.device == device_kind::cuda;
  if (on_device && models.draft && models.draft->config().vocab_size != models.target.config().vocab_size) {
    throw usage_error(fmt::format("--device cuda drafts in the target's own vocabulary of {} tokens, but {} has {}.",
                                  models.target.config().vocab_size, models.paths.draft,
                                  models.draft->config().vocab_size));
  }
  if (on_device && models.map) {
    throw usage_error(fmt::format("--device cuda drafts in the target's own vocabulary, but {} has another tokenizer.",
                                  models.paths.draft));
  }
  if (models.map) std::cerr << models.vocabularies_in_words() << '\n';
  return models;
}

int run(int argc, const char* const* argv, parts offered) {
  std::string help;
  const arguments asked = parse(argc, argv, std::move(offered), help);
  if (!help.empty()) {
    std::cout << help;
    return 0;
  }
  models::model_set models = load_models(asked);
  if (asked.chat) {
    chat(models, asked, std::cin, std::cout);
    return 0;
  }
  if (asked.compare) return compare(models, asked, std::cout) ? 0 : 1;
  write_text(models, asked, std::cout);
  return 0;
}

}  // namespace

int run_program(int argc, const char* const* argv, const parts& own) {
  std::ios::sync_with_stdio(false);
  try {
    return run(argc, argv, all_parts(own));
  } catch (const usage_error& error) {
    std::cerr << "generate: " << error.what() << "\nTry generate --help.\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "generate: there is not enough memory.\n";
  } catch (const std::exception& error) {
    std::cerr << "generate: " << error.what() << "\n";
  }
  return 2;
}

}  // namespace generate
