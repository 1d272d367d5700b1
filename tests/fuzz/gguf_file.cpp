// SPDX-License-Identifier: BSL-1.0
//
// Any bytes are a GGUF file that is read within its bounds, or one that is refused with a model_error; nothing else
// happens. What is read is then taken for a model: its shape, and whether its tensors fit that.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/llama/gguf_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"

namespace {

using namespace espalier;

struct nothing {
  void expect_rows(detail::part_place, int, int, weight_type) {}
  void set_row(detail::part_place, int, const weight_row&) { std::abort(); }
  void set_vector(detail::part_place, const float*, int) { std::abort(); }
  void set_bias(detail::part_place, int, const float*, int) { std::abort(); }
};

template <class ActT>
void or_model_error(ActT&& act) {
  try {
    act();
  } catch (const model_error&) {
  }
}

// Asks for values as what they may not be. Errors are slow, so each input has one question for each key.
void read_pairs(const gguf_metadata& data, unsigned question) {
  for (const char* key : {"general.architecture", "tokens", "scores", "flags", "llama.block_count"}) {
    or_model_error([&] {
      switch (question % 7) {
        case 0:
          return void(data.text(key));
        case 1:
          return void(data.number(key, -1e30, 1e30));
        case 2:
          return void(data.integer(key, -1000, 1000));
        case 3:
          return void(data.flag_or(key, true));
        case 4:
          return void(data.texts(key));
        case 5:
          return void(data.numbers(key));
        default:
          return void(data.integers(key));
      }
    });
  }
}

void read_tensors(gguf_file& file, const std::uint8_t* bytes, std::size_t size) {
  for (const auto& named : file.entries()) {
    const tensor_entry& entry = named.second;
    if (entry.offset > size || entry.bytes > size - entry.offset) std::abort();
    std::vector<char> read(static_cast<std::size_t>(entry.bytes));
    file.read(entry, 0, read.data(), read.size());
    if (!std::equal(read.begin(), read.end(), bytes + entry.offset,
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; })) {
      std::abort();
    }
    if (entry.shape.size() != 2 || entry.shape[0] > 64 || entry.shape[1] > 1024) continue;
    const auto rows = static_cast<int>(entry.shape[0]), columns = static_cast<int>(entry.shape[1]);
    std::vector<float> values(static_cast<std::size_t>(columns));
    or_model_error([&] {
      detail::tensor_reader(file).matrix(named.first, rows, columns,
                                         [&](int, const weight_row& row) { row.decode(values.data()); });
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  or_model_error([&] {
    gguf_file file(std::make_unique<std::istringstream>(std::string(data, data + size)), "fuzz");
    read_pairs(file.metadata(), data[size / 2]);
    read_tensors(file, data, size);
    const model_config c = read_gguf_config(file);
    const bool sound = c.vocab_size > 0 && c.hidden_size > 0 && c.n_layers > 0 && c.head_dim > 0 && c.n_kv_heads > 0 &&
                       c.n_heads % c.n_kv_heads == 0 && c.intermediate_size > 0 && c.max_positions > 0 &&
                       c.rotary_dims >= 0 && c.rotary_dims <= c.head_dim && c.rotary_dims % 2 == 0 && c.window >= 0 &&
                       (c.windowed.empty() || c.windowed.size() == static_cast<std::size_t>(c.n_layers));
    if (!sound) std::abort();
    nothing weights;
    detail::model_tensors(c, file, weights, true).read();
  });
  return 0;
}
