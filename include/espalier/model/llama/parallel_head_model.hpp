// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/draft_head_model.hpp"
#include "espalier/model/llama/draft_target.hpp"

namespace espalier {

//! The memory of a parallel_head_model for one text.
struct parallel_head_context {
  draft_head_context head;
  std::vector<token_id> cached;  //!< the token of each row in the cache: slot i is of token i + 1 of the text
};

//! A request for a block: for the tokens after a text of 1 to max_positions() tokens. The states of all tokens before
//! the last must have been given to read().
struct parallel_head_request {
  parallel_head_context* context;
  std::span<const token_id> text;
  int place = 0;  //!< index of the block in logits(); the requests of one pass have different ones
};

//! A P-EAGLE head on a llama_backend, a model of block_diffusion: an EAGLE-3 head whose one pass has a row for each
//! token that is to be drafted. The first row reads the pending token and the target's state before it; each further
//! row reads the mask token and a learned state, and sees the rows before it. So the rows do not depend on what is
//! drafted. The constructor makes the target keep the states that the head reads.
//!
//!     auto target = llama_backend::load("models/target");
//!     block_diffusion drafter(parallel_head_model::load("models/head", target));
//!
//! Shapes      config.json and model.safetensors in the folder, in speculators' layout
//! Complexity  read: as draft_head_model. forward: one pass over the tokens of each text that came since its last
//!             block, and length - 1 further rows; for a long text a pass for each 320 tokens first. No allocation if
//!             an earlier pass had as many rows and as high a place
//! Law         bitwise: no logit depends on the number of threads, on other texts, or on how many rows each read() gets
//! Errors      load: model_error for files that cannot be read, that do not fit the target, or that hold another kind
//!             of head. read and forward: input_error as draft_head_model
//! Source      speculators 0.9.0, models/peagle
class parallel_head_model {
 public:
  using context_type = parallel_head_context;
  using request_type = parallel_head_request;

  static parallel_head_model load(const std::string& path, const draft_target& target) {
    draft_head_config config = draft_head_config::load(path);
    config.require_parallel(true);
    return parallel_head_model(draft_head_model::load(std::move(config), path, target));
  }

  explicit parallel_head_model(draft_head_model head) : head_(std::move(head)) {}

  int vocab_size() const { return head_.vocab_size(); }
  int block_length() const { return head_.config().block_length; }
  //! Returns the number of tokens that a text may have.
  int max_positions() const { return head_.config().positions_before_block(head_.max_positions()); }
  std::span<const token_id> tokens() const { return head_.tokens(); }
  const draft_head_config& config() const { return head_.config(); }
  std::size_t weight_bytes() const { return head_.weight_bytes(); }

  context_type make_context() {
    context_type context{head_.make_context(), {}};
    head_.reserve(context.head, block_length());
    std::copy(head_.weights().masked.begin(), head_.weights().masked.end(), context.head.states.begin());
    context.cached.reserve(static_cast<std::size_t>(max_positions()));
    return context;
  }

  //! Reads the target's hidden states of `rows`, which are rows of its last pass. Their tokens are at positions
  //! position, position + 1, ...
  template <class BackendT>
  requires requires(const BackendT& backend) {
    { backend.hidden(0, 0) } -> std::convertible_to<std::span<const float>>;
  }
  void read(context_type& context, const BackendT& backend, std::span<const std::int32_t> rows, int position) {
    head_.read(context.head, backend, rows, position);
    keep(context, position);
  }

  //! Computes the requested blocks, `length` tokens each.
  //!
  //! Pre         1 <= length <= block_length(); no two requests have the same place or the same context
  void forward(std::span<const request_type> requests, int length) {
    int last_place = 0;
    for (const request_type& r : requests) {
      last_place = (std::max)(last_place, r.place);
      keep(*r.context, same_tokens(r));
      while (n_left(r) > head_.max_rows()) {
        pass_.clear();
        add_text(r, head_.max_rows(), 0);
        head_.forward(pass_);
        take_rows(r, head_.max_rows());
      }
    }
    if (requests.empty()) return;
    make_places(last_place + 1);
    pass_.clear();
    for (const request_type& r : requests)
      add_text(r, n_left(r), length);
    const vocab_rows<float> rows = head_.forward(pass_);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      // A text of one token has a row that no later text has.
      if (requests[i].text.size() > 1) take_rows(requests[i], n_left(requests[i]));
      const auto first = static_cast<std::int32_t>(i) * length;
      std::copy(rows.at(first), rows.at(first + length), logits_.data() + size_of_place() * requests[i].place);
    }
  }

