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
#include <unordered_map>
#include <vector>

#include "../models/json_lines.hpp"
#include "../models/model_set.hpp"
#include "arguments.hpp"
#include "espalier/core/error.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"
#include "sampling_setting.hpp"
#include "text_tasks.hpp"

namespace nde {

namespace {

// A file of texts, one a line, in the order of their tasks. What an earlier run has written stays.
class text_file {
 public:
  text_file(const std::string& path, const std::string& target, const std::vector<text_task>& tasks)
      : path_(path), target_(target) {
    if (std::filesystem::exists(path)) keep_whole_lines(tasks);
    file_.open(path, std::ios::binary | std::ios::app);
    if (!file_) espalier::raise<espalier::input_error>(path, " cannot be written.");
  }

  std::size_t size() const { return n_; }

  void append(const text_task& task, const std::vector<espalier::token_id>& tokens) {
    const nlohmann::json line = {{"target", target_},
                                 {"domain", task.domain},
                                 {"sampling", in_words(task.sampling)},
                                 {"prompt", task.prompt.size()},
                                 {"tokens", tokens}};
    file_ << line.dump() << '\n';
    if (!file_.flush()) espalier::raise<espalier::input_error>(path_, " cannot be written: is the disk full?");
    ++n_;
  }

 private:
  // Cuts off a last line that is not complete, and checks that the other lines are of these tasks.
  void keep_whole_lines(const std::vector<text_task>& tasks) {
    std::ifstream file(path_, std::ios::binary);
    std::uintmax_t whole = 0;
    for (std::string line; std::getline(file, line) && !file.eof();) {
      whole += line.size() + 1;
      const std::string where = path_ + ", line " + std::to_string(n_ + 1);
      if (n_ == tasks.size())
        espalier::raise<espalier::input_error>(where, ": there are only ", tasks.size(), " prompts.");
      if (!is_of(nlohmann::json::parse(line, nullptr, false), tasks[n_])) {
        espalier::raise<espalier::input_error>(
            where, " is not what ", target_, " writes after prompt ", n_ + 1, " by sampling ",
            in_words(tasks[n_].sampling), ": the same arguments go on with a file of texts, others need a new one.");
      }
      ++n_;
    }
    file.close();
    std::filesystem::resize_file(path_, whole);
  }

  bool is_of(const nlohmann::json& line, const text_task& task) const {
    const auto has = [&](const char* key, const nlohmann::json& value) {
      return line.contains(key) && line[key] == value;
    };
    if (!line.is_object() || !line.contains("tokens") || !line["tokens"].is_array()) return false;
    const nlohmann::json& tokens = line["tokens"];
    return has("target", target_) && has("sampling", in_words(task.sampling)) && has("prompt", task.prompt.size()) &&
           tokens.size() > task.prompt.size() && std::equal(task.prompt.begin(), task.prompt.end(), tokens.begin());
  }

  std::string path_, target_;
  std::ofstream file_;
  std::size_t n_ = 0;
};

// Lines that say how far the writing is, at most one every ten seconds.
class writing_progress {
 public:
  explicit writing_progress(std::size_t there) : first_(there) {}

  void say(std::size_t n, std::size_t of, std::size_t tokens) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (n < of && seconds < said_ + 10) return;
    said_ = seconds;
    const double left = seconds * static_cast<double>(of - n) / static_cast<double>(n - first_);
    fmt::print(stderr, "text {} of {}: {:.0f} tokens a second, {:.1f} minutes left\n", n, of,
               static_cast<double>(tokens) / seconds, left / 60);
  }

 private:
  std::size_t first_;
  double said_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

int write(const write_arguments& a) {
  constexpr int prompt_rows = 64;  // rows of a pass for prompts that are being read
  models::model_set models = models::model_set::load(
      a.models, {.threads = a.n_threads(), .max_rows = a.together + prompt_rows, .arithmetic = a.arithmetic},
      {.drafter = models::drafter_kind::text});
  const std::vector<text_task> tasks = text_tasks(models, a.prompts, a.samplings, a.count, a.tokens);
  text_file file(a.out, espalier::model_identity(models.paths.model), tasks);
  const std::size_t there = file.size();

  std::size_t longest = 0;
  for (const text_task& task : tasks)
    longest = (std::max)(longest, task.prompt.size());
  const int context = static_cast<int>(longest) + a.tokens;
  espalier::recurrent_kv kv =
      espalier::host_cache(models.target.config(), a.together, context, {.rows = prompt_rows + a.together});
  auto decode = espalier::make_batch_decoder(espalier::no_drafter(), espalier::plain(), espalier::target_only(), kv,
                                             models.target, {.max_texts = a.together, .prefill_rows = prompt_rows});
  espalier::stop_conditions stop{.max_tokens = a.tokens};
  for (const espalier::token_id end : models.text.ends_of_text())
    stop.tokens.push_back(end);

  // The texts from the first that is not in the file yet: a text that ends before an earlier one waits for it.
  struct text {
    std::vector<espalier::token_id> tokens;
    bool ended = false;
  };
  std::deque<text> texts;
  std::unordered_map<espalier::text_id, std::size_t> task_of;
  std::size_t n_written = 0;
  writing_progress shown(there);
  while (file.size() < tasks.size()) {
    while (task_of.size() < static_cast<std::size_t>(a.together) && file.size() + texts.size() < tasks.size()) {
      const std::size_t i = file.size() + texts.size();
      const std::uint64_t seed = a.seed + (static_cast<std::uint64_t>(i) << 32);
      task_of[decode.add(tasks[i].prompt, stop, {.sampling = tasks[i].sampling, .seed = seed})] = i;
      texts.push_back({tasks[i].prompt});
    }
    for (const espalier::text_event& e : decode.step()) {
      if (e.error) std::rethrow_exception(e.error);
      text& t = texts[task_of.at(e.id) - file.size()];
      t.tokens.insert(t.tokens.end(), e.round.committed.begin(), e.round.committed.end());
      n_written += e.round.committed.size();
      t.ended = e.round.state != espalier::status::running;
      if (t.ended) task_of.erase(e.id);
    }
    for (; !texts.empty() && texts.front().ended; texts.pop_front()) {
      file.append(tasks[file.size()], texts.front().tokens);
      shown.say(file.size(), tasks.size(), n_written);
    }
  }
  fmt::print("{}: {} texts were there, {} with {} tokens after their prompts were written.\n", a.out, there,
             file.size() - there, n_written);
  return 0;
}

}  // namespace nde
