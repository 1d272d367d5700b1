// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama_cpp/llama_cpp_backend.cpp
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <llama.h>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/slot_ledger.hpp"
#include "espalier/model/llama_cpp/branch_ledger.hpp"
#include "espalier/model/llama_cpp/llama_cpp_model.hpp"

namespace espalier {

struct llama_cpp_kv_options {
  int capacity = 2048;  //!< rows of a sequence, committed and scratch
  int n_sequences = 1;  //!< texts that the cache holds

  static constexpr void describe(auto see) {
    see(option{"capacity", &llama_cpp_kv_options::capacity, "rows of a sequence", 1, 1 << 24});
    see(option{"n_sequences", &llama_cpp_kv_options::n_sequences, "texts that the cache holds", 1, 255});
  }
};

//! Hidden states of the rows of a pass, in llama.cpp's memory, which the next pass of the same cache writes anew.
struct llama_cpp_states {
  std::vector<const float*> of_layer{};  //!< for each layer asked for [n_rows][hidden_size]
  std::int32_t n_rows = 0;
};

//! A cache of llama.cpp, in a context of its own. The path to each leaf of a tree is one of llama.cpp's sequences, and
//! so is the committed text. At a commit the sequence of the accepted node becomes the sequence of the text, and all
//! other sequences lose the rows that are not committed. Keys and values are never moved or copied.
//!
//! llama.cpp has 256 sequence ids. The trees of a pass may have as many leaves, minus one for each text of the cache
//! that is not in the pass.
//!
//! Complexity  commit: a scan of the cache's cells for each leaf; memory for capacity * n_sequences rows, and at least
//!             for as many as there are sequence ids
//! Law         KVStore's and PrefixKVStore's, if kept rows are a path. In a model with a sliding window, truncate keeps
//!             nothing if rows that the window then needs are gone
//! Errors      option_error for sizes out of range; input_error for kept rows that are no path of the last passes;
//!             llama_cpp_error if llama.cpp makes no cache of these sizes; for the rest as slot_ledger
class llama_cpp_kv {
 public:
  explicit llama_cpp_kv(const llama_cpp_model& model, const llama_cpp_kv_options& options = {})
      : ledger_(require_options(options).n_sequences, options.capacity, commit_mode::compact),
        branches_(options.n_sequences, n_ids()),
        max_rows_(model.options().max_rows),
        vocab_(model.vocab_size()),
        sliding_(llama_model_n_swa(model.loaded()->get())),
        loaded_(model.loaded()),
        context_(nullptr, free_context{loaded_}) {
    require_option("capacity * n_sequences", static_cast<double>(options.capacity) * options.n_sequences, 1, 1 << 30);
    llama_context_params params = llama_context_default_params();
    // llama.cpp requires that the cache and the longest batch have at least as many rows as there are sequence ids.
    params.n_ctx = static_cast<std::uint32_t>((std::max)(options.capacity * options.n_sequences, n_ids()));
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>((std::max)(max_rows_, n_ids()));
    params.n_seq_max = static_cast<std::uint32_t>(n_ids());
    params.n_threads = params.n_threads_batch = model.options().threads;
    params.kv_unified = true;
    params.swa_full = true;
    params.no_perf = true;
    detail::llama_cpp_log log;
    const auto made = std::make_shared<llama_context*>(nullptr);
    loaded_->load_with([made, params, of = loaded_->get()] { *made = llama_init_from_model(of, params); });
    context_.reset(*made);
    if (!context_) {
      raise<llama_cpp_error>("llama.cpp makes no cache of ", options.n_sequences, " times ", options.capacity,
                             " rows: ", log.complaint());
    }
  }

  std::int32_t size(std::int32_t sequence) const { return ledger_.size(sequence); }
  std::int32_t capacity() const { return ledger_.capacity(); }
  std::int32_t n_sequences() const { return ledger_.n_sequences(); }
  bool compacts() const { return true; }
  std::int32_t append(std::int32_t sequence, std::int32_t n) { return ledger_.append(sequence, n); }

  std::int32_t commit(std::int32_t sequence, std::span<const std::int32_t> kept) {
    ledger_.require_kept(sequence, kept);
    branches_.commit(memory(), sequence, ledger_.size(sequence), kept);
    return ledger_.commit(sequence, kept, [](std::int32_t, std::int32_t) {});
  }

