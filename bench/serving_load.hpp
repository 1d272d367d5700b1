// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "espalier/core/sampling_options.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/round.hpp"

namespace bench {

//! A text that a client asks for.
struct asked_text {
  std::vector<espalier::token_id> prompt;
  int max_tokens = 64;
  double arrival = 0;  //!< in seconds after the beginning
};

//! The results of serving a list of texts.
struct served_load {
  double seconds = 0;       //!< for texts that arrive all at once: as long as all places are in use
  std::int64_t tokens = 0;  //!< tokens committed in that time
  std::int64_t steps = 0;
  std::int64_t rounds = 0;  //!< sum over all texts
  std::int64_t drafted = 0;
  std::int64_t draft_passes = 0;
  std::int64_t target_rows = 0;
  double forward = 0;         //!< seconds of the passes of both models
  std::vector<double> first;  //!< for each text whose first token was written: seconds from its arrival to that token
  std::vector<double> each;   //!< for each text that ended: seconds a token after the first

  double rate() const { return static_cast<double>(tokens) / seconds; }
  double overhead() const { return 1 - forward / seconds; }
};

//! Serves texts as they arrive, with a batch_decoder of the host or the device.
template <class DecoderT>
served_load serve(DecoderT& decode, const std::vector<asked_text>& asked, const espalier::sampling_options& sampling) {
  using clock = std::chrono::steady_clock;
  struct progress {
    std::size_t text;
    double first = -1;
    int n_first = 0, n = 0;
  };
  std::map<espalier::text_id, progress> texts;
  served_load load;
  std::size_t next = 0;
  const bool at_once = asked.empty() || asked.back().arrival == 0;
  const auto start = clock::now();
  const auto now = [&] { return std::chrono::duration<double>(clock::now() - start).count(); };
  while (next < asked.size() || !decode.idle()) {
    for (; next < asked.size() && asked[next].arrival <= now(); ++next) {
      const auto id = decode.add(asked[next].prompt, {.max_tokens = asked[next].max_tokens},
                                 {.sampling = sampling, .seed = 1, .stream = static_cast<std::uint32_t>(next)});
      texts[id] = {.text = next};
    }
    if (decode.idle()) {
      std::this_thread::sleep_for(std::chrono::duration<double>(asked[next].arrival - now()));
      continue;
    }
    const auto events = decode.step();
    const double t = now();
    // When places stay free, fewer texts are written at once, so the time ends here.
    const bool counts = !at_once || decode.n_waiting() > 0 || load.seconds == 0;
    for (const espalier::text_event& e : events) {
      if (e.error) std::rethrow_exception(e.error);
      progress& p = texts.at(e.id);
      const int committed = static_cast<int>(e.round.committed.size());
      if (p.first < 0 && committed > 0) {
        p.first = t, p.n_first = committed;
        load.first.push_back(t - asked[p.text].arrival);
      }
      p.n += committed;
      if (e.round.state == espalier::status::running) continue;
      if (p.n > p.n_first) load.each.push_back((t - p.first) / (p.n - p.n_first));
      texts.erase(e.id);
    }
    if (!counts) {
      if (at_once) break;
      continue;
    }
    const espalier::step_record& r = decode.last_step();
    load.seconds = t;
    load.tokens += r.committed, load.rounds += r.rounds, ++load.steps;
    load.drafted += r.drafted, load.draft_passes += r.draft_passes, load.target_rows += r.target_rows;
    load.forward += r.seconds.draft_forward + r.seconds.target_forward;
  }
  return load;
}

}  // namespace bench
