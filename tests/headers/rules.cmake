# cmake -DROOT=<repository> -P rules.cmake: the rules that a compiler does not check. Names every breach.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/components.cmake")
espalier_find_headers("${ROOT}")

set(breaches "")
macro(breach text)
  string(APPEND breaches "\n  ${text}")
endmacro()

set(present)
foreach(component IN LISTS espalier_components)
  list(APPEND present ${espalier_${component}_headers})
endforeach()

# The table of layers in docs/design.md: a row is a folder, what stands there, and the folders that it may include, which stand above.
set(layers)
file(STRINGS "${ROOT}/docs/design.md" rows REGEX "^\\| `[a-z_/]+` \\|.*\\|.*\\|$")
foreach(row IN LISTS rows)
  if(NOT row MATCHES "^\\| `([a-z_/]+)` \\|[^|]*\\|([^|]*)\\|$")
    continue()
  endif()
  set(layer "${CMAKE_MATCH_1}")
  string(REGEX MATCHALL "[a-z_/]+`" names "${CMAKE_MATCH_2}")
  string(REPLACE "`" "" names "${names}")
  foreach(name IN LISTS names)
    if(NOT name IN_LIST layers)
      breach("docs/design.md lets ${layer} include ${name}, which is no row above it")
    endif()
  endforeach()
  list(APPEND layers ${layer})
  set(includes_of_${layer} ${names})
endforeach()
if(NOT "core" IN_LIST layers)
  breach("docs/design.md has no table of layers")
endif()

# layer_of(<variable> <path below include/espalier>): the row that a header belongs to, or nothing.
function(layer_of variable path)
  string(REGEX REPLACE "^cuda/|\\.(hpp|cuh)$" "" layer "${path}")
  string(REGEX REPLACE "^(model/[^/]+|[^/]+)/.*" "\\1" layer "${layer}")
  if(NOT layer IN_LIST layers)
    set(layer "")
  endif()
  set(${variable} "${layer}" PARENT_SCOPE)
endfunction()

foreach(header IN LISTS present)
  string(REPLACE "include/espalier/" "" path "${header}")
  if(path MATCHES "^(config|version|espalier)\\.hpp$|^cuda\\.cuh$")
    continue()
  endif()
  layer_of(layer "${path}")
  if(NOT layer)
    breach("${header} stands in no folder of the table in docs/design.md")
    continue()
  endif()
  set(allowed ${layer} ${includes_of_${layer}})
  if(path MATCHES "^cuda/")
    list(APPEND allowed ${includes_of_cuda/${layer}})
  endif()
  file(STRINGS "${ROOT}/${header}" includes REGEX "^ *# *include *[\"<]espalier/")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE ".*[\"<]espalier/([^\">]*).*" "\\1" included "${line}")
    layer_of(from "${included}")
    if(NOT included STREQUAL "config.hpp" AND NOT from IN_LIST allowed)
      breach("${header} is of ${layer}, which does not include ${included}: see the table in docs/design.md")
    endif()
  endforeach()
endforeach()

