// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/law_error.hpp"

namespace espalier::testing {

namespace detail {

// An access to the rows of a store that counts the rows it reads.
template <class AccessT>
struct counted_access : AccessT {
  std::int64_t* n_read;

  counted_access(AccessT counted, std::int64_t* n) : AccessT(std::move(counted)), n_read(n) {}

  template <class KVStoreT>
  auto read(KVStoreT& kv, std::int32_t s, std::int32_t slot) {
    ++*n_read;
    return AccessT::read(kv, s, slot);
  }
};

// The checks of SharingKVStore. The number that is written into a row stands for the row's token and all tokens before
// it, so that rows differ where a model's would.
template <class KVStoreT, class AccessT>
class sharing_kv_store_laws {
 public:
  sharing_kv_store_laws(KVStoreT& kv, std::int32_t n_sequences, AccessT access)
      : kv_(kv), access_(access), texts_(static_cast<std::size_t>(n_sequences)) {}

  void check() {
    release_all();
    what_was_given_up_is_found();
    what_is_held_is_shared();
    forks_part();
    what_was_evicted_is_gone();
    random_operations();
    release_all();
  }

 private:
  struct text {
    std::vector<token_id> tokens;  // tokens of all rows, committed and scratch
    std::int32_t n_committed = 0;
    std::vector<token_id> committed() const { return {tokens.begin(), tokens.begin() + n_committed}; }
  };

  text& of(std::int32_t s) { return texts_[static_cast<std::size_t>(s)]; }
  std::int32_t n_sequences() const { return static_cast<std::int32_t>(texts_.size()); }
  static std::int32_t length(const std::vector<token_id>& tokens) { return static_cast<std::int32_t>(tokens.size()); }

  // The number of the row of `token` after the row with number `before`, which is 0 at the beginning of a text.
  int next_number(int before, token_id token) {
    const auto [place, is_new] = numbers_.try_emplace({before, token}, last_number_ + 1);
    if (is_new) ++last_number_;
    return place->second;
  }

  void require_rows(const char* after) {
    for (std::int32_t s = 0; s < n_sequences(); ++s) {
      const std::vector<token_id> committed = of(s).committed();
      require_law(kv_.size(s) == of(s).n_committed, "after ", after, " size(", s, ") is ", kv_.size(s), ", but ",
                  of(s).n_committed, " rows are committed.");
      const std::span<const token_id> prefix = kv_.prefix(s);
      require_law(std::equal(prefix.begin(), prefix.end(), committed.begin(), committed.end()), "after ", after,
                  " prefix(", s, ") is not the tokens that the rows are of.");
      int number = 0;
      for (std::int32_t i = 0; i < length(of(s).tokens); ++i) {
        number = next_number(number, of(s).tokens[static_cast<std::size_t>(i)]);
        require_law(access_.read(kv_, s, i) == number, "after ", after, " slot ", i, " of sequence ", s,
                    " does not hold the row of its token.");
      }
    }
    require_law(kv_.n_free() >= 0 && kv_.n_free() <= kv_.n_pages(), "after ", after, " n_free() is ", kv_.n_free(),
                " of ", kv_.n_pages(), " pages.");
  }

  // Appends rows if there is room for them; returns false if not.
  bool append(std::int32_t s, std::span<const token_id> tokens) {
    const auto n = static_cast<std::int32_t>(tokens.size()), end = length(of(s).tokens);
    const std::int32_t n_free = kv_.n_free();
    const std::int32_t slot = kv_.append(s, n);
    if (slot < 0) {
      require_law(end + n > kv_.capacity() || n_free < n / kv_.page_size() + 2, "append(", s, ", ", n,
                  ") finds no room, but ", n_free, " pages of ", kv_.page_size(), " rows are free.");
      return false;
    }
    require_law(slot == end, "append(", s, ", ", n, ") is ", slot, ", but should be ", end, ".");
    int number = 0;
    for (const token_id token : of(s).tokens)
      number = next_number(number, token);
    for (std::int32_t i = 0; i < n; ++i) {
      number = next_number(number, tokens[static_cast<std::size_t>(i)]);
      access_.write(kv_, s, slot + i, number);
    }
    of(s).tokens.insert(of(s).tokens.end(), tokens.begin(), tokens.end());
    return true;
  }

  // Commits the first n rows of scratch.
  void commit(std::int32_t s, std::int32_t n) {
    std::vector<std::int32_t> kept(static_cast<std::size_t>(n));
    std::iota(kept.begin(), kept.end(), 0);
    kv_.commit(s, kept);
    const std::int32_t first = of(s).n_committed;
    of(s).n_committed += n;
    of(s).tokens = of(s).committed();
    kv_.remember(s, first, std::span<const token_id>(of(s).tokens).subspan(static_cast<std::size_t>(first)));
  }

