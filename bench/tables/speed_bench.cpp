// SPDX-License-Identifier: BSL-1.0
// Measures acceptance by kind of question and by place on the path, in the words of vLLM: for the questions of
// SPEED-Bench or Spec-Bench, or for the few of the same kinds that are beside this program.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/models/json_lines.hpp"
#include "decoding_method.hpp"
#include "espalier/core/error.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "markdown_table.hpp"
#include "priced_arguments.hpp"
#include "report_file.hpp"

namespace {

using bench::decoding_method;

struct arguments : bench::priced_arguments {
  arguments() { prompts = ESPALIER_BENCH_QUESTIONS; }

  std::vector<std::string> methods{"chain K=5", "+ history", "first paper", "EAGLE-2"};
  int tokens = 128;
  int measure = 80;
  bool quick = false;
};

// A question of several turns.
struct question {
  std::string category;
  std::vector<std::string> turns;
};

// Reads the questions of a file in the form that SPEED-Bench and Spec-Bench share: an object a line, with "category"
// and "turns". At most `most` of each category.
//
// Errors      input_error for a file that cannot be read or holds none of these categories, and for a line without them
std::vector<question> read_questions(const std::string& path, const std::vector<std::string>& categories, int most) {
  std::vector<question> questions;
  std::map<std::string, int> of_category;
  models::read_json_lines(path, [&](const nlohmann::json& json, const std::string& where, int) {
    const auto refuse = [&] {
      espalier::raise<espalier::input_error>(
          where, ": a line is an object with a string \"category\" and a list \"turns\" of ",
          "strings, as SPEED-Bench and Spec-Bench have them.");
    };
    if (!json.is_object() || !json.contains("category") || !json["category"].is_string() || !json.contains("turns") ||
        !json["turns"].is_array() || json["turns"].empty())
      refuse();
    question q{json["category"], {}};
    for (const nlohmann::json& turn : json["turns"]) {
      if (!turn.is_string()) refuse();
      q.turns.push_back(turn);
    }
    const bool is_wanted =
        categories.empty() || std::find(categories.begin(), categories.end(), q.category) != categories.end();
    if (is_wanted && of_category[q.category]++ < most) questions.push_back(std::move(q));
  });
  if (questions.empty()) espalier::raise<espalier::input_error>(path, " has no question of these categories.");
  return questions;
}

// Counts of drafted and accepted tokens, as vLLM counts them.
struct acceptance {
  static constexpr std::size_t shown = 8;

  double drafts = 0;  // rounds in which something was drafted
  double drafted = 0, accepted = 0;
  double seconds = 0, tokens = 0;
  std::vector<double> at = std::vector<double>(shown, 0.0);  // rounds that accepted a token at this place

  void count(const espalier::round_record& r) {
    seconds += r.seconds.total();
    tokens += static_cast<double>(r.committed.size());
    if (r.committed.empty() || r.tree.n_draws == 0) return;
    ++drafts, drafted += r.tree.n_draws, accepted += r.accepted();
    for (std::size_t i = 0; i < std::min(shown, static_cast<std::size_t>(r.accepted())); ++i)
      ++at[i];
  }
  acceptance& operator+=(const acceptance& other) {
    drafts += other.drafts, drafted += other.drafted, accepted += other.accepted;
    seconds += other.seconds, tokens += other.tokens;
    for (std::size_t i = 0; i < shown; ++i)
      at[i] += other.at[i];
    return *this;
  }
  // Tokens of a round that drafts, the target's own included.
  double mean_length() const { return drafts > 0 ? 1 + accepted / drafts : 1; }
  double rate() const { return drafted > 0 ? accepted / drafted : 0; }
};

// Asks questions turn by turn, each answer the target's own.
class conversation {
 public:
  explicit conversation(models::model_set& models) : models_(models) {
    if (!models.text.chat_template_text().empty()) form_.emplace(espalier::chat_template::of(models.text));
  }

  void begin() {
    messages_ = nlohmann::ordered_json::array();
    text_.clear();
  }

  // Returns the tokens of all that was said, ending where the answer to this turn begins. A model without a chat
  // template is asked in the labels that the bundled models know.
  std::vector<espalier::token_id> ask(const std::string& turn) {
    messages_.push_back({{"role", "user"}, {"content", turn}});
    if (form_) return form_->tokens(models_.text, {.messages = messages_});
    text_ += (text_.empty() ? "Question: " : "\nQuestion: ") + turn + "\nAnswer:";
    return models_.text.encode_prompt(text_);
  }

  void answer(const std::vector<espalier::token_id>& tokens) {
    std::string said = models_.text.decode(tokens);
    if (!form_) said = said.substr(0, said.find("\nQuestion:"));
    messages_.push_back({{"role", "assistant"}, {"content", said}});
    text_ += said;
  }

 private:
  models::model_set& models_;
  std::optional<espalier::chat_template> form_;
  nlohmann::ordered_json messages_;
  std::string text_;
};

std::vector<decoding_method> chosen_methods(const std::vector<std::string>& asked) {
  const std::vector<decoding_method> all = bench::paper_methods();
  std::vector<decoding_method> methods{all.front()};  // plain
  for (const std::string& name : asked) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const decoding_method& m) { return m.name == name; });
    if (found == all.end()) {
      std::string names;
      for (const decoding_method& method : all)
        names += (names.empty() ? "" : ", ") + method.name;
      espalier::raise<espalier::input_error>("There is no method \"", name, "\": there are ", names, ".");
    }
    methods.push_back(*found);
  }
  return methods;
}

