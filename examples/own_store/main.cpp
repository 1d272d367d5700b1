// SPDX-License-Identifier: BSL-1.0
// The code of docs/own_store.md: two stores over an engine's own memory, one with a row for each slot of a sequence, one
// with pages that sequences share. Prints that they keep the laws, and what texts over few pages took.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <span>
#include <vector>

#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/page_ledger.hpp"
#include "espalier/kv_store/slot_ledger.hpp"
#include "espalier/testing/kv_store_laws.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

namespace {

// [memory]
// Stands for the memory of your engine: rows of keys and values, by number.
class memory {
 public:
  explicit memory(std::int32_t n_rows) : rows_(static_cast<std::size_t>(n_rows) * row_size, -1) {}
  float* row(std::int32_t number) { return &rows_[static_cast<std::size_t>(number) * row_size]; }
  void copy(std::int32_t from, std::int32_t to) { std::copy_n(row(from), row_size, row(to)); }

 private:
  static constexpr std::size_t row_size = 4;
  std::vector<float> rows_;
};
// [memory]

// [slots]
// A cache in which each sequence has its rows to itself.
class slot_cache {
 public:
  slot_cache(std::int32_t n_sequences, std::int32_t capacity, commit_mode mode)
      : ledger_(n_sequences, capacity, mode), memory_(n_sequences * capacity) {}

  std::int32_t size(std::int32_t s) const { return ledger_.size(s); }
  std::int32_t capacity() const { return ledger_.capacity(); }
  bool compacts() const { return ledger_.compacts(); }
  std::int32_t append(std::int32_t s, std::int32_t n) { return ledger_.append(s, n); }
  std::int32_t commit(std::int32_t s, std::span<const std::int32_t> kept) {
    return ledger_.commit(s, kept, [&](std::int32_t from, std::int32_t to) { memory_.copy(row(s, from), row(s, to)); });
  }
  void truncate(std::int32_t s, std::int32_t n) { ledger_.truncate(s, n); }

  // The tokens of the rows: with these three members the store is a PrefixKVStore.
  std::span<const token_id> prefix(std::int32_t s) const { return ledger_.prefix(s); }
  std::uint64_t version(std::int32_t s) const { return ledger_.version(s); }
  void remember(std::int32_t s, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(s, first, tokens);
  }

  float* at(std::int32_t s, std::int32_t slot) { return memory_.row(row(s, slot)); }

 private:
  std::int32_t row(std::int32_t s, std::int32_t slot) const { return s * capacity() + slot; }

  slot_ledger ledger_;
  memory memory_;
};
// [slots]

// [pages]
// A cache whose sequences take pages of one pool, and share those of equal beginnings.
class page_cache {
 public:
  page_cache(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size, std::int32_t n_pages,
             commit_mode mode)
      : pages_(n_sequences, capacity, page_size, n_pages),
        ledger_(n_sequences, pages_.capacity(), mode),
        memory_(n_pages * page_size) {}

  std::int32_t size(std::int32_t s) const { return ledger_.size(s); }
  std::int32_t capacity() const { return ledger_.capacity(); }
  bool compacts() const { return ledger_.compacts(); }
  std::int32_t append(std::int32_t s, std::int32_t n) {
    const std::int32_t first = ledger_.append(s, 0);
    if (n < 0 || n > capacity() - first || !pages_.has_room(s, first, first + n)) return -1;
    pages_.ensure(s, first, first + n, [&](std::int32_t from, std::int32_t to, std::int32_t n_rows) {
      for (std::int32_t i = 0; i < n_rows; ++i)
        memory_.copy(from * page_size() + i, to * page_size() + i);
    });
    return ledger_.append(s, n);
  }
  std::int32_t commit(std::int32_t s, std::span<const std::int32_t> kept) {
    const std::int32_t n =
        ledger_.commit(s, kept, [&](std::int32_t from, std::int32_t to) { memory_.copy(row(s, from), row(s, to)); });
    pages_.truncate(s, size(s));
    return n;
  }
  void truncate(std::int32_t s, std::int32_t n) {
    pages_.truncate(s, std::min(n, size(s)), prefix(s));
    ledger_.truncate(s, n);
  }

  std::span<const token_id> prefix(std::int32_t s) const { return ledger_.prefix(s); }
  std::uint64_t version(std::int32_t s) const { return ledger_.version(s); }
  void remember(std::int32_t s, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(s, first, tokens);
    pages_.remember(s, first, prefix(s));
  }

  // Members by which sequences share pages: they make the store a SharingKVStore.
  std::int32_t n_pages() const { return pages_.n_pages(); }
  std::int32_t page_size() const { return pages_.page_size(); }
  std::int32_t n_free() const { return pages_.n_free(); }
  std::int32_t adopt(std::int32_t s, std::span<const token_id> tokens) {
    const std::span<const token_id> known = prefix(s);
    const auto held = static_cast<std::int32_t>(
        std::mismatch(known.begin(), known.end(), tokens.begin(), tokens.end()).first - known.begin());
    const std::int32_t found = pages_.adopt(s, tokens, held, known);
    if (found > held) {
      ledger_.hold(s, found, tokens.first(static_cast<std::size_t>(found)));
      return found;
    }
    truncate(s, held);
    return held;
  }
  void fork(std::int32_t from, std::int32_t to) {
    const std::int32_t n = size(from);
    if (from == to) return truncate(to, n);
    pages_.fork(from, to, n, prefix(to));
    ledger_.hold(to, n, prefix(from));
  }

