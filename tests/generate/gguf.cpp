// SPDX-License-Identifier: BSL-1.0
// A GGUF file of one's own: with and without a draft, as a chat, and files that cannot be used.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "models/model_set.hpp"
#include "models/renumbered_draft.hpp"
#include "program.hpp"
#include "tiny_gguf.hpp"
#include "written.hpp"

namespace {

// The program without CUDA, which takes a tenth of a second to load.
nlohmann::json writes(const std::string& arguments) {
  return written("--threads 1 --max-tokens 40 " + arguments, GENERATE_ON_HOST);
}

outcome said(const std::string& arguments, const std::string& before = "") {
  return run("--threads 1 --max-tokens 12 " + arguments, before, GENERATE_ON_HOST);
}

}  // namespace

TEST_CASE("a GGUF file alone writes from what was written before", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' ";
  const auto plain = writes(model + "--method plain --prompt 'Hello.'");
  const auto usual = writes(model + "--prompt 'Hello.'");
  CHECK(usual.at("method") == "cost-aware");
  CHECK(plain.at("texts").at(0).at("tokens").size() > 10);
  CHECK(usual.at("texts").at(0).at("tokens") == plain.at("texts").at(0).at("tokens"));
  // A model that chats is asked; --raw goes on.
  CHECK(text_of(writes(model + "--method plain --raw --prompt 'Hello.'")) != text_of(plain));
  const auto chain = writes(model + "--method chain --length 3 --raw --prompt 'ababababababababababababab'");
  CHECK(chain.at("statistics").at("drafted") > 0);
  CHECK(chain.at("texts").at(0).at("prompt") == "ababababababababababababab");
}

TEST_CASE("a model may have a few rows more than its tokenizer has tokens", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf{.spare_rows = 20}.write("spare.gguf") + "' --raw ";
  CHECK(writes(model + "--method plain --prompt 'Hello.'").at("texts").at(0).at("tokens").size() > 0);
}

TEST_CASE("a file is read as what it is, whatever its name", "[generate][gguf]") {
  const std::string usual = tiny_gguf().write("tiny.gguf"), other = tiny_gguf().write("sha256-0123");
  const std::string after = "' --method plain --prompt 'Hello.'";
  CHECK(text_of(writes("--model '" + other + after)) == text_of(writes("--model '" + usual + after)));
}

TEST_CASE("one model as target and draft is loaded once, and drafts what it accepts", "[generate][gguf]") {
  const std::string path = tiny_gguf().write("tiny.gguf");
  models::model_set twice = models::model_set::load({path, scratch() + "/./tiny.gguf"}, {.threads = 1});
  CHECK(twice.draft_model().weights() == twice.target.weights());
  const std::string model = "--model '" + path + "' ";
  const auto written = writes(model + "--draft '" + path + "' --method chain --length 4 --prompt 'Hello.'");
  const auto& statistics = written.at("statistics");
  CHECK(statistics.at("drafted") > 0);
  CHECK(statistics.at("accepted") == statistics.at("drafted"));
  CHECK(text_of(written) == text_of(writes(model + "--method plain --prompt 'Hello.'")));
}

TEST_CASE("another model drafts, of the same texts by token", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' ";
  const std::string draft = "--draft '" + tiny_gguf{.seed = 2}.write("draft.gguf") + "' ";
  const std::string nameless = "--draft '" + tiny_gguf{.has_tokenizer = false}.write("nameless.gguf") + "' ";
  const std::string plain = text_of(writes(model + "--method plain --prompt 'Hello.'"));
  CHECK(text_of(writes(model + draft + "--method dynatree --prompt 'Hello.'")) == plain);
  CHECK(text_of(writes(model + nameless + "--method dynatree --prompt 'Hello.'")) == plain);
  // Rows of the draft beyond its tokens, and too few rows for those of the target, count for nothing.
  const std::string padded = "--draft '" + tiny_gguf{.seed = 2, .spare_rows = 2}.write("padded.gguf") + "' ";
  CHECK(text_of(writes(model + padded + "--method dynatree --prompt 'Hello.'")) == plain);
  const std::string wide = "--model '" + tiny_gguf{.spare_rows = 2}.write("wide.gguf") + "' ";
  const std::string wide_plain = text_of(writes(wide + "--method plain --prompt 'Hello.'"));
  CHECK(text_of(writes(wide + draft + "--method dynatree --prompt 'Hello.'")) == wide_plain);
}