  void truncate(std::int32_t sequence, std::int32_t n) {
    const std::int32_t size = ledger_.size(sequence);
    n = (std::max)(n, std::int32_t{0});
    branches_.truncate(memory(), sequence, size, (std::min)(n, size));
    if (sliding_ > 0 && n < size && !loaded_->lost()) {
      const std::int32_t first = llama_memory_seq_pos_min(memory().cells, branches_.trunk(sequence));
      if (first > (std::max)(n - sliding_, std::int32_t{0})) {
        branches_.truncate(memory(), sequence, n, 0);
        n = 0;
      }
    }
    ledger_.truncate(sequence, n);
  }

  std::span<const token_id> prefix(std::int32_t sequence) const { return ledger_.prefix(sequence); }
  std::uint64_t version(std::int32_t sequence) const { return ledger_.version(sequence); }
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(sequence, first, tokens);
  }

  //! Runs one pass of the model over a batch, for llama_cpp_backend. states() then has the states after hidden_layers,
  //! which llama_cpp_model::require_states_of() must allow.
  //!
  //! Errors      those of llama_cpp_backend. If the batch does not fit (max_rows, prefix, slot, token), nothing
  //!             changes; after any later error the engine drops the scratch rows of all sequences in the batch
  logits_view pass(const forward_batch_view& batch, std::span<const int> hidden_layers = {}) {
    states_.of_layer.clear();
    states_.n_rows = batch.n_rows();
    if (batch.n_rows() == 0) return {nullptr, 0, vocab_};
    require_fit(batch);
    scratch_guard guard{*this, batch};
    const auto n = static_cast<std::size_t>(batch.n_rows());
    if (ids_.size() < n) ids_.resize(n);
    for (const batch_sequence& s : batch.sequences)
      branches_.place(memory(), batch, s, ids_);
    fill(batch);
    llama_batch rows{batch.n_rows(),   tokens_.data(),      nullptr, positions_.data(), n_ids_.data(),
                     id_lists_.data(), wants_logits_.data()};
    // The result is shared, because the call may still write it after this function has given the call up.
    struct result {
      std::int32_t code = 0;
      const float* logits = nullptr;
      std::vector<const float*> hidden{};
    };
    const auto made = std::make_shared<result>();
    const auto start = std::chrono::steady_clock::now();
    const std::vector<int> layers(hidden_layers.begin(), hidden_layers.end());
    std::vector<int> new_layers;
    for (const int layer : layers) {
      if (std::find(kept_layers_.begin(), kept_layers_.end(), layer) == kept_layers_.end()) new_layers.push_back(layer);
    }
    kept_layers_.insert(kept_layers_.end(), new_layers.begin(), new_layers.end());
    loaded_->pass([made, rows, context = context_.get(), wants = !batch.outputs.empty(), layers, new_layers] {
      for (const int layer : new_layers)
        detail::keep_llama_cpp_states(context, layer);
      made->code = llama_decode(context, rows);
      if (made->code == 0) llama_synchronize(context);
      if (made->code == 0 && wants) made->logits = llama_get_logits(context);
      for (const int layer : layers)
        if (made->code == 0) made->hidden.push_back(detail::llama_cpp_states_of(context, layer));
    });
    engine_time_ += std::chrono::steady_clock::now() - start;
    if (made->code == 1) {
      raise<llama_cpp_error>("llama.cpp finds no room for ", batch.n_rows(), " rows in its cache of ",
                             llama_n_ctx(context_.get()), ".");
    }
    if (made->code != 0)
      raise<llama_cpp_error>("llama.cpp could not make a pass over ", batch.n_rows(), " rows: llama_decode gives ",
                             made->code, ".");
    guard.gives_up = false;
    states_.of_layer = made->hidden;
    return {made->logits, static_cast<std::int32_t>(batch.outputs.size()), vocab_};
  }

  //! The states that the last pass was asked for.
  const llama_cpp_states& states() const { return states_; }

  //! Seconds spent in llama.cpp's passes since construction.
  double engine_seconds() const { return std::chrono::duration<double>(engine_time_).count(); }