# tests/ mirrors include/espalier/: A/B.hpp is tested by tests/A/B.cpp, A/B.cuh by tests/A/B.cu. What stands in a part's own folder
# (A/B/C.hpp beside A/B.hpp) may be tested with the part. These headers are tested elsewhere: a test, and what it tests.
set(tested_elsewhere
  "registry.cpp: registry/chosen_verifier.hpp"
  "analysis/acceptance_rate.cpp: analysis/optimal_rate.hpp"
  "concepts/minimal.cpp: concepts/backend.hpp concepts/drafter.hpp concepts/kv_store.hpp concepts/tree_policy.hpp
    concepts/verifier.hpp"
  "constraint/regular_expression.cpp: constraint/automaton/byte_nfa.hpp
    constraint/automaton/character_set.hpp constraint/automaton/regex_parser.hpp
    constraint/token_automaton.hpp constraint/vocabulary_trie.hpp"
  "core/util/bytes.cpp: core/util/byte_reader.hpp core/util/byte_writer.hpp"
  "core/forward_batch.cpp: core/forward_batch_view.hpp"
  "decoder/processed.cpp: concepts/processor.hpp concepts/row_processor.hpp decoder/processed_rows.hpp decoder/text_processor.hpp"
  "processor/processors.cpp: concepts/constraint.hpp processor/banned_sequences.hpp
    processor/constrained.hpp processor/forced_tokens.hpp processor/logit_bias.hpp processor/minimum_length.hpp
    processor/penalties.hpp"
  "core/philox.cpp: core/chance.hpp"
  "core/tree.cpp: core/token.hpp core/tree_view.hpp core/tree_writer.hpp core/verdict.hpp"
  "core/weights.cpp: core/sums.hpp"
  "cost/cost_curve.cpp: cost/monotone_grid.hpp"
  "cost/measure_costs.cpp: cost/hardware_name.hpp"
  "decoder/ahead.cpp: decoder/drafting_ahead.hpp decoder/no_ahead.hpp"
  "decoder/batch_decoder.cpp: decoder/batch_drafting.hpp decoder/batch_options.hpp decoder/text_table.hpp"
  "decoder/decoder.cpp: backend/text.hpp decoder/no_pieces.hpp decoder/round_rows.hpp decoder/served_sizes.hpp
    decoder/served_text.hpp drafter/no_drafter.hpp kv_store/token_kv.hpp"
  "decoder/double_rows.cpp: backend/callable.hpp"
  "decoder/guards.cpp: core/require_token.hpp decoder/check_round.hpp decoder/grow.hpp"
  "decoder/prefill.cpp: forward/prefill.hpp"
  "decoder/saved_text.cpp: kv_store/memory/serialize_rows.hpp kv_store/saved_sequence.hpp"
  "decoder/seeds.cpp: decoder/decoder_options.hpp decoder/text_options.hpp"
  "decoder/sharing.cpp: decoder/check_parts.hpp forward/checked_forward.hpp"
  "decoder/states.cpp: concepts/round_start.hpp core/model_state.hpp decoder/model_states.hpp"
  "decoder/statistics.cpp: core/util/stopwatch.hpp decoder/observer.hpp"
  "embedded/float_numbers.cpp: core/wide_number.hpp"
  "embedded/static_decoder.cpp: core/static/arena.hpp core/static/list.hpp core/static/message_text.hpp core/static/static_capacity.hpp
    core/static/unset_numbers.hpp decoder/static_decoder.hpp"
  "decoder/turns.cpp: decoder/text_cache.hpp"
  "drafter/factorised.cpp: drafter/nodes/node_checks.hpp"
  "drafter/prompt_lookup.cpp: drafter/lookup/ngram_index.hpp"
  "headers/linked_one.cpp: config.hpp espalier.hpp"
  "interop/masks.cpp: interop/row_parents.hpp interop/sequence_mask.hpp"
  "kv_store/contiguous.cpp: kv_store/memory/float_block.hpp kv_store/memory/kv_shape.hpp kv_store/slot_ledger.hpp"
  "kv_store/recurrent.cpp: kv_store/recurrent_shape.hpp"
  "model/files/cost_file.cpp: model/llama/model_identity.hpp"
  "model/files/rounded_row.cpp: model/files/weight_storage.hpp"
  "model/files/weight_row.cpp: model/files/weight_type.hpp"
  "model/llama/block_draft_model.cpp: model/llama/block_draft_config.hpp
    model/llama/block_draft_tensors.hpp"
  "model/llama/elementwise.cpp: model/llama/simd.hpp"
  "model/llama/llama_backend.cpp: model/llama/attention.hpp
    core/batch_check.hpp model/llama/host_kv_store.hpp model/llama/rotary_table.hpp model/llama/transformer_pass.hpp"
  "model/files/gguf_file.cpp: model/files/gguf_metadata.hpp model/files/file_bytes.hpp model/files/tensor_source.hpp"
  "model/llama_cpp/llama_cpp_backend.cpp: model/llama_cpp/llama_cpp_kv.hpp
    model/llama_cpp/llama_cpp_model.hpp"
  "model/llama/hybrid.cpp: concepts/recurrent_store.hpp
    model/llama/mamba_block.hpp model/llama/mamba_shape.hpp
    model/llama/recurrent_plan.hpp"
  "model/llama/integer_product.cpp: model/llama/instruction_set.hpp model/llama/integer_multiplier.hpp"
  "model/llama/model_config.cpp: model/files/json_reader.hpp model/llama/rope_scaling.hpp"
  "model/llama/model_files.cpp: model/files/safetensors_shards.hpp model/llama/gguf_config.hpp"
  "model/llama/model_weights.cpp: model/files/tensor_reader.hpp model/llama/model_steps.hpp model/llama/model_tensors.hpp"
  "model/llama/quantised_backend.cpp: model/llama/product_team.hpp"
  "model/llama/weight_matrix.cpp: model/llama/activation_rows.hpp model/llama/code_product.hpp model/llama/float_panel.hpp
    model/llama/matrix_rows.hpp model/llama/panel_layout.hpp model/llama/panel_part.hpp"
  "model/parallel/parallel_backend.cpp: model/parallel/communicator.hpp model/parallel/rank_part.hpp
    model/parallel/rank_rows.hpp"
  "model/small/small_llama.cpp: model/small/small_products.hpp
    model/small/small_weights.hpp"
  "model/torch/torch_backend.cpp: model/torch/torch_module.hpp
    model/torch/torch_options.hpp"
  "report/pictures.cpp: report/dot.hpp report/svg.hpp report/terminal.hpp report/xml_escaped.hpp"
  "sampling/lazy_rows.cpp: core/probabilities.hpp"
  "sampling/sampler.cpp: core/sampling_options.hpp sampling/nucleus.hpp"
  "sampling/top_tokens.cpp: sampling/token_selection.hpp"
  "tree_policy/best_first.cpp: tree_policy/growth/asked_nodes.hpp"
  "tree_policy/chain.cpp: sampling/log_prob.hpp"
  "tree_policy/cost_aware.cpp: tree_policy/growth/provisional.hpp"
  "tree_policy/delayed.cpp: testing/script_chance.hpp"
  "tree_policy/fixed.cpp: tree_policy/growth/layer.hpp"
  "verifier/vectors.cpp: core/row_view.hpp verifier/walk/remaining_draft.hpp verifier/walk/residual.hpp verifier/walk/walk.hpp"
  "cuda/backend/on_host.cu: cuda/concepts/backend.cuh cuda/core/host_failure.cuh cuda/kv_store/on_host_kv.cuh"
  "cuda/core/arrays.cu: cuda/core/device_array.cuh cuda/core/error.cuh cuda/core/fault.cuh cuda/core/launch.cuh
    cuda/core/shared_memory.cuh cuda/core/stream.cuh cuda/core/tree.cuh"
  "cuda/core/tree_compile.cu: cuda/core/forward_batch.cuh cuda/core/text_batch.cuh cuda/core/tree_order.cuh"
  "cuda/decoder/batch_decoder.cu: cuda/core/prompt_chunk.cuh
    cuda/decoder/prompt_rows.cuh cuda/decoder/text_caches.cuh"
  "cuda/decoder/decoder.cu: cuda/core/path.cuh
    cuda/decoder/accepted_path.cuh cuda/decoder/round_kernels.cuh cuda/decoder/round_parts.cuh
    cuda/decoder/take_round.cuh
    cuda/decoder/text_rounds.cuh cuda/drafter/autoregressive.cuh
    cuda/drafter/no_drafter.cuh"
  "cuda/decoder/shared_rows.cu: cuda/decoder/learnt_words.cuh cuda/decoder/round_size.cuh"
  "cuda/decoder/text_processors.cu: cuda/concepts/processor.cuh cuda/core/row_changes.cuh"
  "cuda/drafter/block_diffusion.cu: cuda/concepts/drafter.cuh cuda/concepts/state_rows.cuh cuda/model/llama/block_draft_model.cuh"
  "cuda/drafter/prompt_lookup.cu: cuda/tree_policy/growth/append_run.cuh"
  "cuda/interop/conversions.cu: cuda/interop/dense_mask.cuh cuda/interop/flashinfer_mask.cuh cuda/interop/packed_bytes.cuh
    cuda/interop/sglang_mask.cuh cuda/interop/sglang_tree.cuh cuda/interop/tensorrt_tree.cuh"
  "cuda/kv_store/stores.cu: cuda/concepts/kv_store.cuh cuda/kv_store/compaction.cuh cuda/kv_store/contiguous.cuh
    cuda/kv_store/kv_view.cuh cuda/kv_store/paged.cuh"
  "cuda/model/attention/tree_attention.cu: cuda/core/ptx.cuh cuda/model/attention/attention_arguments.cuh
    cuda/model/attention/attention_merge.cuh cuda/model/attention/attention_plan.cuh cuda/model/attention/attention_shape.cuh
    cuda/model/attention/attention_tile.cuh cuda/model/attention/attention_tuning.cuh cuda/model/attention/path_attention.cuh
    cuda/model/attention/plain_attention.cuh cuda/model/attention/row_keys.cuh cuda/model/attention/tile_attention.cuh
    cuda/core/matrix_descriptor.cuh cuda/model/attention/warpgroup_attention.cuh cuda/model/attention/warpgroup_tile.cuh"
  "cuda/model/llama/llama_backend.cu: cuda/forward/prefill.cuh cuda/model/llama/activate.cuh cuda/model/llama/array_pieces.cuh
    cuda/model/llama/embed.cuh cuda/model/llama/step_launcher.cuh
    cuda/model/llama/model_weights.cuh cuda/model/llama/normalise.cuh
    cuda/model/llama/number.cuh cuda/model/llama/rotate.cuh cuda/model/llama/row_upload.cuh"
  "cuda/model/parallel/parallel_backend.cu: cuda/model/parallel/communicator.cuh
    cuda/model/parallel/pass_marks.cuh cuda/model/parallel/rank_blocks.cuh"
  "cuda/sampling/sampler.cu: cuda/sampling/row_transform.cuh cuda/sampling/row_reader.cuh cuda/sampling/row_scan.cuh
    cuda/sampling/row_tuning.cuh cuda/sampling/team_sampler.cuh"
  "cuda/sampling/top_children.cu: cuda/sampling/argmax.cuh"
  "cuda/tree_policy/chain.cu: cuda/concepts/tree_policy.cuh cuda/core/node_list.cuh cuda/core/text_rows.cuh
    cuda/decoder/grow.cuh cuda/tree_policy/plain.cuh"
  "cuda/tree_policy/delayed.cu: cuda/tree_policy/iid_paths.cuh cuda/tree_policy/sampled_chain.cuh"
  "cuda/tree_policy/dyspec_greedy.cu: cuda/tree_policy/growth/draw_queue.cuh"
  "cuda/tree_policy/eagle2.cu: cuda/tree_policy/growth/best_of_list.cuh
    cuda/tree_policy/growth/rebuild_tree.cuh"
  "cuda/tree_policy/fixed.cu: cuda/tree_policy/growth/asked_levels.cuh cuda/tree_policy/growth/rule_levels.cuh
    cuda/tree_policy/growth/values_by_place.cuh"
  "cuda/tree_policy/growth/append_draws.cu: cuda/tree_policy/growth/grow_level.cuh"
  "cuda/tree_policy/sequoia.cu: cuda/tree_policy/growth/drawn_children.cuh"
  "gpu/linked_one.cu: cuda.cuh"
)