int run(const arguments& a) {
  const auto price = a.load_price();
  const std::vector<question> questions = read_questions(a.prompts, a.domains, a.measure);
  const std::vector<decoding_method> methods = chosen_methods(a.methods);
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  bench::greedy_writer writer(models, price.get());
  conversation talk(models);
  std::vector<std::string> categories;
  std::map<std::string, std::vector<acceptance>> found;  // [category][methods]
  std::size_t n_turns = 0, n_left_out = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const question& q = questions[i];
    bench::progress(fmt::format("question {} of {}: {}", i + 1, questions.size(), q.category));
    if (!found.contains(q.category)) categories.push_back(q.category);
    auto& of_methods = found.try_emplace(q.category, methods.size()).first->second;
    talk.begin();
    for (const std::string& turn : q.turns) {
      const auto prompt = talk.ask(turn);
      if (static_cast<int>(prompt.size()) + a.tokens > models.drafted_context()) {
        ++n_left_out;
        break;
      }
      ++n_turns;
      std::vector<espalier::token_id> expected;
      for (std::size_t m = 0; m < methods.size(); ++m) {
        const auto written = writer.write(methods[m], prompt, a.tokens,
                                          [&](const espalier::round_record& r) { of_methods[m].count(r); });
        if (m == 0) expected = written.tokens;
        if (written.tokens != expected)
          espalier::raise<espalier::input_error>("the answer of ", methods[m].name, " differs from plain decoding's.");
      }
      talk.answer(expected);
    }
  }
  bench::progress("");

  std::vector<std::string> columns = categories;
  columns.push_back("all");
  for (std::size_t m = 0; m < methods.size(); ++m) {
    acceptance all;
    for (const std::string& category : categories)
      all += found[category][m];
    found["all"].push_back(all);
  }
  bench::markdown_table length("Mean acceptance length", columns), rate("Draft acceptance rate", columns),
      gain("Speedup over plain decoding", columns);
  std::vector<std::string> places;
  for (std::size_t i = 0; i < acceptance::shown; ++i)
    places.push_back(std::to_string(i));
  bench::markdown_table by_place("Acceptance rate per position, all questions", places);
  nlohmann::json json = {{"bench", "speed_bench"}, {"questions", questions.size()}, {"turns", n_turns}};
  for (std::size_t m = 1; m < methods.size(); ++m) {
    std::vector<std::string> lengths, rates, gains, at;
    for (const std::string& category : columns) {
      const acceptance &of = found[category][m], &plain = found[category][0];
      const double speedup = (of.tokens / of.seconds) / (plain.tokens / plain.seconds);
      lengths.push_back(fmt::format("{:.2f}", of.mean_length()));
      rates.push_back(fmt::format("{:.1f} %", 100 * of.rate()));
      gains.push_back(fmt::format("{:.2f}", speedup));
      json["methods"][methods[m].name][category] = {{"mean_acceptance_length", of.mean_length()},
                                                    {"draft_acceptance_rate", of.rate()},
                                                    {"num_drafts", of.drafts},
                                                    {"num_draft_tokens", of.drafted},
                                                    {"num_accepted_tokens", of.accepted},
                                                    {"num_accepted_tokens_per_pos", of.at},
                                                    {"speedup", speedup}};
    }
    const acceptance& all = found["all"][m];
    for (const double n : all.at)
      at.push_back(fmt::format("{:.3f}", n / all.drafts));
    length.row(methods[m].name, lengths);
    rate.row(methods[m].name, rates);
    gain.row(methods[m].name, gains);
    by_place.row(methods[m].name, at);
  }
  bench::report(
      fmt::format("## Acceptance by kind of question\n\n{}{} questions, {} turns of {} tokens, greedy{}. The "
                  "words are vLLM's: the acceptance length of a round counts the target's own token; the rate "
                  "is that of accepted among drafted tokens; position 0 is the first drafted token, and its "
                  "rate is of the rounds that drafted. The answers of all methods are equal.\n{}{}{}{}",
                  price ? "**" + price->in_words() + "**\n\n" : "", questions.size(), n_turns, a.tokens,
                  n_left_out > 0 ? fmt::format("; {} conversations are cut short, since they do not fit the "
                                               "models' context",
                                               n_left_out)
                                 : "",
                  length.text(), rate.text(), by_place.text(), gain.text()),
      a.markdown);
  if (price) json["price"] = price->json();
  if (!a.json.empty()) bench::write_file(a.json, json.dump(1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_speed_bench",
      "Acceptance by kind of question and by place on the path. --prompts is a file in the form of SPEED-Bench\n"
      "and Spec-Bench, with category and turns in each line, --domains names categories.");
  arguments a;
  a.add_to(program);
  program.add("--methods", a.methods, "methods of DynaTree's tables, beside plain");
  program.add("--tokens", a.tokens, "tokens of each answer", 2);
  program.add("--measure", a.measure, "questions of each category at most");
  program.add("--quick", a.quick, "one question of each category, 16 tokens");
  return program.run(argc, argv, [&] {
    if (a.quick) a.measure = 1, a.tokens = 16;
    return run(a);
  });
}
