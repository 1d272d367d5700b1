// SPDX-License-Identifier: BSL-1.0
#include "compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "../models/price_table.hpp"
#include "json_output.hpp"
#include "methods.hpp"
#include "pairings.hpp"
#include "prompts.hpp"
#include "terminal.hpp"
#include "text_stream.hpp"

namespace generate {

namespace {

using espalier::round_record;
using espalier::statistics;
using espalier::token_id;

struct contestant {
  pairing parts;
  std::vector<statistics> runs{};              // over all prompts
  std::vector<std::vector<token_id>> texts{};  // [prompts] the texts of the first run
  // prompts for which some run's text differs from plain decoding's, with the first token that does
  std::map<std::size_t, std::ptrdiff_t> differs{};

  bool equal() const { return differs.empty(); }

  void check(std::size_t prompt, const std::vector<token_id>& text, const std::vector<token_id>& plain) {
    if (text == plain) return;
    differs.emplace(prompt, std::mismatch(plain.begin(), plain.end(), text.begin(), text.end()).first - plain.begin());
  }

  // The run with the median throughput.
  const statistics& median() const {
    std::vector<const statistics*> order;
    for (const statistics& run : runs)
      order.push_back(&run);
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>((order.size() - 1) / 2);
    std::nth_element(order.begin(), middle, order.end(),
                     [](const statistics* a, const statistics* b) { return a->throughput() < b->throughput(); });
    return **middle;
  }
};

// The methods to compare, plain decoding first as their measure.
std::vector<contestant> contestants(const arguments& arguments) {
  const bool draws_text = arguments.target.text.sampling.temperature > 0;
  const parts& offered = arguments.parts;
  const std::string measure = verifiers_for(offered, find_method(offered, "plain"), draws_text).front();
  std::vector<contestant> all{{{"plain", measure}}};
  for (const pairing& parts : pairings(arguments)) {
    if (parts.method != "plain") all.push_back({parts});
  }
  return all;
}

bool all_equal(const std::vector<contestant>& all) {
  return std::all_of(all.begin(), all.end(), [](const contestant& c) { return c.equal(); });
}

// Sentences that say where texts differ from plain decoding's.
std::string differences(const std::vector<contestant>& all) {
  std::string text;
  for (const contestant& c : all) {
    for (const auto& [prompt, token] : c.differs) {
      text += fmt::format("After prompt {}, {} differs from plain decoding from token {} on.\n", prompt + 1,
                          c.parts.method, token + 1);
    }
  }
  return text;
}

// Shows the text of a prompt while it is written.
class exhibit {
 public:
  exhibit(std::ostream& out, const models::prompt& prompt, const espalier::tokenizer& tokenizer)
      : stream_(out, wants_colour()), tokenizer_(tokenizer) {
    stream_.push(prompt.text, author::prompt);
  }

  void operator()(const round_record& r) {
    for (std::size_t i = 0; i < r.committed.size(); ++i) {
      const bool own = i + 1 == r.committed.size();
      stream_.push(tokenizer_.piece(r.committed[i]), own ? author::target : author::draft);
    }
  }

  void finish() { stream_.finish(); }

