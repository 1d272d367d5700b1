// SPDX-License-Identifier: BSL-1.0
#include "text_task.hpp"

#include "espalier/model/tokenizer/tokenizer.hpp"

namespace generate {

espalier::stop_conditions text_task::stop() const {
  return {.max_tokens = arguments.max_tokens, .tokens = text.ends_of_text(), .strings = arguments.stop};
}

std::string_view text_task::piece(espalier::token_id token) const {
  return text.piece(token);
}

}  // namespace generate