  //! The context of llama.cpp, for its other functions. This cache does not know of changes that they make.
  llama_context* context() const { return context_.get(); }
  //! The number of llama.cpp's sequence that holds the committed rows of a sequence of this cache.
  std::int32_t trunk(std::int32_t sequence) const { return branches_.trunk(sequence); }

 private:
  struct free_context {
    std::shared_ptr<detail::loaded_llama_cpp> loaded;
    void operator()(llama_context* context) const {
      loaded->free([context] { llama_free(context); });
    }
  };

  // The EngineT of branch_ledger: changes llama.cpp's lists of ids. It does nothing once a server is gone, because a
  // pass may still be running there.
  struct engine {
    llama_memory_t cells;
    void copy(std::int32_t from, std::int32_t to, std::int32_t begin, std::int32_t end) const {
      if (cells != nullptr) llama_memory_seq_cp(cells, from, to, begin, end);
    }
    void remove(std::int32_t id, std::int32_t begin) const {
      if (cells != nullptr) llama_memory_seq_rm(cells, id, begin, -1);
    }
  };
  engine memory() { return {loaded_->lost() ? nullptr : llama_get_memory(context_.get())}; }

  struct scratch_guard {
    llama_cpp_kv& self;
    const forward_batch_view& batch;
    bool gives_up = true;
    ~scratch_guard() {
      if (!gives_up) return;
      for (const batch_sequence& s : batch.sequences)
        self.branches_.drop(self.memory(), s.sequence, self.ledger_.size(s.sequence));
    }
  };

  static std::int32_t n_ids() { return static_cast<std::int32_t>(llama_max_parallel_sequences()); }

  void require_fit(const forward_batch_view& batch) const {
    if (batch.n_rows() > max_rows_)
      raise<input_error>("a pass of ", batch.n_rows(), " rows is longer than option max_rows, ", max_rows_, ".");
    for (const batch_sequence& s : batch.sequences) {
      if (s.prefix != size(s.sequence)) {
        raise<input_error>("the pass says that sequence ", s.sequence, " has ", s.prefix,
                           " committed rows, but it has ", size(s.sequence), ".");
      }
      for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
        const auto i = static_cast<std::size_t>(r);
        if (batch.slots[i] >= size(s.sequence) + ledger_.n_scratch(s.sequence))
          raise<input_error>("row ", r, " of the pass is in slot ", batch.slots[i], ", which was not appended.");
        if (batch.tokens[i] < 0 || batch.tokens[i] >= vocab_)
          raise<input_error>("row ", r, " of the pass is token ", batch.tokens[i], ", but the vocabulary ends at ",
                             vocab_ - 1, ".");
      }
    }
  }

  void fill(const forward_batch_view& batch) {
    const auto n = static_cast<std::size_t>(batch.n_rows());
    tokens_.assign(batch.tokens.begin(), batch.tokens.end());
    positions_.assign(batch.positions.begin(), batch.positions.end());
    n_ids_.resize(n), id_lists_.resize(n);
    for (std::size_t r = 0; r < n; ++r) {
      n_ids_[r] = static_cast<std::int32_t>(ids_[r].size());
      id_lists_[r] = ids_[r].data();
    }
    wants_logits_.assign(n, 0);
    for (const std::int32_t r : batch.outputs)
      wants_logits_[static_cast<std::size_t>(r)] = 1;
  }

  slot_ledger ledger_;
  branch_ledger branches_;
  std::int32_t max_rows_;
  std::int32_t vocab_;
  std::int32_t sliding_;  // number of rows that a layer with a sliding window sees; 0 without one
  std::shared_ptr<detail::loaded_llama_cpp> loaded_;
  std::unique_ptr<llama_context, free_context> context_;
  std::vector<std::vector<std::int32_t>> ids_;  // [rows] sequence ids of each row, as branch_ledger::place gives them
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<std::int32_t> n_ids_;
  std::vector<llama_seq_id*> id_lists_;
  std::vector<std::int8_t> wants_logits_;
  std::vector<int> kept_layers_;  // layers whose states llama.cpp keeps in this context
  llama_cpp_states states_;
  std::chrono::steady_clock::duration engine_time_{};
};

static_assert(PrefixKVStore<llama_cpp_kv>);

}  // namespace espalier
