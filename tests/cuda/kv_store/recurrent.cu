// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/kv_store/recurrent.cuh"

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cuda/kv_store/host_driven.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/testing/kv_store_laws.hpp"
#include "raises.hpp"

namespace device = espalier::cuda;
using espalier_test::host_driven;
using espalier_test::to_device;

static_assert(device::RecurrentKVStore<device::recurrent_kv<__nv_bfloat16>>);
static_assert(!device::RecurrentKVStore<device::contiguous_kv<float>>);
static_assert(!device::PrefixKVStore<device::recurrent_kv<float>>);

namespace {

const espalier::recurrent_shape shape{.layers = 3, .state_size = 12, .row_size = 10, .reach = 3};

// The store as one of its recurrent layers' rows.
struct recurrent_rows {
  using number = float;

  device::recurrent_kv<float>& kv;

  std::int32_t n_sequences() const { return kv.n_sequences(); }
  std::int32_t capacity() const { return kv.capacity(); }
  device::kv_view<float> view() const { return kv.states().rows; }
  void ensure(std::int32_t sequence, std::int32_t n, cudaStream_t stream) const { kv.ensure(sequence, n, stream); }
  void commit(const device::text_batch& texts, const device::kept_rows& kept, cudaStream_t stream) const {
    kv.commit(texts, kept, stream);
  }
};

}  // namespace

TEST_CASE("Keys, values and rows of recurrent layers keep the laws of a store") {
  device::recurrent_kv<float> kv(2, 8, shape, 2, 19);
  host_driven of_attention(kv);
  espalier::testing::check_kv_store(of_attention, 2, espalier_test::row_access());
  recurrent_rows rows{kv};
  host_driven of_recurrence(rows);
  espalier::testing::check_kv_store(of_recurrence, 2, espalier_test::row_access());
  device::recurrent_kv<__nv_bfloat16> without(2, 8, {}, 2, 19);
  host_driven of_all(without);
  espalier::testing::check_kv_store(of_all, 2, espalier_test::row_access());
}

TEST_CASE("Rows of recurrent layers use their memory in turn, and a commit moves them across its end") {
  device::recurrent_kv<float> kv(1, 4, shape, 2, 60, 8);
  CHECK(kv.most_rows() == 8);
  recurrent_rows rows{kv};
  host_driven all(rows);
  // There are 11 rows, so slot 22 has the memory of slot 0.
  for (std::int32_t sequence = 0; sequence < 2; ++sequence) {
    for (std::int32_t slot = 15; slot < 26; ++slot)
      all.write(sequence, slot, 100 * sequence + slot);
  }
  const auto words = to_device(std::vector<std::int32_t>{19, 3, 1, 4, 6});
  kv.commit(device::text_batch::of({}, {}, 0, 1), {words.data(), words.data() + 2, words.data() + 1, 3}, nullptr);
  const auto first = all.read(0, 26), second = all.read(1, 26);
  CHECK(std::vector(first.begin() + 15, first.end()) ==
        std::vector<std::int32_t>{15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25});
  CHECK(std::vector(second.begin() + 15, second.end()) ==
        std::vector<std::int32_t>{115, 116, 117, 118, 120, 123, 125, 122, 123, 124, 125});
}

TEST_CASE("Sizes of a store of recurrent states are checked, and so is its room for passes") {
  using espalier::option_error;
  const auto make = [](espalier::recurrent_shape of, std::int32_t rows) {
    device::recurrent_kv<float>(1, 4, of, 1, 60, rows);
  };
  CHECK(message_of<option_error>([&] { make(shape, 1); }) == "option rows is 1, but must lie between 2 and 1048576.");
  auto odd = shape;
  odd.row_size = 9;
  CHECK(message_of<option_error>([&] { make(odd, 8); }) ==
        "recurrent row size is 9, but must be even: two rows share it.");
  const device::recurrent_kv<float> kv(1, 4, shape, 1, 60, 9), whole(1, 4, shape, 1, 60);
  CHECK(device::rows_of_pass(kv, 60) == 4);
  CHECK(device::rows_of_pass(kv, 3) == 3);
  CHECK_NOTHROW(device::require_rows(kv, 4));
  CHECK(message_of<option_error>([&] { device::require_rows(kv, 5); }) ==
        "option rows is 9, but passes of 5 tokens need 10: a recurrent state may be one pass behind.");
  CHECK(whole.most_rows() == 60);
  CHECK(device::rows_of_pass(whole, 80) == 60);
  CHECK_NOTHROW(device::require_rows(whole, 80));
}
