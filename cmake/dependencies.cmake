# What is on the system is used first. What is missing is fetched from its release archive, pinned by hash.
# Only what the chosen options need is looked for.
include(FetchContent)

# espalier_dependency(<package> TARGET <target> [VERSION <v>] HINT <debian package>
#                     [URL <archive> SHA256 <hash> [HEADERS <folder>]])
#
# Makes <target> exist, or stops with a sentence that says what to install; sets <package>_VERSION where it was found. A
# fetched archive is built as part of this project, or, with HEADERS, serves only its include folder, which
# cmake/install.cmake installs with the library.
function(espalier_dependency package)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TARGET;VERSION;HINT;URL;SHA256;HEADERS" "")
  if(TARGET ${arg_TARGET})
    return()
  endif()
  find_package(${package} ${arg_VERSION} QUIET GLOBAL)
  if(TARGET ${arg_TARGET})
    set(${package}_VERSION "${${package}_VERSION}" PARENT_SCOPE)
    return()
  endif()
  if(NOT arg_URL)
    message(FATAL_ERROR
      "Espalier needs ${package} ${arg_VERSION}, and CMake does not find it. "
      "On Debian and Ubuntu: apt install ${arg_HINT}. "
      "Elsewhere: install it and name its folder in CMAKE_PREFIX_PATH.")
  endif()
  message(STATUS "Fetching ${package} from ${arg_URL} (Debian and Ubuntu: apt install ${arg_HINT})")
  set(build_from)
  if(arg_HEADERS)
    set(build_from SOURCE_SUBDIR headers-only)
  endif()
  set(FETCHCONTENT_QUIET OFF)
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)
  set(CMAKE_WARN_DEPRECATED OFF)
  string(TOLOWER ${package} name)
  FetchContent_Declare(${package} URL ${arg_URL} URL_HASH SHA256=${arg_SHA256}
    DOWNLOAD_EXTRACT_TIMESTAMP FALSE ${build_from})
  FetchContent_MakeAvailable(${package})
  if(arg_HEADERS)
    add_library(${arg_TARGET} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${arg_TARGET} SYSTEM INTERFACE "${${name}_SOURCE_DIR}/${arg_HEADERS}")
    set_property(GLOBAL PROPERTY espalier_fetched_${package} "${${name}_SOURCE_DIR}/${arg_HEADERS}")
  endif()
endfunction()

set(espalier_boost_version 1.74)

# Boost.Hana alone is used, and it needs no other part of Boost.
macro(espalier_find_boost)
  espalier_dependency(Boost VERSION ${espalier_boost_version} TARGET Boost::headers HINT libboost-dev
    URL https://github.com/boostorg/boost/releases/download/boost-1.84.0/boost-1.84.0.tar.xz
    SHA256 2e64e5d79a738d0fa6fb546c6e5c2bd28f88d268a2a080546f74e5ff98f29d0e
    HEADERS libs/hana/include)
endmacro()

macro(espalier_find_range_v3)
  espalier_dependency(range-v3 TARGET range-v3::range-v3 HINT librange-v3-dev
    URL https://github.com/ericniebler/range-v3/archive/refs/tags/0.12.0.tar.gz
    SHA256 015adb2300a98edfceaf0725beec3337f542af4915cec4d0b89fa0886f4ba9cb
    HEADERS include)
endmacro()

# Eigen is what the benchmarks compare matrix products with.
macro(espalier_find_eigen)
  espalier_dependency(Eigen3 VERSION 3.4 TARGET Eigen3::Eigen HINT libeigen3-dev
    URL https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.bz2
    SHA256 b4c198460eba6f28d34894e3a5710998818515104d6e74e5cc331ce31e46e626
    HEADERS .)
endmacro()

