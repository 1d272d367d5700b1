// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/tokenizer/vocabulary_map_file.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

namespace files = std::filesystem;

// A folder for the files of this test, gone when it ends.
struct scratch {
  std::string path = (files::temp_directory_path() / ("espalier-map-" + std::to_string(::getpid()))).string();
  scratch() { files::create_directories(path); }
  ~scratch() { files::remove_all(path); }

  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name, std::ios::binary) << text;
    return path + "/" + name;
  }
};

vocabulary_map made_map() {
  const std::vector<std::string> target{"a", "ab", "b", "e"}, draft{"b", "c", "a", ""};
  vocabulary_map map(target, draft);
  map.share(3, 3);
  map.begin_with(1);
  return map;
}

}  // namespace

TEST_CASE("the identity of a tokenizer is that of all files that it is read from") {
  const scratch here;
  const std::string folder = here.path + "/model";
  files::create_directories(folder);
  std::vector<std::string> seen{tokenizer_identity(folder)};
  for (const char* name : {"tokenizer.json", "generation_config.json", "chat_template.jinja"}) {
    here.put(std::string("model/") + name, "{}");
    seen.push_back(tokenizer_identity(folder));
    here.put(std::string("model/") + name, "{ }");
    seen.push_back(tokenizer_identity(folder));
  }
  for (std::size_t i = 0; i < seen.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      CHECK(seen[i] != seen[j]);
  here.put("model/model.safetensors", "weights");
  CHECK(tokenizer_identity(folder) == seen.back());
  CHECK(seen.back().starts_with(folder + ", "));
  CHECK(tokenizer_identity(folder + "/tokenizer.json") != seen.back());
  CHECK(says(message_of<model_error>([&] { tokenizer_identity(here.path + "/none"); }), "/none"));
}

TEST_CASE("a map is read as it was written, for the same tokenizers and sizes alone") {
  const scratch here;
  const std::string path = here.path + "/a.map";
  vocabulary_map map = made_map();
  const map_origin origin{"one, 17", "other, 23"};
  save_vocabulary_map(map, origin, path);
  const vocabulary_map loaded = load_vocabulary_map(path, origin, 4, 4);
  CHECK(loaded.begin() == 1);
  CHECK(loaded.shared().size() == 3);
  for (token_id t = 0; t < 4; ++t) {
    CHECK(loaded.is_shared(t) == map.is_shared(t));
    CHECK(std::vector<token_id>(loaded.cut(t).begin(), loaded.cut(t).end()) ==
          std::vector<token_id>(map.cut(t).begin(), map.cut(t).end()));
  }
  const auto fault = [&](const map_origin& present, std::int32_t target = 4, std::int32_t draft = 4) {
    return message_of<model_error>([&] { load_vocabulary_map(path, present, target, draft); });
  };
  CHECK(says(fault({"one, 18", "other, 23"}), "target's tokenizer one, 17, but this one is one, 18: delete the file"));
  CHECK(says(fault({"one, 17", "third, 23"}), "draft's tokenizer other, 23, but this one is third, 23"));
  CHECK(says(fault(origin, 5), "a.map cannot be used", "4 tokens of the target", "there are 5"));
  CHECK(says(fault(origin, 4, 3), "4 tokens of the draft", "there are 3"));
  here.put("a.map", "no map");
  CHECK(says(fault(origin), "a.map cannot be used: the bytes are no vocabulary map"));
  CHECK(says(message_of<model_error>([&] { save_vocabulary_map(map, origin, here.path + "/no/a.map"); }),
             "cannot be written to", "/no/a.map"));
}