  float* at(std::int32_t s, std::int32_t slot) { return memory_.row(row(s, slot)); }

 private:
  // The row of a slot in the pool. A kernel takes the whole block table, pages_.pages(s), in its place.
  std::int32_t row(std::int32_t s, std::int32_t slot) const {
    return pages_.pages(s)[static_cast<std::size_t>(slot / page_size())] * page_size() + slot % page_size();
  }

  page_ledger pages_;
  slot_ledger ledger_;
  memory memory_;
};
// [pages]

// [access]
// How a check writes a number into a row, and reads it.
struct row_access {
  void write(auto& kv, std::int32_t s, std::int32_t slot, int number) const {
    *kv.at(s, slot) = static_cast<float>(number);
  }
  int read(auto& kv, std::int32_t s, std::int32_t slot) const { return static_cast<int>(*kv.at(s, slot)); }
};
// [access]

static_assert(PrefixKVStore<slot_cache> && SharingKVStore<page_cache>);

// A model that reads tokens from the rows of either cache: what followed the last tokens before, else another token.
struct engine {
  static constexpr std::int32_t vocab = 32;
  std::vector<float> logits{};

  std::int32_t vocab_size() const { return vocab; }

  template <class KVStoreT>
  logits_view forward(KVStoreT& kv, forward_batch_view batch) {
    logits.assign(batch.outputs.size() * vocab, 0.0F);
    std::size_t output = 0;
    for (const batch_sequence& s : batch.sequences) {
      for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
        const auto i = static_cast<std::size_t>(r);
        *kv.at(s.sequence, batch.slots[i]) = static_cast<float>(batch.tokens[i]);
        if (output == batch.outputs.size() || batch.outputs[output] != r) continue;
        unsigned seen = 0;
        const auto see = [&](std::int32_t slot) { seen = seen * 31 + static_cast<unsigned>(*kv.at(s.sequence, slot)); };
        for (std::int32_t slot = 0; slot < s.prefix; ++slot)
          see(slot);
        const std::span<const std::uint32_t> mask = batch.mask_of(s, r);
        for (std::int32_t j = 0; j < 32 * s.mask_words; ++j)
          if (mask[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U) see(s.prefix + j);
        const auto usual = static_cast<unsigned>(batch.tokens[i]) + 1;
        const unsigned token = seen % 7 == 0 ? seen / 7 % vocab : usual % vocab;
        logits[output++ * vocab + token] = 1.0F;
      }
    }
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), vocab};
  }
};

// 60 texts in 16 places over pages for a few of them. Returns how many differ from the text of a decoder alone.
int serve() {
  constexpr std::int32_t n_texts = 60;
  page_cache kv(16, 128, 4, 64, commit_mode::compact);
  auto decode = make_batch_decoder(prompt_lookup(), chain(), greedy(), kv, engine(), {.max_texts = 16});
  const auto prompt_of = [](text_id id) {
    return std::vector<token_id>{1, 2, 3, 4, 5, 6, 7, 8, static_cast<token_id>(id % engine::vocab), 2, 3};
  };
  std::map<text_id, std::vector<token_id>> texts;
  for (text_id id = 0; id < n_texts; ++id)
    decode.add(prompt_of(id), {.max_tokens = static_cast<std::int32_t>(20 + id % 30)});
  int preempted = 0;
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      if (e.error) std::rethrow_exception(e.error);
      texts[e.id].insert(texts[e.id].end(), e.round.committed.begin(), e.round.committed.end());
    }
    preempted += decode.last_step().preempted;
  }
  int differ = 0;
  for (const auto& [id, written] : texts) {
    auto alone = make_decoder(prompt_lookup(), chain(), greedy(), slot_cache(1, 128, commit_mode::compact), engine());
    const auto expected = alone.generate(prompt_of(id), {.max_tokens = static_cast<std::int32_t>(20 + id % 30)});
    differ += std::ranges::equal(written, expected) ? 0 : 1;
  }
  std::printf("%zu texts, %d of which differ; a place was given up %d times; %d of %d pages are free\n", texts.size(),
              differ, preempted, kv.n_free(), kv.n_pages());
  return differ + (kv.n_free() == kv.n_pages() ? 0 : 1) + (texts.size() == n_texts ? 0 : 1);
}

}  // namespace

int main() {
  // [laws]
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    slot_cache slots(4, 64, mode);
    testing::check_kv_store(slots, 4, row_access());
    page_cache pages(4, 64, 4, 40, mode);
    testing::check_kv_store(pages, 4, row_access());
  }
  // [laws]
  std::puts("both stores keep the laws");
  return serve();
}
