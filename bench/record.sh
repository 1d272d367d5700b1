#!/bin/sh
# SPDX-License-Identifier: BSL-1.0
# Runs the benchmarks and writes what they print and draw to docs/benchmarks.
#
#   bench/record.sh [NAME...]        default: all of them; ./run bench list names them
#
# Builds as ./run bench does; BUILD, JOBS, CXX and NO_INSTALL mean the same. Takes some two hours on two cores,
# which should have nothing else to do.
set -eu
cd "$(dirname "$0")/.."
out=docs/benchmarks

[ $# -gt 0 ] || set -- micro_block_sparsity micro_cost_model micro_forward micro_round micro_sampling micro_selector micro_top_k micro_tree micro_verify tables_cost_aware tables_ddtree tables_dynatree tables_dynatree_sweeps tables_dyspec tables_greedy_equality tables_lookup tables_nde tables_priced tables_real_models tables_real_models_exact tables_serving tables_serving_sampled tables_speed_bench tables_verifiers

for name in "$@"; do
  name=${name#bench_}
  case $name in
    micro_block_sparsity | micro_round | micro_sampling | micro_selector | micro_top_k | micro_tree | micro_verify) ./run bench "bench_$name" >"$out/$name.log" ;;
    # On one thread: what else a machine does disturbs two that wait for each other most of all.
    micro_cost_model) ./run bench bench_micro_cost_model --threads 1 >"$out/$name.log" ;;
    micro_forward) ./run bench bench_micro_forward --model examples/models --json "$out/$name.json" >"$out/$name.log" ;;
    tables_dynatree)
      ./run bench bench_tables_dynatree --json "$out/$name.json" --plot "$out/speedup.svg" >"$out/$name.log"
      ;;
    tables_dynatree_sweeps)
      ./run bench bench_tables_dynatree_sweeps --price bench/prices/h100_qwen3_8b.json --json "$out/$name.json" \
        --plot "$out/dynatree" >"$out/$name.log"
      ;;
    tables_cost_aware | tables_ddtree | tables_dyspec | tables_nde | tables_serving | tables_verifiers)
      ./run bench "bench_$name" --json "$out/$name.json" --plot "$out/${name#tables_}.svg" >"$out/$name.log"
      ;;
    tables_serving_sampled)
      ./run bench bench_tables_serving --sampled --json "$out/$name.json" --plot "$out/serving_sampled.svg" >"$out/$name.log"
      ;;
    # Beside llama.cpp, which pip fetches and which takes ten minutes to build.
    tables_real_models)
      ./run with-llama-cpp bench bench_tables_real_models --integer --json "$out/$name.json" \
        --plot "$out/real_models.svg" >"$out/$name.log"
      ;;
    tables_real_models_exact)
      ./run with-llama-cpp bench bench_tables_real_models --greedy --json "$out/$name.json" >"$out/$name.log"
      ;;
    tables_greedy_equality | tables_lookup | tables_priced | tables_speed_bench) ./run bench "bench_$name" --json "$out/$name.json" >"$out/$name.log" ;;
    *)
      echo "There is no benchmark $name to record." >&2
      exit 1
      ;;
  esac
  # What ./run says comes before the first heading.
  {
    printf '<!-- bench/record.sh %s, %s -->\n\n' "$name" "$(date -u +%F)"
    sed -n '/^#/,$p' "$out/$name.log"
  } >"$out/$name.md"
  rm "$out/$name.log"
  echo "$out/$name.md"
done