  //! Returns the first `length` rows of the last block that was computed for this place.
  //!
  //! Shapes      [length][tokens().size(), or vocab_size() if that is 0], valid until the next forward()
  vocab_rows<float> logits(int place, int length) const {
    return {logits_.data() + size_of_place() * place, length, head_.config().head_size};
  }

 private:
  // A pass of the head: see draft_head_model::forward().
  struct pass_type {
    // The numbers in the context of the states that a row reads and writes.
    struct row_states {
      std::int32_t reads = -1;   // -1: the target's state before the row's token
      std::int32_t writes = -1;  // -1: none
    };
    forward_batch batch;
    std::vector<draft_head_context*> contexts;  // [sequences]
    std::vector<row_states> states;             // [rows]

    void clear() { batch.clear(), contexts.clear(), states.clear(); }
  };

  // Keeps the first n rows of a context's cache at most.
  static void keep(context_type& context, int n) {
    context.cached.resize((std::min)(context.cached.size(), static_cast<std::size_t>(n)));
  }

  // Returns the number of leading rows of the cache that are of the text, without that of the pending token.
  static int same_tokens(const request_type& r) {
    const std::vector<token_id>& cached = r.context->cached;
    if (r.text.size() < 2) return 0;
    const auto text = r.text.subspan(1, r.text.size() - 2);
    return static_cast<int>(std::mismatch(cached.begin(), cached.end(), text.begin(), text.end()).first -
                            cached.begin());
  }

  // Returns the number of rows that the text needs and the cache lacks; that of the pending token is one of them.
  static int n_left(const request_type& r) {
    const auto rows = (std::max)(r.text.size() - 1, std::size_t{1});
    return static_cast<int>(rows - r.context->cached.size());
  }

  // Adds the next n rows of a text to the pass. With a length above 0 the text ends with them, and the other rows of a
  // block of this length follow.
  void add_text(const request_type& r, int n, int length) {
    const auto prefix = static_cast<std::int32_t>(r.context->cached.size());
    const int rows = n + (std::max)(length - 1, 0);
    pass_.batch.begin_sequence(static_cast<std::int32_t>(pass_.contexts.size()), prefix, rows);
    pass_.contexts.push_back(&r.context->head);
    const int first = r.text.size() > 1 ? prefix + 1 : 0;
    for (int i = 0; i < rows; ++i) {
      const bool is_masked = i >= n;
      const token_id token = is_masked ? head_.config().mask_token : r.text[static_cast<std::size_t>(first + i)];
      pass_.batch.add_row(token, first + i, i, length > 0 && i >= n - 1).include_first(i);
      pass_.states.push_back({is_masked ? 0 : -1, -1});
    }
  }

  // Notes that the cache has the next n rows of a text.
  static void take_rows(const request_type& r, int n) {
    std::vector<token_id>& cached = r.context->cached;
    const auto next = r.text.begin() + static_cast<std::ptrdiff_t>(cached.size()) + 1;
    cached.insert(cached.end(), next, next + n);
  }

  void make_places(int n) {
    const auto size = static_cast<std::size_t>(size_of_place() * n);
    if (logits_.size() < size) logits_.resize(size);
  }

  std::ptrdiff_t size_of_place() const {
    return static_cast<std::ptrdiff_t>(block_length()) * head_.config().head_size;
  }

  draft_head_model head_;
  pass_type pass_;
  std::vector<float> logits_;  // [places][block_length][columns]
};

}  // namespace espalier