# What the bundled host transformer needs.
macro(espalier_find_llama)
  espalier_dependency(nlohmann_json TARGET nlohmann_json::nlohmann_json HINT nlohmann-json3-dev
    URL https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz
    SHA256 0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406
    HEADERS include)
  set(THREADS_PREFER_PTHREAD_FLAG ON)
  espalier_dependency(Threads TARGET Threads::Threads HINT g++)
endmacro()

# Tests see Catch2 and the major version that was found here, 2 or 3: headers of the other may lie beside it on the system.
function(espalier_find_catch2)
  if(TARGET espalier_catch2)
    return()
  endif()
  espalier_dependency(Catch2 TARGET Catch2::Catch2 HINT catch2
    URL https://github.com/catchorg/Catch2/archive/refs/tags/v3.6.0.tar.gz
    SHA256 485932259a75c7c6b72d4b874242c489ea5155d17efa345eb8cc72159f49f356)
  if(NOT Catch2_VERSION AND Catch2_SOURCE_DIR)
    get_directory_property(Catch2_VERSION DIRECTORY "${Catch2_SOURCE_DIR}" DEFINITION PROJECT_VERSION)
  endif()
  if(NOT Catch2_VERSION MATCHES "^([23])\\.")
    message(FATAL_ERROR "The tests need Catch2 2.13 or 3, but what CMake found has the version \"${Catch2_VERSION}\".")
  endif()
  add_library(espalier_catch2 INTERFACE)
  target_link_libraries(espalier_catch2 INTERFACE Catch2::Catch2)
  # An assertion without a handler of its own: what it throws ends the test case, and is reported with it.
  target_compile_definitions(espalier_catch2 INTERFACE ESPALIER_CATCH2=${CMAKE_MATCH_1} CATCH_CONFIG_FAST_COMPILE)
endfunction()

macro(espalier_find_benchmark)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  espalier_dependency(benchmark TARGET benchmark::benchmark HINT libbenchmark-dev
    URL https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz
    SHA256 6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7)
endmacro()

macro(espalier_find_cli11)
  espalier_dependency(CLI11 TARGET CLI11::CLI11 HINT libcli11-dev
    URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz
    SHA256 f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a
    HEADERS include)
endmacro()

macro(espalier_find_fmt)
  espalier_dependency(fmt TARGET fmt::fmt HINT libfmt-dev
    URL https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz
    SHA256 1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811)
endmacro()

# llama.cpp, as the target llama: by its CMake package (name its folder in CMAKE_PREFIX_PATH), else by pkg-config. What needs it
# is left out where it is not: `./run with-llama-cpp` builds it.
set(ESPALIER_GGUF "" CACHE FILEPATH "A GGUF model for the tests and benchmarks over llama.cpp")
function(espalier_find_llama_cpp)
  if(NOT TARGET llama)
    find_package(llama CONFIG QUIET GLOBAL)
  endif()
  if(NOT TARGET llama)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
      pkg_check_modules(espalier_llama_cpp_package QUIET IMPORTED_TARGET GLOBAL llama)
    endif()
    if(TARGET PkgConfig::espalier_llama_cpp_package)
      add_library(llama ALIAS PkgConfig::espalier_llama_cpp_package)
    endif()
  endif()
  get_property(said GLOBAL PROPERTY espalier_no_llama_cpp)
  if(NOT TARGET llama AND NOT said)
    set_property(GLOBAL PROPERTY espalier_no_llama_cpp TRUE)
    message(STATUS "llama.cpp was not found: what needs it is left out (./run with-llama-cpp builds it)")
  endif()
endfunction()

