// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdlib>

#if defined(_WIN32)
#include <io.h>
#else
#include <sys/ioctl.h>
#include <unistd.h>
#endif

namespace generate {

//! True if stdout is a terminal.
inline bool is_terminal() {
#if defined(_WIN32)
  return _isatty(1) != 0;
#else
  return isatty(STDOUT_FILENO) != 0;
#endif
}

//! True if stderr is a terminal, where progress can be shown.
inline bool stderr_is_terminal() {
#if defined(_WIN32)
  return _isatty(2) != 0;
#else
  return isatty(STDERR_FILENO) != 0;
#endif
}

//! True if colours are to be written: to terminals, unless NO_COLOR is set and not empty (no-color.org).
inline bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return is_terminal() && (no_colour == nullptr || no_colour[0] == '\0');
}

//! Number of columns of the terminal; 100 if there is none.
inline int terminal_columns() {
#if !defined(_WIN32)
  winsize size{};
  if (is_terminal() && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
#endif
  return 100;
}

}  // namespace generate
