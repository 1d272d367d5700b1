// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_files.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/whole_file.hpp"

namespace espalier {

//! A model in several safetensors files that model.safetensors.index.json lists.
//!
//! Complexity  memory for the tables of contents only
//! Errors      model_error that names the index or the file, the tensor and what does not fit
//! Source      transformers: "weight_map" gives the file of each tensor, in the folder of the index
class safetensors_shards : public tensor_source {
 public:
  explicit safetensors_shards(const std::string& folder) : where_(folder + "/model.safetensors.index.json") {
    const nlohmann::json object = detail::parse_json_object(detail::whole_file(where_), where_);
    const auto map = object.find("weight_map");
    if (map == object.end() || !map->is_object()) raise<model_error>(where_, " has no object \"weight_map\".");
    std::map<std::string, int> numbers;
    for (const auto& [name, value] : map->items()) {
      const std::string file = value.is_string() ? value.template get<std::string>() : "";
      if (file.empty() || file.find_first_of("/\\") != std::string::npos) {
        raise<model_error>(where_, ": \"", name, "\" does not name a file of the folder.");
      }
      const auto [number, is_new] = numbers.emplace(file, static_cast<int>(files_.size()));
      if (is_new) files_.emplace_back(folder + "/" + file);
      const safetensors_file& shard = files_[static_cast<std::size_t>(number->second)];
      const tensor_entry* entry = shard.find(name);
      if (!entry) raise<model_error>(shard.where(), " lacks tensor \"", name, "\", which the index says it holds.");
      entries_.emplace(name, *entry).first->second.file = number->second;
    }
  }

  const std::string& where() const override { return where_; }
  const std::string& where_is(const tensor_entry& entry) const override { return file_of(entry).where(); }

  //! The paths of the files, sorted.
  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const safetensors_file& file : files_)
      all.push_back(file.where());
    std::sort(all.begin(), all.end());
    return all;
  }

  //! The names of the tensors in all files, including tensors that the index does not list.
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const safetensors_file& file : files_) {
      const std::vector<std::string> own = file.names();
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

  const tensor_entry* find(const std::string& name) const override {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
  }

  void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) override {
    files_[static_cast<std::size_t>(entry.file)].read(entry, first, to, n);
  }

 private:
  const safetensors_file& file_of(const tensor_entry& entry) const {
    return files_[static_cast<std::size_t>(entry.file)];
  }

  std::string where_;
  std::vector<safetensors_file> files_;
  std::map<std::string, tensor_entry> entries_;
};

}  // namespace espalier
