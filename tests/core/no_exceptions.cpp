// SPDX-License-Identifier: BSL-1.0
// Compiled without exceptions and without RTTI: errors go to the handler, or are told by events, and decoding needs
// neither.
#include <algorithm>
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

// Fails once, when it is asked about a text that ends with `fails_after`.
struct failing_countdown {
  espalier::token_id* fails_after;

  void operator()(std::span<const espalier::token_id> text, std::span<float> logits) const {
    if (text.back() == *fails_after) {
      *fails_after = -1;
      espalier::raise<espalier::model_error>("the model is gone.");
    }
    countdown()(text, logits);
  }
};

// A batch tells the sentence of what failed, and its texts go on.
bool tells_failures() {
  espalier::token_id fails_after = 7;
  espalier::token_kv kv(64, espalier::commit_mode::compact, 2);
  espalier::text_backend target(10, failing_countdown{&fails_after});
  auto decode = espalier::make_batch_decoder(espalier::prompt_lookup(), espalier::chain(), espalier::greedy(), kv,
                                             target, {.max_texts = 2});
  const std::vector<espalier::token_id> first{9}, second{3};
  decode.add(first, {.max_tokens = 6});
  decode.add(second, {.max_tokens = 3, .strings = {"x"}});  // step() is given no pieces
  int pass_failures = 0, other_failures = 0;
  espalier::text_id held = -1;
  while (!decode.idle() || held >= 0) {
    if (held >= 0) decode.resume(held);
    held = -1;
    for (const espalier::text_event& e : decode.step()) {
      if (e.failed() != !e.message.empty() || e.error) return false;
      if (e.id == 0 && e.message == "the model is gone.") ++pass_failures, held = e.id;
      if (e.id == 1 && e.message.find("stop strings need the text of each token") == 0) ++other_failures;
    }
  }
  const std::vector<espalier::token_id> expected{9, 8, 7, 6, 5, 4, 3};
  const auto text = decode.current(0).tokens();
  return pass_failures == 1 && other_failures == 1 &&
         std::equal(text.begin(), text.end(), expected.begin(), expected.end());
}

}  // namespace

int main() {
  if (!tells_failures()) {
    std::puts("the events of a batch are wrong");
    return 1;
  }
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
