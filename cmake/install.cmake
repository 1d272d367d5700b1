include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(espalier_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/espalier")
set(espalier_generated_dir "${CMAKE_CURRENT_BINARY_DIR}/package")

# One export file a target: a component's dependencies are looked for only when the component is asked for.
foreach(component IN ITEMS espalier views llama cuda cuda_llama)
  if(component STREQUAL "espalier")
    set(target espalier)
  else()
    set(target espalier_${component})
  endif()
  install(TARGETS ${target} EXPORT espalier_${component}
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT espalier_${component} NAMESPACE espalier:: FILE espalier-${component}-targets.cmake
    DESTINATION "${espalier_package_dir}")
endforeach()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/espalier-config.cmake.in"
  "${espalier_generated_dir}/espalier-config.cmake"
  INSTALL_DESTINATION "${espalier_package_dir}")
write_basic_package_version_file("${espalier_generated_dir}/espalier-config-version.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  "${espalier_generated_dir}/espalier-config.cmake"
  "${espalier_generated_dir}/espalier-config-version.cmake"
  DESTINATION "${espalier_package_dir}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/espalier")