# The folders and sources that CMake's files name.
set(built)
file(GLOB_RECURSE cmake_files "${ROOT}/tests/CMakeLists.txt" "${ROOT}/tests/*.cmake")
foreach(file IN LISTS cmake_files)
  get_filename_component(folder "${file}" DIRECTORY)
  file(STRINGS "${file}" lines REGEX "^[^#]*(espalier_(cuda_sources|test)|add_executable|FOLDERS|SOURCES|ALONE|[.](cpp|cu))")
  string(REGEX REPLACE "espalier_(test|cuda_sources)\\([a-z0-9_]+" "" lines "${lines}")
  string(REGEX MATCHALL "[a-z0-9_/.]+" words "${lines}")
  list(TRANSFORM words PREPEND "${folder}/")
  list(APPEND built ${words})
endforeach()

macro(check_test test)
  if(NOT EXISTS "${ROOT}/tests/${test}")
    breach("tests/${test} is said to test headers, but there is no such file")
  else()
    set(path "${ROOT}/tests/${test}")
    while(NOT path IN_LIST built AND NOT path STREQUAL "${ROOT}/tests")
      get_filename_component(path "${path}" DIRECTORY)
    endwhile()
    if(path STREQUAL "${ROOT}/tests")
      breach("tests/${test} is built by no test")
    endif()
  endif()
