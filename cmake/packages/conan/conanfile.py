# SPDX-License-Identifier: BSL-1.0
# The package of Conan 2. From the repository's root: conan create cmake/packages/conan --build=missing
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy, load


class Espalier(ConanFile):
    name = "espalier"
    description = "Tree speculative decoding, composed from parts at compile time"
    license = "BSL-1.0"
    topics = ("speculative decoding", "language models", "inference", "header-only", "cuda")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"registry": [True, False]}
    default_options = {"registry": False}
    options_description = {"registry": "espalier::espalier, the registry of all parts, which needs Boost.Hana"}
    no_copy_source = True

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "..", "include", "espalier", "version.hpp"))
        self.version = ".".join(re.findall(r"define ESPALIER_VERSION_\w+ (\d+)", text))

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..", "..")
        for pattern in ("CMakeLists.txt", "LICENSE", "include/*", "cmake/*", "docs/CMakeLists.txt", "docs/reference/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def requirements(self):
        if self.options.registry:
            self.requires("boost/[>=1.74 <2]", headers=True, libs=False, transitive_headers=True)

    def configure(self):
        if self.options.registry:
            self.options["boost"].header_only = True

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables[f"ESPALIER_BUILD_{part}"] = False
        toolchain.cache_variables["ESPALIER_REGISTRY"] = bool(self.options.registry)
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()

    def package(self):
        CMake(self).install()

    def package_id(self):
        del self.info.settings.os, self.info.settings.arch
        del self.info.settings.compiler, self.info.settings.build_type

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append(os.path.join("lib", "cmake", "espalier"))
