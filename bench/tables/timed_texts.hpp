// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/decoder/statistics.hpp"
#include "interval.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"

namespace bench {

//! The run of median duration.
inline espalier::statistics median_run(std::vector<espalier::statistics> runs) {
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>((runs.size() - 1) / 2);
  std::nth_element(runs.begin(), middle, runs.end(),
                   [](const auto& a, const auto& b) { return a.seconds.total() < b.seconds.total(); });
  return *middle;
}

//! The statistics of several methods after the same prompts.
class timed_texts {
 public:
  //! Measures the methods in turns, prompt by prompt, so that a disturbance of the machine slows all alike; of several
  //! runs the one of median duration counts. write(method, domain, prompt) returns statistics
  template <class WriteT>
  timed_texts(std::size_t n_methods, const std::vector<prompt_domain>& domains, int repeats, const char* what,
              const WriteT& write)
      : runs_(n_methods, std::vector<std::vector<espalier::statistics>>(domains.size())) {
    for (std::size_t d = 0; d < domains.size(); ++d) {
      n_prompts_.push_back(domains[d].prompts.size());
      for (std::size_t p = 0; p < domains[d].prompts.size(); ++p) {
        progress(fmt::format("{}: {}, prompt {} of {}", what, domains[d].name, p + 1, domains[d].prompts.size()));
        std::vector<std::vector<espalier::statistics>> runs(n_methods);
        for (int repeat = 0; repeat < repeats; ++repeat) {
          for (std::size_t m = 0; m < n_methods; ++m)
            runs[m].push_back(write(m, d, p));
        }
        for (std::size_t m = 0; m < n_methods; ++m)
          runs_[m][d].push_back(median_run(std::move(runs[m])));
      }
    }
    progress("");
  }

  const espalier::statistics& at(std::size_t method, std::size_t domain, std::size_t prompt) const {
    return runs_[method][domain][prompt];
  }

  //! Intervals over the prompts of each domain, and last the interval of the domains' mean. The number of a prompt is
  //! figure(statistics, domain, prompt).
  template <class FigureT>
  std::vector<interval> by_domain(std::size_t method, const FigureT& figure) const {
    return intervals_by_domain(n_prompts_,
                               [&](std::size_t d, std::size_t p) { return figure(runs_[method][d][p], d, p); });
  }

  //! The speeds relative to another method, prompt by prompt.
  std::vector<interval> speedups(std::size_t method, std::size_t baseline) const {
    return by_domain(method, [&](const espalier::statistics& s, std::size_t d, std::size_t p) {
      return s.speedup(at(baseline, d, p));
    });
  }

  std::vector<interval> tokens_per_round(std::size_t method) const {
    return by_domain(method, [](const espalier::statistics& s, auto, auto) { return s.tokens_per_round(); });
  }

  //! Sums over the prompts of a domain.
  espalier::statistics total(std::size_t method, std::size_t domain) const {
    espalier::statistics sum;
    for (const espalier::statistics& s : runs_[method][domain])
      sum += s;
    return sum;
  }

  //! Sums over all prompts.
  espalier::statistics total(std::size_t method) const {
    espalier::statistics sum;
    for (std::size_t d = 0; d < n_prompts_.size(); ++d)
      sum += total(method, d);
    return sum;
  }

 private:
  std::vector<std::vector<std::vector<espalier::statistics>>> runs_;  // [methods][domains][prompts]
  std::vector<std::size_t> n_prompts_;
};

}  // namespace bench