TEST_CASE("a draft of some tokens alone drafts these, and the text is the target's", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' ", file = scratch() + "/few.json";
  const std::string draft = "--draft '" + tiny_gguf{.seed = 2}.write("draft.gguf") + "' --head-tokens '" + file + "' ";
  const auto drafted_of = [&](const std::string& arguments) {
    return writes(model + draft + arguments).at("statistics").at("drafted").get<int>();
  };
  const auto plain = writes(model + "--method plain --prompt 'Hello.'");
  const auto& tokens = plain.at("texts").at(0).at("tokens");
  std::ofstream(file) << nlohmann::json({{"head_tokens", std::set<int>(tokens.begin(), tokens.end())}});
  for (const std::string method : {"chain", "dynatree", "dyspec-greedy", "sequoia", "cost-aware"}) {
    INFO(method);
    CHECK(text_of(writes(model + draft + "--method " + method + " --prompt 'Hello.'")) == text_of(plain));
  }
  CHECK(drafted_of("--method chain --prompt 'Hello.'") > 0);
  CHECK(drafted_of("--head-tokens all --method chain --prompt 'Hello.'") > 0);
  // Of the tokens that are allowed, some have no row.
  std::ofstream(file) << R"({"head_tokens": [0, 99, 100, 120]})";
  for (const std::string pattern : {"[a-h]{4,30}", "[m-p]{4,30}"}) {
    const std::string ruled = "--prompt 'Hello.' --regex '" + pattern + "' --max-tokens 40 ";
    CHECK(text_of(writes(model + draft + ruled + "--method dynatree")) ==
          text_of(writes(model + ruled + "--method plain")));
  }
}

TEST_CASE("a draft with another vocabulary drafts the tokens that both have", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' ";
  const auto same_texts = [](const std::string& target, const std::string& draft, const std::string& shared) {
    INFO(draft);
    const std::string prompt = "--prompt 'Hello. Is it (so)?' ";
    const auto plain = writes(target + "--method plain " + prompt);
    for (const char* method : {"chain", "dynatree", "cost-aware"}) {
      INFO(method);
      const outcome of = said(target + draft + prompt + "--max-tokens 40 --json --method " + method);
      CHECK(of.status == 0);
      CHECK(contains(of.err, "has another vocabulary than the target: it drafts the " + shared));
      const auto drafted = nlohmann::json::parse(of.out);
      CHECK(drafted.at("texts").at(0).at("tokens") == plain.at("texts").at(0).at("tokens"));
      // cost-aware drafts nothing where a draft that is never right costs more than it gives.
      if (method != std::string("cost-aware")) CHECK(drafted.at("statistics").at("drafted") > 0);
    }
    const std::string ruled = prompt + "--regex '[a-h]{4,30}' ";
    CHECK(
        text_of(nlohmann::json::parse(said(target + draft + ruled + "--max-tokens 40 --json --method dynatree").out)) ==
        text_of(writes(target + ruled + "--method plain")));
  };
  // Each byte is another token; a few tokens more; and words of a byte beside words of many.
  const std::string all = "258 tokens that both have, 100 % of the target's 258";
  same_texts(model, "--draft '" + tiny_gguf{.seed = 2, .first_byte = 7}.write("other.gguf") + "' ", all);
  same_texts(model, "--draft '" + tiny_gguf{.seed = 2, .spare_tokens = 5}.write("larger.gguf") + "' ", all);
  same_texts("--model '" GENERATE_MODELS "' ", "--draft '" + tiny_gguf{.seed = 2}.write("bytes.gguf") + "' ", "");
}

TEST_CASE("the text of a draft that shares few tokens is cut again, or where that is asked for", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' ";
  const std::string pairs = "--draft '" + tiny_gguf{.byte_length = 2}.write("pairs.gguf") + "' ";
  const std::string other =
      "--translation text --draft '" + tiny_gguf{.seed = 2, .first_byte = 7}.write("other.gguf") + "' ";
  const std::string prompt = "--prompt 'Hello. Is it (so)?' ";
  const auto plain = writes(model + "--method plain " + prompt);
  for (const std::string& draft : {pairs, other}) {
    for (const char* method : {"chain", "dynatree", "cost-aware", "sampled-chain"}) {
      INFO(draft << method);
      const outcome of = said(model + draft + prompt + "--max-tokens 40 --json --method " + method);
      REQUIRE(of.status == 0);
      CHECK(contains(of.err, "another vocabulary than the target: its text is cut into the target's tokens"));
      CHECK(nlohmann::json::parse(of.out).at("texts").at(0).at("tokens") == plain.at("texts").at(0).at("tokens"));
    }
  }
}

