# What is on the system is used first. What is missing is fetched from its release archive, pinned by hash.
# Only what the chosen options need is looked for.

# espalier_dependency(<package> TARGET <target> [VERSION <v>] [OPTIONAL] HINT <debian package>)
#
# Makes <target> exist. With OPTIONAL a miss is not an error: test the target.
function(espalier_dependency package)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OPTIONAL" "TARGET;VERSION;HINT" "")
  if(TARGET ${arg_TARGET})
    return()
  endif()
  find_package(${package} ${arg_VERSION} QUIET GLOBAL)
  if(TARGET ${arg_TARGET})
    return()
  endif()
  if(NOT arg_OPTIONAL)
    message(FATAL_ERROR
      "Espalier needs ${package} ${arg_VERSION} (${arg_TARGET}), and CMake does not find it. "
      "On Debian and Ubuntu: apt install ${arg_HINT}. "
      "Elsewhere: install it and name its folder in CMAKE_PREFIX_PATH.")
  endif()
  message(STATUS "Espalier: no ${package} ${arg_VERSION} (Debian: ${arg_HINT}), what needs it is left out")
endfunction()

set(espalier_boost_version 1.74)
espalier_dependency(Boost VERSION ${espalier_boost_version} TARGET Boost::headers HINT libboost-dev)
