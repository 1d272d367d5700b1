// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"

//! One stage of Khisti's tournament, run by one thread or by a team, in memory that the caller provides.
namespace espalier::detail {

// Khisti's truncated linear program as a maximum flow. Every pair of tokens has a mass, which at first belongs to its
// better token. A token that has more mass than the target wants gives mass of its pairs to tokens that have less,
// directly or through others, until no more can be moved: then as much of the target is covered as can be. The amount
// covered is unique, the shares are not: these are the shares that Edmonds and Karp's method finds with tokens in rank
// order.
class window_flow {
 public:
  static constexpr std::size_t max_size = 15;

  ESPALIER_HOST_DEVICE void resize(std::size_t size) {
    size_ = size;
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j)
        share_[i][j] = 0;
    }
  }
  ESPALIER_HOST_DEVICE std::size_t size() const { return size_; }
  // Sets the mass of the pair {i, j}, all of which belongs to i at first.
  ESPALIER_HOST_DEVICE void set_pair(std::size_t i, std::size_t j, double mass) { share_[i][j] = mass; }
  // Sets the mass that token i has at first, its pairs included, and the mass that the target wants of it.
  ESPALIER_HOST_DEVICE void set_mass(std::size_t i, double mass, double wanted) {
    surplus_[i] = mass - wanted;
    wanted_[i] = wanted;
  }

  // The mass of the pair {i, j} that belongs to i.
  ESPALIER_HOST_DEVICE double share(std::size_t i, std::size_t j) const { return share_[i][j]; }
  // The mass that token i has now, its pairs included.
  ESPALIER_HOST_DEVICE double mass(std::size_t i) const { return surplus_[i] + wanted_[i]; }

  // Moves all mass that can be moved, each time along a shortest path.
  ESPALIER_HOST_DEVICE void balance() {
    while (find_path())
      move_along_path();
  }

 private:
  static constexpr std::size_t unseen = max_size;
  static constexpr std::size_t source = max_size + 1;

  ESPALIER_HOST_DEVICE static double least(double x, double y) { return y < x ? y : x; }

  // Finds a shortest path from a token with a surplus to one that wants more, breadth first. False if there is none.
  ESPALIER_HOST_DEVICE bool find_path() {
    std::size_t queue[max_size];
    std::size_t end = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      from_[i] = surplus_[i] > 0 ? source : unseen;
      if (surplus_[i] > 0) queue[end++] = i;
    }
    for (std::size_t begin = 0; begin < end; ++begin) {
      const std::size_t i = queue[begin];
      for (std::size_t j = 0; j < size_; ++j) {
        if (from_[j] != unseen || !(share_[i][j] > 0)) continue;
        from_[j] = i;
        queue[end++] = j;
        if (surplus_[j] < 0) {
          goal_ = j;
          return true;
        }
      }
    }
    return false;
  }

  ESPALIER_HOST_DEVICE void move_along_path() {
    double moved = -surplus_[goal_];
    std::size_t first = goal_;
    for (; from_[first] != source; first = from_[first])
      moved = least(moved, share_[from_[first]][first]);
    moved = least(moved, surplus_[first]);
    for (std::size_t j = goal_; j != first; j = from_[j]) {
      share_[from_[j]][j] -= moved;
      share_[j][from_[j]] += moved;
    }
    surplus_[first] -= moved;
    surplus_[goal_] += moved;
  }

  std::size_t size_;
  double share_[max_size][max_size];
  double surplus_[max_size];
  double wanted_[max_size];
  std::size_t from_[max_size];
  std::size_t goal_;
};

// Sums of two distributions over the same tokens, in steps of 2^-60. These are whole numbers, so that many threads get
// the same sums as one.
struct pair_masses {
  unsigned long long a = 0;
  unsigned long long b = 0;

