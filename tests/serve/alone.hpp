// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// What one decoder alone writes, text after text, without drafting: what a server must write, too.
class lone_writer {
 public:
  struct request {
    std::string prompt;
    std::uint64_t seed = 0;
    std::uint32_t stream = 0;
    float temperature = 0;
    float top_p = 1;
    std::int32_t max_tokens = 16;
    std::vector<std::string> stop{};
  };
  struct text {
    std::string bytes;  // without a stop string
    std::int32_t n_tokens = 0;
    bool stopped = false;  // by a stop string or the end token
  };

  // With these models, or the bundled ones.
  explicit lone_writer(const std::string& models = "");
  ~lone_writer();

  text write(const request& r);
  std::int32_t n_prompt_tokens(const std::string& prompt) const;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};
