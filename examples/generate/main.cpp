// SPDX-License-Identifier: BSL-1.0
// Writes text with any of the library's methods, shows what happens, or compares them. See --help.
#include <algorithm>
#include <exception>
#include <iostream>
#include <new>

#include "arguments.hpp"
#include "chat.hpp"
#include "compare.hpp"
#include "methods.hpp"
#include "pairings.hpp"
#include "write_text.hpp"

namespace {

models::model_set load_models(const generate::arguments& arguments) {
  std::int32_t rows = 0;
  for (const auto& [method, verifier] : generate::pairings(arguments)) {
    generate::check_method(arguments, method, verifier);
    rows = (std::max)(rows, generate::longest_pass(arguments, method));
  }
  auto models = models::model_set::load(arguments.models, {.threads = arguments.threads,
                                                           .max_rows = rows,
                                                           .arithmetic = arguments.arithmetic,
                                                           .weights = arguments.weights});
  if (arguments.drafter == generate::drafter_kind::block && !models.block) {
    throw generate::usage_error("--drafter block needs a block draft, but " + arguments.models.model +
                                " has none beside it; --block names one.");
  }
  return models;
}

int run(int argc, const char* const* argv) {
  std::string help;
  const generate::arguments arguments = generate::parse(argc, argv, help);
  if (!help.empty()) {
    std::cout << help;
    return 0;
  }
  models::model_set models = load_models(arguments);
  if (arguments.chat) {
    generate::chat(models, arguments, std::cin, std::cout);
    return 0;
  }
  if (arguments.compare) return generate::compare(models, arguments, std::cout) ? 0 : 1;
  generate::write_text(models, arguments, std::cout);
  return 0;
}

}  // namespace

//! Returns 0 if all is done, 1 if texts differ that must not, 2 if the arguments, a file or a model cannot be used,
//! which a sentence on stderr explains.
int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  try {
    return run(argc, argv);
  } catch (const generate::usage_error& error) {
    std::cerr << "generate: " << error.what() << "\nTry generate --help.\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "generate: there is not enough memory.\n";
  } catch (const std::exception& error) {
    std::cerr << "generate: " << error.what() << "\n";
  }
  return 2;
}