  template <class NumberT>
  ESPALIER_HOST_DEVICE static unsigned long long steps(NumberT x) {
    return static_cast<unsigned long long>(static_cast<long long>(static_cast<double>(x) * 0x1p60));
  }
  ESPALIER_HOST_DEVICE static double wide(unsigned long long steps) {
    return static_cast<double>(static_cast<long long>(steps)) * 0x1p-60;
  }
  ESPALIER_HOST_DEVICE pair_masses& operator+=(const pair_masses& other) {
    a += other.a;
    b += other.b;
    return *this;
  }
};

// The data that a stage keeps for each rank.
template <class NumberT, std::size_t ExactVocab>
struct pair_ranks {
  static constexpr std::int32_t mantissa_bits = 4;
  static constexpr std::size_t rounded = window_flow::max_size + (std::size_t{64} << mantissa_bits);
  static constexpr std::size_t most = rounded > ExactVocab ? rounded : ExactVocab;
  static constexpr std::size_t chunk = 32;  // ranks that one thread adds up

  struct factors {
    NumberT a, b;
  };

  double key[ExactVocab];  // by token: its key, if tokens are sorted
  pair_masses same[most];  // sums over the tokens of each rank
  pair_masses of_chunk[(most + chunk - 1) / chunk];
  factors times[most];  // factors of a and b in the distribution of the selected token
};

// The proportion in which a pair {x, y} selects x and y.
struct pair_shares {
  double x, y;
};

// The window of a stage, best token first.
struct pair_window {
  std::uint32_t token[window_flow::max_size];
  window_flow flow;

  // The shares of a pair of tokens with ranks i and j.
  ESPALIER_HOST_DEVICE pair_shares shares(std::size_t i, std::size_t j) const {
    if (i < flow.size() && j < flow.size()) return {flow.share(i, j), flow.share(j, i)};
    return {i <= j ? 1.0 : 0.0, j <= i ? 1.0 : 0.0};
  }
};

// The memory of a stage. All threads of a team see the same memory, except for the window: each block of threads has a
// window of its own, with the same contents.
template <class NumberT, std::size_t ExactVocab = 1024>
struct pair_select_memory {
  NumberT* distribution[2];  // [vocab] each: the distribution of the selected token, after odd and even stages
  std::uint16_t* rank;       // [vocab] rank of each token; smaller is better
  std::uint32_t* large;      // [vocab] the tokens whose keys are not small; the k-th of thread r of n is at k n + r
  pair_ranks<NumberT, ExactVocab>* ranks;
  pair_window* window;
};

// Selects one of two tokens that were drawn independently, one from the distribution a and one from b. The choice is
// made so that the distribution of the selected token comes as close to p as it can.
//
// Tokens are ranked by p - a b, the best first, ties by id. Of a pair the better token is selected. Only pairs of the
// best tokens, the window, are shared in proportions that a maximum flow finds, so that they cover as much of p as
// possible. The ranks and the shares decide how much of p is covered. The distribution of the selected token is known
// exactly whatever they are, and that makes the verifier lossless.
//
// So ranks may be rough if that is quicker. Up to ExactVocab tokens are sorted. More are ranked by the leading bits of
// their keys: keys nearer to 0 than about four times the average probability count as 0, and tokens of equal rank share
// a pair evenly. In both cases the distribution of the selected token, outside the window, is
//
//     a (worse_b + same_b / 2) + b (worse_a + same_a / 2)
//
// where worse_a and same_a are the sums of a over the tokens of worse rank and of the same rank.
template <class NumberT, std::size_t ExactVocab = 1024>
class pair_select_view {
  using ranks = pair_ranks<NumberT, ExactVocab>;

 public:
  using memory = pair_select_memory<NumberT, ExactVocab>;

  ESPALIER_HOST_DEVICE explicit pair_select_view(const memory& kept) : kept_(kept) {}

