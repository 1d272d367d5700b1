// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/model/parallel/communicator.hpp"

namespace espalier {

namespace detail {

// A hash of 64 bits: FNV-1a over numbers of 64 bits in place of bytes.
class agreement_hash {
 public:
  void add(std::uint64_t number) { value_ = (value_ ^ number) * 0x100000001B3U; }
  template <class NumberT>
  void add_all(std::span<NumberT> numbers) {
    add(numbers.size());
    for (const auto number : numbers)
      add(static_cast<std::uint64_t>(number));
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325U;
};

}  // namespace detail

//! Compares, over all ranks, what each is about to do or has done. All messages have one size, so even ranks that do
//! different things meet in the next message, and every rank finds the difference: all get an error, none hangs.
//!
//! It is an Observer: after each round it compares the tree, the verdict, the committed tokens and the state of the
//! text. A backend over ranks has an agreement of its own and compares the batch before each pass, since ranks cannot
//! make one pass of different batches.
//!
//! Complexity  a comparison: one all_gather of 16 bytes a rank
//! Errors      rank_error that names the ranks whose value is not the most common one; if two values are equally
//!             common, that of the lower rank counts as the most common. rank_error of the communicator
template <Communicator CommunicatorT>
class agreement {
 public:
  explicit agreement(CommunicatorT& ranks)
      : ranks_(&ranks), counts_(static_cast<std::size_t>(ranks.size()), sizeof(message)), all_(counts_.size()) {}

  //! Compares a round: its tree, verdict and committed tokens, and the state of the text after it.
  void operator()(const round_record& r) {
    detail::agreement_hash hash;
    hash.add(static_cast<std::uint64_t>(r.index));
    const auto nodes = static_cast<std::size_t>(r.tree.n_nodes), draws = static_cast<std::size_t>(r.tree.n_draws);
    hash.add_all(std::span(r.tree.token, nodes));
    hash.add_all(std::span(r.tree.parent, nodes));
    hash.add_all(std::span(r.tree.drawn_node, draws));
    hash.add(static_cast<std::uint64_t>(r.decision.accepted));
    hash.add(static_cast<std::uint64_t>(r.decision.token));
    hash.add_all(r.committed);
    hash.add(static_cast<std::uint64_t>(r.state));
    compare(subject::round, hash.value());
  }

  //! Compares a batch before its pass.
  void operator()(const forward_batch_view& batch) {
    detail::agreement_hash hash;
    hash.add_all(batch.tokens);
    hash.add_all(batch.positions);
    hash.add_all(batch.slots);
    hash.add_all(batch.outputs);
    hash.add_all(batch.mask);
    for (const batch_sequence& s : batch.sequences) {
      for (const std::int32_t number : {s.sequence, s.prefix, s.row_begin, s.row_end, s.mask_words})
        hash.add(static_cast<std::uint64_t>(number));
    }
    compare(subject::batch, hash.value());
  }

  //! Compares a number of the caller's: a seed, a hash of options.
  void operator()(std::uint64_t number) { compare(subject::number, number); }

 private:
  enum class subject : std::uint64_t { round = 1, batch, number };
  struct message {
    std::uint64_t what, value;

    friend bool operator==(const message&, const message&) = default;
  };

  void compare(subject what, std::uint64_t value) {
    const auto own = static_cast<std::size_t>(ranks_->rank());
    all_[own] = {static_cast<std::uint64_t>(what), value};
    if (ranks_->size() > 1) ranks_->all_gather(reinterpret_cast<std::byte*>(all_.data()), counts_);
    const message usual = most_usual();
    std::string others;
    for (std::size_t r = 0; r < all_.size(); ++r) {
      if (!(all_[r] == usual)) others += (others.empty() ? "" : ", ") + std::to_string(r);
    }
    if (others.empty()) return;
    constexpr std::array names{"", "tree or verdict", "batch", "number"};
    raise<rank_error>("the ranks do not agree: the ", names[static_cast<std::size_t>(usual.what)], " of rank ", others,
                      " is not that of the others. All ranks need the same model, options, seed and costs, and one "
                      "build of the program on processors of one kind.");
  }

  message most_usual() const {
    message best = all_.front();
    std::size_t most = 0;
    for (const message& m : all_) {
      std::size_t n = 0;
      for (const message& other : all_)
        n += other == m ? 1 : 0;
      if (n > most) most = n, best = m;
    }
    return best;
  }

  CommunicatorT* ranks_;
  std::vector<std::size_t> counts_;
  std::vector<message> all_;
};

}  // namespace espalier
