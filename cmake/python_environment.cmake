# espalier_python_environment(NAME): sets NAME to the environment in which Python can load a shared library of this build, or
# to NOTFOUND where it cannot. A sanitizer of addresses has to come before all other libraries of Python, which itself leaks.
function(espalier_python_environment name)
  set(environment "")
  if(CMAKE_CXX_FLAGS MATCHES "fsanitize=address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(preloaded "")
    foreach(library IN ITEMS libasan.so libstdc++.so)
      execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=${library} OUTPUT_VARIABLE file
        OUTPUT_STRIP_TRAILING_WHITESPACE)
      list(APPEND preloaded "${file}")
    endforeach()
    list(JOIN preloaded " " preloaded)
    set(environment "LD_PRELOAD=${preloaded}" ASAN_OPTIONS=detect_leaks=0)
  elseif(CMAKE_CXX_FLAGS MATCHES "fsanitize")
    set(environment NOTFOUND)
  endif()
  set(${name} "${environment}" PARENT_SCOPE)
endfunction()
