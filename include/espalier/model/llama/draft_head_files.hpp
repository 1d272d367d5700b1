// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/draft_head_model.cpp
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/draft_tokens.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"

namespace espalier {

//! A draft head as its files hold it: its shape, and the source of its tensors.
struct draft_head_files {
  draft_head_config config;
  std::unique_ptr<tensor_source> tensors;

  //! Opens the files of a head whose config was read from the same path. The config says then whether they hold an
  //! embedding and an output matrix of the head's own, and which states of this target it reads. `target_where` names
  //! the target's file.
  //!
  //! Errors      model_error that names the file and what is wrong with it, or does not fit the target
  static draft_head_files open(draft_head_config config, const std::string& path, const model_config& target,
                               const std::string& target_where) {
    draft_head_files files{std::move(config), nullptr};
    draft_head_config& c = files.config;
    if (c.layout == model_config::layout_type::mtp_beside) {
      c.require_target(target, target_where);
      files.tensors = model_files::open(path).tensors;
      return files;
    }
    if (c.is_gguf()) {
      files.tensors = std::make_unique<gguf_file>(path);
    } else {
      const std::string weights = path + "/model.safetensors";
      if (!std::filesystem::exists(weights) && std::filesystem::exists(path + "/pytorch_model.bin")) {
        raise<model_error>(path, " has pytorch_model.bin but no model.safetensors, and no other weights are read: ",
                           "safetensors.torch.save_file(torch.load(\"pytorch_model.bin\"), \"model.safetensors\") ",
                           "writes it.");
      }
      files.tensors = std::make_unique<safetensors_file>(weights);
      c.has_embedding = !c.is_mtp() && files.tensors->find("embed_tokens.weight") != nullptr;
      c.has_head = !c.is_mtp() && files.tensors->find("lm_head.weight") != nullptr;
    }
    detail::require_own_head(c, *files.tensors, c.is_gguf() ? "output.weight" : "lm_head.weight", target_where);
    c.require_target(target, target_where);
    return files;
  }
};

//! The norms of a draft head beside those of its transformer, each as its scale.
struct draft_head_norms {
  std::vector<float> projection_norm;  //!< [states read * state_size], or empty
  std::vector<float> state_norm;       //!< [hidden_size]
  std::vector<float> token_norm;       //!< [hidden_size]; empty: the first layer's attention_norm is used

  //! Calls norm(part, n, scale) for each part of a token's states that is normalised by itself before the states are
  //! projected: an RMSNorm of n numbers from `part` on.
  //!
  //! Shapes      states [states read * state_size]
  template <class NormT>
  void norm_states(const draft_head_config& c, float* states, const NormT& norm) const {
    const float* scale = projection_norm.data();
    const int all = static_cast<int>(projection_norm.size()), each = c.norm_each ? c.state_size() : all;
    for (float* part = states; part < states + all; part += each, scale += each)
      norm(part, each, scale);
  }

  //! Reads the norms from the tensors of a head.
  //!
  //! Errors      model_error for a norm that is missing or has another shape than the config asks for, and for one that
  //!             the config's switches leave out
  static draft_head_norms read(const draft_head_config& c, tensor_source& file) {
    draft_head_norms norms;
    detail::tensor_reader tensors(file);
    const auto norm = [&](const std::string& name, int n, std::vector<float>& to) {
      tensors.vector(name, n, [&](const float* values) {
        for (int i = 0; i < n; ++i)
          to.push_back(c.norms_less_one ? values[i] + 1.0F : values[i]);
      });
    };
    if (c.is_mtp()) {
      const bool is_beside = c.layout == model_config::layout_type::mtp_beside;
      norm(is_beside ? "mtp.pre_fc_norm_hidden.weight" : "mtp_layers.0.hidden_layernorm.weight", c.hidden_size,
           norms.state_norm);
      norm(is_beside ? "mtp.pre_fc_norm_embedding.weight" : "mtp_layers.0.token_layernorm.weight", c.hidden_size,
           norms.token_norm);
      return norms;
    }
    const char* together = c.is_gguf() ? "enc.output_norm.weight" : "input_norm.weight";
    const int states = static_cast<int>(c.hidden_layers.size());
    require_switch(file, "norm_before_fc", together, c.norm_together);
    require_switch(file, "fc_norm", "fc_norm.0.weight", c.norm_each);
    if (c.norm_together) norm(together, states * c.state_size(), norms.projection_norm);
    for (int i = 0; i < states && c.norm_each; ++i)
      norm("fc_norm." + std::to_string(i) + ".weight", c.state_size(), norms.projection_norm);
    norm(c.is_gguf()                                     ? "blk.0.attn_norm_2.weight"
         : c.layout == model_config::layout_type::eagle3 ? "layers.0.hidden_norm.weight"
                                                         : "midlayer.hidden_norm.weight",
         c.hidden_size, norms.state_norm);
    require_switch(file, "mask_token_id", "mask_hidden", c.is_parallel());
    return norms;
  }

 private:
  static void require_switch(const tensor_source& file, const char* key, const char* tensor, bool on) {
    if (on || !file.find(tensor)) return;
    raise<model_error>(file.where(), " has a tensor \"", tensor, "\", but the config's \"", key, "\" is not true.");
  }
};

namespace detail {

// Calls visit(row, weights) for each row of a head's projection, [hidden_size][projection_inputs()], and returns the
// type of the rows. With only_check it visits no row.
//
// Errors: model_error for a tensor that is missing or has another shape than the config asks for
template <class VisitT>
weight_type read_projection(const draft_head_config& c, tensor_source& file, bool only_check, const VisitT& visit) {
  const char* const name = c.layout == model_config::layout_type::mtp_beside ? "mtp.fc.weight"
                           : c.is_mtp()                                      ? "mtp_layers.0.input_proj.weight"
                                                                             : "fc.weight";
  return tensor_reader(file, only_check).matrix(name, c.hidden_size, c.projection_inputs(), visit);
}

// Reads the learned state that stands before a mask token of a P-EAGLE head, normalises it as the head does with the
// target's states, and projects it.
//
// Shapes: [hidden_size]
// Errors: model_error for a state that is missing or has another shape than the config asks for; those of
// read_projection()
inline std::vector<float> read_masked(const draft_head_config& c, tensor_source& file, const draft_head_norms& norms) {
  const int inputs = c.projection_inputs();
  std::vector<float> states, row(static_cast<std::size_t>(inputs)), masked;
  tensor_reader(file).numbers("mask_hidden", {1, 1, static_cast<std::uint64_t>(inputs)},
                              [&](const float* values) { states.assign(values, values + inputs); });
  norms.norm_states(c, states.data(), [&](float* part, int n, const float* scale) {
    const double squares = std::inner_product(part, part + n, part, 0.0);
    const double factor = 1.0 / std::sqrt(squares / n + c.norm_epsilon);
    for (int i = 0; i < n; ++i)
      part[i] = static_cast<float>(part[i] * factor * scale[i]);
  });
  read_projection(c, file, false, [&](int, const weight_row& values) {
    values.decode(row.data());
    masked.push_back(static_cast<float>(std::inner_product(row.begin(), row.end(), states.begin(), 0.0)));
  });
  return masked;
}

}  // namespace detail

}  // namespace espalier
