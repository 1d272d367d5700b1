// SPDX-License-Identifier: BSL-1.0
// Prints docs/pairs.md: which verifier is lossless with which policy, as the registry has it.
#include <boost/hana/for_each.hpp>
#include <cstdio>
#include <string>
#include <string_view>

#include "espalier/concepts/regime.hpp"
#include "espalier/registry.hpp"

namespace {

using espalier::regime;

struct named_regime {
  regime value;
  const char* name;
  const char* meaning;
};
constexpr named_regime regimes[] = {
    {regime::deterministic, "deterministic", "children are chosen, as the most probable tokens; chance has no part"},
    {regime::iid, "independent", "children are drawn independently from one row, so that tokens may repeat"},
    {regime::without_replacement, "without replacement", "each child is drawn from what the earlier ones left"},
    {regime::single_path, "one path", "one draw a node"},
};

// Lines of at most 100 columns, broken at spaces.
void print_wrapped(std::string_view text, std::string_view indent) {
  constexpr std::size_t width = 100;
  std::string line;
  while (!text.empty()) {
    const std::size_t end = text.find(' ');
    const std::string_view word = text.substr(0, end);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      std::printf("%s\n", line.c_str());
      line = indent;
    } else if (!line.empty()) {
      line += ' ';
    }
    line += word;
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  std::printf("%s\n", line.c_str());
}

void append(std::string& list, std::string_view word) {
  list += list.empty() ? "" : ", ";
  list += word;
}

std::string names_of(regime set) {
  if (set == regime::any) return "every one";
  std::string names;
  for (const named_regime& r : regimes) {
    if (compatible(r.value, set)) append(names, r.name);
  }
  return names;
}

void print_policies() {
  std::printf("\n## Policies\n\n| policy | regime of its trees | what it drafts |\n|---|---|---|\n");
  boost::hana::for_each(espalier::tree_policies, []<class PolicyT>(const PolicyT& policy) {
    std::printf("| %s | %s | %s |\n", policy.name.data(), names_of(PolicyT::type::sampling).c_str(),
                policy.summary.data());
  });
}

void print_verifiers() {
  std::printf("\n## Verifiers\n\n| lossless for");
  for (const named_regime& r : regimes)
    std::printf(" | %s", r.name);
  std::printf(" |\n|---|:-:|:-:|:-:|:-:|\n");
  boost::hana::for_each(espalier::verifiers, []<class VerifierT>(const VerifierT& verifier) {
    std::printf("| %s", verifier.name.data());
    for (const named_regime& r : regimes)
      std::printf(" | %s", compatible(r.value, VerifierT::type::lossless) ? "yes" : "-");
    std::printf(" |\n");
  });
}

void print_pairs() {
  int n = 0, n_all = 0;
  boost::hana::for_each(espalier::verifiers, [&](const auto&) {
    boost::hana::for_each(espalier::tree_policies, [&](const auto&) { ++n_all; });
  });
  espalier::for_each_compatible_pair([&](const auto&, const auto&) { ++n; });
  std::printf("\n## Pairs\n\nOf %d pairs %d are lossless and compile. By verifier:\n\n", n_all, n);
  boost::hana::for_each(espalier::verifiers, []<class VerifierT>(const VerifierT& verifier) {
    std::string with;
    boost::hana::for_each(espalier::tree_policies, [&]<class PolicyT>(const PolicyT& policy) {
      if (compatible(PolicyT::type::sampling, VerifierT::type::lossless)) append(with, policy.name);
    });
    if (VerifierT::type::lossless == regime::any) with = "every policy";
    const char* note = espalier::ArgmaxVerifier<typename VerifierT::type> ? ", at temperature 0 only" : "";
    print_wrapped("- **" + std::string(verifier.name) + "** (" + std::string(verifier.summary) + note + "): " + with,
                  "  ");
  });
}

}  // namespace

int main() {
  std::printf("# Policies, regimes and verifiers\n\n");
  print_wrapped(
      "This page is made by docs/pairs.cpp from the registry; a test compares the two. To make it anew: "
      "`build/docs/pairs > docs/pairs.md`.",
      "");
  std::printf("\n");
  print_wrapped(
      "A *regime* says how the children of a node came about. A policy names every regime that all of its "
      "trees belong to, a verifier every regime for which its output is distributed as the target's. "
      "They fit if they share one; other pairs do not compile.",
      "");
  std::printf("\n| regime | how the children of a node came about |\n|---|---|\n");
  for (const named_regime& r : regimes)
    std::printf("| %s | %s |\n", r.name, r.meaning);
  print_policies();
  print_verifiers();
  print_pairs();
  return 0;
}