# MPI, as the target MPI::MPI_CXX; espalier_has_mpi says whether it is there. (CMake makes the target even where it finds no MPI.) What
# needs it is left out where it is not.
function(espalier_find_mpi)
  get_property(known GLOBAL PROPERTY espalier_mpi_looked_for)
  if(NOT known)
    set_property(GLOBAL PROPERTY espalier_mpi_looked_for TRUE)
    if(TARGET MPI::MPI_CXX)
      set(MPI_CXX_FOUND TRUE)  # by the project around this one
    else()
      set(MPI_CXX_SKIP_MPICXX ON)
      find_package(MPI QUIET GLOBAL COMPONENTS CXX)
    endif()
    set(espalier_has_mpi "${MPI_CXX_FOUND}" CACHE INTERNAL "")
    set(espalier_mpirun "${MPIEXEC_EXECUTABLE}" CACHE INTERNAL "")
  endif()
  get_property(said GLOBAL PROPERTY espalier_no_mpi)
  if(NOT espalier_has_mpi AND NOT said)
    set_property(GLOBAL PROPERTY espalier_no_mpi TRUE)
    message(STATUS "MPI was not found: what needs it is left out (apt install libopenmpi-dev)")
  endif()
endfunction()

# NCCL, as the target NCCL::nccl. What needs it is left out where it is not.
function(espalier_find_nccl)
  list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  find_package(NCCL MODULE QUIET)
  get_property(said GLOBAL PROPERTY espalier_no_nccl)
  if(NOT TARGET NCCL::nccl AND NOT said)
    set_property(GLOBAL PROPERTY espalier_no_nccl TRUE)
    message(STATUS "NCCL was not found: what needs it is left out (apt install libnccl-dev)")
  endif()
endfunction()

# xgrammar, as the target xgrammar. What needs it is left out where it is not: `./run with-xgrammar` builds it.
function(espalier_find_xgrammar)
  list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  find_package(XGrammar MODULE QUIET)
  get_property(said GLOBAL PROPERTY espalier_no_xgrammar)
  if(NOT TARGET xgrammar AND NOT said)
    set_property(GLOBAL PROPERTY espalier_no_xgrammar TRUE)
    message(STATUS "xgrammar was not found: what needs it is left out (./run with-xgrammar builds it)")
  endif()
endfunction()

