// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama_cpp/llama_cpp_backend.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/llama_cpp/remote_thread.hpp"

// Functions that llama.cpp exports, but that its installed headers do not declare. They are null in a version without
// them.
#if defined(__GNUC__)
[[gnu::weak]] void llama_set_embeddings_layer_inp(llama_context* context, std::uint32_t layer, bool wanted);
[[gnu::weak]] float* llama_get_embeddings_layer_inp(llama_context* context, std::uint32_t layer);
#endif

namespace espalier {

namespace detail {

// Asks llama.cpp for the states after a layer, in all later passes of a context.
//
// Pre         llama_cpp_model::require_states_of(layer)
inline void keep_llama_cpp_states([[maybe_unused]] llama_context* context, [[maybe_unused]] int layer) {
#if defined(__GNUC__)
  llama_set_embeddings_layer_inp(context, static_cast<std::uint32_t>(layer + 1), true);
#endif
}

// Returns the states after a layer of all rows of a context's last pass.
//
// Pre         keep_llama_cpp_states(context, layer) before that pass
inline const float* llama_cpp_states_of([[maybe_unused]] llama_context* context, [[maybe_unused]] int layer) {
#if defined(__GNUC__)
  return llama_get_embeddings_layer_inp(context, static_cast<std::uint32_t>(layer + 1));
#else
  return nullptr;
#endif
}

inline bool llama_cpp_gives_states() {
#if defined(__GNUC__)
  return llama_set_embeddings_layer_inp != nullptr && llama_get_embeddings_layer_inp != nullptr;
#else
  return false;
#endif
}

}  // namespace detail

struct llama_cpp_options {
  int threads = 0;                     //!< 0: as many as the hardware runs at once
  int max_rows = 512;                  //!< rows of the longest forward pass
  int gpu_layers = -1;                 //!< number of the model's layers on GPUs of llama.cpp or on servers; -1: all
  double patience = 300;               //!< seconds that a pass over servers may take before it is given up
  std::vector<std::string> servers{};  //!< ggml's RPC servers, "host:port", over which the model is spread

  static constexpr void describe(auto see) {
    see(option{"threads", &llama_cpp_options::threads, "threads; 0: one for each processor", 0, 1024});
    see(option{"max_rows", &llama_cpp_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"gpu_layers", &llama_cpp_options::gpu_layers, "layers on GPUs or servers; -1: all", -1});
    see(option{"patience", &llama_cpp_options::patience, "seconds that a pass over servers may take", 0.001, 1e6});
  }
};

namespace detail {

// A receiver of llama.cpp's log as long as it lives, which keeps the first error of the log. The constructor waits
// until no other object of this class lives.
class llama_cpp_log {
 public:
  llama_cpp_log() : lock_(mutex()) {
    llama_log_get(&before_, &data_before_);
    llama_log_set(&keep, this);
  }
  ~llama_cpp_log() { llama_log_set(before_, data_before_); }
  llama_cpp_log(const llama_cpp_log&) = delete;
  llama_cpp_log& operator=(const llama_cpp_log&) = delete;

  // The error as one line that ends in a full stop.
  std::string complaint() const { return complaint_.empty() ? "llama.cpp does not say why." : complaint_ + "."; }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  static void keep(ggml_log_level level, const char* text, void* self) {
    if (level != GGML_LOG_LEVEL_ERROR) return;
    std::string_view line = text;
    while (!line.empty() && (line.back() == '\n' || line.back() == '.'))
      line.remove_suffix(1);
    // The first error is the cause; the later ones say only that loading failed.
    std::string& kept = static_cast<llama_cpp_log*>(self)->complaint_;
    if (kept.empty() && !line.empty()) kept = line;
  }

  std::unique_lock<std::mutex> lock_;
  ggml_log_callback before_ = nullptr;
  void* data_before_ = nullptr;
  std::string complaint_;
};

// A model that llama.cpp has loaded, with the thread for calls that reach its servers.
class loaded_llama_cpp {
 public:
  loaded_llama_cpp(const std::string& file, const llama_cpp_options& options) : patience_(options.patience) {
    if (!std::ifstream(file).good()) raise<model_error>("the model file ", file, " cannot be read.");
    llama_backend_init();
    ggml_backend_load_all();
    if (!options.servers.empty()) remote_ = std::make_unique<remote_thread>(options.servers);
    llama_cpp_log log;
    call([&] { model_ = load(file, options); }, unlimited);
    if (remote_) remote_->connected();
    if (model_ == nullptr) raise<model_error>(file, " is no model that llama.cpp can load: ", log.complaint());
  }