  bool write(std::int32_t s, const std::vector<token_id>& tokens) {
    if (!append(s, tokens)) return false;
    commit(s, length(of(s).tokens) - of(s).n_committed);
    return true;
  }

  void truncate(std::int32_t s, std::int32_t n) {
    kv_.truncate(s, n);
    of(s).n_committed = (std::min)(of(s).n_committed, n);
    of(s).tokens = of(s).committed();
  }

  // Adopts rows, and checks that least <= n <= most of them were adopted. Returns n.
  std::int32_t adopt(std::int32_t s, const std::vector<token_id>& tokens, std::int32_t least, std::int32_t most) {
    const std::int32_t n = kv_.adopt(s, tokens);
    require_law(n >= least && n <= most, "adopt(", s, ", ", length(tokens), " tokens) is ", n,
                ", but should lie between ", least, " and ", most, ".");
    of(s) = {{tokens.begin(), tokens.begin() + n}, n};
    return n;
  }

  void fork(std::int32_t from, std::int32_t to) {
    kv_.fork(from, to);
    of(to) = {of(from).committed(), of(from).n_committed};
  }

  void release_all() {
    for (std::int32_t s = 0; s < n_sequences(); ++s)
      truncate(s, 0);
    require_rows("a release of all sequences");
    require_law(kv_.n_free() == kv_.n_pages(), "all sequences are released, but only ", kv_.n_free(), " of ",
                kv_.n_pages(), " pages are free.");
  }

  // Tokens that occur in no other text.
  std::vector<token_id> new_tokens(std::int32_t n) {
    std::vector<token_id> tokens(static_cast<std::size_t>(n));
    std::iota(tokens.begin(), tokens.end(), last_token_ + 1);
    last_token_ += n;
    return tokens;
  }

  void what_was_given_up_is_found() {
    const std::int32_t n = kv_.capacity() - 1;
    const std::vector<token_id> tokens = new_tokens(n);
    write(0, tokens);
    const std::int32_t last = n_sequences() - 1;
    truncate(0, 0);
    adopt(last, tokens, n, n);
    require_rows("an adoption of what was given up");
    for (const std::int32_t same : {n, n / 2, 1, 0}) {
      std::vector<token_id> other(tokens.begin(), tokens.begin() + same);
      const std::vector<token_id> more = new_tokens(2);
      other.insert(other.end(), more.begin(), more.end());
      adopt(last, other, same, same);
      require_rows("an adoption of a part");
    }
    adopt(0, tokens, n, n);
    require_rows("an adoption of what was adopted before");
    adopt(0, {tokens.begin(), tokens.begin() + n / 2}, n / 2, n / 2);
    require_rows("an adoption of a part of what is held");
    release_all();
  }

  void what_is_held_is_shared() {
    const std::vector<token_id> tokens = new_tokens(kv_.capacity() - 2);
    const std::int32_t n = length(tokens);
    write(0, tokens);
    for (std::int32_t s = 1; s < n_sequences(); ++s) {
      const std::int32_t n_free = kv_.n_free();
      const std::int32_t got = adopt(s, tokens, n / kv_.page_size() * kv_.page_size(), n);
      require_law(kv_.n_free() == n_free, "adopt() takes pages.");
      require_rows("an adoption of what another sequence holds");
      truncate(s, got / 2);
      write(s, new_tokens(2));
      require_rows("a row after shared ones");
    }
    truncate(0, n / 2);
    write(0, new_tokens(1));
    require_rows("a row of a sequence whose rows are shared");
    release_all();
  }

  void forks_part() {
    write(0, new_tokens(kv_.capacity() / 2));
    append(0, new_tokens(1));
    for (std::int32_t s = 1; s < n_sequences(); ++s) {
      const std::int32_t n_free = kv_.n_free();
      fork(s - 1, s);
      require_law(kv_.n_free() == n_free, "fork() takes pages.");
      require_rows("a fork");
      write(s, new_tokens(2));
      require_rows("a row after a fork");
    }
    write(0, new_tokens(2));
    require_rows("a row of a sequence that was forked");
    append(0, new_tokens(1));
    fork(0, 0);
    of(0).tokens = of(0).committed();
    require_rows("a fork onto itself");
    release_all();
  }