 private:
  text_stream stream_;
  const espalier::tokenizer& tokenizer_;
};

// A name padded to the width of its column.
std::string padded(const std::string& name, std::size_t width) {
  return name + std::string(width - name.size(), ' ');
}

std::string table(const arguments& arguments, const std::vector<contestant>& all, bool samples) {
  std::size_t method_width = 16, verifier_width = 10;
  for (const contestant& c : all) {
    method_width = (std::max)(method_width, c.parts.method.size() + 2);
    verifier_width = (std::max)(verifier_width, c.parts.verifier.size() + 2);
  }
  std::string text = padded("method", method_width) + padded("verifier", verifier_width) +
                     fmt::format("{:>8}{:>9}{:>14}{:>12}{:>13}  {}\n", "tokens/s", "speedup", "tokens/round",
                                 "acceptance", "first token", "text");
  const statistics& plain = all.front().median();
  for (const contestant& c : all) {
    const statistics& s = c.median();
    const std::string acceptance = s.drafted > 0 ? fmt::format("{:.1f} %", 100 * s.acceptance_rate()) : "-";
    const bool changes = arguments.parts.verifiers.find(c.parts.verifier)->changes_text;
    const char* of_samples = changes ? "ANOTHER DISTRIBUTION" : "same distribution";
    const char* verdict = &c == &all.front() ? "" : (samples ? of_samples : (c.equal() ? "equal" : "DIFFERS"));
    text += padded(c.parts.method, method_width) + padded(c.parts.verifier, verifier_width) +
            fmt::format("{:>8.1f}{:>8.2f}x{:>14.2f}{:>12}{:>10.1f} ms{}{}\n", s.throughput(), s.speedup(plain),
                        s.tokens_per_round(), acceptance, 1e3 * s.time_to_first_token(), verdict[0] == '\0' ? "" : "  ",
                        verdict);
  }
  return text;
}

// The comparison in JSON. "equal" is null for drawn texts, which need not be equal.
json to_json(const arguments& arguments, const std::vector<contestant>& all, const std::vector<models::prompt>& prompts,
             const espalier::tokenizer& tokenizer, bool samples) {
  const auto in_json = [&](bool equal) { return samples ? json() : json(equal); };
  json object = {{"repeats", arguments.repeats}, {"equal", in_json(all_equal(all))}};
  if (arguments.price) object["price"] = arguments.price->json();
  object["prompts"] = json::array();
  for (const models::prompt& prompt : prompts)
    object["prompts"].push_back({{"text", prompt.text}, {"domain", prompt.domain}});
  object["methods"] = json::array();
  for (const contestant& c : all) {
    json entry = {{"method", c.parts.method}, {"verifier", c.parts.verifier}, {"equal", in_json(c.equal())}};
    entry["speedup"] = c.median().speedup(all.front().median());
    entry["statistics"] = statistics_to_json(c.median());
    entry["options"] = part_options_to_json(arguments, c.parts);
    entry["texts"] = json::array();
    for (const std::vector<token_id>& tokens : c.texts)
      entry["texts"].push_back({{"text", tokenizer.decode(tokens)}, {"tokens", tokens}});
    object["methods"].push_back(entry);
  }
  return object;
}

}  // namespace

bool compare(models::model_set& models, const arguments& arguments, std::ostream& out) {
  const bool samples = arguments.target.text.sampling.temperature > 0.0F;
  const std::vector<models::prompt> prompts = collect_prompts(arguments, models.text);
  std::vector<contestant> all = contestants(arguments);
  const auto dynatree =
      std::find_if(all.begin(), all.end(), [](const contestant& c) { return c.parts.method == "dynatree"; });
  contestant& shown = dynatree == all.end() ? all.back() : *dynatree;

  const bool shows_progress = is_terminal() && !arguments.json;
  for (int repeat = 0; repeat < arguments.repeats; ++repeat) {
    for (contestant& c : all)
      c.runs.emplace_back();
    if (repeat > 0 && shows_progress)
      out << fmt::format("\rRun {} of {} ", repeat + 1, arguments.repeats) << std::flush;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const bool shows = repeat == 0 && !arguments.json;
      if (shows && prompts.size() > 1) {
        out << fmt::format("[{} of {}{}{}]\n", i + 1, prompts.size(), prompts[i].domain.empty() ? "" : ": ",
                           prompts[i].domain);
      }
      for (contestant& c : all) {
        statistics& sum = c.runs.back();
        models.forget_texts();  // so that each method reads the prompt
        written_text written;
        if (shows && &c == &shown) {
          exhibit text(out, prompts[i], models.text);
          written =
              write(models, arguments, c.parts.method, c.parts.verifier, prompts[i].tokens, [&](const round_record& r) {
                sum(r);
                text(r);
              });
          text.finish();
          out << "\n" << std::endl;
        } else {
          written = write(models, arguments, c.parts.method, c.parts.verifier, prompts[i].tokens,
                          [&](const round_record& r) { sum(r); });
        }
        if (repeat == 0) c.texts.push_back(written.tokens);
        if (!samples) c.check(i, written.tokens, all.front().texts[i]);
      }
    }
  }

  const bool equal = all_equal(all);
  if (arguments.json) {
    out << to_text(to_json(arguments, all, prompts, models.text, samples)) << "\n";
    return equal;
  }
  if (shows_progress && arguments.repeats > 1) out << "\r                \r";
  if (wants_colour()) write_legend(out);
  out << table(arguments, all, samples) << "\n";
  const std::string turns = arguments.repeats == 1
                                ? "one run of each method"
                                : fmt::format("median of {} runs of each method, taking turns", arguments.repeats);
  const std::string tokens = samples ? fmt::format("Up to {} tokens each", arguments.max_tokens)
                                     : fmt::format("{} tokens", all.front().median().tokens);
  out << fmt::format("{} after {} prompt{}; {}.\n", tokens, prompts.size(), prompts.size() == 1 ? "" : "s", turns);
  if (!arguments.text_method.empty())
    out << fmt::format("Each tree is merged with that of {} over the text.\n", arguments.text_method);
  if (arguments.price) out << arguments.price->in_words() << "\n";
  if (samples) {
    out << "Texts are drawn at this temperature: those of the same distribution are samples of the target's, and\n"
           "so they differ. Compare tokens a second and tokens a round.\n";
  } else {
    out << (equal ? "All texts are equal to plain decoding's.\n"
                  : differences(all) + "Texts differ from plain decoding's.\n");
  }
  return equal;
}

}  // namespace generate
