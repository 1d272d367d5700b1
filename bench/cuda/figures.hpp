// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "samples.hpp"

namespace bench {

//! One figure of a run. Times are in microseconds.
struct figure {
  std::string key;   //!< equal in all programs that measure the same thing, in any language
  std::string what;  //!< description
  samples measured{};
  std::string unit = "us";
  std::optional<double> reading{};  //!< time that reading (or moving) its bytes takes at the bandwidth of the copy
  std::optional<double> limit{};    //!< the largest value that is good enough
  std::string target{};             //!< reason for the limit
  std::string note{};
};

//! The figures that one program has measured, written to a file that bench/gpu_check reads.
class figures {
 public:
  //! If `tiny`, figures only show that the program works, and are no measurements.
  figures(std::string program, std::string card, bool tiny)
      : program_(std::move(program)), card_(std::move(card)), tiny_(tiny) {}

  void add(figure f) {
    if (tiny_) {
      std::fprintf(stderr, "  %-72s works\n", f.what.c_str());
      f.limit.reset();
    } else {
      std::fprintf(stderr, "  %-72s %10.2f %s%s\n", f.what.c_str(), f.measured.median(), f.unit.c_str(), verdict(f));
    }
    all_.push_back(std::move(f));
  }
  //! Adds a number that was counted, or one that other figures are judged by.
  void add(std::string key, std::string what, double value, std::string unit, std::string note = {}) {
    samples one;
    one.add(value);
    add(figure{.key = std::move(key),
               .what = std::move(what),
               .measured = one,
               .unit = std::move(unit),
               .note = std::move(note)});
  }

  //! Writes the figures as JSON.
  //!
  //! Errors      input_error for a file that cannot be written
  void write(const std::string& path) const {
    std::string text = "{\"program\": " + quoted(program_) + ", \"card\": " + quoted(card_) + ", \"figures\": [";
    for (std::size_t i = 0; i < all_.size(); ++i)
      text += (i == 0 ? "\n" : ",\n") + line(all_[i]);
    text += "\n]}\n";
    std::ofstream file(path, std::ios::binary);
    file << text;
    if (!file.flush()) espalier::raise<espalier::input_error>(path, " cannot be written.");
  }

 private:
  static const char* verdict(const figure& f) {
    if (!f.limit) return "";
    return f.measured.median() <= *f.limit ? "  met" : "  MISSED";
  }

  static std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out + '"';
  }
  static std::string number(double value) {
    if (!std::isfinite(value)) return "null";
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
  }
  static std::string line(const figure& f) {
    std::string text = "{\"key\": " + quoted(f.key) + ", \"what\": " + quoted(f.what) +
                       ", \"unit\": " + quoted(f.unit) + ", \"median\": " + number(f.measured.median()) +
                       ", \"low\": " + number(f.measured.low()) + ", \"high\": " + number(f.measured.high()) +
                       ", \"n\": " + std::to_string(f.measured.size());
    if (f.reading) text += ", \"reading\": " + number(*f.reading);
    if (f.limit) text += ", \"limit\": " + number(*f.limit);
    if (!f.target.empty()) text += ", \"target\": " + quoted(f.target);
    if (!f.note.empty()) text += ", \"note\": " + quoted(f.note);
    return text + "}";
  }

  std::string program_, card_;
  bool tiny_;
  std::vector<figure> all_;
};

}  // namespace bench
