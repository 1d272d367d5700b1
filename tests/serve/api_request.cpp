// SPDX-License-Identifier: BSL-1.0
#include "../examples/serve/api_request.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../examples/models/vocabulary_of.hpp"
#include "../examples/serve/member_text.hpp"
#include "../examples/serve/secret.hpp"
#include "catch.hpp"

using nlohmann::json;
using serve::endpoint;

namespace {

const espalier::tokenizer& tokenizer() {
  static const espalier::tokenizer loaded = espalier::tokenizer::load(SERVE_MODELS "/tokenizer.model");
  return loaded;
}

serve::api_request read(endpoint from, const json& body) {
  const serve::request_rules rules{.model = "tiny", .context = 64, .vocab_size = 4096, .most_texts = 8};
  return serve::read_request(from, body.dump(), rules, tokenizer());
}

json least_body(endpoint from) {
  if (from == endpoint::completions) return {{"prompt", "The king"}};
  return {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
}

// What is said of a request with one more field; empty: it is taken.
std::string complaint(const std::string& field, const json& value, endpoint from = endpoint::completions) {
  json body = least_body(from);
  body[field] = value;
  try {
    (void)read(from, body);
  } catch (const serve::api_error& error) {
    CHECK(error.status == (field == "model" && value.is_string() ? 404 : 400));
    CHECK(error.param.compare(0, error.param.find_first_of(".["), field) == 0);
    CHECK(error.code != "");
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a request for a completion is read, with OpenAI's defaults", "[serve]") {
  const auto request = read(endpoint::completions, {{"prompt", "The king"}, {"user", "me"}, {"unheard_of", nullptr}});
  CHECK(request.texts.prompts.at(0) == tokenizer().encode_prompt("The king"));
  CHECK(request.texts.stop.max_tokens == 16);
  CHECK(request.texts.stop.tokens == tokenizer().ends_of_text());
  CHECK(request.texts.stop.strings.empty());
  CHECK(!request.texts.stop.show_string);
  CHECK(request.texts.options.sampling.temperature == 1.0F);
  CHECK(request.texts.options.sampling.top_p == 1.0F);
  CHECK(!request.texts.options.seed);
  CHECK(request.texts.n == 1);
  CHECK(!request.stream);
  CHECK(!request.shows_log_probs);
}

TEST_CASE("a request's fields are taken over", "[serve]") {
  const auto request = read(endpoint::completions, {{"prompt", {1, 4095, 0}},
                                                    {"model", "tiny"},
                                                    {"max_tokens", 9},
                                                    {"temperature", 0},
                                                    {"top_p", 0},
                                                    {"seed", -1},
                                                    {"stop", "\n"},
                                                    {"n", 8},
                                                    {"best_of", 8},
                                                    {"logprobs", 5},
                                                    {"stream", true},
                                                    {"suffix", nullptr},
                                                    {"presence_penalty", 0.0},
                                                    {"stream_options", {{"include_usage", true}}}});
  CHECK(request.texts.prompts.at(0) == std::vector<espalier::token_id>{1, 4095, 0});
  CHECK(request.texts.stop.max_tokens == 9);
  CHECK(request.texts.stop.strings == std::vector<std::string>{"\n"});
  CHECK(request.texts.options.sampling.temperature == 0.0F);
  CHECK(request.texts.options.sampling.top_p == 1e-6F);
  CHECK(request.texts.options.seed == ~std::uint64_t{0});
  CHECK(request.texts.options.log_probs == 5);
  CHECK(request.texts.n == 8);
  CHECK(request.stream);
  CHECK(request.include_usage);
  CHECK(read(endpoint::completions, {{"prompt", {"The king"}}}).texts.prompts.at(0) ==
        tokenizer().encode_prompt("The king"));
  CHECK(read(endpoint::completions, {{"prompt", ""}}).texts.prompts.at(0).size() == 1);
}

TEST_CASE("messages become one text, which ends where the next question would begin", "[serve]") {
  const auto request = read(
      endpoint::chat,
      {{"messages",
        {{{"role", "system"}, {"content", "Be brief."}},
         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "One "}}, {{"type", "text"}, {"text", "plus?"}}}}},
         {{"role", "assistant"}, {"content", "Two."}},
         {{"role", "user"}, {"content", "And then?"}}}},
       {"max_completion_tokens", 5},
       {"logprobs", true},
       {"top_logprobs", 3}});
  CHECK(request.texts.prompts.at(0) ==
        tokenizer().encode_prompt("Be brief.\nQuestion: One plus?\nAnswer: Two.\nQuestion: And then?\nAnswer:"));
  CHECK(request.texts.stop.strings == std::vector<std::string>{"\nQuestion:"});
  CHECK(request.texts.stop.max_tokens == 5);
  CHECK(request.texts.options.log_probs == 3);
}

