// SPDX-License-Identifier: BSL-1.0
// Compiled without exceptions and without RTTI: errors go to the handler, and decoding needs neither.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "espalier/espalier.hpp"

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#error this program must be built with -fno-exceptions -fno-rtti
#endif
static_assert(ESPALIER_EXCEPTIONS == 0);

namespace {

struct countdown {
  void operator()(std::span<const espalier::token_id> text, std::span<float> logits) const {
    for (float& x : logits)
      x = 0;
    logits[static_cast<std::size_t>(text.back() + 9) % 10] = 1;
  }
};

bool decodes() {
  espalier::token_kv kv(64), draft_kv(64);
  espalier::text_backend target(10, countdown()), draft(10, countdown());
  auto decode = espalier::make_decoder(espalier::autoregressive(draft, draft_kv), espalier::dynatree(),
                                       espalier::greedy(), kv, target);
  const std::vector<espalier::token_id> prompt{5};
  const auto text = decode.generate(prompt, {.max_tokens = 12});
  if (text.size() != 12) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != static_cast<espalier::token_id>((24 - i) % 10)) return false;
  }
  return true;
}

}  // namespace

int main() {
  if (!decodes()) {
    std::puts("the text is wrong");
    return 1;
  }
  // Must not return, so what follows the error happens in the handler.
  espalier::error_handler() = [](const char* message) {
    std::puts(message);
    std::exit(std::strcmp(message, "option length is 0, but must lie between 1 and 1024.") == 0 ? 0 : 1);
  };
  const espalier::chain policy({.length = 0});
  std::puts("the error handler was not called");
  return 1;
}
