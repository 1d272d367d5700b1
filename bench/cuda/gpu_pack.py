# SPDX-License-Identifier: BSL-1.0
"""Packs header-only libraries with their CMake packages, for building the CUDA half without a network."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

import gpu_models

MOST_BYTES = 60 << 20

# CMake's name, its target, Debian's packages, the parts of usr/include that are taken, and definitions that make it
# header-only.
LIBRARIES = [
    (
        "Boost",
        "Boost::headers",
        ["libboost1.74-dev", "libboost1.83-dev", "libboost1.81-dev"],
        ["boost/hana", "boost/hana.hpp", "boost/version.hpp"],
        "",
    ),
    ("range-v3", "range-v3::range-v3", ["librange-v3-dev"], ["range", "concepts", "meta", "std"], ""),
    ("Catch2", "Catch2::Catch2", ["catch2"], ["catch2/catch.hpp"], ""),  # version 2.13: version 3 has more than headers
    ("nlohmann_json", "nlohmann_json::nlohmann_json", ["nlohmann-json3-dev"], ["nlohmann"], ""),
    ("CLI11", "CLI11::CLI11", ["libcli11-dev"], ["CLI"], ""),
    ("fmt", "fmt::fmt", ["libfmt-dev"], ["fmt"], "FMT_HEADER_ONLY=1"),
]

CONFIG = """# Headers beside this folder.
if(NOT TARGET {target})
  add_library({target} INTERFACE IMPORTED GLOBAL)
  target_include_directories({target} SYSTEM INTERFACE "${{CMAKE_CURRENT_LIST_DIR}}/../include/{name}")
{definitions}endif()
set({name}_FOUND TRUE)
"""

VERSION = """set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"""


def unpacked(packages, work):
    """The folder usr/include of the first of these packages that apt can download, or None."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        return None, None
    for package in packages:
        folder = os.path.join(work, package)
        os.makedirs(folder, exist_ok=True)
        if subprocess.run(
            ["apt-get", "download", package], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode:
            continue
        archive = next(name for name in os.listdir(folder) if name.endswith(".deb"))
        subprocess.run(["dpkg", "-x", archive, "."], cwd=folder, check=True)
        return os.path.join(folder, "usr/include"), archive.split("_")[1]
    return None, None


def taken(include, parts, to):
    found = False
    for part in parts:
        source, target = os.path.join(include, part), os.path.join(to, part)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, target, dirs_exist_ok=True)
            found = True
        elif os.path.isfile(source):
            shutil.copy(source, target)
            found = True
    return found


def version_of(name, include, archive_version):
    if name == "Boost":
        with open(os.path.join(include, "boost/version.hpp")) as file:
            text = re.search(r'BOOST_LIB_VERSION "([0-9_]+)"', file.read()).group(1)
        return text.replace("_", ".")
    if name == "Catch2":
        with open(os.path.join(include, "catch2/catch.hpp")) as file:
            return re.search(r"Catch v([0-9.]+)", file.read()).group(1)
    return re.sub(r"^[0-9]+:|[+-].*$", "", archive_version or "") or "0"


def size_of(folder):
    return sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)


def same_name(paths):
    """Two of these files that have the same name, or None."""
    by_name = {}
    for path in paths:
        first = by_name.setdefault(os.path.basename(os.path.normpath(path)), path)
        if first != path:
            return first, path
    return None


def pack(to, with_cmake, models=(), piece_mib=None):
    """Writes the folder, with these files and folders of models in it. Returns a message for stderr, or None if all is
    well."""
    same = same_name(models)
    if same:
        return f"{same[0]} and {same[1]} have one name. In {to} each needs its own."
    if os.path.exists(to) and os.listdir(to) and not os.path.isdir(os.path.join(to, "cmake")):
        return f"{to} is not empty and was not made by --pack."
    os.makedirs(os.path.join(to, "cmake"), exist_ok=True)
    missing = []
    with tempfile.TemporaryDirectory() as work:
        for name, target, packages, parts, definition in LIBRARIES:
            include, archive = unpacked(packages, work)
            origin = "its Debian package"
            if include is None:
                include, archive, origin = "/usr/include", None, "/usr/include"
            own = os.path.join(to, "include", name)
            shutil.rmtree(own, ignore_errors=True)
            if not taken(include, parts, own):
                missing.append(name)
                continue
            version = version_of(name, include, archive)
            definitions = f"  target_compile_definitions({target} INTERFACE {definition})\n" if definition else ""
            with open(os.path.join(to, "cmake", f"{name}Config.cmake"), "w") as file:
                file.write(CONFIG.format(name=name, target=target, definitions=definitions))
            with open(os.path.join(to, "cmake", f"{name}ConfigVersion.cmake"), "w") as file:
                file.write(VERSION.format(version=version))
            print(f"  {name} {version} from {origin}", flush=True)
    if with_cmake:
        wheels = os.path.join(to, "wheels")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            wheels,
            "cmake>=3.24,<4",
            "ninja",
        ]
        if subprocess.run(command).returncode:
            missing.append("the wheels of cmake and ninja")
        else:
            print("  cmake and ninja as wheels", flush=True)
    own = os.path.join(to, "models")
    for model in models:
        os.makedirs(own, exist_ok=True)
        if os.path.isdir(model):
            shutil.copytree(model, os.path.join(own, os.path.basename(os.path.normpath(model))), dirs_exist_ok=True)
        elif not os.path.exists(model):
            missing.append(model)
        else:
            written = gpu_models.cut(model, own, (piece_mib or 1 << 20) << 20)
            print(
                f"  {os.path.basename(model)}" + (f" in {len(written)} pieces" if len(written) > 1 else ""), flush=True
            )
    size = size_of(to)
    print(f"{to}: {size / 2**20:.1f} MiB")
    if missing:
        return "Not found: " + ", ".join(missing) + "."
    # Large files are copied in pieces, one after the other.
    if size > MOST_BYTES and not piece_mib:
        return f"{to} has more than {MOST_BYTES >> 20} MiB."
    return None