  // Fills all pages with rows of unknown tokens, so that rows given up before are evicted, and checks that these are
  // not found again.
  void what_was_evicted_is_gone() {
    const std::vector<token_id> tokens = new_tokens(kv_.capacity() / 2);
    write(0, tokens);
    truncate(0, 0);
    for (std::int32_t s = 0; s < n_sequences(); ++s) {
      while (kv_.append(s, 1) >= 0)
        continue;
    }
    const bool all = kv_.n_free() == 0;
    for (std::int32_t s = 0; s < n_sequences(); ++s)
      kv_.truncate(s, 0);
    if (all) adopt(0, tokens, 0, 0);
    release_all();
  }

  // Random operations on texts of two different tokens, which often begin alike.
  void random_operations() {
    std::mt19937 random(7);
    const auto below = [&](std::int32_t n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
    const auto some_tokens = [&](std::int32_t n) {
      std::vector<token_id> tokens(static_cast<std::size_t>(n));
      for (token_id& token : tokens)
        token = below(2);
      return tokens;
    };
    for (int step = 0; step < 1000; ++step) {
      const std::int32_t s = below(n_sequences()), other = below(n_sequences());
      const std::int32_t n_open = length(of(s).tokens) - of(s).n_committed;
      switch (below(8)) {
        case 0:
        case 1:
        case 2:
          append(s, some_tokens(below(6)));
          break;
        case 3:
        case 4:
          commit(s, below(n_open + 1));
          break;
        case 5:
          truncate(s, below(3) == 0 ? 0 : below(of(s).n_committed + 2));
          break;
        case 6: {
          std::vector<token_id> tokens = of(other).tokens;
          tokens.resize(static_cast<std::size_t>(below(length(tokens) + 1)));
          const std::vector<token_id> more = some_tokens(below(8));
          tokens.insert(tokens.end(), more.begin(), more.end());
          const std::vector<token_id> held = of(s).committed();
          const auto same = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin();
          adopt(s, tokens, static_cast<std::int32_t>(same), length(tokens));
          break;
        }
        default:
          fork(other, s);
      }
      require_rows("random operations");
    }
  }

  KVStoreT& kv_;
  AccessT access_;
  std::vector<text> texts_;
  std::map<std::pair<int, token_id>, int> numbers_;
  int last_number_ = 0;
  token_id last_token_ = 1;
};

}  // namespace detail

//! Checks the laws of SharingKVStore: that adopted and forked rows are those of their tokens, that no sequence changes
//! another's rows, that rows given up are found and evicted rows are not, and that no page is lost.
//!
//! AccessT is as for check_kv_store.
//!
//! Pre         a capacity of 16 rows or more a sequence, at least one page more than a full sequence needs, and no rows
//!             that must be kept: the check drops all rows
//! Errors      law_error with what is wrong
template <SharingKVStore KVStoreT, class AccessT>
void check_sharing_kv_store(KVStoreT& kv, std::int32_t n_sequences, AccessT access) {
  detail::sharing_kv_store_laws<KVStoreT, AccessT>(kv, n_sequences, access).check();
}

namespace detail {

template <class KVStoreT, class AccessT>
class kv_store_laws {
 public:
  kv_store_laws(KVStoreT& kv, std::int32_t n_sequences, AccessT access)
      : kv_(kv), n_sequences_(n_sequences), access_(access), expected_(static_cast<std::size_t>(n_sequences)) {}

  void check() {
    for (std::int32_t s = 0; s < n_sequences_; ++s) {
      chain_equals_plain_appending(s);
      nothing_changes_nothing(s);
      full(s);
      truncates(s);
      refuses(s);
      if constexpr (PrefixKVStore<KVStoreT>) remembers(s);
    }
    random_operations();
    for (std::int32_t s = 0; s < n_sequences_; ++s)
      kv_.truncate(s, 0);
    if constexpr (SharingKVStore<KVStoreT>) check_sharing_kv_store(kv_, n_sequences_, access_);
  }

 private:
  static constexpr bool keeps_paths = requires { requires AccessT::keeps_paths; };

  std::vector<int>& rows(std::int32_t s) { return expected_[static_cast<std::size_t>(s)]; }

  // Checks that all committed rows of all sequences hold the numbers that were written into them.
  void require_rows(const char* after) {
    for (std::int32_t s = 0; s < n_sequences_; ++s) {
      const auto n = static_cast<std::int32_t>(rows(s).size());
      require_law(kv_.size(s) == n, "after ", after, " size(", s, ") is ", kv_.size(s), ", but ", n,
                  " rows are committed.");
      for (std::int32_t i = 0; i < n; ++i) {
        require_law(access_.read(kv_, s, i) == rows(s)[static_cast<std::size_t>(i)], "after ", after, " slot ", i,
                    " of sequence ", s, " does not hold what was written into it.");
      }
    }
  }

