# SPDX-License-Identifier: BSL-1.0
# awk -f cmake/single_header.awk, in the repository's root: prints one header that has all that espalier/espalier.hpp includes, each
# header after the headers that it includes. Comments stay in the repository. Includes of other headers under a condition are
# taken without it: those few are under ESPALIER_HOSTED, and the header is for machines with an operating system.

function put(header,    path, line, status, text) {
  if (header in known) return
  known[header] = 1
  path = "include/" header
  while ((status = (getline line < path)) > 0) {
    if (line ~ /^#include "espalier\//) {
      split(line, quoted, "\"")
      put(quoted[2])
    } else if (line !~ /^ *\/\// && line != "#pragma once" && line !~ /^ *$/) {
      text = text line "\n"
    }
  }
  close(path)
  if (status < 0) {
    print "single_header.awk: there is no " path | "cat >&2"
    exit 1
  }
  printf "%s", text
}

BEGIN {
  print "// SPDX-License-Identifier: BSL-1.0"
  print "// Espalier's component core in one header, made by ./run single-header."
  print "#pragma once"
  put("espalier/espalier.hpp")
}
