// SPDX-License-Identifier: BSL-1.0
#include "metrics.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace serve {

namespace {

void write_head(std::string& text, const std::string& name, const char* type, const std::string& help) {
  text += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

void write_one(std::string& text, const std::string& name, const char* type, const std::string& help,
               std::int64_t value) {
  write_head(text, name, type, help);
  text += fmt::format("{} {}\n", name, value);
}

}  // namespace

void histogram::add(double seconds, std::int64_t times) {
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), seconds);
  counts_[static_cast<std::size_t>(bound - bounds.begin())] += times;
  sum_ += seconds * static_cast<double>(times);
}

void histogram::write(std::string& text, const std::string& name, const std::string& help) const {
  write_head(text, name, "histogram", help);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    count += counts_[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds[i], count);
  }
  count += counts_.back();
  text += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count, sum_);
}

void metrics::count_request(const std::string& outcome) {
  const std::lock_guard lock(mutex_);
  ++requests_[outcome];
}

void metrics::count_read(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  read_ += tokens;
}

void metrics::count_round(const round& r) {
  const std::lock_guard lock(mutex_);
  ++rounds_;
  ++limited_by_[static_cast<std::size_t>(r.limited_by)];
  written_ += r.tokens;
  drafted_ += r.drafted;
  accepted_ += r.accepted;
  drafts_ += r.drafted > 0 ? 1 : 0;
  if (r.accepted > static_cast<std::int64_t>(accepted_at_.size()))
    accepted_at_.resize(static_cast<std::size_t>(r.accepted));
  for (std::int64_t i = 0; i < r.accepted; ++i)
    ++accepted_at_[static_cast<std::size_t>(i)];
  if (r.is_first) {
    first_token_.add(r.seconds);
  } else if (r.tokens > 0) {
    each_token_.add(r.seconds / static_cast<double>(r.tokens), r.tokens);
  }
}

void metrics::set(const gauges& now) {
  const std::lock_guard lock(mutex_);
  now_ = now;
}

std::string metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  write_head(text, "espalier_requests_total", "counter", "Requests for text that have ended, by how.");
  for (const auto& [outcome, count] : requests_)
    text += fmt::format("espalier_requests_total{{outcome=\"{}\"}} {}\n", outcome, count);
  write_one(text, "espalier_texts_running", "gauge", "Texts that are being written.", now_.running);
  write_one(text, "espalier_texts_waiting", "gauge", "Texts that wait for a place.", now_.waiting);
  write_one(text, "espalier_tokens_written_total", "counter", "Tokens written.", written_);
  write_one(text, "espalier_tokens_read_total", "counter", "Tokens of prompts.", read_);
  write_one(text, "espalier_rounds_total", "counter", "Rounds of texts: each a tree and its verdict.", rounds_);
  write_head(text, "espalier_rounds_limited_total", "counter", "Rounds of texts, by why the tree has no more nodes.");
  for (std::size_t i = 1; i < limited_by_.size(); ++i)
    text += fmt::format("espalier_rounds_limited_total{{by=\"{}\"}} {}\n",
                        espalier::to_string(static_cast<espalier::tree_limit>(i)), limited_by_[i]);
  write_one(text, "espalier_tokens_drafted_total", "counter", "Tokens drafted.", drafted_);
  write_one(text, "espalier_tokens_accepted_total", "counter", "Drafted tokens that were accepted.", accepted_);
  // Dashboards and benchmarks of vLLM read drafting by these names.
  write_one(text, "vllm:spec_decode_num_drafts_total", "counter", "Rounds of texts that drafted.", drafts_);
  write_one(text, "vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", drafted_);
  write_one(text, "vllm:spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were accepted.",
            accepted_);
  write_head(text, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
             "Drafted tokens that were accepted, by their place on the path.");
  for (std::size_t i = 0; i < accepted_at_.size(); ++i)
    text +=
        fmt::format("vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"{}\"}} {}\n", i, accepted_at_[i]);
  write_one(text, "espalier_cache_pages", "gauge", "Pages of the target's cache.", now_.pages);
  write_one(text, "espalier_cache_pages_used", "gauge", "Pages of the target's cache that hold text.", now_.pages_used);
  first_token_.write(text, "espalier_time_to_first_token_seconds", "From a request to the first tokens of its text.");
  each_token_.write(text, "espalier_time_per_token_seconds", "Between tokens of a text after the first ones.");
  return text;
}

}  // namespace serve
