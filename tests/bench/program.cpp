// SPDX-License-Identifier: BSL-1.0
// The arguments that all benchmarks read alike.
#include "../bench/program.hpp"

#include <string>
#include <vector>

#include "catch.hpp"

namespace {

struct settings {
  std::string name = "x";
  int rounds = 3;
  bool quick = false;
  std::vector<std::string> domains{};
  std::vector<int> budgets{8, 32};
};

// Status 1 is that of the work: the arguments were read.
int read(settings& s, std::vector<std::string> arguments) {
  bench::program program("test", "A test.");
  program.add("--name", s.name, "a name");
  program.add("--rounds", s.rounds, "rounds", 2, 10);
  program.add("--quick", s.quick, "quick");
  program.add("--domains", s.domains, "domains");
  program.add("--budgets", s.budgets, "budgets", 1, 64);
  arguments.insert(arguments.begin(), "test");
  std::vector<char*> argv;
  for (std::string& argument : arguments)
    argv.push_back(argument.data());
  return program.run(static_cast<int>(argv.size()), argv.data(), [] { return 1; });
}

}  // namespace

TEST_CASE("a benchmark's arguments are read into the values that they name", "[program]") {
  settings s;
  CHECK(read(s, {}) == 1);
  CHECK(s.name == "x");
  CHECK(s.budgets == std::vector<int>{8, 32});
  CHECK(read(s, {"--name", "--a b", "--rounds", "10", "--quick", "--domains", "one,two", "--budgets", "64"}) == 1);
  CHECK(s.name == "--a b");
  CHECK(s.rounds == 10);
  CHECK(s.quick);
  CHECK(s.domains == std::vector<std::string>{"one", "two"});
  CHECK(s.budgets == std::vector<int>{64});
}

TEST_CASE("help does no work, and what cannot be used is refused with status 2", "[program]") {
  settings s;
  CHECK(read(s, {"--quick", "--help"}) == 0);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{{"--nonsense"},
                                                                                         {"stray"},
                                                                                         {"--name"},
                                                                                         {"--rounds", "1"},
                                                                                         {"--rounds", "11"},
                                                                                         {"--rounds", "3x"},
                                                                                         {"--rounds", ""},
                                                                                         {"--rounds", "99999999999"},
                                                                                         {"--budgets", "1,,2"},
                                                                                         {"--budgets", "65"}})
    CHECK(read(s, arguments) == 2);
  CHECK(s.rounds == 3);
}
