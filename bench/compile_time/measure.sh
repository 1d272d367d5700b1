#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# Seconds to compile one translation unit, as a Markdown table: a whole decoder, then every public header alone.
#
#   bench/compile_time/measure.sh [compiler...]          default: c++
#
# Each figure is the least of REPEATS (3) runs, user and system time, without a compiler cache. The decoder is
# compiled at -O2, as a user would; a header alone is only checked, which is the part that its author controls.
# CXXFLAGS adds flags, such as where to find nlohmann-json.
set -eu
cd "$(dirname "$0")/../.."
repeats=${REPEATS:-3}
TIMEFORMAT='%U %S'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ $# -gt 0 ] || set -- c++

# seconds COMMAND...: prints the least CPU seconds of the runs, or a dash if the command fails.
seconds() {
  n=0
  while [ "$n" -lt "$repeats" ]; do
    if ! { time "$@" >/dev/null 2>"$work/errors"; } 2>"$work/time"; then
      echo "-"
      return
    fi
    awk '{ print $1 + $2 }' "$work/time" >>"$work/runs"
    n=$((n + 1))
  done
  sort -n "$work/runs" | head -n 1
  rm "$work/runs"
}

row() {
  printf '| %s |' "$1"
  shift
  source=$1
  shift
  for compiler in $compilers; do
    # shellcheck disable=SC2086
    printf ' %s |' "$(seconds "$compiler" -std=c++20 -Iinclude ${CXXFLAGS:-} "$@" "$source")"
  done
  printf '\n'
}

compilers=$*
printf '# Seconds to compile each header\n\n| seconds |'
for compiler in $compilers; do printf ' %s |' "$("$compiler" --version | head -n 1)"; done
printf '\n|---|'
for compiler in $compilers; do printf -- '---|'; done
printf '\n'

echo 'int main() {}' >"$work/empty.cpp"
row 'an empty program, -O2' "$work/empty.cpp" -O2 -c -o "$work/object.o"
row 'a whole decoder (examples/minimal/main.cpp), -O2' examples/minimal/main.cpp -O2 -c -o "$work/object.o"
find include -name '*.hpp' | sort | while read -r header; do
  printf '#include "%s"\n' "${header#include/}" >"$work/one.cpp"
  row "\`${header#include/espalier/}\`" "$work/one.cpp" -fsyntax-only
done
