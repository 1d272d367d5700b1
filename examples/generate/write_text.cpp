// SPDX-License-Identifier: BSL-1.0
#include "write_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "../models/price_table.hpp"
#include "espalier/report/dot.hpp"
#include "espalier/report/svg.hpp"
#include "espalier/report/terminal.hpp"
#include "espalier/report/tree_recorder.hpp"
#include "json_output.hpp"
#include "methods.hpp"
#include "pairings.hpp"
#include "prompts.hpp"
#include "stations.hpp"
#include "terminal.hpp"
#include "text_stream.hpp"

namespace generate {

namespace {

using espalier::round_record;
using espalier::statistics;
using espalier::token_id;

// The text that a token shows in a picture: its bytes, or a name if it has none.
std::string shown(const espalier::tokenizer& tokenizer, token_id token) {
  const std::string_view piece = tokenizer.piece(token);
  if (!piece.empty()) return std::string(piece);
  if (token == tokenizer.begin_of_text()) return "<begin>";
  const std::vector<token_id>& ends = tokenizer.ends_of_text();
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) return "<end>";
  return fmt::format("<{}>", token);
}

std::string round_in_words(const round_record& r) {
  const int drafted = r.tree.n_draws;
  const char* limit = espalier::to_string(r.limited_by);
  if (drafted == 0) return fmt::format("Round {}: nothing drafted, limited by {}", r.index, limit);
  return fmt::format("Round {}: {} of {} drafted tokens accepted, limited by {}", r.index, r.accepted(), drafted,
                     limit);
}

std::string table(const pairing& parts, const std::string& text_method, const statistics& s,
                  const std::string& end_in_words) {
  const double total = s.seconds.total();
  const std::string method =
      parts.method + (text_method.empty() ? "" : fmt::format(" and {} over the text", text_method));
  std::string text =
      fmt::format("{} tokens by {} with {} in {} rounds{}\n", s.tokens, method, parts.verifier, s.rounds, end_in_words);
  const auto line = [&](std::string_view label, const std::string& value, const std::string& more) {
    text += fmt::format("  {:<24}{:>9}{}{}\n", label, value, more.empty() ? "" : "   ", more);
  };
  line("tokens a second", fmt::format("{:.1f}", s.throughput()),
       fmt::format("first token after {:.1f} ms, then {:.2f} ms a token", 1e3 * s.time_to_first_token(),
                   1e3 * s.time_per_token()));
  line("tokens a round", fmt::format("{:.2f}", s.tokens_per_round()), "");
  if (s.drafted > 0) {
    line("accepted", fmt::format("{:.1f} %", 100 * s.acceptance_rate()),
         fmt::format("{} of {} drafted tokens", s.accepted, s.drafted));
    line("tree", fmt::format("{:.1f}", s.drafted_per_round()),
         fmt::format("drafted tokens a round, depth {:.1f}", s.depth()));
  }
  if (s.drafted_ahead > 0)
    line("drafted ahead", fmt::format("{}", s.drafted_ahead), fmt::format("of {} rounds", s.rounds));
  text += "\n";
  for (const station& station : stations) {
    const double seconds = s.seconds.*(station.seconds);
    if (seconds == 0) continue;
    line(station.label, fmt::format("{:.1f} ms", 1e3 * seconds),
         fmt::format("{:>5.1f} %", total > 0 ? 100 * seconds / total : 0.0));
  }
  return text;
}

// The pictures that the arguments ask for. Their files are opened before anything is written.
class pictures {
 public:
  explicit pictures(const arguments& arguments) : recorder_(arguments.round), wanted_round_(arguments.round) {
    open(arguments.svg, svg_);
    open(arguments.dot, dot_);
  }

  void operator()(const round_record& r) {
    if (svg_.is_open() || dot_.is_open()) recorder_(r);
  }

  void draw(const espalier::tokenizer& tokenizer, const std::string& method) {
    if (!svg_.is_open() && !dot_.is_open()) return;
    if (!recorder_.found())
      throw usage_error(fmt::format("--round {} cannot be drawn: the text ended before it.", wanted_round_));
    const auto text_of = [&](token_id token) { return shown(tokenizer, token); };
    if (dot_.is_open()) espalier::write_dot(dot_, recorder_.tree(), recorder_.decision(), text_of);
    if (!svg_.is_open()) return;
    espalier::write_svg(svg_, recorder_.tree(), recorder_.decision(), text_of,
                        {.title = fmt::format("{}, round {}", method, recorder_.round())});
  }

 private:
  static void open(const std::string& path, std::ofstream& file) {
    if (path.empty()) return;
    file.open(path, std::ios::binary);
    if (!file) throw usage_error(fmt::format("{} cannot be written.", path));
  }

  espalier::tree_recorder recorder_;
  std::int32_t wanted_round_;
  std::ofstream svg_;
  std::ofstream dot_;
};

}  // namespace

void write_text(models::model_set& models, const arguments& arguments, std::ostream& out) {
  const pairing parts = pairings(arguments).front();
  const bool colour = wants_colour() && !arguments.json;
  pictures drawn(arguments);
  const auto text_of = [&](token_id token) { return shown(models.text, token); };
  statistics all;
  json texts = json::array();
  std::string end_in_words;

  const std::vector<models::prompt> prompts = collect_prompts(arguments, models.text);
  for (const models::prompt& prompt : prompts) {
    text_stream stream(out, colour);
    const bool streams = !arguments.json && !arguments.show_tree;
    if (streams && is_terminal()) stream.push(prompt.text, author::prompt);
    const auto watch = [&](const round_record& r) {
      all(r);
      drawn(r);
      if (streams) stream.push_round(r, models.text);
      if (arguments.show_tree) {
        out << round_in_words(r) << "\n";
        espalier::write_tree(out, r.tree, r.decision, text_of,
                             {.width = terminal_columns(), .ascii = arguments.ascii, .colour = colour});
        out << std::endl;
      }
    };
    const written_text written = write(models, arguments, parts.method, parts.verifier, prompt.tokens, watch);
    const std::string text = models.text.decode(written.tokens);
    if (arguments.show_tree) {
      stream.push(prompt.text, author::prompt);
      stream.push(text, author::target);
    }
    if (!arguments.json) {
      stream.finish();
      out << (text.empty() || text.back() != '\n' ? "\n" : "") << std::endl;
    }
    if (prompts.size() == 1) end_in_words = fmt::format(", ended by: {}", espalier::to_string(written.end));
    json entry = {
        {"prompt", prompt.text}, {"text", text}, {"tokens", written.tokens}, {"end", espalier::to_string(written.end)}};
    if (!prompt.domain.empty()) entry["domain"] = prompt.domain;
    entry["statistics"] = statistics_to_json(written.statistics);
    texts.push_back(entry);
  }
  drawn.draw(models.text, parts.method);

  if (!arguments.json) {
    if (colour && !arguments.show_tree) write_legend(out);
    out << table(parts, arguments.text_method, all, end_in_words);
    if (arguments.price) out << "\n" << arguments.price->in_words() << "\n";
    return;
  }
  json object = {{"method", parts.method}, {"verifier", parts.verifier}};
  if (arguments.price) object["price"] = arguments.price->json();
  object["options"] = part_options_to_json(arguments, parts);
  object["texts"] = texts;
  object["statistics"] = statistics_to_json(all);
  out << to_text(object) << "\n";
}

}  // namespace generate
