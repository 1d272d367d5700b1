// SPDX-License-Identifier: BSL-1.0
// Rows and trees that do not fit: a clear error, never a hang, never a wrong distribution.
#include <boost/hana/for_each.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/script_chance.hpp"
#include "raises.hpp"
#include "verifier/scene.hpp"

using namespace espalier;
namespace hana = boost::hana;

namespace {

// Calls f(part) for each verifier that reads rows of the draft.
template <class FunctionT>
int for_each_reader(const FunctionT& f) {
  int n = 0;
  hana::for_each(verifiers, [&](const auto& part) {
    using verifier_type = typename std::decay_t<decltype(part)>::type;
    if constexpr (verifier_type::lossless != regime::any) {
      INFO(part.name);
      f(part);
      ++n;
    }
  });
  return n;
}

}  // namespace

TEST_CASE("rows that are no distributions are an error that names row and reason") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int n = for_each_reader([&](const auto& part) {
    scene fair;
    CHECK_NOTHROW(verify(part, fair));
    for (const bool of_target : {false, true}) {
      const std::string whose = of_target ? "target" : "draft";
      const auto change = [&](std::vector<double> row) {
        scene s;
        (of_target ? s.p : s.q).rows[0] = std::move(row);
        return s;
      };
      scene s = change({0.25, 0.25, 0.25, 0.2});
      CHECK(says(message_of<numeric_error>([&] { verify(part, s); }), whose, "after node 0", "add up to 0.95"));
      s = change({0.5, 0.75, -0.25, 0.0});
      CHECK(says(message_of<numeric_error>([&] { verify(part, s); }), whose, "token 2 after node 0", "-0.25"));
      s = change({0.5, 0.25, nan, 0.25});
      CHECK(says(message_of<numeric_error>([&] { verify(part, s); }), whose, "token 2 after node 0", "nan"));
      s = change({0.25, 0.25, 0.25, std::numeric_limits<double>::infinity()});
      CHECK(says(message_of<numeric_error>([&] { verify(part, s); }), whose, "add up to inf"));
      s = change({0.5, 0.5, 0.25, 0});
      CHECK(says(message_of<numeric_error>([&] { verify(part, s); }), whose, "add up to 1.25"));
      s = change({0.25, 0.25, 0.25, 0.24});
      CHECK(says(message_of<numeric_error>([&] { verify(part, s); }), whose, "add up to 0.99"));
      s = change({0, 0, 0, 0});
      CHECK(says(message_of<numeric_error>([&] { verify(part, s); }), whose, "add up to 0, "));
    }
  });
  CHECK(n >= 7);
}

TEST_CASE("a tree that its rows could not have given is an error") {
  for_each_reader([&](const auto& part) {
    scene s;
    s.q.rows[0] = {0.5, 0, 0.5, 0};
    CHECK(says(message_of<input_error>([&] { verify(part, s); }), "node 1", "token 1", "probability 0"));
    s = scene();
    s.q.rows[0].clear();
    CHECK(says(message_of<input_error>([&] { verify(part, s); }), "node 0", "no row"));
    s = scene();
    s.q.rows[0] = {0.5, 0.5};
    CHECK(says(message_of<input_error>([&] { verify(part, s); }), "after node 0", "2 tokens", "4"));
    s = scene();
    s.drawn.reset(0);
    s.drawn.draw(0, 7, 0);
    CHECK(says(message_of<input_error>([&] { verify(part, s); }), "node 1", "token 7", "vocabulary ends at 3"));
    s.drawn.reset(0);
    s.drawn.draw(0, -1, 0);
    CHECK(says(message_of<input_error>([&] { verify(part, s); }), "node 1", "token -1"));
  });
}

TEST_CASE("a later draw that is no token is an error, not a read beyond the row") {
  hana::for_each(verifiers, [&](const auto& part) {
    using verifier_type = typename std::decay_t<decltype(part)>::type;
    if constexpr (compatible(regime::without_replacement, verifier_type::lossless) &&
                  verifier_type::lossless != regime::any) {
      INFO(part.name);
      for (const token_id bad : {4, 1000000, -1}) {
        scene s;
        s.drawn = tree<>(3);
        s.drawn.reset(0);
        for (const token_id t : {1, 2, bad})
          s.drawn.draw(0, t, 0);
        s.p.rows.assign(4, {1, 0, 0, 0});
        s.q.rows.assign(4, std::vector<double>(4, 0.25));
        const std::string message = message_of<input_error>([&] { verify(part, s); });
        CHECK(says(message, "node 3", "vocabulary ends at 3"));
      }
    }
  });
}

TEST_CASE("where rounding rejects although nothing is left, the token comes from the target") {
  const std::vector<double> all_but_one(64, 1 - 0x1.0p-53);
  for_each_reader([&](const auto& part) {
    scene s;
    // The draft's share is the least bit larger where it drew, and nowhere is the target's.
    s.q.rows[0][1] = s.q.rows[1][2] = 0.25 + 0x1.0p-50;
    script_chance chance(all_but_one);
    auto verifier = part.make();
    const verdict v = verifier.verify(s.drawn, s.q, s.p, chance);
    INFO(part.name);
    CHECK(v.token >= 0);
    CHECK(v.token < 4);
    CHECK(v.accepted == root_node);
  });
}

TEST_CASE("rows without choice are no error") {
  for_each_reader([&](const auto& part) {
    // A target of one token, drafted or not; a vocabulary of one token.
    scene s;
    for (auto& row : s.p.rows)
      row = {0, 0, 1, 0};
    for (std::uint64_t seed = 0; seed < 50; ++seed)
      CHECK(verify(part, s, seed) == verdict{0, 2});
    s = scene();
    s.p.rows = {{0, 1, 0, 0}, {0, 0, 1, 0}, {1, 0, 0, 0}};
    for (std::uint64_t seed = 0; seed < 50; ++seed)
      CHECK(verify(part, s, seed) == verdict{2, 0});
    scene single;
    single.drawn.reset(0);
    single.drawn.draw(single.drawn.draw(0, 0, 0), 0, 0);
    single.p.rows = single.q.rows = {{1}, {1}, {1}};
    CHECK(verify(part, single) == verdict{2, 0});
    // Rounding: p and q differ in the last bit alone, so that hardly anything is left where a draw fails.
    s = scene();
    s.q.rows[0][1] = s.q.rows[1][2] = std::nextafter(0.25, 1);
    for (std::uint64_t seed = 0; seed < 50; ++seed)
      CHECK_NOTHROW(verify(part, s, seed));
  });
}
