#!/bin/sh
# SPDX-License-Identifier: BSL-1.0
# kill.sh MPIRUN PROGRAM CALL...: of three ranks the last one dies (or, before odd calls, is late) at each of these
# calls. Both others must name it in time, and go on with the text.
set -u
mpirun=$1
program=$2
shift 2
good=0
for call in "$@"; do
  how=die
  [ $((call % 2)) = 1 ] && how=late
  out=$("$mpirun" --allow-run-as-root --oversubscribe --enable-recovery -np 3 "$program" kill "$call" "$how" 2>&1)
  if [ "$(printf '%s\n' "$out" | grep -cE '^rank [01]: named in')" = 2 ]; then
    good=$((good + 1))
  else
    printf 'call %s, %s:\n%s\n' "$call" "$how" "$out"
  fi
done
echo "$good of $#"
[ "$good" = $# ]