  loaded_llama_cpp(const loaded_llama_cpp&) = delete;
  loaded_llama_cpp& operator=(const loaded_llama_cpp&) = delete;

  ~loaded_llama_cpp() {
    free([model = model_] { llama_model_free(model); });
  }

  llama_model* get() const { return model_; }
  // True if a server went away, or did not answer in time: no more passes are possible.
  bool lost() const { return remote_ && remote_->lost(); }

  // Makes a call that may reach servers, with the options' patience: see remote_thread::run. load_with() makes such a
  // call with a patience of 10^6 seconds.
  template <class CallT>
  void pass(CallT&& made) {
    call(std::forward<CallT>(made), patience_);
  }
  template <class CallT>
  void load_with(CallT&& made) {
    call(std::forward<CallT>(made), unlimited);
  }
  // Makes a call that frees memory, and ignores llama_cpp_error. Memory of a model that lost a server is not freed.
  template <class CallT>
  void free(CallT&& made) noexcept {
    if (lost()) return;
    const llama_cpp_log log;
#if ESPALIER_EXCEPTIONS
    try {
      call(std::forward<CallT>(made), patience_);
    } catch (const llama_cpp_error&) {
    }
#else
    call(std::forward<CallT>(made), patience_);
#endif
  }

 private:
  static constexpr double unlimited = 1e6;

  template <class CallT>
  void call(CallT&& made, double patience) {
    if (remote_) return remote_->run(std::forward<CallT>(made), patience);
    made();
  }

  static llama_model* load(const std::string& file, const llama_cpp_options& options) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = options.gpu_layers;
    std::vector<ggml_backend_dev_t> devices;
    for (const std::string& server : options.servers)
      add_devices(devices, server);
    if (!devices.empty()) {
      devices.push_back(nullptr);
      params.devices = devices.data();
    }
    return llama_model_load_from_file(file.c_str(), params);
  }

  static void add_devices(std::vector<ggml_backend_dev_t>& devices, const std::string& server) {
    using add_server = ggml_backend_reg_t (*)(const char*);
    const ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    const auto add =
        rpc == nullptr
            ? nullptr
            : reinterpret_cast<add_server>(ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server"));
    if (add == nullptr)
      raise<option_error>("option servers is not empty, but this llama.cpp has no RPC: it is built with GGML_RPC=ON.");
    const ggml_backend_reg_t added = add(server.c_str());
    if (added == nullptr) raise<llama_cpp_error>("the server ", server, " offers no device.");
    for (std::size_t i = 0; i < ggml_backend_reg_dev_count(added); ++i)
      devices.push_back(ggml_backend_reg_dev_get(added, i));
  }

  double patience_;
  std::unique_ptr<remote_thread> remote_;
  llama_model* model_ = nullptr;
};

}  // namespace detail

//! A model that llama.cpp runs, from a GGUF file: see llama_cpp_backend for its passes and llama_cpp_kv for caches.
//! Copies share the weights.
//!
//! With `servers` the layers are on ggml's RPC servers, which must be of this ggml's version, and passes go over the
//! network. If a server goes away in the middle of a pass, the error names it, or several servers of which it is one.
//! The model's memory in this process is then lost and stays allocated, and ggml does not connect to that server again
//! before the process ends.
//!
//! Errors      model_error if llama.cpp cannot load the file, and for a model whose cache has no row for each token
//!             (recurrent, hybrid, diffusion, encoders); option_error for options out of range, or for servers if
//!             llama.cpp was built without RPC; llama_cpp_error for a server that does not answer
class llama_cpp_model {
 public:
  explicit llama_cpp_model(const std::string& file, const llama_cpp_options& options = {})
      : options_(require_options(options)), loaded_(std::make_shared<detail::loaded_llama_cpp>(file, options)) {
    const llama_model* model = loaded_->get();
    const auto refuse = [&](bool unsupported, const char* what) {
      if (unsupported) {
        raise<model_error>(file, " is ", what,
                           ": it has no cache with a row for each token, which the branches of a tree could share.");
      }
    };
    refuse(llama_model_is_recurrent(model), "recurrent");
    refuse(llama_model_is_hybrid(model), "recurrent in some layers");
    refuse(llama_model_is_diffusion(model), "a diffusion model");
    refuse(llama_model_has_encoder(model) || !llama_model_has_decoder(model), "a model with an encoder");
    if (options_.threads == 0) options_.threads = static_cast<int>((std::max)(std::thread::hardware_concurrency(), 1U));
  }

