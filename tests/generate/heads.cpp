// SPDX-License-Identifier: BSL-1.0
// Draft heads: which drafter --draft names, the texts over one, and heads that cannot be used.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "program.hpp"
#include "tiny_hybrid.hpp"
#include "written.hpp"

namespace {

namespace files = std::filesystem;

const std::string heads = ESPALIER_TEST_DATA "/golden/heads";

// A folder with the files of one of the golden tests' models, and a tokenizer of its 96 tokens.
std::string model_of(const std::string& name) {
  const std::string folder = scratch() + "/head_" + name;
  if (files::exists(folder)) return folder;
  files::copy(heads + "/" + name, folder);
  write_tokenizer(folder, 96);
  return folder;
}

std::string after(const std::string& model) {
  const std::string prompts = scratch() + "/head_prompts.jsonl";
  std::ofstream(prompts) << "{\"tokens\": [5, 17, 80, 3]}\n";
  return "--threads 1 --max-tokens 40 --prompts '" + prompts + "' --model '" + model + "' ";
}

nlohmann::json writes(const std::string& arguments) {
  return written(arguments, GENERATE_ON_HOST);
}

std::string refused(const std::string& arguments) {
  const outcome result = run(arguments, "", GENERATE_ON_HOST);
  CHECK(result.status == 2);
  CHECK(result.out == "");
  return result.err;
}

const nlohmann::json& tokens_of(const nlohmann::json& object) {
  return object.at("texts").at(0).at("tokens");
}

}  // namespace

TEST_CASE("a head drafts what the target writes alone, whichever flags name it", "[generate][heads]") {
  const std::string usual = after(model_of("target"));
  const nlohmann::json plain = writes(usual + "--method plain");
  for (const std::string name :
       {"heads/plain", "heads/midlayer", "heads/together", "heads/mtp", "head_gguf/eagle3.gguf"}) {
    const std::string draft = usual + "--draft '" + ESPALIER_TEST_DATA "/golden/" + name + "' ";
    const std::string kind = name == "heads/mtp" ? "mtp" : "eagle3";
    for (const std::string& flags : {draft, draft + "--drafter auto ", draft + "--drafter " + kind + " "}) {
      const nlohmann::json drafted = writes(flags + "--method dynatree");
      CHECK(tokens_of(drafted) == tokens_of(plain));
      CHECK(drafted.at("statistics").at("drafted") > 0);
    }
  }
}

TEST_CASE("a block of any kind drafts what the target writes alone, whatever its file", "[generate][heads]") {
  const std::string usual = after(model_of("target"));
  const nlohmann::json plain = writes(usual + "--method plain");
  for (const char* block : {"heads/dspark_rnn", "heads/dflash_few", "heads/dflash2_zlab", "heads/xpress",
                            "heads/peagle", "head_gguf/dspark.gguf"}) {
    for (const char* flags : {" --method best-first", " --drafter block --method dynatree"}) {
      const nlohmann::json drafted = writes(usual + "--draft '" + ESPALIER_TEST_DATA "/golden/" + block + "'" + flags);
      CHECK(tokens_of(drafted) == tokens_of(plain));
      CHECK(drafted.at("statistics").at("drafted") > 0);
    }
  }
}

TEST_CASE("a head in the target's own files needs no flag", "[generate][heads]") {
  const std::string usual = after(model_of("beside"));
  const nlohmann::json plain = writes(usual + "--method plain");
  for (const char* flags : {"--method dynatree", "--method dynatree --drafter mtp"}) {
    const nlohmann::json drafted = writes(usual + flags);
    CHECK(tokens_of(drafted) == tokens_of(plain));
    CHECK(drafted.at("statistics").at("drafted") > 0);
  }
  CHECK(tokens_of(writes(usual + "--method chain --drafter text")) == tokens_of(plain));
}

TEST_CASE("what drafts a text by measured costs may be a head", "[generate][heads]") {
  const std::string usual = after(model_of("target"));
  const nlohmann::json drafted = writes(usual + "--draft '" + heads + "/plain'");
  CHECK(drafted.at("method") == "cost-aware");
  CHECK(tokens_of(drafted) == tokens_of(writes(usual + "--method plain")));
}

TEST_CASE("a head that cannot be used is named, beside what it does not fit", "[generate][heads]") {
  const std::string target = model_of("target"), usual = after(target);
  CHECK(contains(refused(usual + "--drafter eagle3"),
                 "--drafter eagle3 needs an EAGLE-3 head, but " + target + " has none beside it; --draft names one."));
  CHECK(contains(refused(usual + "--drafter eagle3 --draft '" + heads + "/mtp'"),
                 "--drafter eagle3 needs an EAGLE-3 head, but " + heads + "/mtp is none."));
  CHECK(contains(refused(usual + "--drafter mtp --draft '" + heads + "/plain'"),
                 "--drafter mtp needs an MTP head, but " + heads + "/plain is none."));
  CHECK(contains(refused(usual + "--drafter model --draft '" + heads + "/plain'"),
                 "--drafter model needs a smaller model, but " + heads + "/plain is none."));
  CHECK(contains(refused(after(GENERATE_MODELS) + "--draft '" + heads + "/plain'"),
                 heads + "/plain/config.json: \"hidden_size\" is 32, but the target " GENERATE_MODELS "/target"));
  const std::string other = scratch() + "/head_other";
  files::copy(heads + "/plain", other);
  nlohmann::json config = nlohmann::json::parse(contents(other + "/config.json"));
  config["speculators_model_type"] = "medusa";
  std::ofstream(other + "/config.json") << config;
  CHECK(contains(
      refused(usual + "--draft '" + other + "'"),
      other + "/config.json: \"speculators_model_type\" is \"medusa\", but must be \"eagle3\", \"peagle\" or"));
}
