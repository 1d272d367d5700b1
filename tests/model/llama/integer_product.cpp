// SPDX-License-Identifier: BSL-1.0

#include "espalier/model/llama/integer_product.hpp"

#include "catch.hpp"
#include "espalier/model/llama/integer_multiplier.hpp"
#include "model/llama/panel_case.hpp"

using namespace espalier;

TEST_CASE("every kernel's sums are exact, for every number of rows") {
  using enum detail::instruction_set;
  for (const detail::instruction_set set : {portable, avx2, avx_vnni, avx512, avx512_256, neon, neon_i8mm, amx}) {
    if (!detail::processor_has(set)) continue;
    INFO(name_of(set));
    detail::integer_multiplier integers(set);
    const auto multiply = [&](const detail::integer_product& p, const auto& finish) { integers.multiply(p, finish); };
    // One row and several may be multiplied from different forms of activations.
    CHECK(wrong_sums(multiply, 1, detail::integer_multiplier::takes_bytes(set, 1)) == "");
    const bool as_bytes = detail::integer_multiplier::takes_bytes(set, 2);
    if (as_bytes == detail::integer_multiplier::takes_bytes(set, 1)) CHECK(wrong_sums(multiply, 20, as_bytes) == "");
  }
}

#if defined(__x86_64__)

namespace {

// What VPDPWSSD computes, in AVX2's instructions.
struct emulated_vnni_words {
  [[gnu::target("avx2,fma")]] static __m256i add(__m256i sums, __m256i weights, __m256i x) {
    const __m256i low = _mm256_mullo_epi16(weights, x), high = _mm256_mulhi_epi16(weights, x);
    const __m256i first =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(0xFFFF)), _mm256_slli_epi32(high, 16));
    const __m256i second =
        _mm256_or_si256(_mm256_srli_epi32(low, 16), _mm256_andnot_si256(_mm256_set1_epi32(0xFFFF), high));
    return _mm256_add_epi32(sums, _mm256_add_epi32(first, second));
  }
};

[[gnu::target("avx2,fma")]] void multiply_emulated_vnni(const detail::integer_product& p,
                                                        panel_case::keep_sums finish) {
  detail::multiply_256<emulated_vnni_words>(p);
  detail::finish_rows(p, finish);
}

}  // namespace

TEST_CASE("the kernel of AVX-VNNI is exact where AVX2 takes the place of its instruction") {
  if (!detail::processor_has(detail::instruction_set::avx2)) return;
  CHECK(wrong_sums(&multiply_emulated_vnni, 20, false) == "");
}

#endif