  // Writes the distribution of the selected token to memory.distribution[turn % 2], and returns it. All threads of the
  // team of b call this function and see the numbers that it writes.
  //
  // Complexity  one pass over p, a and b that writes the ranks, one over a and b, and one over these and the ranks that
  //             writes the distribution. Up to ExactVocab tokens are sorted as well: n log n comparisons of one thread,
  //             n n of a team. A team needs 8 barriers and two for each token of the window
  // Pre         a is not in the memory that is written
  template <class TargetRowT, class RowT>
  ESPALIER_HOST_DEVICE const NumberT* solve(const TargetRowT& p, const RowT& a, const RowT& b, std::int32_t window,
                                            std::int32_t turn) {
    const auto who = b.team();
    const bool is_sorted = p.size() <= ExactVocab;
    n_large_ = 0;
    sums<2> whole;
    if (is_sorted) {
      rank_exactly(who, p, a, b);
    } else {
      whole = who.sums_of(p.size(), a, b);  // and after it no thread still reads the ranks of the stage before
      rank_by_leading_bits(who, p, a, b);
      collect_large(who, p.size());
    }
    who.each(n_ranks_, [&](std::size_t rank) { kept_.ranks->same[rank] = {}; });
    const std::size_t n_window = take_window(who, static_cast<std::size_t>(window));
    who.sync();
    weigh_ranks(who, a, b, is_sorted ? nullptr : &whole);
    who.once([&] { share_window(p, a, b, n_window); });
    NumberT* const out = kept_.distribution[turn % 2];
    write_distribution(who, a, b, is_sorted, out);
    who.sync();
    for (std::size_t w = who.rank(); w < n_window; w += who.size())
      out[kept_.window->token[w]] = static_cast<NumberT>(kept_.window->flow.mass(w));
    who.sync();
    return out;
  }

  // The shares by which a pair of tokens x and y selects one of them.
  //
  // Pre         solve() was called, with this memory
  ESPALIER_HOST_DEVICE pair_shares shares(std::size_t x, std::size_t y) const {
    return kept_.window->shares(kept_.rank[x], kept_.rank[y]);
  }

 private:
  // Sets the rank of each token to its position among the sorted tokens. All tokens count as large.
  ESPALIER_EXEC_CHECK_DISABLE
  template <class TeamT, class TargetRowT, class RowT>
  ESPALIER_HOST_DEVICE void rank_exactly(const TeamT& who, const TargetRowT& p, const RowT& a, const RowT& b) {
    const std::size_t n = p.size();
    double* const key = kept_.ranks->key;
    const auto is_before = [key](std::size_t i, std::size_t j) {
      return key[i] > key[j] || (key[i] == key[j] && i < j);
    };
    who.each(n, [&](std::size_t i) {
      key[i] = static_cast<double>(p[i]) - static_cast<double>(a[i]) * static_cast<double>(b[i]);
    });
    who.sync();
    if constexpr (std::same_as<TeamT, alone>) {
      for (std::size_t i = 0; i < n; ++i)
        kept_.large[i] = static_cast<std::uint32_t>(i);
      std::sort(kept_.large, kept_.large + n, is_before);
      for (std::size_t i = 0; i < n; ++i)
        kept_.rank[kept_.large[i]] = static_cast<std::uint16_t>(i);
      n_large_ = n;
    } else {
      who.each(n, [&](std::size_t i) {
        std::size_t n_before = 0;
        for (std::size_t j = 0; j < n; ++j)
          n_before += is_before(j, i) ? 1 : 0;
        kept_.rank[i] = static_cast<std::uint16_t>(n_before);
        kept_.large[i] = static_cast<std::uint32_t>(i);
        ++n_large_;
      });
    }
    n_ranks_ = small_rank_ = n;
  }