TEST_CASE("the map between two tokenizers is kept in a file, and refused once one of them is another",
          "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' --method chain --prompt 'Hello.' ";
  const std::string draft = tiny_gguf{.seed = 2, .first_byte = 7}.write("other.gguf"), map = scratch() + "/a.map";
  const std::string flags = model + "--draft '" + draft + "' ";
  const auto drafted = [&](const std::string& more) {
    const outcome of = said(flags + more + " --max-tokens 40 --json");
    REQUIRE(of.status == 0);
    return nlohmann::json::parse(of.out);
  };
  const auto made = drafted(""), kept = drafted("--map '" + map + "'");
  REQUIRE(std::filesystem::exists(map));
  const std::string bytes = contents(map);
  const auto read = drafted("--map '" + map + "'");
  CHECK(read.at("texts").at(0).at("tokens") == made.at("texts").at(0).at("tokens"));
  CHECK(read.at("statistics").at("accepted") == made.at("statistics").at("accepted"));
  CHECK(kept.at("statistics").at("accepted") == made.at("statistics").at("accepted"));
  CHECK(contents(map) == bytes);
  tiny_gguf{.seed = 2, .first_byte = 9}.write("other.gguf");
  const outcome changed = said(flags + "--map '" + map + "' ");
  CHECK(changed.status == 2);
  CHECK(contains(changed.err, "a.map was made from the draft's tokenizer " + draft + ", "));
  CHECK(contains(changed.err, "delete the file, and the map is made anew."));
  std::ofstream(map, std::ios::binary) << bytes.substr(0, bytes.size() - 1);
  CHECK(contains(said(flags + "--map '" + map + "' ").err, "a.map cannot be used: the vocabulary map is cut short"));
}

TEST_CASE("a target drafts for itself, over a window, with its first layers or in integers", "[generate][gguf]") {
  const std::string usual = "--threads 1 --max-tokens 40 --model '" GENERATE_MODELS
                            "' --prompt 'The king said to the people of the city that'";
  const auto tokens = [&](const std::string& flags) {
    const outcome of = said(usual + " --json " + flags);
    INFO(of.err);
    REQUIRE(of.status == 0);
    return nlohmann::json::parse(of.out);
  };
  const auto plain = tokens("--method plain");
  for (const char* self : {"--self.window 8", "--self.layers 4", "--self.arithmetic integer",
                           "--self.window 12 --self.layers 6 --self.arithmetic integer"}) {
    for (const char* method : {"chain --length 3", "cost-aware"}) {
      INFO(self << " " << method);
      const auto drafted = tokens(std::string("--drafter self ") + self + " --method " + method);
      CHECK(drafted.at("texts").at(0).at("tokens") == plain.at("texts").at(0).at("tokens"));
      if (method != std::string("cost-aware")) CHECK(drafted.at("statistics").at("accepted") > 0);
    }
  }
  const auto options = tokens("--drafter self --self.window 8").at("options");
  CHECK(options.at("drafter") == "self");
  CHECK(options.at("self").at("window") == 8);
}