  void require_append(std::int32_t s, std::int32_t n, std::int32_t expected) {
    const std::int32_t slot = kv_.append(s, n);
    require_law(slot == expected, "append(", s, ", ", n, ") is ", slot, ", but should be ", expected, ": ", kv_.size(s),
                " rows are committed, the capacity is ", kv_.capacity(), ".");
  }

  void require_commit(std::int32_t s, std::span<const std::int32_t> kept, std::size_t expected) {
    const std::int32_t n = kv_.commit(s, kept);
    require_law(n == static_cast<std::int32_t>(expected), "commit of ", kept.size(), " rows of sequence ", s, " keeps ",
                n, ", but should keep ", expected, ".");
  }

  std::vector<int> append(std::int32_t s, std::int32_t n) {
    const std::int32_t first = kv_.append(s, n);
    require_law(first >= 0, "append(", s, ", ", n, ") finds no room where there should be some.");
    std::vector<int> numbers;
    for (std::int32_t i = 0; i < n; ++i) {
      numbers.push_back(next_number_++);
      access_.write(kv_, s, first + i, numbers.back());
    }
    return numbers;
  }

  void chain_equals_plain_appending(std::int32_t s) {
    kv_.truncate(s, 0);
    rows(s).clear();
    for (const std::int32_t n : {1, 3, 2}) {
      require_append(s, 0, kv_.size(s));
      const std::vector<int> numbers = append(s, n);
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      require_commit(s, all, all.size());
      rows(s).insert(rows(s).end(), numbers.begin(), numbers.end());
      require_rows("a commit of all rows");
    }
  }

  void nothing_changes_nothing(std::int32_t s) {
    append(s, 4);
    require_commit(s, {}, 0);
    require_rows("a commit of nothing");
    require_append(s, 0, kv_.size(s));  // no scratch is left
  }

  void full(std::int32_t s) {
    const std::int32_t left = kv_.capacity() - kv_.size(s);
    require_append(s, left + 1, -1);
    require_append(s, left, kv_.size(s));
    require_append(s, 1, -1);
    require_append(s, 0, kv_.capacity());
    require_append(s, -1, -1);
    kv_.truncate(s, kv_.capacity());  // beyond size(): drops only scratch
    require_rows("a truncation beyond size()");
    require_append(s, 1, kv_.size(s));
    require_commit(s, {}, 0);
  }

  void truncates(std::int32_t s) {
    append(s, 2);
    kv_.truncate(s, 4);
    rows(s).resize(4);
    require_rows("a truncation");
    require_append(s, 0, 4);
    kv_.truncate(s, -1);
    rows(s).clear();
    require_rows("a truncation to less than nothing");
  }

  template <class CallT>
  void require_refused([[maybe_unused]] const char* what, [[maybe_unused]] const CallT& call,
                       [[maybe_unused]] const std::string& named) {
#if ESPALIER_EXCEPTIONS
    std::string message;
    try {
      call();
    } catch (const input_error& e) {
      message = e.what();
    }
    require_law(message.find(named) != std::string::npos, what, " must be an input_error that says \"", named,
                "\"; it says \"", message, "\".");
#endif
  }

  void refuses(std::int32_t s) {
    append(s, 3);
    const auto commit = [&](std::vector<std::int32_t> kept) { return [this, s, kept] { kv_.commit(s, kept); }; };
    require_refused("a commit of row 3 of 3", commit({3}), "row 3");
    require_refused("a commit of row -1", commit({-1}), "row -1");
    require_refused("a commit of row 1 twice", commit({1, 1}), "row 1");
    require_refused("a commit of rows 0, 2, 1", commit({0, 2, 1}), "row 1");
    require_rows("a commit that is refused");
    kv_.truncate(s, kv_.size(s));
    for (const std::int32_t bad : {-1, n_sequences_})
      require_refused(
          "size() of no sequence", [&] { kv_.size(bad); }, "sequence " + std::to_string(bad));
  }

