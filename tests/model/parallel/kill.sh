#!/bin/sh
# SPDX-License-Identifier: BSL-1.0
# kill.sh MPIRUN PROGRAM CALL...: of three ranks the last one dies (or, before odd calls, is late) at each of these
# calls. Both others must name it in time, and go on with the text; so must two ranks that are started after them.
set -u
mpirun=$1
program=$2
shift 2
file=$(mktemp)
trap 'rm -f "$file"' EXIT
run() {
  "$mpirun" --allow-run-as-root --oversubscribe --enable-recovery "$@" 2>&1
}
count() {
  printf '%s\n' "$out" | grep -cE "$1"
}
good=0
for call in "$@"; do
  how=die
  [ $((call % 2)) = 1 ] && how=late
  : >"$file"
  out=$(run -np 3 "$program" kill "$call" "$how" "$file")
  named=$(count '^rank [01]: named in')
  out="$out
$(run -np 2 "$program" go_on "$file")"
  if [ "$named" = 2 ] && [ "$(count '^rank [01]: went on after')" = 2 ]; then
    good=$((good + 1))
  else
    printf 'call %s, %s:\n%s\n' "$call" "$how" "$out"
  fi
done
echo "$good of $#"
[ "$good" = $# ]