TEST_CASE("tokens of two vocabularies are shared by their bytes and by their roles", "[generate][gguf]") {
  const std::string bytes = tiny_gguf().write("bytes.gguf");
  const models::model_set from_bundled = models::model_set::load({GENERATE_MODELS, bytes}, {.threads = 1});
  const espalier::tokenizer& bundled = from_bundled.text;
  const espalier::vocabulary_map& map = from_bundled.map.value();
  const auto token = [&](const std::string& text) { return bundled.encode(text).at(0); };
  // A character is shared, not the token of its byte, which no text has.
  for (const std::string text : {"a", "Z", " ", "\n", "7"}) {
    INFO(text);
    REQUIRE(map.is_shared(token(text)));
    CHECK(map.cut(token(text))[0] == static_cast<unsigned char>(text[0]));
  }
  for (espalier::token_id t = 0; t < bundled.size(); ++t)
    if (bundled.is_byte(t) && bundled.piece(t) == "a") CHECK(!map.is_shared(t));
  CHECK(map.is_shared(token("\x01")));
  const espalier::token_id end = bundled.ends_of_text().at(0);
  REQUIRE(map.is_shared(end));
  CHECK(map.cut(end)[0] == 257);
  CHECK(map.begin() == -1);
  CHECK(map.cut(bundled.begin_of_text()).empty());
  // The other way round: texts begin with the draft's own token.
  const std::string draft = write_renumbered_draft(GENERATE_MODELS, scratch() + "/renumbered");
  const models::model_set to_bundled = models::model_set::load({bytes, draft}, {.threads = 1});
  CHECK(to_bundled.map.value().begin() == bundled.begin_of_text() + 7);
  CHECK(to_bundled.map.value().cut(257)[0] == end + 7);
}

TEST_CASE("a draft whose tokens have other numbers drafts as well as with the target's", "[generate][gguf]") {
  const std::string model = "--model '" GENERATE_MODELS "' ";
  const std::string draft = "--draft '" + write_renumbered_draft(GENERATE_MODELS, scratch() + "/renumbered") + "' ";
  const std::string asked = "--prompt 'Question: Tom has 3 apples and buys 5 more. How many' ";
  for (const std::string method : {"--method chain --length 4 ", "--method dynatree "}) {
    INFO(method);
    const auto same = writes(model + method + asked);
    const auto other = nlohmann::json::parse(said(model + draft + method + asked + "--max-tokens 40 --json").out);
    CHECK(text_of(other) == text_of(same));
    CHECK(same.at("statistics").at("tokens_per_round") > 1.5);
    CHECK(other.at("statistics").at("rounds") == same.at("statistics").at("rounds"));
    CHECK(other.at("statistics").at("drafted") == same.at("statistics").at("drafted"));
  }
}

TEST_CASE("a draft with a shorter context leaves the target its own", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' ";
  const std::string draft = "--draft '" + tiny_gguf{.seed = 2, .context = 64}.write("short.gguf") + "' ";
  const std::string asked = "--raw --max-tokens 120 --prompt '" + std::string(30, 'a') + "' ";
  const std::string plain = text_of(writes(model + asked + "--method plain"));
  CHECK(text_of(writes(model + draft + asked + "--method chain")) == plain);
  CHECK(text_of(writes(model + draft + asked + "--method dynatree")) == plain);
  // A prompt that the draft alone could not hold.
  const std::string longer = "--raw --max-tokens 20 --prompt '" + std::string(200, 'a') + "' ";
  CHECK(text_of(writes(model + draft + longer + "--method chain")) ==
        text_of(writes(model + longer + "--method plain")));
}

TEST_CASE("a chat answers line by line until the input ends", "[generate][gguf]") {
  const std::string model = "--model '" + tiny_gguf().write("tiny.gguf") + "' --method chain --chat";
  const outcome two = said(model, "printf 'Hello.\\nAnd then?\\n' |");
  REQUIRE(two.err == "");
  CHECK(two.status == 0);
  const outcome again = said(model, "printf 'Hello.\\n/new\\nHello.\\n' |");
  const outcome one = said(model, "printf 'Hello.\\n' |");
  CHECK(one.out.size() > 4);
  CHECK(two.out.compare(0, one.out.size(), one.out) == 0);
  CHECK(two.out.size() > one.out.size());
  CHECK(again.out == one.out + one.out);
  CHECK(said(model, "</dev/null ").out == "");
}