TEST_CASE("a wrong field is named, with what it may be", "[serve]") {
  CHECK(complaint("temperature", 2.5) == "temperature must be a number from 0 to 2, but is 2.5.");
  CHECK(complaint("temperature", "hot") == "temperature must be a number from 0 to 2, but is \"hot\".");
  CHECK(complaint("top_p", -0.1) == "top_p must be a number from 0 to 1, but is -0.1.");
  CHECK(complaint("max_tokens", -1) == "max_tokens must be a whole number from 0 to 2147483647, but is -1.");
  CHECK(complaint("max_tokens", 1.5) == "max_tokens must be a whole number from 0 to 2147483647, but is 1.5.");
  CHECK(complaint("n_predict", -2) == "n_predict must be a whole number from -1 to 2147483647, but is -2.");
  CHECK(complaint("max_tokens", 1e30) != "");
  CHECK(complaint("seed", 18446744073709551615U) != "");
  CHECK(complaint("seed", true) != "");
  CHECK(complaint("n", 9) == "n must be a whole number from 1 to 8, but is 9.");
  CHECK(complaint("best_of", 9) == "best_of must be a whole number from 1 to 8, but is 9.");
  CHECK(complaint("stop", "").find("1 to 256 bytes each, but is \"\".") != std::string::npos);
  CHECK(complaint("stop", {"a", 1}) != "");
  CHECK(complaint("stop", json(std::vector<std::string>(17, "a"))) != "");
  CHECK(complaint("stop", std::string(257, 'a')) != "");
  CHECK(complaint("stream", "yes") == "stream must be true or false, but is \"yes\".");
  CHECK(complaint("stream_options", {{"include_usage", true}}) == "stream_options goes with \"stream\": true only.");
  CHECK(complaint("logprobs", 6) == "logprobs must be a whole number from 0 to 5, but is 6.");
  CHECK(complaint("logprobs", 1, endpoint::chat) == "logprobs must be true or false, but is 1.");
  CHECK(complaint("top_logprobs", 2, endpoint::chat) == "top_logprobs needs logprobs, which must be true.");
  CHECK(complaint("presence_penalty", 2.5) == "presence_penalty must be a number from -2 to 2, but is 2.5.");
  CHECK(complaint("frequency_penalty", "a") == "frequency_penalty must be a number from -2 to 2, but is \"a\".");
  CHECK(complaint("logit_bias", {{"4096", 1}}) != "");
  CHECK(complaint("logit_bias", {{"x", 1}}) != "");
  CHECK(complaint("logit_bias", {{"1", 101}}) != "");
  CHECK(complaint("response_format", "json") != "");
  CHECK(complaint("response_format", {{"type", "json_schema"}}) != "");
  CHECK(complaint("response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "text"}}}}}})
            .find("\"type\" at #, which is \"text\"") != std::string::npos);
  CHECK(complaint("echo", "yes") == "echo must be true or false, but is \"yes\".");
  CHECK(complaint("model", "huge") == "There is no model \"huge\"; this server has \"tiny\".");
  CHECK(complaint("model", 1) == "model must be a string, but is 1.");
  CHECK(
      complaint("prompt", 5) ==
      "prompt must be a string, an array of token ids, or an array of prompts of one of these kinds, not empty, but is "
      "5.");
  CHECK(complaint("prompt", json::array()) != "");
  CHECK(complaint("prompt", nullptr).find("prompt is missing") == 0);
  CHECK(complaint("prompt", json(std::vector<std::string>(9, "a"))) ==
        "The request asks for 1 texts after each of 9 prompts, but one request may ask for 8 texts at most.");
  CHECK(complaint("prompt", {"one", {1}}) == "prompt[1] must be a string, as prompt[0] is, but is [1].");
  CHECK(complaint("prompt", {json::array({1}), "one"}) != "");
  CHECK(complaint("prompt", {json::array({1}), json::array()}) ==
        "prompt[1] must be an array of token ids that is not empty, but is [].");
  CHECK(complaint("prompt", {{1, 2}, {1, 4096}}) == "prompt[1][1] must be a token id from 0 to 4095, but is 4096.");
  CHECK(complaint("prompt", {nullptr}) != "");
  CHECK(complaint("prompt", {1, 4096}) == "prompt[1] must be a token id from 0 to 4095, but is 4096.");
  CHECK(complaint("prompt", {1, -1}) == "prompt[1] must be a token id from 0 to 4095, but is -1.");
  CHECK(complaint("prompt", {1, "a"}) == "prompt[1] must be a token id from 0 to 4095, but is \"a\".");
  CHECK(complaint("prompt", json(std::vector<int>(64, 5))) ==
        "The prompt has 64 tokens, but this model's context is 64 tokens, one of which must be left to write.");
  CHECK(complaint("messages", "Hello", endpoint::chat) != "");
  CHECK(complaint("messages", {5}, endpoint::chat) != "");
  CHECK(complaint("messages", {{{"role", "king"}, {"content", "Hello"}}}, endpoint::chat) ==
        "messages[0].role must be system, developer, user, assistant or tool, but is \"king\".");
  CHECK(complaint("messages", {{{"role", "user"}}}, endpoint::chat).find("messages[0].content is missing") == 0);
  CHECK(complaint("messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}, endpoint::chat) ==
        "messages[0].content[0] is a part of type \"image_url\", but this model reads text alone: parts must be "
        "{\"type\": \"text\", \"text\": ...}.");
  CHECK(complaint("messages", {{{"role", "user"}, {"content", {{{"text", "a"}}}}}}, endpoint::chat) != "");
}

TEST_CASE("a name that is not known is refused, and the nearest one told", "[serve]") {
  CHECK(complaint("temprature", 0.5) == "There is no field \"temprature\"; the nearest name is \"temperature\".");
  CHECK(complaint("repetition_penality", 1.1) ==
        "There is no field \"repetition_penality\"; the nearest name is \"repetition_penalty\".");
  CHECK(complaint("nonsense_field", 1) == "There is no field \"nonsense_field\".");
  CHECK(complaint("messages", json::array()) ==
        "messages is a field of /v1/chat/completions alone, not of /v1/completions.");
  CHECK(complaint("prompt", "a", endpoint::chat) ==
        "prompt is a field of /v1/completions alone, not of /v1/chat/completions.");
  CHECK(complaint("top_logprobs", 1) != "");
  CHECK(complaint("stream_options", {{"include_usages", true}}) != "");
  try {
    (void)read(endpoint::completions,
               {{"prompt", "a"}, {"stream", true}, {"stream_options", {{"includeusage", true}}}});
    FAIL("it was read");
  } catch (const serve::api_error& error) {
    CHECK(std::string(error.what()) ==
          "There is no member of stream_options \"includeusage\"; the nearest name is \"include_usage\".");
  }
  CHECK(complaint("response_format", {{"type", "json_object"}, {"shema", json::object()}}) ==
        "There is no member of response_format \"shema\"; the nearest name is \"schema\".");
  CHECK(complaint("messages", {{{"role", "user"}, {"content", "a"}, {"contents", "b"}}}, endpoint::chat) ==
        "There is no member of messages[0] \"contents\"; the nearest name is \"content\".");
  CHECK(complaint("messages", {{{"role", "assistant"}, {"content", "a"}, {"function_call", {{"name", "f"}}}}},
                  endpoint::chat) ==
        "messages[0].function_call is not supported: it must be left out, but is {\"name\":\"f\"}.");
  CHECK(complaint("messages", {{{"role", "user"}, {"name", "Bob"}, {"content", "a"}, {"refusal", nullptr}}},
                  endpoint::chat) == "");
  // A long name is not compared with others, which would take long.
  try {
    (void)read(endpoint::completions, {{"prompt", "a"}, {std::string(1 << 20, 'x'), 1}});
    FAIL("it was read");
  } catch (const serve::api_error& error) {
    CHECK(std::string(error.what()).size() < 100);
    CHECK(error.param == "");
  }
}

TEST_CASE("a field that is not supported may have the values that change nothing, and no other", "[serve]") {
  for (const endpoint from : {endpoint::completions, endpoint::chat}) {
    for (const serve::known_field& field : serve::request_fields) {
      if (field.is == serve::known_field::use::honoured || !field.belongs_to(from)) continue;
      INFO(field.name);
      const std::string name(field.name);
      const json another = {{"another", "value"}};
      if (field.is == serve::known_field::use::without_effect) {
        CHECK(complaint(name, another, from) == "");
        continue;
      }
      CHECK(complaint(name, another, from).find(name + " is not supported: it must be ") == 0);
      for (const json& neutral : json::parse(field.neutral))
        CHECK(complaint(name, neutral, from) == "");
    }
  }
  CHECK(complaint("typical_p", 0.5) == "typical_p is not supported: it must be 1 or left out, but is 0.5.");
  CHECK(complaint("echo", true, endpoint::chat) == "echo is not supported: it must be false or left out, but is true.");
}

TEST_CASE("several prompts, the best of several texts, and texts after their prompts are read", "[serve]") {
  const auto several = read(endpoint::completions, {{"prompt", {"The king", "A"}}, {"n", 2}, {"echo", true}});
  CHECK(several.texts.prompts == std::vector{tokenizer().encode_prompt("The king"), tokenizer().encode_prompt("A")});
  CHECK(several.texts.n == 2);
  CHECK(several.texts.n_texts() == 4);
  CHECK(several.echo);
  CHECK(several.prompt_texts == std::vector<std::string>{"The king", "A"});
  CHECK(!several.texts.options.prompt_log_probs);
  const auto lists = read(endpoint::completions, {{"prompt", {{1, 300}, {5}}}, {"echo", true}, {"logprobs", 0}});
  CHECK(lists.texts.prompts == std::vector<std::vector<espalier::token_id>>{{1, 300}, {5}});
  CHECK(lists.prompt_texts.at(0) == tokenizer().decode(lists.texts.prompts[0]));
  CHECK(lists.texts.options.prompt_log_probs);
  CHECK(lists.texts.options.log_probs == 0);
  CHECK(read(endpoint::completions, {{"prompt", json::array({{1, 300}})}}).texts.prompts.size() == 1);

  const auto best = read(endpoint::completions, {{"prompt", "a"}, {"n", 2}, {"best_of", 5}});
  CHECK(best.n == 2);
  CHECK(best.texts.n == 5);
  CHECK(best.texts.options.log_probs == 0);
  CHECK(!best.shows_log_probs);
  CHECK(read(endpoint::completions, {{"prompt", "a"}, {"best_of", 2}, {"logprobs", 3}}).texts.options.log_probs == 3);
  const auto refused = [](const json& body) {
    try {
      (void)read(endpoint::completions, body);
    } catch (const serve::api_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused({{"prompt", "a"}, {"n", 3}, {"best_of", 2}}) == "best_of must be at least n, which is 3, but is 2.");
  CHECK(refused({{"prompt", "a"}, {"best_of", 2}, {"stream", true}}).find("best_of does not go with") == 0);
  CHECK(refused({{"prompt", {"a", "b", "c"}}, {"n", 3}}) ==
        "The request asks for 3 texts after each of 3 prompts, but one request may ask for 8 texts at most.");
  CHECK(refused({{"prompt", "a"}, {"max_tokens", 3}, {"n_predict", 4}}) ==
        "n_predict and max_tokens differ: one of them must be left out.");

  // A prompt that nothing is written after may fill the context.
  const json full = std::vector<int>(64, 5);
  CHECK(read(endpoint::completions, {{"prompt", full}, {"max_tokens", 0}}).texts.stop.max_tokens == 0);
  CHECK(refused({{"prompt", full}, {"max_tokens", 1}}) != "");
  CHECK(refused({{"prompt", std::vector<int>(65, 5)}, {"max_tokens", 0}}) != "");
  CHECK(read(endpoint::completions, {{"prompt", "a"}, {"n_predict", -1}}).texts.stop.max_tokens == 2147483647);
}

TEST_CASE("docs/serving.md lists the fields that are known", "[serve]") {
  std::ifstream page(SERVE_MODELS "/../../docs/serving.md");
  std::set<std::string> listed, known;
  bool is_there = false;
  for (std::string line; std::getline(page, line);) {
    if (line.compare(0, 3, "## ") == 0) is_there = line == "## A request over HTTP";
    if (!is_there || line.compare(0, 3, "| `") != 0) continue;
    const std::string names = line.substr(2, line.find(" | ") - 2);
    for (std::size_t at = 0; (at = names.find('`', at)) != std::string::npos;) {
      const std::size_t end = names.find('`', at + 1);
      listed.insert(names.substr(at + 1, end - at - 1));
      at = end + 1;
    }
  }
  for (const serve::known_field& field : serve::request_fields)
    known.emplace(field.name);
  CHECK(listed == known);
}

TEST_CASE("what ends a text is taken over", "[serve]") {
  const std::vector<espalier::token_id> ends = tokenizer().ends_of_text();
  REQUIRE(!ends.empty());
  const auto stop_of = [](endpoint from, const json& fields) {
    json body = least_body(from);
    body.update(fields);
    return read(from, body).texts.stop;
  };
  std::vector<espalier::token_id> with_two = ends;
  with_two.push_back(5);
  with_two.push_back(7);
  CHECK(stop_of(endpoint::completions, {{"stop_token_ids", {5, 7, 5, ends[0]}}}).tokens == with_two);
  CHECK(stop_of(endpoint::completions, {{"ignore_eos", false}}).tokens == ends);
  CHECK(stop_of(endpoint::completions, {{"ignore_eos", true}}).tokens.empty());
  CHECK(stop_of(endpoint::completions, {{"ignore_eos", true}, {"stop_token_ids", {5}}}).tokens ==
        std::vector<espalier::token_id>{5});
  CHECK(stop_of(endpoint::chat, {{"ignore_eos", true}}).strings.empty());
  CHECK(stop_of(endpoint::chat, {{"ignore_eos", true}, {"stop", "a"}}).strings == std::vector<std::string>{"a"});
  CHECK(complaint("stop_token_ids", {4096}) == "stop_token_ids[0] must be a token id from 0 to 4095, but is 4096.");
  CHECK(complaint("stop_token_ids", 5) == "stop_token_ids must be an array of up to 256 token ids, but is 5.");
  CHECK(complaint("ignore_eos", 1) == "ignore_eos must be true or false, but is 1.");
  CHECK(complaint("min_tokens", 17) == "min_tokens must be a whole number from 0 to 16, but is 17.");
  CHECK(complaint("min_tokens", 3, endpoint::chat) ==
        "min_tokens does not go with texts that end at a string, as this one ends at \"\\nQuestion:\": it must be left "
        "out.");
  CHECK(complaint("min_tokens", 0, endpoint::chat) == "");
  json both = {{"prompt", "a"}, {"max_tokens", 3}, {"max_completion_tokens", 4}};
  CHECK_THROWS_AS(read(endpoint::completions, both), serve::api_error);
  both["max_tokens"] = 4;
  CHECK(read(endpoint::completions, both).texts.stop.max_tokens == 4);
  CHECK(read(endpoint::completions, {{"prompt", "a"}, {"top_k", -1}}).texts.options.sampling.top_k == 0);
}

namespace {

serve::text_processor processor_of(const json& fields) {
  json body = least_body(endpoint::completions);
  body.update(fields);
  serve::text_processor process = read(endpoint::completions, body).texts.process;
  CHECK(!process.idle());
  process.begin(tokenizer().encode_prompt("The king"));
  return process;
}

// True if the processor lets the model write this text, as the tokenizer cuts it, and end it there.
bool may_write(serve::text_processor process, const std::string& text) {
  std::vector<espalier::token_id> tokens = tokenizer().encode(text);
  tokens.push_back(tokenizer().ends_of_text().front());
  for (const espalier::token_id token : tokens) {
    if (!process.allows({}, token)) return false;
    process.commit({&token, 1});
  }
  return true;
}

}  // namespace

TEST_CASE("words, tokens and repetition are bounded as asked", "[serve]") {
  const espalier::token_id end = tokenizer().ends_of_text().front();

  serve::text_processor at_least = processor_of({{"min_tokens", 2}});
  CHECK(!at_least.allows({}, end));
  const std::vector<espalier::token_id> two = {5, 6};
  at_least.commit(two);
  CHECK(at_least.allows({}, end));
  CHECK(!processor_of({{"min_tokens", 2}, {"ignore_eos", true}, {"stop_token_ids", {5}}}).allows({}, 5));

  serve::text_processor some = processor_of({{"allowed_token_ids", {7, 4095}}});
  std::vector<float> row(4096, 1.0F);
  some.process({}, std::span(row));
  for (std::size_t t = 0; t < row.size(); ++t)
    CHECK(std::isinf(row[t]) == (t != 7 && t != 4095));
  CHECK(complaint("allowed_token_ids", json::array()) != "");
  CHECK(complaint("allowed_token_ids", {4096}) ==
        "allowed_token_ids[0] must be a token id from 0 to 4095, but is 4096.");

  const serve::text_processor polite = processor_of({{"bad_words", {"king", "queen of France"}}});
  CHECK(may_write(polite, "the man said that the queen was of it"));
  CHECK(!may_write(polite, "king"));
  CHECK(!may_write(polite, "the king said"));
  CHECK(!may_write(polite, "the\nking said"));
  CHECK(!may_write(polite, "the queen of France"));
  CHECK(may_write(polite, "the queen of it"));
  CHECK(complaint("bad_words", "king") ==
        "bad_words must be an array of up to 256 strings, of 1 to 256 bytes each, but "
        "is \"king\".");
  CHECK(complaint("bad_words", {""}) != "");

  serve::text_processor varied = processor_of({{"repetition_penalty", 4}});
  const espalier::token_id repeated = tokenizer().encode_prompt("The king").back();
  row.assign(4096, 1.0F);
  varied.process({}, std::span(row));
  CHECK(row[static_cast<std::size_t>(repeated)] == 0.25F);
  CHECK(row[static_cast<std::size_t>(end)] == 1.0F);
  CHECK(complaint("repetition_penalty", 0) == "repetition_penalty must be a number from 0.01 to 100, but is 0.");
}

TEST_CASE("a rule is kept, by whatever name it is given", "[serve]") {
  const json schema = {{"type", "boolean"}};
  const std::vector<json> schemas = {{{"json_schema", schema}},
                                     {{"guided_json", schema}},
                                     {{"guided_json", schema.dump()}},
                                     {{"structured_outputs", {{"json", schema}}}},
                                     {{"structured_outputs", {{"json", schema.dump()}}}},
                                     {{"response_format", {{"type", "json_object"}, {"schema", schema}}}}};
  for (const json& fields : schemas) {
    INFO(fields);
    CHECK(may_write(processor_of(fields), "true"));
    CHECK(!may_write(processor_of(fields), "truest"));
    CHECK(!may_write(processor_of(fields), "{}"));
  }
  for (const json& fields : {json{{"guided_regex", "a+|b"}}, json{{"structured_outputs", {{"regex", "a+|b"}}}}}) {
    INFO(fields);
    CHECK(may_write(processor_of(fields), "aaa"));
    CHECK(!may_write(processor_of(fields), "ab"));
  }
  // Signs of a choice are no signs of an expression.
  const json choices = {"a.b|c", "[yes]", "no\n", "\\d", "M\u00fcller", "3"};
  for (const json& fields : {json{{"guided_choice", choices}}, json{{"structured_outputs", {{"choice", choices}}}}}) {
    INFO(fields);
    for (const json& choice : choices)
      CHECK(may_write(processor_of(fields), choice));
    for (const char* other : {"a.b", "axb|c", "y", "no", "5", "", "33"})
      CHECK(!may_write(processor_of(fields), other));
  }
  CHECK(may_write(processor_of({{"structured_outputs", {{"json_object", true}}}}), "{}"));
  CHECK(!may_write(processor_of({{"structured_outputs", {{"json_object", true}}}}), "true"));

  const json other_format = {{"type", "array"}, {"items", {{"type", "string"}, {"format", "colour"}}}};
  CHECK(complaint("guided_json", other_format).find("\"colour\"") != std::string::npos);
  CHECK(may_write(processor_of({{"guided_json", other_format}, {"ignore_formats", true}}), "[\"red\"]"));
  CHECK(!may_write(processor_of({{"guided_json", other_format}, {"ignore_formats", true}}), "[\n\"red\"\n]"));
  CHECK(may_write(processor_of({{"guided_json", other_format}, {"ignore_formats", true}, {"json_lines", true}}),
                  "[\n\"red\"\n]"));
  CHECK(complaint("ignore_formats", true) == "ignore_formats needs a JSON schema.");
  CHECK(complaint("json_lines", true) == "json_lines needs a JSON schema.");
  CHECK(complaint("guided_json", 5) ==
        "guided_json must be a JSON schema: an object, or its text in a string, but is 5.");
  CHECK(complaint("guided_json", {{"type", "text"}}).find("\"type\" at #, which is \"text\"") != std::string::npos);
  CHECK(complaint("guided_json", std::string(100000, '[')) != "");
  CHECK(complaint("guided_regex", "(") != "");
  CHECK(complaint("guided_regex", "") ==
        "guided_regex must be a string, a regular expression, not empty, but is \"\".");
  CHECK(complaint("guided_choice", json::array()) != "");
  CHECK(complaint("guided_choice", {1}) != "");
  CHECK(complaint("structured_outputs", json::object()) ==
        "structured_outputs must be an object with one of json, regex, choice, grammar and json_object, but is {}.");
  CHECK(complaint("structured_outputs", {{"regexp", "a"}}) ==
        "There is no member of structured_outputs \"regexp\"; the nearest name is \"regex\".");
  CHECK(complaint("structured_outputs", {{"regex", "a"}, {"choice", {"a"}}}) ==
        "structured_outputs.choice does not go with structured_outputs.regex: one of them must be left out.");
  CHECK(complaint("response_format", {{"type", "text"}, {"schema", json::object()}}) != "");
  json two = {{"prompt", "a"}, {"guided_regex", "a"}, {"response_format", {{"type", "json_object"}}}};
  CHECK_THROWS_AS(read(endpoint::completions, two), serve::api_error);
  json endless = {{"prompt", "a"}, {"guided_regex", "a"}, {"ignore_eos", true}};
  CHECK_THROWS_AS(read(endpoint::completions, endless), serve::api_error);
}

TEST_CASE("a body that is no JSON object is refused", "[serve]") {
  for (const std::string body : {"", "{", "[]", "null", "\"a\"", "{\"prompt\": \"\xFF\"}", "{} {}"}) {
    INFO(body);
    CHECK_THROWS_AS(serve::read_request(endpoint::completions, body, {}, tokenizer()), serve::api_error);
  }
}

TEST_CASE("a body with a member twice, or a number that no double holds, is refused", "[serve]") {
  const serve::request_rules rules{.model = "tiny", .context = 64, .vocab_size = 4096, .most_texts = 8};
  const auto message = [&](const std::string& body) {
    try {
      (void)serve::read_request(endpoint::completions, body, rules, tokenizer());
    } catch (const serve::api_error& error) {
      CHECK(error.status == 400);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(R"({"prompt": "a", "temperature": 0, "temperature": 1})") ==
        "The member \"temperature\" stands twice in one object of the body.");
  CHECK(message(R"({"prompt": "a", "logit_bias": {"5": 1, "6": 1, "\u0035": 2}})") ==
        "The member \"5\" stands twice in one object of the body.");
  CHECK(message(R"({"prompt": "a", "logit_bias": {"5": 1}, "stream_options": null, "stop": ["a", "a"]})") == "");
  CHECK(message(R"({"prompt": "a", "json_schema": {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}})") ==
        "");
  CHECK(message(R"({"prompt": "a", "temperature": 1e999})") == "The body has a number that is too large.");
  CHECK(message(R"({"prompt": "a", "logit_bias": {"05": 1}})").find("logit_bias must be an object of token ids") == 0);
}

TEST_CASE("only the secret is the secret", "[serve]") {
  CHECK(serve::is_secret("secret", "secret"));
  for (const char* other : {"", "secre", "secret2", "Secret", "terces"})
    CHECK(!serve::is_secret(other, "secret"));
}

TEST_CASE("a prompt that is too long whatever its tokens are is refused before it is cut into them", "[serve]") {
  const serve::request_rules rules{
      .model = "tiny", .context = 64, .vocab_size = 4096, .vocabulary = models::vocabulary_of(tokenizer())};
  const std::string spaces(1'000'000, ' ');
  for (const auto from : {endpoint::completions, endpoint::chat}) {
    json body = least_body(from);
    if (from == endpoint::chat)
      body["messages"][0]["content"] = {{{"type", "text"}, {"text", spaces}}};
    else
      body["prompt"] = spaces;
    try {
      (void)serve::read_request(from, body.dump(), rules, tokenizer());
      FAIL("it was read");
    } catch (const serve::api_error& error) {
      CHECK(error.status == 400);
      CHECK(error.param == (from == endpoint::chat ? "messages" : "prompt"));
      CHECK(std::string(error.what()).find("The prompt has 1000000 bytes") == 0);
      CHECK(std::string(error.what()).find(" bytes, so ") != std::string::npos);
    }
  }
}

TEST_CASE("messages are as long as what they say, however JSON writes it", "[serve]") {
  const serve::request_rules rules{
      .model = "tiny", .context = 64, .vocab_size = 4096, .vocabulary = models::vocabulary_of(tokenizer())};
  json body = least_body(endpoint::chat);
  body["messages"][0]["content"] = json::array();
  while (body["messages"].dump().size() <= 64U * static_cast<std::size_t>(rules.vocabulary->max_depth()))
    body["messages"][0]["content"].push_back({{"type", "text"}, {"text", "a"}});
  CHECK(serve::read_request(endpoint::chat, body.dump(), rules, tokenizer()).texts.prompts.at(0).size() < 64);
}

TEST_CASE("biases, penalties and the format of the answer become the text's processor", "[serve]") {
  const std::string body = R"({"prompt": "a", "logit_bias": {"7": 5, "8": -100}, "frequency_penalty": 0.5,
      "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object",
      "properties": {"z": {"type": "null"}, "a": {"type": "null"}}, "required": ["z", "a"]}}}})";
  const serve::request_rules rules{.model = "tiny", .context = 64, .vocab_size = 4096};
  serve::text_processor process = serve::read_request(endpoint::completions, body, rules, tokenizer()).texts.process;
  CHECK(!process.idle());
  // Written in the order of the schema.
  const auto allows = [&](const std::string& text) {
    const auto tokens = tokenizer().encode(text);
    std::size_t n = 0;
    while (n < tokens.size() && process.allows(std::span(tokens).first(n), tokens[n]))
      ++n;
    return n == tokens.size();
  };
  process.begin({});
  std::vector<float> row(4096, 1.0F);
  const espalier::token_id brace = tokenizer().encode("{").back();
  CHECK(process.allows({}, brace));
  process.process({}, std::span(row));
  CHECK(row[static_cast<std::size_t>(brace)] == 1.0F);
  CHECK(row[7] < -1e30F);
  CHECK(!allows("true"));
  CHECK(read(endpoint::completions, {{"prompt", "a"}, {"response_format", {{"type", "text"}}}}).texts.process.idle());
  CHECK(!read(endpoint::completions, {{"prompt", "a"}, {"response_format", {{"type", "json_object"}}}})
             .texts.process.idle());
}