  std::int32_t vocab_size() const { return llama_vocab_n_tokens(vocab()); }
  //! Number of numbers in a hidden state.
  std::int32_t hidden_size() const { return llama_model_n_embd(loaded_->get()); }
  //! Length of the longest text that the model was trained for.
  std::int32_t max_positions() const { return llama_model_n_ctx_train(loaded_->get()); }
  const llama_cpp_options& options() const { return options_; }

  //! Checks that llama.cpp gives the states after a layer, from 0.
  //!
  //! Errors      option_error for a layer that the model does not have, for the last one, and for an architecture or a
  //!             version of llama.cpp that gives no states
  void require_states_of(int layer) const {
    // llama.cpp ends the process if it is asked for the inputs of layers of another architecture.
    static constexpr std::string_view known[] = {"llama",      "qwen3", "qwen3moe", "gpt-oss",
                                                 "minimax-m2", "mimo2", "gemma4",   "nanbeige"};
    const int n_layers = llama_model_n_layer(loaded_->get());
    char name[64] = {};
    llama_model_meta_val_str(loaded_->get(), "general.architecture", name, sizeof name);
    if (!detail::llama_cpp_gives_states())
      raise<option_error>("this version of llama.cpp has no functions that give hidden states.");
    if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
      raise<option_error>("llama.cpp gives no hidden states of models of the architecture ", std::string(name), ".");
    }
    if (layer < 0 || layer >= n_layers - 1) {
      raise<option_error>("llama.cpp gives the states after the layers 0 to ", n_layers - 2,
                          " of this model, but those after layer ", layer, " are asked for.");
    }
  }

  //! The tokens of a text. If `begins` is set, the tokens that the model wants at the beginning of a text come first,
  //! and the tokens that it wants at the end come last. Names of special tokens in the text become these tokens.
  //!
  //! Errors      input_error for 2^31 bytes or more
  std::vector<token_id> tokens(std::string_view text, bool begins = true) const {
    if (text.size() > static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)()))
      raise<input_error>("a text of ", text.size(), " bytes is too long for llama.cpp's tokenizer.");
    const auto size = static_cast<std::int32_t>(text.size());
    const std::int32_t n = -llama_tokenize(vocab(), text.data(), size, nullptr, 0, begins, true);
    std::vector<token_id> written(static_cast<std::size_t>((std::max)(n, 0)));
    if (n > 0) llama_tokenize(vocab(), text.data(), size, written.data(), n, begins, true);
    return written;
  }

  //! The bytes of a token. Special tokens have none.
  //!
  //! Pre         0 <= token < vocab_size()
  std::string piece(token_id token) const {
    std::string bytes(16, '\0');
    std::int32_t n = llama_token_to_piece(vocab(), token, bytes.data(), 16, 0, false);
    if (n < 0) {
      bytes.resize(static_cast<std::size_t>(-n));
      n = llama_token_to_piece(vocab(), token, bytes.data(), -n, 0, false);
    }
    bytes.resize(static_cast<std::size_t>((std::max)(n, 0)));
    return bytes;
  }

  //! The tokens by which the model ends a text: for stop_conditions::tokens.
  std::vector<token_id> end_tokens() const {
    std::vector<token_id> ends;
    for (token_id t = 0; t < vocab_size(); ++t) {
      if (llama_vocab_is_eog(vocab(), t)) ends.push_back(t);
    }
    return ends;
  }

  const std::shared_ptr<detail::loaded_llama_cpp>& loaded() const { return loaded_; }

 private:
  const llama_vocab* vocab() const { return llama_model_get_vocab(loaded_->get()); }

  llama_cpp_options options_;
  std::shared_ptr<detail::loaded_llama_cpp> loaded_;
};

}  // namespace espalier
