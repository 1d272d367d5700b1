# The port of vcpkg, over the repository around it. From the repository's root:
#   vcpkg install espalier --overlay-ports=cmake/packages/vcpkg
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release)  # headers alone

vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES registry ESPALIER_REGISTRY)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DESPALIER_BUILD_TESTS=OFF -DESPALIER_BUILD_EXAMPLES=OFF -DESPALIER_BUILD_BENCH=OFF ${FEATURE_OPTIONS})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/espalier)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib" "${CURRENT_PACKAGES_DIR}/share/licenses")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
