// SPDX-License-Identifier: BSL-1.0

#include "espalier/model/llama/integer_product.hpp"

#include "catch.hpp"
#include "espalier/model/llama/integer_multiplier.hpp"
#include "model/llama/panel_case.hpp"

using namespace espalier;

TEST_CASE("kernels have the bits of the portable form, for every type and number of rows") {
  using enum detail::instruction_set;
  for (const detail::instruction_set set : {avx2, avx_vnni, avx512, avx512_256, neon, amx}) {
    if (!detail::processor_has(set)) continue;
    INFO(name_of(set));
    detail::integer_multiplier integers(set);
    CHECK(differing_bits([&](const detail::integer_product& p) { integers.multiply(p); }, 20) == "");
  }
}

#if defined(__x86_64__)

namespace {

// What VPDPBUSD computes, in AVX2's instructions: products of 16 bits, each pair summed in 32.
struct emulated_vnni_dots {
  static constexpr bool signed_codes = false;
  [[gnu::target("avx2,fma")]] static __m256i add(__m256i dots, __m256i q0, __m256i q1, __m256i x0, __m256i x1) {
    return add(add(dots, q0, x0), q1, x1);
  }
  [[gnu::target("avx2,fma")]] static __m256i add(__m256i dots, __m256i q, __m256i x) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_mullo_epi16(_mm256_and_si256(q, low), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(q, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(dots, _mm256_add_epi32(_mm256_madd_epi16(even, ones), _mm256_madd_epi16(odd, ones)));
  }
};

[[gnu::target("avx2,fma")]] void multiply_emulated_vnni(const detail::integer_product& p) {
  detail::multiply_256<emulated_vnni_dots>(p);
}

}  // namespace

TEST_CASE("the kernel of AVX-VNNI has the bits of the portable form where AVX2 takes the place of its instruction") {
  if (!detail::processor_has(detail::instruction_set::avx2)) return;
  CHECK(differing_bits(&multiply_emulated_vnni, 20) == "");
}

#endif
