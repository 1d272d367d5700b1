#!/bin/bash -eu
# SPDX-License-Identifier: BSL-1.0
# Builds the programs of tests/fuzz by OSS-Fuzz's rules, from $SRC/espalier with $CXX, $CXXFLAGS and $LIB_FUZZING_ENGINE: in $OUT come the
# programs and the seeds of each as an archive.
cmake -S "$SRC/espalier" -B "$WORK/espalier" -G Ninja -DCMAKE_BUILD_TYPE=None -DESPALIER_BUILD_FUZZERS=ON -DESPALIER_NATIVE=OFF \
  -DESPALIER_BUILD_TESTS=OFF -DESPALIER_BUILD_EXAMPLES=OFF -DESPALIER_BUILD_BENCH=OFF -DESPALIER_INSTALL=OFF -DESPALIER_REGISTRY=OFF
cmake --build "$WORK/espalier" --target fuzzers
for program in "$WORK"/espalier/tests/fuzz/fuzz_*; do
  name=$(basename "$program")
  cp "$program" "$OUT/"
  zip -q -j "$OUT/${name}_seed_corpus.zip" "$SRC/espalier/tests/fuzz/corpus/${name#fuzz_}"/*
done
