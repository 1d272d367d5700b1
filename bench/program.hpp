// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"

namespace bench {

//! A program of this folder and its arguments. Each argument is declared once, with its default and its meaning.
//!
//!     bench::program program("bench_micro_verify", "What verification costs.");
//!     program.add("--rounds", rounds, "trees that each is measured with");
//!     return program.run(argc, argv, [&] { return measure(rounds); });
class program {
 public:
  program(std::string name, std::string about) : name_(std::move(name)), about_(std::move(about)) {}

  const std::string& name() const { return name_; }

  void add(const std::string& flag, std::string& value, const std::string& help) {
    add(flag + " TEXT", help, value, [&value](const std::string& text) { value = text; });
  }

  void add(const std::string& flag, int& value, const std::string& help, int least = 1, int most = 1 << 20) {
    add(flag + " N", help, std::to_string(value),
        [=, &value](const std::string& text) { value = number(flag, text, least, most); });
  }

  //! Lists are written with commas.
  void add(const std::string& flag, std::vector<std::string>& values, const std::string& help) {
    std::string all;
    for (const std::string& value : values)
      all += (all.empty() ? "" : ",") + value;
    add(flag + " TEXT,...", help, all, [&values](const std::string& text) { values = parts(text); });
  }

  void add(const std::string& flag, std::vector<int>& values, const std::string& help, int least, int most) {
    std::string all;
    for (const int value : values)
      all += (all.empty() ? "" : ",") + std::to_string(value);
    add(flag + " N,...", help, all, [=, &values](const std::string& text) {
      values.clear();
      for (const std::string& part : parts(text))
        values.push_back(number(flag, part, least, most));
    });
  }

  //! An argument without a value, which sets it true.
  void add(const std::string& flag, bool& value, const std::string& help) {
    add(flag, help, "", [&value](const std::string&) { value = true; });
  }

  //! Reads the arguments and returns the result of work(). Returns 0 after --help, and 2 with a message on stderr if an
  //! argument is wrong or work() throws.
  template <class WorkT>
  int run(int argc, char** argv, const WorkT& work) const {
    try {
      if (!read(argc, argv)) return 0;
      return work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", name_.c_str(), error.what());
      return 2;
    }
  }

 private:
  struct argument {
    std::string shown;  // the argument with a word for its value
    std::string help;
    std::string value;  // the default
    std::function<void(const std::string&)> set;

    std::string_view flag() const { return std::string_view(shown).substr(0, shown.find(' ')); }
    bool takes_value() const { return flag().size() < shown.size(); }
  };

  void add(const std::string& shown, const std::string& help, const std::string& value,
           std::function<void(const std::string&)> set) {
    arguments_.push_back({shown, help, value, std::move(set)});
  }

  static int number(const std::string& flag, const std::string& text, int least, int most) {
    int value = 0;
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end || value < least || value > most) {
      espalier::raise<espalier::input_error>(flag, " must be a whole number, ", least, " to ", most, ", but is \"",
                                             text, "\".");
    }
    return value;
  }

  static std::vector<std::string> parts(const std::string& text) {
    std::vector<std::string> found;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = (std::min)(text.find(',', begin), text.size());
      found.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return found;
  }

  // False if the help was asked for; it is printed then.
  bool read(int argc, char** argv) const {
    for (int i = 1; i < argc; ++i) {
      const std::string_view flag = argv[i];
      if (flag == "--help" || flag == "-h") {
        print_help();
        return false;
      }
      const auto found =
          std::find_if(arguments_.begin(), arguments_.end(), [&](const argument& a) { return a.flag() == flag; });
      if (found == arguments_.end())
        espalier::raise<espalier::input_error>("there is no argument ", flag, "; --help names them.");
      if (found->takes_value() && i + 1 == argc) espalier::raise<espalier::input_error>(flag, " needs a value.");
      found->set(found->takes_value() ? argv[++i] : "");
    }
    return true;
  }

  void print_help() const {
    std::printf("%s: %s\n\n", name_.c_str(), about_.c_str());
    for (const argument& a : arguments_) {
      const std::string value = a.value.empty() ? "" : " [" + a.value + "]";
      std::printf("  %-22s %s%s\n", a.shown.c_str(), a.help.c_str(), value.c_str());
    }
  }

  std::string name_;
  std::string about_;
  std::vector<argument> arguments_;
};

}  // namespace bench
