// SPDX-License-Identifier: BSL-1.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../models/model_set.hpp"
#include "arguments.hpp"
#include "espalier/core/error.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"
#include "sampling_setting.hpp"
#include "text_tasks.hpp"

namespace nde {

namespace {

using tokens = std::vector<espalier::token_id>;

// A file of texts, one a line, in the order of their prompts. Whole lines of an earlier run stay.
class text_file {
 public:
  text_file(const write_arguments& a, const std::vector<text_task>& tasks, const models::model_set& models)
      : path_(a.out), vocab_(models.target.vocab_size()) {
    const std::string target = espalier::model_identity(models.paths.model);
    for (const text_task& task : tasks) {
      heads_.push_back({{"target", target},
                        {"arithmetic", espalier::name_of(a.arithmetic)},
                        {"seed", a.seed},
                        {"longest", a.tokens},
                        {"domain", task.domain},
                        {"sampling", in_words(task.sampling)},
                        {"prompt", task.prompt.size()}});
    }
    if (std::filesystem::exists(path_)) keep_whole_lines(tasks);
    file_.open(path_, std::ios::binary | std::ios::app);
    if (!file_) espalier::raise<espalier::input_error>(path_, " cannot be written.");
  }

  std::size_t size() const { return n_; }

  void append(const tokens& text) {
    nlohmann::json line = heads_[n_];
    line["tokens"] = text;
    file_ << line.dump() << '\n';
    if (!file_.flush()) espalier::raise<espalier::input_error>(path_, " cannot be written: is the disk full?");
    ++n_;
  }

 private:
  // Checks that the lines are of these tasks, and cuts off a last one that is not complete.
  void keep_whole_lines(const std::vector<text_task>& tasks) {
    if (!std::filesystem::is_regular_file(path_))
      espalier::raise<espalier::input_error>(path_, " is no file, into which texts could be written.");
    std::ifstream file(path_, std::ios::binary);
    if (!file) espalier::raise<espalier::input_error>(path_, " cannot be opened.");
    std::uintmax_t whole = 0;
    for (std::string line; std::getline(file, line);) {
      if (n_ == tasks.size())
        espalier::raise<espalier::input_error>(path_, " has more texts than the ", n_, " that are asked for.");
      const bool is_cut_short = file.eof();
      if (is_cut_short ? !line.starts_with("{\"arithmetic\":") : !is_of(line, tasks[n_])) {
        espalier::raise<espalier::input_error>(
            path_, ", line ", n_ + 1, " is not what these arguments write there: the same arguments go on with a file ",
            "of texts, others need a new one.");
      }
      if (is_cut_short) break;
      whole += line.size() + 1;
      ++n_;
    }
    if (file.bad()) espalier::raise<espalier::input_error>(path_, " could not be read to its end.");
    file.close();
    std::filesystem::resize_file(path_, whole);
  }

  bool is_of(const std::string& text, const text_task& task) const {
    nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("tokens")) return false;
    const nlohmann::json found = std::move(line["tokens"]);
    line.erase("tokens");
    return line == heads_[n_] && found.is_array() && found.size() > task.prompt.size() &&
           std::equal(task.prompt.begin(), task.prompt.end(), found.begin()) &&
           std::all_of(found.begin(), found.end(), [&](const nlohmann::json& token) {
             return token.is_number_integer() && token >= 0 && token < vocab_;
           });
  }

  std::string path_;
  std::int32_t vocab_;
  std::vector<nlohmann::json> heads_;  // by task: its line without the tokens
  std::ofstream file_;
  std::size_t n_ = 0;
};

// Lines that say how far the writing is, at most one every ten seconds.
class writing_progress {
 public:
  explicit writing_progress(std::size_t there) : there_(there) {}

  void say(std::size_t n, std::size_t of, std::size_t n_tokens) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (n < of && seconds < said_ + 10) return;
    said_ = seconds;
    const double left = seconds * static_cast<double>(of - n) / static_cast<double>(n - there_);
    fmt::print(stderr, "text {} of {}: {:.0f} tokens a second, {:.1f} minutes left\n", n, of,
               static_cast<double>(n_tokens) / seconds, left / 60);
  }

 private:
  std::size_t there_;
  double said_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Writes the texts of the tasks that the file does not have yet. Returns the number of tokens behind their prompts.
std::size_t write_rest(const write_arguments& a, models::model_set& models, const std::vector<text_task>& tasks,
                       text_file& file) {
  const std::size_t there = file.size();
  const int most = static_cast<int>((std::min)(static_cast<std::size_t>(a.together), tasks.size() - there));
  std::size_t longest = 0;
  for (const text_task& task : tasks)
    longest = (std::max)(longest, task.prompt.size());
  const int prompt_rows = models.target.max_rows() - a.together;
  espalier::recurrent_kv kv = espalier::host_cache(models.target.config(), most, static_cast<int>(longest) + a.tokens,
                                                   {.rows = models.target.max_rows()});
  auto decode = espalier::make_batch_decoder(espalier::no_drafter(), espalier::plain(), espalier::target_only(), kv,
                                             models.target, {.max_texts = most, .prefill_rows = prompt_rows});

  struct text {
    tokens all;  // with its prompt
    bool ended = false;
  };
  std::deque<text> texts;  // from the first that is not in the file: one that ends early waits for those before it
  std::size_t n_added = there, n_ended = there, n_tokens = 0;
  writing_progress shown(there);
  while (file.size() < tasks.size()) {
    for (; n_added < tasks.size() && n_added - n_ended < static_cast<std::size_t>(most); ++n_added) {
      const std::uint64_t seed = a.seed + (static_cast<std::uint64_t>(n_added) << 32);
      decode.add(tasks[n_added].prompt, {.max_tokens = a.tokens, .tokens = models.text.ends_of_text()},
                 {.sampling = tasks[n_added].sampling, .seed = seed});
      texts.push_back({tasks[n_added].prompt});
    }
    for (const espalier::text_event& e : decode.step()) {
      if (e.error) std::rethrow_exception(e.error);
      text& t = texts[there + static_cast<std::size_t>(e.id) - file.size()];
      t.all.insert(t.all.end(), e.round.committed.begin(), e.round.committed.end());
      n_tokens += e.round.committed.size();
      t.ended = e.round.state != espalier::status::running;
      n_ended += t.ended ? 1 : 0;
    }
    for (; !texts.empty() && texts.front().ended; texts.pop_front()) {
      file.append(texts.front().all);
      shown.say(file.size(), tasks.size(), n_tokens);
    }
  }
  return n_tokens;
}

}  // namespace

int write(const write_arguments& a) {
  constexpr int prompt_rows = 64;  // rows of a pass for prompts that are being read
  models::model_set models = models::model_set::load(
      a.models, {.threads = a.n_threads(), .max_rows = a.together + prompt_rows, .arithmetic = a.arithmetic},
      {.drafter = models::drafter_kind::text});
  const std::vector<text_task> tasks = text_tasks(models, a.prompts, a.samplings, a.count, a.tokens);
  text_file file(a, tasks, models);
  const std::size_t there = file.size();
  const std::size_t n_tokens = there < tasks.size() ? write_rest(a, models, tasks, file) : 0;
  fmt::print("{}: {} texts were there, {} with {} tokens after their prompts were written.\n", a.out, there,
             file.size() - there, n_tokens);
  return 0;
}

}  // namespace nde