endmacro()

# test_of(<variable> <path below include/espalier>): the test that bears the header's name.
function(test_of variable path)
  string(REGEX REPLACE "hpp$" "cpp" path "${path}")
  string(REGEX REPLACE "cuh$" "cu" path "${path}")
  set(${variable} "${path}" PARENT_SCOPE)
endfunction()

set(excused)
foreach(entry IN LISTS tested_elsewhere)
  string(REGEX REPLACE ":.*" "" test "${entry}")
  check_test("${test}")
  string(REGEX MATCHALL "[a-z0-9_/]+[.](hpp|cuh)" paths "${entry}")
  list(APPEND excused ${paths})
  foreach(path IN LISTS paths)
    test_of(own "${path}")
    if(NOT "include/espalier/${path}" IN_LIST present)
      breach("tests/${test} is said to test include/espalier/${path}, and there is no such header")
    elseif(EXISTS "${ROOT}/tests/${own}")
      breach("tests/${test} is said to test include/espalier/${path}, which has tests/${own}")
    endif()
  endforeach()
endforeach()

foreach(header IN LISTS present)
  string(REPLACE "include/espalier/" "" path "${header}")
  # Those of testing are tests themselves.
  if(path IN_LIST excused OR path MATCHES "^(cuda/)?testing[/.]")
    continue()
  endif()
  test_of(own "${path}")
  string(REGEX REPLACE "/[^/]*([.][a-z]+)$" "\\1" part "${path}")
  test_of(of_part "${part}")
  if(EXISTS "${ROOT}/tests/${own}")
    check_test("${own}")
  elseif(NOT "include/espalier/${part}" IN_LIST present OR NOT EXISTS "${ROOT}/tests/${of_part}")
    breach("${header} has no test tests/${own}")
  endif()
