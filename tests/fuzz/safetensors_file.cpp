// SPDX-License-Identifier: BSL-1.0
//
// Any bytes are a safetensors file that is read, or one that is refused with a model_error; nothing else happens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/tensor_reader.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace espalier;
  try {
    safetensors_file file(std::make_unique<std::istringstream>(std::string(data, data + size)), "fuzz");
    std::uint64_t covered = 0;
    for (const auto& [name, entry] : file.entries()) {
      if (entry.offset > size || entry.bytes > size - entry.offset) std::abort();
      covered += entry.bytes;
      std::vector<char> bytes(static_cast<std::size_t>(entry.bytes));
      file.read(entry, 0, bytes.data(), bytes.size());
      if (!std::equal(bytes.begin(), bytes.end(), data + entry.offset,
                      [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; })) {
        std::abort();
      }
      if (entry.shape.size() != 2 || entry.shape[0] > 64 || entry.shape[1] > 64) continue;
      try {
        detail::tensor_reader(file).matrix(name, static_cast<int>(entry.shape[0]), static_cast<int>(entry.shape[1]),
                                           [](int, const weight_row&) {});
      } catch (const model_error&) {
      }
    }
    if (covered > size) std::abort();
  } catch (const model_error&) {
  }
  return 0;
}
