// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "scratch.hpp"

// What a run of the program left.
struct outcome {
  int status;
  std::string out;
  std::string err;
};

inline bool contains(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Runs `generate`, or another program, with arguments as a shell reads them; its output goes to files, so it has no
// terminal.
inline outcome run(const std::string& arguments, const std::string& before = "",
                   const std::string& program = GENERATE_PROGRAM) {
  const std::string out = scratch() + "/out";
  const std::string err = scratch() + "/err";
  const std::string command = before + " '" + program + "' " + arguments + " >'" + out + "' 2>'" + err + "'";
  const int result = std::system(command.c_str());
  return {WIFEXITED(result) ? WEXITSTATUS(result) : -1, contents(out), contents(err)};
}