TEST_CASE("a schema is read in its own bytes", "[serve]") {
  using serve::member_text;
  const std::string body =
      "\t{ \"a\" : {\"x\": \"}\\\"\" } ,\"n\":1.50,\"\\u0062\" :[1, {\"a\":2}], \"e\":{} ,\"a\": -0e1 }\n";
  REQUIRE(json::accept(body));
  CHECK(member_text(body, "a") == "-0e1");  // the last one, as in what the parser makes
  CHECK(member_text(body, "n") == "1.50");
  CHECK(member_text(body, "b") == "[1, {\"a\":2}]");
  CHECK(member_text(member_text(body, "e"), "x") == "");
  CHECK(member_text(body, "x") == "");
  CHECK(member_text("[1]", "x") == "");
  CHECK(member_text(R"({"x": {"y" :"z"}})", "x") == R"({"y" :"z"})");
  // An integer that 64 bits do not hold is told as it was written.
  const serve::request_rules rules{.model = "tiny", .context = 64, .vocab_size = 4096};
  try {
    (void)serve::read_request(endpoint::completions, R"({"prompt": "a", "response_format": {"type": "json_schema",
        "json_schema": {"schema": {"type": "integer", "maximum": 18446744073709551617}}}})",
                              rules, tokenizer());
    FAIL("it was read");
  } catch (const serve::api_error& error) {
    CHECK(error.param == "response_format");
    CHECK(std::string(error.what()) ==
          "the JSON schema has the integer 18446744073709551617, which 64 bits do not hold.");
  }
}