  // Sets the ranks by leading bits. Ranks 0 to max_size - 1 are kept free for the window. Then come keys above 0, the
  // largest first; then all small keys, with one rank; then keys below 0, the most negative last.
  template <class TeamT, class TargetRowT, class RowT>
  ESPALIER_HOST_DEVICE void rank_by_leading_bits(const TeamT& who, const TargetRowT& p, const RowT& a, const RowT& b) {
    constexpr std::int32_t mantissa_bits = ranks::mantissa_bits;
    std::int32_t exponents = -2;
    for (std::size_t n = p.size(); n > 0 && exponents < 28; n /= 2)
      ++exponents;
    const std::int32_t codes = exponents << mantissa_bits;
    const std::int32_t smallest = (128 - exponents) << mantissa_bits;  // least value of the leading bits of a large key
    const std::int32_t small_rank = static_cast<std::int32_t>(window_flow::max_size) + codes;
    std::uint16_t* const ranked = kept_.rank;
    who.each(p.size(), [&](std::size_t i) {
      const auto key = static_cast<float>(p[i] - a[i] * b[i]);
      const auto magnitude = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, key) & 0x7fffffffU);
      const std::int32_t above = (magnitude >> (23 - mantissa_bits)) - smallest + 1;
      const std::int32_t code = above < 0 ? 0 : above > codes ? codes : above;
      ranked[i] = static_cast<std::uint16_t>(key > 0 ? small_rank - code : small_rank + code);
    });
    small_rank_ = static_cast<std::size_t>(small_rank);
    n_ranks_ = small_rank_ + static_cast<std::size_t>(codes) + 1;
  }

  // Collects the tokens whose keys are not small, by id. They are few: most stretches of the row have none.
  template <class TeamT>
  ESPALIER_HOST_DEVICE void collect_large(const TeamT& who, std::size_t vocab) {
    constexpr std::size_t stretch = std::same_as<TeamT, alone> ? 32 : 1;
    const auto passed_over = static_cast<std::uint16_t>(small_rank_);
    const std::uint16_t* const rank = kept_.rank;
    for (std::size_t begin = who.rank() * stretch; begin < vocab; begin += who.size() * stretch) {
      const std::size_t end = vocab - begin < stretch ? vocab : begin + stretch;
      std::uint16_t other = 0;
      for (std::size_t i = begin; i < end; ++i)
        other = static_cast<std::uint16_t>(other | (rank[i] ^ passed_over));
      for (std::size_t i = other != 0 ? begin : end; i < end; ++i) {
        kept_.large[n_large_ * who.size() + who.rank()] = static_cast<std::uint32_t>(i);
        n_large_ += rank[i] != passed_over ? 1 : 0;
      }
    }
  }

  // Calls f for each large token of this thread.
  template <class TeamT, class FunctionT>
  ESPALIER_HOST_DEVICE void each_large(const TeamT& who, const FunctionT& f) const {
    for (std::size_t k = 0; k < n_large_; ++k)
      f(kept_.large[k * who.size() + who.rank()]);
  }

  // Finds the best tokens with keys above the small ones, at most `size`, and gives them the ranks 0, 1, ... Returns
  // their number. Each thread finds its own best; then the best of all threads is taken again and again.
  template <class TeamT>
  ESPALIER_HOST_DEVICE std::size_t take_window(const TeamT& who, std::size_t size) {
    using number = unsigned long long;  // a rank, and a token's id in the lower bits
    constexpr number none = ~number{0};
    number own[window_flow::max_size] = {};
    std::size_t n_own = 0;
    number last = size > 0 ? number{small_rank_} << 32 : 0;
    each_large(who, [&](std::uint32_t i) {
      const number token = number{kept_.rank[i]} << 32 | i;
      if (token >= last) return;
      std::size_t at = n_own < size ? n_own++ : size - 1;
      for (; at > 0 && own[at - 1] > token; --at)
        own[at] = own[at - 1];
      own[at] = token;
      if (n_own == size) last = own[size - 1];
    });
    std::size_t n = 0, next = 0;
    for (; n < size; ++n) {
      const number mine = next < n_own ? own[next] : none;
      const number best = who.reduce(mine, [](number x, number y) { return y < x ? y : x; });
      if (best == none) break;
      const auto token = static_cast<std::uint32_t>(best);
      who.once([&] { kept_.window->token[n] = token; });
      if (mine != best) continue;
      kept_.rank[token] = static_cast<std::uint16_t>(n);
      ++next;
    }
    return n;
  }

  // Computes for each rank the factors of a and of b in the distribution of the selected token: worse_b + same_b / 2,
  // worse_a + same_a / 2. `whole` has the sums of a and b; null if there are no small tokens.
  template <class TeamT, class RowT>
  ESPALIER_HOST_DEVICE void weigh_ranks(const TeamT& who, const RowT& a, const RowT& b, const sums<2>* whole) {
    constexpr std::size_t chunk = ranks::chunk;
    ranks& of = *kept_.ranks;
    each_large(who, [&](std::uint32_t i) {
      pair_masses& same = of.same[kept_.rank[i]];
      who.add(same.a, pair_masses::steps(a[i]));
      who.add(same.b, pair_masses::steps(b[i]));
    });
    who.sync();
    const std::size_t n_chunks = (n_ranks_ + chunk - 1) / chunk;
    const auto end_of = [&](std::size_t c) { return n_ranks_ - c * chunk < chunk ? n_ranks_ : (c + 1) * chunk; };
    for (std::size_t c = who.rank(); c < n_chunks; c += who.size()) {
      pair_masses all;
      for (std::size_t rank = c * chunk; rank < end_of(c); ++rank)
        all += of.same[rank];
      of.of_chunk[c] = all;
    }
    who.sync();
    for (std::size_t c = who.rank(); c < n_chunks; c += who.size()) {
      pair_masses large, worse, of_small;
      for (std::size_t k = 0; k < n_chunks; ++k) {
        large += of.of_chunk[k];
        if (k > c) worse += of.of_chunk[k];
      }
      if (whole != nullptr) of_small = {steps_left(whole->of[0], large.a), steps_left(whole->of[1], large.b)};
      if (small_rank_ >= end_of(c)) worse += of_small;
      for (std::size_t rank = end_of(c); rank-- > c * chunk;) {
        const pair_masses same = rank == small_rank_ ? of_small : of.same[rank];
        of.times[rank] = {static_cast<NumberT>(pair_masses::wide(2 * worse.b + same.b) / 2),
                          static_cast<NumberT>(pair_masses::wide(2 * worse.a + same.a) / 2)};
        worse += same;
      }
    }
    who.sync();
  }

  ESPALIER_HOST_DEVICE static unsigned long long steps_left(double whole, unsigned long long large) {
    const double left = whole - pair_masses::wide(large);
    return left > 0 ? pair_masses::steps(left) : 0;
  }

  template <class TargetRowT, class RowT>
  ESPALIER_HOST_DEVICE void share_window(const TargetRowT& p, const RowT& a, const RowT& b, std::size_t n) {
    pair_window& window = *kept_.window;
    const auto mass = [&](std::size_t i, std::size_t j) {
      return static_cast<double>(a[window.token[i]]) * static_cast<double>(b[window.token[j]]);
    };
    window.flow.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t t = window.token[i];
      const auto times = kept_.ranks->times[i];
      window.flow.set_mass(i,
                           static_cast<double>(a[t]) * static_cast<double>(times.a) +
                               static_cast<double>(b[t]) * static_cast<double>(times.b),
                           static_cast<double>(p[t]));
      for (std::size_t j = i + 1; j < n; ++j)
        window.flow.set_pair(i, j, mass(i, j) + mass(j, i));
    }
    window.flow.balance();
  }

  // Writes the distribution of the selected token. solve() corrects the tokens of the window afterwards.
  template <class TeamT, class RowT>
  ESPALIER_HOST_DEVICE void write_distribution(const TeamT& who, const RowT& a, const RowT& b, bool is_sorted,
                                               NumberT* out) const {
    if (!is_sorted) {
      const auto times = kept_.ranks->times[small_rank_];
      who.each(a.size(), [&](std::size_t i) { out[i] = a[i] * times.a + b[i] * times.b; });
    }
    each_large(who, [&](std::uint32_t i) {
      const auto times = kept_.ranks->times[kept_.rank[i]];
      out[i] = a[i] * times.a + b[i] * times.b;
    });
  }

  memory kept_;
  std::size_t n_ranks_ = 0;
  std::size_t small_rank_ = 0;
  std::size_t n_large_ = 0;  // number of large tokens of this thread
};

}  // namespace espalier::detail
