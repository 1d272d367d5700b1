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
