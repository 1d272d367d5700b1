include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(espalier_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/espalier")
set(espalier_generated_dir "${CMAKE_CURRENT_BINARY_DIR}/package")
set(espalier_dependencies_dir "${CMAKE_INSTALL_INCLUDEDIR}/espalier-dependencies")

# One export file a target: a component's dependencies are looked for only when the component is asked for.
set(espalier_installed ${espalier_components})
if(NOT ESPALIER_REGISTRY)
  list(REMOVE_ITEM espalier_installed espalier cuda_registry)
endif()
if(TARGET sentencepiece-static)
  list(REMOVE_ITEM espalier_installed tokenizer)  # it was fetched and built here, and is not installed
endif()
set(espalier_component_links "")
foreach(component IN LISTS espalier_installed)
  string(APPEND espalier_component_links "set(espalier_${component}_links ${espalier_${component}_links})\n")
  get_target_property(target espalier::${component} ALIASED_TARGET)
  install(TARGETS ${target} EXPORT espalier_${component}
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT espalier_${component} NAMESPACE espalier:: FILE espalier-${component}-targets.cmake
    DESTINATION "${espalier_package_dir}")
endforeach()

# What was fetched for want of a package goes along: whoever uses the library there need not have it, either.
foreach(package IN ITEMS Boost range-v3 nlohmann_json)
  get_property(headers GLOBAL PROPERTY espalier_fetched_${package})
  if(headers)
    install(DIRECTORY "${headers}/" DESTINATION "${espalier_dependencies_dir}/${package}")
  endif()
endforeach()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/espalier-config.cmake.in"
  "${espalier_generated_dir}/espalier-config.cmake"
  INSTALL_DESTINATION "${espalier_package_dir}" PATH_VARS espalier_dependencies_dir)
write_basic_package_version_file("${espalier_generated_dir}/espalier-config-version.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  "${espalier_generated_dir}/espalier-config.cmake"
  "${espalier_generated_dir}/espalier-config-version.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindXGrammar.cmake"
  DESTINATION "${espalier_package_dir}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/espalier")

# espalier-<component>.pc, for build systems other than CMake: the components whose dependencies have modules of pkg-config, or are
# headers alone.
set(espalier_pc_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
file(RELATIVE_PATH espalier_pc_prefix "/prefix/${espalier_pc_dir}" "/prefix")
set(espalier_pc_written)
foreach(component IN LISTS espalier_installed)
  set(pc_requires)
  set(pc_flags)
  set(pc_complete ON)
  foreach(link IN LISTS espalier_${component}_links)
    list(APPEND pc_requires "espalier-${link}")
    if(NOT link IN_LIST espalier_pc_written)
      set(pc_complete OFF)
    endif()
  endforeach()
  foreach(need IN LISTS espalier_${component}_needs)
    if(need STREQUAL "Threads::Threads")
      list(APPEND pc_flags -pthread)
    elseif(need MATCHES "^(Boost|range-v3|nlohmann_json)::")
      get_property(fetched GLOBAL PROPERTY "espalier_fetched_${CMAKE_MATCH_1}")
      if(fetched)
        list(APPEND pc_flags "-isystem \${prefix}/${espalier_dependencies_dir}/${CMAKE_MATCH_1}")
      elseif(CMAKE_MATCH_1 STREQUAL "nlohmann_json")
        list(APPEND pc_requires nlohmann_json)
      endif()
    elseif(need STREQUAL "PCRE2::8BIT")
      list(APPEND pc_requires "libpcre2-8 >= 10.40")
    elseif(need STREQUAL "utf8proc::utf8proc")
      list(APPEND pc_requires libutf8proc)
    elseif(need STREQUAL "sentencepiece::sentencepiece")
      list(APPEND pc_requires sentencepiece)
    else()
      set(pc_complete OFF)
    endif()
  endforeach()
  if(pc_complete)
    list(APPEND espalier_pc_written ${component})
    list(JOIN pc_requires ", " pc_requires)
    list(JOIN pc_flags " " pc_flags)
    set(pc_libs)
    if(pc_flags MATCHES "-pthread")
      set(pc_libs -pthread)
    endif()
    configure_file("${CMAKE_CURRENT_LIST_DIR}/espalier.pc.in" "${espalier_generated_dir}/espalier-${component}.pc" @ONLY)
    install(FILES "${espalier_generated_dir}/espalier-${component}.pc" DESTINATION "${espalier_pc_dir}")
  endif()
endforeach()
