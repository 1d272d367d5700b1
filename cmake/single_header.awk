# SPDX-License-Identifier: BSL-1.0
# awk -f cmake/single_header.awk, in the repository's root: prints one header that has all that espalier/espalier.hpp includes, each
# header after the headers that it includes. Comments stay in the repository. Includes of other headers under a condition are
# taken without it: those few are under ESPALIER_HOSTED, and the header is for machines with an operating system.
#
# awk -v module=1 prints the same as the interface unit of a C++20 module. It includes the standard library first, outside of the module, and
# has no static_assert outside of classes and functions, which clang 16 and 17 do not let a module export.

function put(header,    path, line, status, text) {
  if (header in known) return
  known[header] = 1
  path = "include/" header
  while ((status = (getline line < path)) > 0) {
    if (line ~ /^#include "espalier\//) {
      split(line, quoted, "\"")
      put(quoted[2])
    } else if (module && line ~ /^#include </) {
      if (!(line in known)) standard = standard line "\n"
      known[line] = 1
    } else if (module && line ~ /^static_assert\(/) {
      while (line !~ /;$/ && (status = (getline line < path)) > 0) {
      }
    } else if (line !~ /^ *\/\// && line != "#pragma once" && line !~ /^ *$/) {
      text = text line "\n"
    }
  }
  close(path)
  if (status < 0) {
    print "single_header.awk: there is no " path | "cat >&2"
    exit failed = 1
  }
  all = all text
}

BEGIN {
  put("espalier/espalier.hpp")
  if (failed) exit 1
  print "// SPDX-License-Identifier: BSL-1.0"
  if (module) {
    print "// Espalier's component core as a C++20 module, made by ./run module."
    printf "module;\n%sexport module espalier;\nexport {\n%s}\n", standard, all
  } else {
    print "// Espalier's component core in one header, made by ./run single-header."
    printf "#pragma once\n%s", all
  }
}
