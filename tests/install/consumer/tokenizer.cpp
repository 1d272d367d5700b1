// SPDX-License-Identifier: BSL-1.0
#include <espalier/model/tokenizer/chat_template.hpp>

// Linked, not called: it needs all that the target links.
espalier::tokenizer loaded(const char* path) {
  return espalier::tokenizer::load(path);
}
