// SPDX-License-Identifier: BSL-1.0
// Tested by tests/testing/lossless.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <string>

namespace espalier::testing {

//! The cases that a check has run: its result holds for these, and for nothing beyond them. `std::cout << coverage`
//! writes them line by line. A number that a check does not count stays 0 or -1, and is not written.
struct coverage {
  // Rounds of which every outcome was run, with its exact probability.
  std::int64_t n_outcomes = 0;      //!< outcomes of drafting and verifying that were run
  std::int32_t n_models = 0;        //!< models of a few tokens over which they were run
  std::int32_t vocabulary = 0;      //!< largest vocabulary of these models
  std::int32_t far_vocabulary = 0;  //!< largest vocabulary of further models, of whose tokens few are possible
  std::int32_t depth = 0;           //!< depth of the deepest tree
  std::int32_t draws = 0;           //!< most draws at one node
  std::int32_t limit = -1;          //!< greatest room for drafted tokens with which every outcome was run; -1: none
  std::int32_t budget = -1;         //!< max_nodes() of the policy that was checked; -1 if none was
  std::int32_t n_histories = 0;     //!< histories of verdicts after which every outcome was run again
  std::int64_t n_accepted = 0;      //!< drafted tokens that whole decoders accepted
  std::int64_t n_ended = 0;         //!< texts of whole decoders that ended because nothing was allowed
  double largest_difference = 0;    //!< largest difference found in the probability of a text

  // Rounds that were run with decisions drawn at random.
  std::int64_t n_rounds = 0;          //!< rounds of a policy, a verifier or both, or of a chance alone
  std::int32_t drawn_vocabulary = 0;  //!< largest vocabulary of these rounds
  std::int32_t drawn_depth = 0;       //!< depth of the deepest tree
  std::int32_t drawn_draws = 0;       //!< most draws at one node
  std::int64_t n_keys = 0;            //!< decisions whose keys were compared
  std::int64_t n_picks = 0;           //!< picks of a policy, which were compared with the tokens that it drafted
  double largest_z = 0;               //!< largest deviation of a mean from its expected value, in standard errors

  // Stores and backends.
  std::int64_t n_stored_rows = 0;  //!< rows of a store that were read and compared
  std::int64_t n_logits_rows = 0;  //!< rows of logits that were compared
  std::int32_t n_sequences = 0;    //!< sequences of the store, or of one pass

  //! True if every outcome was run for all the room that the policy's budget asks for.
  bool complete() const { return n_outcomes > 0 && limit >= budget; }

  //! Adds the cases of another check: adds up counts, and keeps the larger of two maxima.
  coverage& operator+=(const coverage& more) {
    n_outcomes += more.n_outcomes;
    n_accepted += more.n_accepted;
    n_ended += more.n_ended;
    n_rounds += more.n_rounds;
    n_keys += more.n_keys;
    n_picks += more.n_picks;
    n_stored_rows += more.n_stored_rows;
    n_logits_rows += more.n_logits_rows;
    const auto raise_to = [](auto& most, auto other) { most = (std::max)(most, other); };
    raise_to(n_models, more.n_models);
    raise_to(vocabulary, more.vocabulary);
    raise_to(far_vocabulary, more.far_vocabulary);
    raise_to(depth, more.depth);
    raise_to(draws, more.draws);
    raise_to(limit, more.limit);
    raise_to(budget, more.budget);
    raise_to(n_histories, more.n_histories);
    raise_to(largest_difference, more.largest_difference);
    raise_to(drawn_vocabulary, more.drawn_vocabulary);
    raise_to(drawn_depth, more.drawn_depth);
    raise_to(drawn_draws, more.drawn_draws);
    raise_to(largest_z, more.largest_z);
    raise_to(n_sequences, more.n_sequences);
    return *this;
  }

  friend std::ostream& operator<<(std::ostream& out, const coverage& c) {
    if (c.n_outcomes > 0) {
      out << "every outcome: " << c.n_outcomes << " of " << c.n_models << " models of up to " << c.vocabulary
          << " tokens";
      if (c.far_vocabulary > 0) out << ", and of further models of up to " << c.far_vocabulary << " tokens";
      if (c.draws > 0) out << ", trees to depth " << c.depth << ", up to " << c.draws << " draws at a node";
      if (c.n_ended > 0) out << ", " << c.n_ended << " texts that ended since nothing was allowed";
      if (c.budget >= 0) out << ", room for 0 to " << c.limit << " drafted tokens of the budget of " << c.budget;
      if (c.n_histories > 0) out << ", " << c.n_histories << " histories of verdicts";
      out << "; largest difference " << c.largest_difference << "\n";
    }
    if (c.n_rounds > 0) {
      out << "drawn: " << c.n_rounds << " rounds, up to " << c.drawn_vocabulary << " tokens, trees to depth "
          << c.drawn_depth << ", up to " << c.drawn_draws << " draws at a node";
      if (c.n_picks > 0) out << "; " << c.n_picks << " drafted tokens picked from the drafter's rows";
      if (c.n_keys > 0) out << "; " << c.n_keys << " decisions, each with a key of its own";
      if (c.largest_z > 0) out << "; means within " << c.largest_z << " standard errors";
      out << "\n";
    }
    if (c.n_stored_rows > 0) {
      out << c.n_stored_rows << " rows of a store read, after operations on " << c.n_sequences
          << (c.n_sequences == 1 ? " sequence\n" : " sequences\n");
    }
    if (c.n_logits_rows > 0) {
      out << c.n_logits_rows << " rows of logits compared with plain decoding, trees to depth " << c.drawn_depth
          << ", passes of up to " << c.n_sequences << " sequences\n";
    }
    return out;
  }
};

//! The coverage in words, as operator<< writes it.
inline std::string in_words(const coverage& c) {
  std::ostringstream out;
  out << c;
  return out.str();
}

}  // namespace espalier::testing
