// SPDX-License-Identifier: BSL-1.0
// Tested by tests/compile_fail/mistake_backend_before_kv.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"

//! The mistakes that a program can make with a KV store and a backend, with a sentence for each.
namespace espalier::detail {

// A struct that ESPALIER_MISTAKE (config.hpp) defines: it stands for one mistake, and its sentence.
template <class MistakeT>
concept Mistake = MistakeT::is_mistake;

// Stands for no mistake.
struct no_mistake {
  static constexpr bool is_mistake = false;
};

// Returns true where there is no mistake; where there is one, its sentence is the compiler's error.
template <class MistakeT>
constexpr bool fit() {
  if constexpr (Mistake<MistakeT>) MistakeT(0);
  return true;
}

// The result of a function that looks for a mistake.
template <class MistakeT>
inline constexpr std::type_identity<MistakeT> found{};

ESPALIER_MISTAKE(swapped_kv_store_and_backend, "KV store and backend are swapped: each stands in the other's place");
ESPALIER_MISTAKE(const_kv_store, "the KV store is const, but texts are written to it");
ESPALIER_MISTAKE(kv_store_size,
                 "the KV store needs size(sequence) const -> int and capacity() const -> int: see KVStore");
ESPALIER_MISTAKE(kv_store_append, "the KV store needs append(sequence, n) -> int: see KVStore");
ESPALIER_MISTAKE(kv_store_commit,
                 "the KV store needs commit(sequence, kept) -> int, with kept a std::span<const std::int32_t>: see "
                 "KVStore");
ESPALIER_MISTAKE(kv_store_truncate, "the KV store needs truncate(sequence, n): see KVStore");
ESPALIER_MISTAKE(kv_store_compacts, "the KV store needs compacts() const -> bool: see KVStore");

template <class KVStoreT>
constexpr auto kv_store_mistake() {
  if constexpr (!KVStore<KVStoreT> && KVStore<std::remove_const_t<KVStoreT>>)
    return found<const_kv_store>;
  else if constexpr (!HasCacheSize<KVStoreT>)
    return found<kv_store_size>;
  else if constexpr (!HasAppend<KVStoreT>)
    return found<kv_store_append>;
  else if constexpr (!HasCommit<KVStoreT>)
    return found<kv_store_commit>;
  else if constexpr (!HasTruncate<KVStoreT>)
    return found<kv_store_truncate>;
  else if constexpr (!SaysWhetherItCompacts<KVStoreT>)
    return found<kv_store_compacts>;
  else
    return found<no_mistake>;
}

ESPALIER_MISTAKE(function_as_backend,
                 "a function is no backend: text_backend(vocabulary size, function) makes one of a function of "
                 "(text, logits), callable_backend one of a function of (kv, batch)");
ESPALIER_MISTAKE(const_backend, "the backend is const, but its forward() is not");
ESPALIER_MISTAKE(backend_vocab_size, "the backend needs vocab_size() const -> int: see Backend");
ESPALIER_MISTAKE(backend_vocab_size_const, "the backend's vocab_size() must be const: see Backend");
ESPALIER_MISTAKE(
    backend_forward,
    "the backend has no forward(kv, batch) that takes this KV store and a forward_batch_view: see Backend");
ESPALIER_MISTAKE(backend_rows,
                 "the backend's forward() must return logits_view, which is vocab_rows<float>, or vocab_rows<double>");

template <class ModelT>
concept IsFunction = std::is_function_v<ModelT> || std::is_function_v<std::remove_pointer_t<ModelT>> || requires {
  &ModelT::operator();
};

template <class BackendT, class KVStoreT>
constexpr auto backend_mistake() {
  if constexpr (!HasVocabSize<BackendT>) {
    if constexpr (IsFunction<BackendT>)
      return found<function_as_backend>;
    else if constexpr (requires(BackendT & backend) { backend.vocab_size(); })
      return found<backend_vocab_size_const>;
    else
      return found<backend_vocab_size>;
  } else if constexpr (HasForward<BackendT, KVStoreT>) {
    return found<no_mistake>;
  } else if constexpr (HasForward<std::remove_const_t<BackendT>, KVStoreT>) {
    return found<const_backend>;
  } else if constexpr (requires(BackendT & backend, KVStoreT & kv, forward_batch_view batch) {
                         backend.forward(kv, batch);
                       }) {
    return found<backend_rows>;
  } else {
    return found<backend_forward>;
  }
}

template <class BackendT, class KVStoreT>
constexpr auto find_model_mistake() {
  if constexpr (KVStore<BackendT> && !KVStore<KVStoreT>)
    return found<swapped_kv_store_and_backend>;
  else if constexpr (KVStore<KVStoreT>)
    return backend_mistake<BackendT, KVStoreT>();
  else
    return kv_store_mistake<KVStoreT>();
}

// The first mistake of a KV store and a backend over it: one of the structs above.
template <class BackendT, class KVStoreT>
using model_mistake = typename decltype(find_model_mistake<BackendT, KVStoreT>())::type;

}  // namespace espalier::detail
