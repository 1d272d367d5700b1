// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/selector/delayed_selector.hpp"

namespace espalier {

//! The models, vocabulary and verifier that a selector was trained for, as its file says. With other models it chooses
//! no better than chance does.
struct selector_origin {
  std::string target;      //!< identity of the target model (model_identity)
  std::string draft;       //!< identity of the draft model
  std::int32_t vocab = 0;  //!< tokens of the vocabulary that both models share
  std::string verifier;    //!< the verifier's name in the registry

  friend bool operator==(const selector_origin&, const selector_origin&) = default;
};

namespace detail {

// A wrapper of a tensor_reader that checks every number: each must be finite, deviations must be above 0, and weights
// must fit the form in which the selector holds them.
struct selector_tensors {
  tensor_reader& reader;
  const std::string& where;
  bool only_check;
  bool four_bits;

  void vector(const std::string& name, int n, float* to) {
    reader.vector(name, n, to);
    if (only_check) return;
    const bool deviation = name.ends_with(".deviation");
    for (int i = 0; i < n; ++i) {
      if (!std::isfinite(to[i]) || (deviation && !(to[i] > 0))) refuse(name, to[i], deviation);
    }
  }

  template <class VisitT>
  void matrix(const std::string& name, int rows, int columns, VisitT&& visit) {
    std::vector<float> values(static_cast<std::size_t>(only_check ? 0 : columns));
    reader.matrix(name, rows, columns, [&](int row, const weight_row& weights) {
      weights.decode(values.data());
      for (const float value : values) {
        if (!std::isfinite(value)) refuse(name, value, false);
      }
      if (four_bits) check_bits(name, row, values);
      visit(row, static_cast<const float*>(values.data()));
    });
  }

  // Checks that weights which come as bytes and are held in 4 bits fit there without loss.
  void check_bits(const std::string& name, int row, std::span<const float> values) const {
    const float scale = nibble_scale(values);
    for (const float value : values) {
      if (scale > 0 && std::abs(value / scale - std::round(value / scale)) > 1e-3F) {
        raise<model_error>(
            where, ": row ", row, " of tensor \"", name,
            "\" does not go into 4 bits as it is; where \"first.weight\" is I8, all matrices must be, each row "
            "0 or of -7 to 7 with a 7 or a -7.");
      }
    }
  }

  [[noreturn]] void refuse(const std::string& name, float value, bool deviation) const {
    raise<model_error>(where, ": tensor \"", name, "\" has the number ", value, ", but all must be finite",
                       deviation ? " and above 0." : ".");
  }
};

// Returns an entry of the file's metadata. Errors: model_error if there is none.
inline const std::string& selector_entry(const safetensors_file& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    raise<model_error>(file.where(), " is no selector: it does not say its \"", key, "\" in __metadata__.");
  }
  return found->second;
}

// Returns an entry of the file's metadata as a number. Errors: model_error if it is missing, or is no whole number from
// 1 to 2^30.
inline std::int32_t selector_number(const safetensors_file& file, const std::string& key) {
  const std::string& text = selector_entry(file, key);
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || number < 1 || number > (1 << 30)) {
    raise<model_error>(file.where(), ": \"", key, "\" is \"", text, "\", but must be a whole number from 1 on.");
  }
  return static_cast<std::int32_t>(number);
}

// Returns how many numbers a tensor of one extent has. Errors: model_error if it is missing, or has another shape.
inline std::int32_t length_of(const safetensors_file& file, const std::string& name) {
  const tensor_entry* entry = file.find(name);
  if (!entry) raise<model_error>(file.where(), " lacks tensor \"", name, "\".");
  const std::uint64_t n = entry->shape.size() == 1 ? entry->shape[0] : 0;
  if (n < 1 || n > (1U << 20)) {
    raise<model_error>(file.where(), ": tensor \"", name, "\" must have one extent, of 1 to ", 1 << 20, ".");
  }
  return static_cast<std::int32_t>(n);
}

}  // namespace detail

//! A delayed_selector, with the models and the verifier that it was trained for: the contents of a safetensors file
//! that examples/nde writes.
//!
//! The file's metadata has format ("espalier-nde-selector 2"), target, draft, vocab and verifier. Its tensors are those
//! of delayed_selector::read(). Matrices are F32, F16 or BF16, which are held as floats, or I8 of -7 to 7 with row
//! scales, which are held in 4 bits.
//!
//!     const auto file = load_selector("specinfer.safetensors");
//!     require_origin(file, {model_identity("target"), model_identity("draft"), 4096, "specinfer"});
//!     neural_delayed policy({}, file.selector, costs);
struct selector_file {
  delayed_selector selector;
  selector_origin origin;
  std::string where;  //!< the file's name in messages
};

//! Reads a selector from a safetensors file.
//!
//! Errors      model_error that names the file, and the part of it that is missing, of another shape, not finite, out
//!             of range, cut short, of another format, or no part of a selector
inline selector_file load_selector(safetensors_file file) {
  constexpr const char* format = "espalier-nde-selector 2";
  if (detail::selector_entry(file, "format") != format) {
    raise<model_error>(file.where(), " is no selector: its format is \"", file.metadata().at("format"),
                       "\", but must be \"", format, "\".");
  }
  const std::int32_t target_hidden = detail::length_of(file, "target_hidden.mean"),
                     draft_hidden = detail::length_of(file, "draft_hidden_prev.mean");
  const tensor_entry* first = file.find("first.weight");
  const bool four_bits = first != nullptr && first->dtype == "I8";
  selector_file loaded{
      delayed_selector(target_hidden, draft_hidden, four_bits ? selector_weights::int4 : selector_weights::float32),
      {detail::selector_entry(file, "target"), detail::selector_entry(file, "draft"),
       detail::selector_number(file, "vocab"), detail::selector_entry(file, "verifier")},
      file.where()};
  for (const bool only_check : {true, false}) {
    detail::tensor_reader reader(file, only_check, "the selector's other tensors make");
    detail::selector_tensors tensors{reader, file.where(), only_check, four_bits};
    loaded.selector.read(tensors);
    reader.require_all_asked_for();
  }
  return loaded;
}

inline selector_file load_selector(const std::string& path) {
  return load_selector(safetensors_file(path));
}

//! Checks that a selector was trained for these models, this vocabulary and this verifier.
//!
//! Errors      input_error that says for what it was trained instead
inline void require_origin(const selector_file& file, const selector_origin& present) {
  const auto compare = [&](const char* what, const auto& trained, const auto& here) {
    if (trained != here) {
      raise<input_error>(file.where, " was trained for the ", what, " ", trained, ", but this one is ", here,
                         ": train a selector for it with examples/nde, or leave the selector out.");
    }
  };
  compare("target model", file.origin.target, present.target);
  compare("draft model", file.origin.draft, present.draft);
  compare("vocabulary size", file.origin.vocab, present.vocab);
  compare("verifier", file.origin.verifier, present.verifier);
}

}  // namespace espalier