  void remembers(std::int32_t s) {
    kv_.truncate(s, 0);
    rows(s) = append(s, 3);
    require_commit(s, std::vector<std::int32_t>{0, 1, 2}, 3);
    std::uint64_t version = kv_.version(s);
    const auto require_prefix = [&](const std::vector<token_id>& expected, const char* after) {
      const std::span<const token_id> prefix = kv_.prefix(s);
      require_law(std::equal(prefix.begin(), prefix.end(), expected.begin(), expected.end()), "after ", after,
                  " prefix(", s, ") has ", prefix.size(), " tokens, and should have ", expected.size(),
                  ", those that the rows are of.");
      require_law(kv_.version(s) != version, "version(", s, ") is as it was before ", after, ", but prefix() is not.");
      version = kv_.version(s);
    };
    kv_.remember(s, 0, std::vector<token_id>{5, 6, 7});
    require_prefix({5, 6, 7}, "remember()");
    append(s, 2);
    require_commit(s, {}, 0);
    require_law(kv_.version(s) == version, "version(", s, ") has changed, but prefix() has not.");
    kv_.truncate(s, 2);
    rows(s).resize(2);
    require_prefix({5, 6}, "a truncation");
    kv_.remember(s, 1, std::vector<token_id>{9});
    require_prefix({5, 9}, "a second remember()");
    kv_.truncate(s, 0);
    rows(s).clear();
    require_prefix({}, "a truncation to nothing");
  }

  // Compares the store with a list of numbers for each sequence, after random operations: appends in several parts,
  // commits of any ascending choice of rows, truncations.
  void random_operations() {
    std::mt19937 random(5);
    std::vector<std::vector<int>> scratch(static_cast<std::size_t>(n_sequences_));
    std::size_t dropped = 0;
    for (int step = 0; step < 2000; ++step) {
      const auto s = static_cast<std::int32_t>(random() % static_cast<unsigned>(n_sequences_));
      std::vector<int>& open = scratch[static_cast<std::size_t>(s)];
      const auto used = static_cast<std::int32_t>(rows(s).size() + open.size());
      const unsigned what = random() % 8;
      if (what < 4) {
        const auto n = static_cast<std::int32_t>(random() % 5);
        if (used + n > kv_.capacity()) {
          require_append(s, n, -1);
        } else {
          const std::vector<int> numbers = append(s, n);
          open.insert(open.end(), numbers.begin(), numbers.end());
        }
      } else if (what < 7) {
        std::vector<std::int32_t> kept;
        const std::size_t end = keeps_paths ? random() % (open.size() + 1) : open.size();
        for (std::size_t i = 0; i < end; ++i) {
          if (keeps_paths || random() % 3 != 0) kept.push_back(static_cast<std::int32_t>(i));
        }
        std::size_t n = kept.size();
        if (!kv_.compacts()) {
          n = 0;
          while (n < kept.size() && kept[n] == static_cast<std::int32_t>(n))
            ++n;
        }
        dropped += kept.size() - n;
        require_commit(s, kept, n);
        for (std::size_t i = 0; i < n; ++i)
          rows(s).push_back(open[static_cast<std::size_t>(kept[i])]);
        open.clear();
      } else {
        const auto n = static_cast<std::int32_t>(random() % static_cast<unsigned>(kv_.capacity()));
        kv_.truncate(s, n);
        rows(s).resize((std::min)(rows(s).size(), static_cast<std::size_t>(n)));
        open.clear();
      }
      require_rows("random operations");
    }
    require_law((dropped > 0) == !kv_.compacts(), "compacts() is ", kv_.compacts(), ", but ", dropped,
                " accepted rows were dropped.");
  }

  KVStoreT& kv_;
  std::int32_t n_sequences_;
  AccessT access_;
  std::vector<std::vector<int>> expected_;
  int next_number_ = 1;
};

}  // namespace detail

//! Checks the laws of KVStore: the rows that commits keep and truncations leave, the answers of a full store, and that
//! sequences do not influence each other. Checks the laws of PrefixKVStore and SharingKVStore, too, if they apply.
//!
//! AccessT writes a number into a row, committed or scratch, and reads it back; read() returns -1 for a row that holds
//! no number that was written:
//!   access.write(kv, sequence, slot, number)
//!   access.read(kv, sequence, slot) -> number
//! If it has `static constexpr bool keeps_paths = true`, each row that it writes follows the one before it, and a
//! commit keeps the beginning of such a chain: for stores that keep only paths, see KVStore.
//!
//!     std::cout << testing::check_kv_store(my_store, 3, my_access());
//!
//! Pre         a capacity of 16 rows or more a sequence, and no rows that must be kept: the check drops all rows
//! Errors      law_error with what is wrong
template <KVStore KVStoreT, class AccessT>
coverage check_kv_store(KVStoreT& kv, std::int32_t n_sequences, AccessT access) {
  coverage covered;
  const detail::counted_access<AccessT> counted{access, &covered.n_stored_rows};
  detail::kv_store_laws<KVStoreT, detail::counted_access<AccessT>>(kv, n_sequences, counted).check();
  covered.n_sequences = n_sequences;
  return covered;
}

}  // namespace espalier::testing
