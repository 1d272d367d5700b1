// SPDX-License-Identifier: BSL-1.0
// Compilation alone: decoders against an engine, a cache, a policy and a verifier that are only declared. The file is
// compiled, and never linked or run: what does not fit is an error of the compiler, before the parts have bodies.
#include <cstdint>
#include <span>

#include "espalier/espalier.hpp"
#include "espalier/testing.hpp"

using namespace espalier;

// [declared]
// Declarations of your parts, as your headers have them.
class your_cache {
 public:
  std::int32_t size(std::int32_t sequence) const;
  std::int32_t capacity() const;
  bool compacts() const;
  std::int32_t append(std::int32_t sequence, std::int32_t n);
  std::int32_t commit(std::int32_t sequence, std::span<const std::int32_t> kept);
  void truncate(std::int32_t sequence, std::int32_t n);
};

class your_engine {
 public:
  std::int32_t vocab_size() const;
  logits_view forward(your_cache& kv, forward_batch_view batch);
};

// A concept is checked alone, and the compiler names the clause that fails.
static_assert(KVStore<your_cache>);
static_assert(Backend<your_engine, your_cache>);
// [declared]

// [functions]
// Functions that nobody calls: they compile the decoders that you mean to use, down to the last member.
void compiles(your_engine& target, your_cache& cache, your_engine& small, your_cache& small_cache,
              std::span<const token_id> prompt) {
  autoregressive drafter(small, small_cache);
  auto decode = make_decoder(drafter, dynatree(), greedy(), cache, target);
  decode.begin(prompt, {.max_tokens = 100});
  decode.step();
  // Without a draft model: the narrowest decoder that needs your engine and your cache.
  auto plain_text = make_decoder(no_drafter(), plain(), greedy(), cache, target);
  plain_text.generate(prompt);
  auto many = make_batch_decoder(drafter, iid_paths(), traversal(), cache, target);
  many.add(prompt);
  many.step();
}

// The laws of the parts compile, too, before there is anything to run: access says how a row is written and read.
struct your_access {
  void write(your_cache& kv, std::int32_t sequence, std::int32_t slot, int number) const;
  int read(your_cache& kv, std::int32_t sequence, std::int32_t slot) const;
};
void laws_compile(your_engine& engine, your_cache& cache, your_cache (*make)(int),
                  float (*read_row)(your_cache&, std::int32_t, std::int32_t)) {
  testing::check_kv_store(cache, 4, your_access());
  testing::check_backend(engine, make, read_row);
}
// [functions]