endforeach()

# may_include(<package> <includes, a regular expression> <component>...): their headers alone include it.
set(packages)
macro(may_include package includes)
  list(APPEND packages ${package})
  set(of_${package} "${includes}")
  set(${package}_headers)
  foreach(component ${ARGN})
    list(APPEND ${package}_headers ${espalier_${component}_headers})
  endforeach()
endmacro()
may_include(range-v3 "<range/v3" views)
may_include(Boost "<boost/" espalier)
may_include(nlohmann-json "<nlohmann/" files tokenizer torch)
may_include(llama.cpp "<(llama|ggml|gguf)[a-z-]*[.]h>" llama_cpp)
may_include(MPI "<mpi" mpi)
may_include(NCCL "<nccl" nccl)
may_include(xgrammar "<(xgrammar|dlpack)/" xgrammar)
may_include(LibTorch "<(torch|ATen|c10)/" torch cuda_torch)
may_include(tokenizers "<(pcre2|utf8proc|sentencepiece)" tokenizer)

foreach(header IN LISTS present)
  file(READ "${ROOT}/${header}" text)
  file(STRINGS "${ROOT}/${header}" includes REGEX "^ *# *include")

  if(NOT text MATCHES "^// SPDX-License-Identifier: BSL-1.0\n#pragma once\n")
    breach("${header} does not begin with the licence line and #pragma once")
  endif()

  string(REPEAT "." 121 long)
  file(STRINGS "${ROOT}/${header}" long_lines REGEX "${long}")
  if(long_lines)
    breach("${header} has a line of more than 120 columns: ${long_lines}")
  endif()

  if(text MATCHES "\nusing namespace")
    breach("${header} has a using directive")
  endif()

  foreach(line IN LISTS includes)
    if(header MATCHES "^include/espalier/(core|concepts)/" AND line MATCHES "<(boost|range|Eigen|nlohmann)/")
      breach("${header} includes a library that core and concepts do without: ${line}")
    endif()
    if(line MATCHES "<sys/" AND header MATCHES "^include/espalier/(core|concepts)/")
      breach("${header} includes what only some systems have: ${line}")
    endif()
    if(line MATCHES "[<\"]range/v3" AND NOT text MATCHES "__CUDACC__|espalier/views.hpp")
      breach("${header} includes range-v3 without an #error under __CUDACC__")
    endif()
    if(header MATCHES "cuh$" AND line MATCHES "range/v3|espalier/views.hpp|<cub/cub.cuh>")
      breach("${header} includes what device code must not reach: ${line}")
    endif()
    if(header MATCHES "hpp$" AND line MATCHES "cuh[>\"]|<cuda_|<cub/")
      breach("${header} is of the host half and includes CUDA: ${line}")
    endif()
    foreach(package IN LISTS packages)
      if(line MATCHES "${of_${package}}" AND NOT header IN_LIST ${package}_headers)
        breach("${header} includes ${package}, which no component of its own links: ${line}")
      endif()
    endforeach()
    if(line MATCHES "<(Eigen|fmt|CLI)")
      breach("${header} includes what no target of the library links: ${line}")
    endif()
  endforeach()
endforeach()

if(breaches)
  message(FATAL_ERROR "Rules of the headers are broken:${breaches}")
endif()
