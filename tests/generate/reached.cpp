// SPDX-License-Identifier: BSL-1.0
// Which parts of the library the program reaches: every policy and every verifier. A header that is added to a folder
// of drafters, stores, processors or constraints must be reached, or be named here with the reason.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "catch.hpp"
#include "program.hpp"

namespace {

// The names in the help of parts that it does not call by their headers' names.
const std::map<std::string, std::string> called = {{"constraint/regular_expression", "--regex"},
                                                   {"drafter/autoregressive", "model"},
                                                   {"drafter/block_diffusion", "block"},
                                                   {"drafter/factorised", "block"},
                                                   {"drafter/feature_steps", "eagle3"},
                                                   {"drafter/joint", "--text-method"},
                                                   {"drafter/no_drafter", "plain"},
                                                   {"drafter/recut", "--translation"},
                                                   {"drafter/text_counts", "text"},
                                                   {"drafter/translated", "--translation"},
                                                   {"kv_store/recurrent", "--commit"},
                                                   {"kv_store/sink_window", "--self.window"},
                                                   {"processor/constrained", "--regex"},
                                                   {"tree_policy/cascade", "--text-method"},
                                                   {"verifier/approximate", "approximate-typical"}};

// Parts that no option reaches, and why.
const std::map<std::string, std::string> unreached = {
    {"drafter/ngram", "text_counts counts as it does and gives trees; embedded programs have this one"},
    {"drafter/prompt_lookup", "--drafter text is text_counts on the host, and this one's device form on the device"},
    {"kv_store/contiguous", "recurrent_kv is one with the states of recurrent layers; the device has this one's form"},
    {"kv_store/paged", "it writes one text at a time: serve has it"},
    {"kv_store/prefix_tree", "it writes one text at a time: serve has it, in the paged store"},
    {"kv_store/token_kv", "it is for models without memory"},
    {"processor/banned_sequences", "requests to serve have it"},
    {"processor/forced_tokens", "a program that forces tokens knows them one by one; a regular expression does here"},
    {"processor/logit_bias", "requests to serve have it"},
    {"processor/minimum_length", "requests to serve have it"},
    {"processor/penalties", "requests to serve have it"},
    {"processor/processors", "it has one processor at a time; requests to serve have several"}};

// Headers that hold no part of their own.
const std::set<std::string> no_parts = {
    "constraint/token_automaton", "constraint/vocabulary_trie", "kv_store/page_ledger",  "kv_store/recurrent_shape",
    "kv_store/saved_sequence",    "kv_store/slot_ledger",       "kv_store/token_ledger", "tree_policy/any_policy"};

}  // namespace

TEST_CASE("the program reaches every policy, verifier, drafter, store, processor and constraint, or a reason is given",
          "[generate]") {
  const std::string help = run("--help").out;
  REQUIRE(contains(help, "--method NAME"));
  int reached = 0;
  std::set<std::string> seen;
  for (const std::string folder : {"constraint", "drafter", "kv_store", "processor", "tree_policy", "verifier"}) {
    for (const auto& file : std::filesystem::directory_iterator(LIBRARY_HEADERS "/" + folder)) {
      if (file.path().extension() != ".hpp") continue;
      const std::string part = folder + "/" + file.path().stem().string();
      seen.insert(part);
      if (no_parts.count(part) != 0) continue;
      std::string name = file.path().stem().string();
      std::replace(name.begin(), name.end(), '_', '-');
      if (called.count(part) != 0) name = called.at(part);
      const bool is_named = contains(help, "  " + name + " ") || contains(help, "  " + name + "\n");
      INFO(part << ", called " << name);
      CHECK(is_named == (unreached.count(part) == 0));
      if (folder == "tree_policy" || folder == "verifier") CHECK(is_named);
      reached += is_named ? 1 : 0;
    }
  }
  for (const auto& [part, reason] : unreached) {
    INFO(part);
    CHECK(seen.count(part) == 1);
    std::cout << "not reached: " << part << ", since " << reason << "\n";
  }
  for (const auto& [part, name] : called)
    CHECK(seen.count(part) == 1);
  for (const std::string& part : no_parts)
    CHECK(seen.count(part) == 1);
  std::cout << reached << " of " << reached + static_cast<int>(unreached.size())
            << " parts reached, among them every policy and verifier\n";
  CHECK(reached > 30);
}
