// SPDX-License-Identifier: BSL-1.0
#include <range/v3/view/iota.hpp>

#include <espalier/espalier.hpp>
#include <espalier/model/llama/llama_backend.hpp>

int main() {
  const auto numbers = ranges::views::iota(0, 2);
  const espalier::llama_options options;
  return numbers.size() == 2 && options.max_rows > 0 ? 0 : 1;
}