# LibTorch, for espalier::torch: that of Python's package torch, or else the system's (libtorch-dev). Torch's own CMake package would
# look for every part of the CUDA toolkit that it was built with. What needs LibTorch is left out where it is not.
set(ESPALIER_TORCH "" CACHE PATH "The folder of Python's package torch, with include and lib in it; empty: where Python finds it")
function(espalier_find_torch)
  get_property(known GLOBAL PROPERTY espalier_torch_looked_for)
  if(known)
    return()
  endif()
  set_property(GLOBAL PROPERTY espalier_torch_looked_for TRUE)
  set(folder "${ESPALIER_TORCH}")
  find_program(espalier_python NAMES python3 python)
  if(NOT folder AND espalier_python)
    # Packages of before 2.6 have the strings and lists of an older C++ library.
    execute_process(COMMAND "${espalier_python}" -c
      "import os, torch; print(os.path.dirname(torch.__file__) if torch.compiled_with_cxx11_abi() else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(folder)
    set(where PATHS "${folder}/lib" NO_DEFAULT_PATH)
    find_path(espalier_torch_include torch/script.h PATHS "${folder}/include" NO_DEFAULT_PATH)
  else()
    set(where)
    find_path(espalier_torch_include torch/script.h)
    find_library(espalier_glog glog)  # with which Debian's LibTorch writes its log
  endif()
  foreach(library IN ITEMS c10 torch_cpu c10_cuda torch_cuda)
    find_library(espalier_${library} ${library} ${where})
  endforeach()
  if(NOT espalier_torch_include OR NOT espalier_c10 OR NOT espalier_torch_cpu)
    message(STATUS "LibTorch was not found: what needs it is left out (apt install libtorch-dev, or pip install torch; "
      "-DESPALIER_TORCH=DIR names the folder of the latter)")
    return()
  endif()
  if(NOT espalier_torch_include STREQUAL "/usr/include")
    target_include_directories(espalier_libtorch SYSTEM INTERFACE "${espalier_torch_include}")
  endif()
  target_link_libraries(espalier_libtorch INTERFACE "${espalier_c10}" "${espalier_torch_cpu}")
  if(folder)
    target_link_options(espalier_libtorch INTERFACE "-Wl,-rpath,${folder}/lib")
  elseif(espalier_glog)
    target_link_libraries(espalier_libtorch INTERFACE "${espalier_glog}")
  endif()
  set_property(GLOBAL PROPERTY espalier_has_torch TRUE)
  if(espalier_c10_cuda AND espalier_torch_cuda)
    target_link_libraries(espalier_libtorch INTERFACE "${espalier_c10_cuda}" -Wl,--no-as-needed "${espalier_torch_cuda}" -Wl,--as-needed)
    set_property(GLOBAL PROPERTY espalier_torch_has_cuda TRUE)
  endif()
endfunction()

# SentencePiece has no CMake package: pkg-config finds it, and both ways end in sentencepiece::sentencepiece.
function(espalier_find_sentencepiece)
  if(TARGET sentencepiece::sentencepiece)
    return()
  endif()
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(espalier_sentencepiece QUIET IMPORTED_TARGET GLOBAL sentencepiece)
  endif()
  if(TARGET PkgConfig::espalier_sentencepiece)
    add_library(sentencepiece::sentencepiece ALIAS PkgConfig::espalier_sentencepiece)
    return()
  endif()
  set(SPM_ENABLE_SHARED OFF CACHE BOOL "" FORCE)
  espalier_dependency(sentencepiece TARGET sentencepiece-static HINT "libsentencepiece-dev pkg-config"
    URL https://github.com/google/sentencepiece/archive/refs/tags/v0.2.0.tar.gz
    SHA256 9970f0a0afee1648890293321665e5b2efa04eaec9f1671fcf8048f456f5bb86)
  FetchContent_GetProperties(sentencepiece)
  target_include_directories(sentencepiece-static SYSTEM INTERFACE "${sentencepiece_SOURCE_DIR}/src")
  add_library(sentencepiece::sentencepiece ALIAS sentencepiece-static)
endfunction()

# espalier_pkg_config(<target> <CMake package> <module of pkg-config> <debian packages>): for what not every system has a CMake package of.
function(espalier_pkg_config target package module hint)
  if(TARGET ${target})
    return()
  endif()
  find_package(${package} QUIET GLOBAL)
  if(TARGET ${target})
    return()
  endif()
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(espalier_${package} QUIET IMPORTED_TARGET GLOBAL ${module})
  endif()
  if(NOT TARGET PkgConfig::espalier_${package})
    message(FATAL_ERROR
      "Espalier needs ${module}, and neither CMake nor pkg-config finds it. On Debian and Ubuntu: apt install ${hint} pkg-config. "
      "Elsewhere: install it and name its folder in CMAKE_PREFIX_PATH or PKG_CONFIG_PATH.")
  endif()
  add_library(${target} ALIAS PkgConfig::espalier_${package})
endfunction()

# What tokenizers of model files need. PCRE2 before 10.40 does not know the property White_Space.
macro(espalier_find_tokenizer)
  espalier_find_llama()
  espalier_find_sentencepiece()
  espalier_pkg_config(PCRE2::8BIT PCRE2 libpcre2-8>=10.40 libpcre2-dev)
  espalier_pkg_config(utf8proc::utf8proc utf8proc libutf8proc libutf8proc-dev)
endmacro()

# cpp-httplib is what the example serve needs; where it is missing, that example is not built. Debian's has no CMake package.
function(espalier_find_httplib)
  if(TARGET httplib::httplib)
    return()
  endif()
  find_package(httplib QUIET GLOBAL)
  if(TARGET httplib::httplib)
    return()
  endif()
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(cpp_httplib QUIET IMPORTED_TARGET GLOBAL cpp-httplib)
  endif()
  if(TARGET PkgConfig::cpp_httplib)
    add_library(httplib::httplib ALIAS PkgConfig::cpp_httplib)
  endif()
endfunction()
