// SPDX-License-Identifier: BSL-1.0
#include "run_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <string>
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

// Refuses a drafter whose model the paths do not name.
void require_drafter(const arguments& arguments) {
  const models::model_paths& given = arguments.models;
  const models::model_paths paths = given.resolved();
  const auto require = [&](drafter_kind drafter, bool has, const std::string& what, const std::string& flag) {
    if (arguments.drafter != drafter || has) return;
    const std::string start = fmt::format("--drafter {} needs {}, but ", espalier::name_of(drafter), what);
    if (!given.draft.empty()) throw usage_error(start + given.draft + " is none.");
    throw usage_error(start + given.model + " has none beside it; " + flag + " names one.");
  };
  const bool has_head = !paths.head.empty() && drafter_beside(paths) == arguments.drafter;
  require(drafter_kind::model, !paths.draft.empty(), "a smaller model", "--draft");
  require(drafter_kind::eagle3, has_head, "an EAGLE-3 head", "--draft");
  require(drafter_kind::mtp, has_head, "an MTP head", "--draft");
  require(drafter_kind::block, !paths.block.empty(), "a block draft", "--block");
}

models::model_set load_models(const arguments& arguments) {
  require_drafter(arguments);
  std::int32_t rows = 0;
  for (const pairing& used : pairings(arguments)) {
    check_pairing(arguments, used);
    rows = (std::max)(rows, longest_pass(arguments, used.method));
  }
  auto models =
      models::model_set::load(arguments.models,
                              {.threads = arguments.threads,
                               .max_rows = rows,
                               .arithmetic = arguments.arithmetic,
                               .weights = arguments.weights},
                              arguments.drafter == drafter_kind::self ? std::optional(arguments.self) : std::nullopt);
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