TEST_CASE("a model that cannot be used is named, with what can", "[generate][gguf]") {
  const std::string whole = tiny_gguf().text(), model = "'" + tiny_gguf().write("tiny.gguf") + "'";
  struct fault {
    std::string arguments;
    std::vector<std::string> message;
  };
  const std::string draft = tiny_gguf{.seed = 2}.write("draft.gguf");
  const std::string padded = tiny_gguf{.seed = 2, .spare_rows = 9}.write("padded.gguf");
  const auto with_tokens = [&](const std::string& list, const std::string& over = "") {
    static int n = 0;
    const std::string folder = scratch() + "/" + std::to_string(n++);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/tokens.json") << list;
    return "--model " + model + " --draft '" + (over.empty() ? draft : over) + "' --head-tokens '" + folder +
           "/tokens.json'";
  };
  for (const fault& f : std::vector<fault>{
           {"--model '" + tiny_gguf::put("notes.txt", "Some text.") + "'",
            {"notes.txt is no GGUF file", "a folder with a config.json"}},
           {"--model " + model + " --draft '" + tiny_gguf::put("draft.bin", "PK") + "'", {"draft.bin is no GGUF file"}},
           {"--model " + model + " --draft '" + scratch() + "'", {"the folder " + scratch() + " holds no model"}},
           {"--model '" + tiny_gguf::put("head.gguf", whole.substr(0, 700)) + "'",
            {"head.gguf is cut short or damaged"}},
           {"--model '" + tiny_gguf::put("cut.gguf", whole.substr(0, whole.size() - 1000)) + "'",
            {"cut.gguf", "blk.1.ffn_down.weight"}},
           {"--model '" + tiny_gguf{.architecture = "mamba"}.write("mamba.gguf") + "'",
            {"mamba.gguf", "\"mamba\", but must be one of llama"}},
           {"--model '" + tiny_gguf{.has_tokenizer = false}.write("nameless.gguf") + "'",
            {"nameless.gguf", "\"tokenizer.ggml.tokens\""}},
           {"--model " + model + " --draft '" +
                tiny_gguf{.spare_rows = 9, .has_tokenizer = false}.write("nameless.gguf") + "'",
            {"tiny.gguf has a vocabulary of 258", "nameless.gguf one of 267", "the same size but for padding"}},
           {"--model " + model + " --translation tokens --draft '" + tiny_gguf{.byte_length = 2}.write("pairs.gguf") +
                "'",
            {"pairs.gguf and the target", "tiny.gguf share 2 tokens, of 258 and 258",
             "a quarter of the smaller vocab"}},
           {"--model " + model + " --translation text",
            {"--translation is for a smaller model that drafts: there is none"}},
           {"--model " + model + " --drafter text --map m",
            {"--map is for a smaller model that drafts: there is none"}},
           {"--model " + model + " --drafter self --self.layers 1 --head-tokens m",
            {"--head-tokens is for a smaller model that drafts: there is none"}},
           {with_tokens("[0, 1]"), {"tokens.json is not a JSON object"}},
           {with_tokens(R"({"head_tokens": []})"), {"tokens.json must be an object with one key, \"head_tokens\""}},
           {with_tokens(R"({"head_tokens": [1, 2], "of": 3})"), {"tokens.json must be an object with one key"}},
           {with_tokens(R"({"head_tokens": [1, "a"]})"),
            {"tokens.json: \"head_tokens\" has \"a\", but tokens are from 0 to 257"}},
           {with_tokens(R"({"head_tokens": [2, 1, 2]})"), {"tokens.json: \"head_tokens\" has token 2 twice"}},
           {with_tokens(R"({"head_tokens": [0, 258]})"),
            {"tokens.json: \"head_tokens\" has 258, but tokens are from 0 to 257."}},
           {with_tokens(R"({"head_tokens": [0, 260]})", padded),
            {"tokens.json: \"head_tokens\" has 260, but tokens are from 0 to 257."}},
           {"--model " + model + " --map m --draft '" + tiny_gguf{.seed = 2}.write("draft.gguf") + "'",
            {"draft.gguf has the target's tokenizer: there is nothing that --map could say."}},
           {"--model '" + tiny_gguf{.spare_rows = 259}.write("untold.gguf") + "'",
            {"untold.gguf has 258 tokens", "a vocabulary of 517", "at least half"}},
           {"--chat --model '" + tiny_gguf{.chats = false}.write("silent.gguf") + "'",
            {"silent.gguf has no chat template"}},
       }) {
    INFO(f.arguments);
    const outcome result = said(f.arguments, "</dev/null ");
    INFO(result.err);
    CHECK(result.status == 2);
    CHECK(result.out == "");
    for (const std::string& part : f.message)
      CHECK(contains(result.err, part));
    CHECK(result.err.compare(0, 10, "generate: ") == 0);
  }
}
