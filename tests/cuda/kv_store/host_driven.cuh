// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/support.cuh"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier_test {

// What stands in a row that bears a number: its bytes first, then others. Small integers, which every type of number
// has.
ESPALIER_HOST_DEVICE inline std::int32_t mark(std::int32_t number, std::int32_t layer, std::int32_t which,
                                              std::int32_t i) {
  if (i < 3) return number >> (8 * i) & 255;
  const auto mixed = static_cast<std::uint32_t>((number * 131 + layer) * 2 + which + 977 * i) * 2654435761U;
  return static_cast<std::int32_t>(mixed >> 24);
}

template <class NumberT>
__global__ void write_row(espalier::cuda::kv_view<NumberT> kv, std::int32_t sequence, std::int32_t slot,
                          std::int32_t number) {
  for (std::int32_t layer = 0; layer < kv.n_layers; ++layer) {
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < kv.row_size; i += 32) {
      kv.key(layer, sequence, slot)[i] = NumberT(static_cast<float>(mark(number, layer, 0, i)));
      kv.value(layer, sequence, slot)[i] = NumberT(static_cast<float>(mark(number, layer, 1, i)));
    }
  }
}

// The numbers of slots 0 and on, a block each; -1 where the parts of a row are not of one number.
template <class NumberT>
__global__ void read_rows(espalier::cuda::kv_view<NumberT> kv, std::int32_t sequence, std::int32_t* numbers) {
  if (threadIdx.x != 0) return;
  const auto slot = static_cast<std::int32_t>(blockIdx.x);
  std::int32_t number = 0;
  for (std::int32_t i = 0; i < 3; ++i)
    number |= static_cast<std::int32_t>(static_cast<float>(kv.key(0, sequence, slot)[i])) << (8 * i);
  bool is_whole = true;
  for (std::int32_t layer = 0; layer < kv.n_layers; ++layer) {
    for (std::int32_t i = 0; i < kv.row_size; ++i) {
      is_whole =
          is_whole &&
          static_cast<float>(kv.key(layer, sequence, slot)[i]) == static_cast<float>(mark(number, layer, 0, i)) &&
          static_cast<float>(kv.value(layer, sequence, slot)[i]) == static_cast<float>(mark(number, layer, 1, i));
    }
  }
  numbers[slot] = is_whole ? number : -1;
}

//! A store of the device with the host's bookkeeping: a model of espalier::KVStore, and of espalier::SharingKVStore
//! where the store shares pages.
template <class StoreT>
class host_driven {
 public:
  explicit host_driven(StoreT& store)
      : store_(store), ledger_(store.n_sequences(), store.capacity(), espalier::commit_mode::compact) {}

  std::int32_t size(std::int32_t sequence) const { return ledger_.size(sequence); }
  std::int32_t capacity() const { return ledger_.capacity(); }
  bool compacts() const { return true; }
  std::int32_t append(std::int32_t sequence, std::int32_t n) {
    const std::int32_t first = ledger_.append(sequence, 0);
    if (n < 0 || n > capacity() - first) return -1;
    try {
      store_.ensure(sequence, first + n, nullptr);
    } catch (const espalier::input_error&) {
      return -1;  // the pages are used up
    }
    return ledger_.append(sequence, n);
  }
  std::int32_t commit(std::int32_t sequence, std::span<const std::int32_t> kept) {
    const std::int32_t base = size(sequence);
    const std::int32_t n = ledger_.commit(sequence, kept, [](std::int32_t, std::int32_t) {});
    std::vector<std::int32_t> words{base, n};
    words.insert(words.end(), kept.begin(), kept.end());
    const auto on_device = to_device(words);
    store_.commit(espalier::cuda::text_batch::of({}, {}, 0, sequence),
                  {on_device.data(), on_device.data() + 2, on_device.data() + 1, n + 3}, nullptr);
    shrink(sequence);
    return n;
  }
  void truncate(std::int32_t sequence, std::int32_t n) {
    ledger_.truncate(sequence, n);
    shrink(sequence);
  }

  std::span<const espalier::token_id> prefix(
      std::int32_t sequence) const requires espalier::cuda::SharingKVStore<StoreT> {
    return store_.prefix(sequence);
  }
  std::uint64_t version(std::int32_t sequence) const requires espalier::cuda::SharingKVStore<StoreT> {
    return store_.version(sequence);
  }
  void remember(std::int32_t sequence, std::int32_t first,
                std::span<const espalier::token_id> tokens) requires espalier::cuda::SharingKVStore<StoreT> {
    store_.remember(sequence, first, tokens);
  }
  std::int32_t adopt(std::int32_t sequence,
                     std::span<const espalier::token_id> tokens) requires espalier::cuda::SharingKVStore<StoreT> {
    const std::int32_t n = store_.adopt(sequence, tokens, nullptr);
    ledger_.hold(sequence, n, {});
    return n;
  }
  void fork(std::int32_t from, std::int32_t to) requires espalier::cuda::SharingKVStore<StoreT> {
    store_.fork(from, to, nullptr);
    ledger_.hold(to, static_cast<std::int32_t>(store_.prefix(from).size()), {});
  }
  std::int32_t n_pages() const requires espalier::cuda::SharingKVStore<StoreT> { return store_.n_pages(); }
  std::int32_t page_size() const requires espalier::cuda::SharingKVStore<StoreT> { return store_.page_size(); }
  std::int32_t n_free() const requires espalier::cuda::SharingKVStore<StoreT> { return store_.n_free(); }

  void write(std::int32_t sequence, std::int32_t slot, std::int32_t number) {
    espalier::cuda::launch("write_row", write_row<typename StoreT::number>, {.threads = 32}, nullptr, store_.view(),
                           sequence, slot, number);
  }
  std::vector<std::int32_t> read(std::int32_t sequence, std::int32_t n) {
    const espalier::cuda::device_array<std::int32_t> numbers(static_cast<std::size_t>(n));
    espalier::cuda::launch("read_rows", read_rows<typename StoreT::number>,
                           {.grid = static_cast<unsigned>(n), .threads = 1}, nullptr, store_.view(), sequence,
                           numbers.data());
    return to_host(numbers);
  }

 private:
  void shrink(std::int32_t sequence) {
    if constexpr (requires { store_.truncate(sequence, 0); }) store_.truncate(sequence, size(sequence));
  }

  StoreT& store_;
  espalier::slot_ledger ledger_;
};

struct row_access {
  template <class StoreT>
  static void write(host_driven<StoreT>& kv, std::int32_t sequence, std::int32_t slot, std::int32_t number) {
    kv.write(sequence, slot, number);
  }
  template <class StoreT>
  static std::int32_t read(host_driven<StoreT>& kv, std::int32_t sequence, std::int32_t slot) {
    return kv.read(sequence, slot + 1).back();
  }
};

}  // namespace espalier_test
