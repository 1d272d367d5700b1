// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "espalier/core/tree_limit.hpp"

namespace serve {

//! The numbers of times that a duration lay below each of some bounds.
class histogram {
 public:
  //! Upper bounds in seconds.
  static constexpr std::array bounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                     0.25,  0.5,    1.0,   2.5,  5.0,   10.0, 30.0};

  //! Adds a duration `times` times.
  void add(double seconds, std::int64_t times = 1);
  void write(std::string& text, const std::string& name, const std::string& help) const;

 private:
  std::array<std::int64_t, bounds.size() + 1> counts_{};  // the last one counts durations beyond all bounds
  double sum_ = 0;
};

//! The counters of the server. Every function may be called from any thread.
class metrics {
 public:
  //! The present state of the server.
  struct gauges {
    std::int64_t running = 0;
    std::int64_t waiting = 0;
    std::int64_t pages = 0;  //!< pages of the target's cache
    std::int64_t pages_used = 0;
  };

  //! The result of one round of a text.
  struct round {
    std::int64_t tokens = 0;
    std::int64_t drafted = 0;
    std::int64_t accepted = 0;
    double seconds = 0;  //!< since the text's last tokens, or since it was asked for
    bool is_first = false;
    espalier::tree_limit limited_by = espalier::tree_limit::none;
  };

  //! Counts a request that has ended: ok, invalid, unauthorized, refused, cancelled or failed.
  void count_request(const std::string& outcome);
  void count_read(std::int64_t tokens);
  void count_round(const round& r);
  void set(const gauges& now);

  //! Returns all counters in Prometheus' text format. Those of drafting stand there a second time under vLLM's names.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::int64_t> requests_{{"ok", 0},      {"invalid", 0},   {"unauthorized", 0},
                                                {"refused", 0}, {"cancelled", 0}, {"failed", 0}};
  gauges now_;
  std::int64_t read_ = 0, written_ = 0, rounds_ = 0, drafted_ = 0, accepted_ = 0;
  std::int64_t drafts_ = 0;                // rounds in which something was drafted
  std::vector<std::int64_t> accepted_at_;  // [depth - 1] rounds that accepted a token at this depth
  std::array<std::int64_t, espalier::n_tree_limits> limited_by_{};
  histogram first_token_, each_token_;
};

}  // namespace serve