TEST_CASE("a grammar is read, or refused where the server was built without", "[serve]") {
  CHECK(complaint("grammar", 5) == "grammar must be a string, a grammar in EBNF, but is 5.");
#if defined(EXAMPLES_HAS_XGRAMMAR)
  auto process =
      read(endpoint::completions, {{"prompt", "a"}, {"grammar", "root ::= \"{\" root \"}\" | \"no\""}}).texts.process;
  CHECK(process.allows({}, tokenizer().encode("{").back()));
  CHECK(!process.allows({}, tokenizer().encode("}").back()));
  CHECK(complaint("grammar", "") == "grammar must be a string, a grammar in EBNF, not empty, but is \"\".");
  CHECK(complaint("grammar", "root ::= (").find("this is no grammar") == 0);
  json both = {{"prompt", "a"}, {"grammar", "root ::= \"a\""}, {"response_format", {{"type", "json_object"}}}};
  CHECK_THROWS_AS(read(endpoint::completions, both), serve::api_error);
#else
  CHECK(complaint("grammar", "root ::= \"a\"") ==
        "grammar needs xgrammar, without which this server was built: it must be left out.");
#endif
}

TEST_CASE("a body that is too deep is refused", "[serve]") {
  const serve::request_rules rules{.model = "tiny", .context = 64, .vocab_size = 4096, .most_texts = 8};
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& body :
       {deep, "{\"prompt\": " + deep + "}", "{\"prompt\": \"a\", \"echo\": " + deep + "}",
        R"({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": )" + deep + "}}}"}) {
    try {
      (void)serve::read_request(endpoint::completions, body, rules, tokenizer());
      FAIL("it was read");
    } catch (const serve::api_error& error) {
      CHECK(error.status == 400);
      CHECK(std::string(error.what()) == "The body is too deep: it has arrays and objects more than 200 levels deep.");
    }
  }
}
