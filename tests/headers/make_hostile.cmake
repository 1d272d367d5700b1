# cmake -DROOT=<repository> -DOUTPUT=<file> -P make_hostile.cmake
cmake_minimum_required(VERSION 3.24)
include("${ROOT}/cmake/headers.cmake")

set(foreign)
set(own)
foreach(header IN LISTS espalier_core_headers espalier_testing_headers espalier_selector_headers espalier_registry_headers
    espalier_views_headers espalier_files_headers espalier_llama_headers espalier_tokenizer_headers)
  file(STRINGS "${ROOT}/${header}" includes REGEX "^ *# *include *<")
  foreach(line IN LISTS includes)
    # Some are of other machines.
    string(REGEX REPLACE "^ *# *include *(<[^>]*>).*" "#if __has_include(\\1)\n#include \\1\n#endif" line "${line}")
    list(APPEND foreign "${line}")
  endforeach()
  string(REPLACE "include/" "" spelled "${header}")
  list(APPEND own "#include \"${spelled}\"")
endforeach()
list(REMOVE_DUPLICATES foreign)
list(SORT foreign)
list(JOIN foreign "\n" foreign)
list(JOIN own "\n" own)
file(WRITE "${OUTPUT}" "${foreign}\n\n#include \"hostile_macros.hpp\"\n\n${own}\n")
