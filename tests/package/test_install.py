"""Projects of others, built against an install tree: `gsa::kernels` without torch, `gsa::torch` with it.

The projects are those that docs/cpp.md shows.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ["GSA_BUILD"]).resolve()
# Not pytest's folder, whose name is another in every run: ccache then knows what it has compiled.
FOLDER = BUILD / "package"


def call(*command, **more):
    done = subprocess.run([*map(str, command)], text=True, capture_output=True, check=False, **more)
    output = done.stdout + done.stderr
    return done.returncode, re.sub(r"\s*\n  ", " ", output)  # CMake wraps what it says


@pytest.fixture(scope="module")
def prefix():
    shutil.rmtree(FOLDER, ignore_errors=True)
    status, output = call("cmake", "--install", BUILD, "--component", "development", "--prefix", FOLDER / "prefix")
    assert status == 0, output
    yield FOLDER / "prefix"
    shutil.rmtree(FOLDER)


def configure(source, prefix, *options):
    ccache = shutil.which("ccache")
    return call(
        "cmake", "-G", "Ninja", "-S", source, "-B", FOLDER / source.name, f"-DCMAKE_PREFIX_PATH={prefix}",
        *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []), *options,
    )  # fmt: skip


def build_and_run(name, prefix, *options):
    for status, output in (
        configure(HERE / name, prefix, *options),
        call("cmake", "--build", FOLDER / name),
        call(FOLDER / name / "app"),
    ):
        assert status == 0, output
    return output


def test_a_project_without_torch(prefix):
    assert build_and_run("kernels", prefix) == "keys 4, error below 1e-5\n"
    needed = call("ldd", FOLDER / "kernels" / "app")[1]
    assert "libtorch" not in needed and "libc10" not in needed


def test_a_project_with_torch(prefix):
    assert build_and_run("torch", prefix) == "keys 8, error below 1e-5, gradient there\n"
    flags = (FOLDER / "torch" / "build.ninja").read_text()
    assert "-Wshadow" not in flags and "-O1" not in flags and str(ROOT / "src") not in flags  # ours stay ours


def test_the_layer_of_the_readme(prefix):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```cpp\n(.*?)```", page, re.DOTALL) if "layer->forward" in block]
    include, body = code.split("\n", 1)
    project = FOLDER / "readme"
    shutil.copytree(HERE / "torch", project)
    (project / "main.cc").write_text(
        include.replace('"nn/attention.h"', "<gsa/nn/attention.h>") + "\n#include <cstdio>\nint main() {\n" + body
        + 'std::puts(layer->indexer->wq->weight.grad().defined() ? "learns" : "does not learn");\n}\n'
    )  # fmt: skip
    for status, output in (
        configure(project, prefix),
        call("cmake", "--build", FOLDER / project.name),
        call(FOLDER / project.name / "app"),
    ):
        assert status == 0, output
    assert output == "learns\n"


def test_the_installed_library_finds_torch(prefix):
    (library,) = prefix.rglob("libgsa.so")
    needed = call("ldd", library)[1]
    assert "libtorch_cpu.so" in needed and "not found" not in needed, needed


def test_a_project_with_cuda(prefix, tmp_path):
    if not (prefix / "include/gsa/kernels/attend/attend_cuda.h").exists():
        pytest.skip("built without CUDA")
    project = tmp_path / "cuda"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\n"
        "find_package(gsa REQUIRED COMPONENTS kernels_cuda)\nadd_executable(app main.cc)\n"
        "target_link_libraries(app PRIVATE gsa::kernels_cuda)\n"
    )
    (project / "main.cc").write_text(
        "#include <gsa/kernels/attend/attend_cuda.h>\n"
        "int main(int count, char**) { if (count > 1) gsa::cuda::attend({}, {}); }\n"
    )
    for status, output in (configure(project, prefix), call("cmake", "--build", FOLDER / "cuda")):
        assert status == 0, output


def test_every_header_without_torch_compiles_alone(prefix, tmp_path):
    headers = sorted(path.relative_to(prefix / "include") for path in (prefix / "include").rglob("*.h"))
    alone = [header for header in headers if header.parts[1] not in ("torch", "nn")]
    assert Path("gsa/kernels/attend/attend.h") in alone and Path("gsa/nn/model.h") in headers
    assert not [header for header in headers if header.match("*-inl.h") or header.match("*_cpu.h")]
    for header in alone:
        (tmp_path / "alone.cc").write_text(f"#include <{header}>\n#include <{header}>\n")
        status, output = call("c++", "-std=c++20", "-fsyntax-only", "-I", prefix / "include", tmp_path / "alone.cc")
        assert status == 0, f"{header}:\n{output}"


def test_what_is_missing_is_said(prefix, tmp_path):
    status, output = configure(HERE / "torch", prefix, "-DGSA_PYTHON=/nowhere/python3")
    assert status != 0 and "no usable torch in GSA_PYTHON=/nowhere/python3" in output, output

    other = tmp_path / "python3"  # a torch of another version
    other.write_text(
        f"#!/bin/sh\n{sys.executable} \"$@\" | sed 's/^version=.*/version=2.4.1/'\n", encoding="utf-8"
    )
    other.chmod(0o755)
    status, output = configure(HERE / "torch", prefix, f"-DGSA_PYTHON={other}")
    assert status != 0 and re.search(r"expected torch \d+\.\d+, which this gsa was built with, got 2\.4\.1", output), output

    project = tmp_path / "unknown"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\n"
        "find_package(gsa REQUIRED COMPONENTS server)\n"
    )
    status, output = configure(project, prefix)
    assert status != 0 and "component server: expected one of kernels" in output, output

    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\nfind_package(gsa 9.0 REQUIRED)\n"
    )
    status, output = configure(project, prefix)
    assert status != 0 and "version" in output, output


def test_an_optional_component_may_be_missing(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\nset(torch_version mine)\n"
        "find_package(gsa REQUIRED OPTIONAL_COMPONENTS torch server)\n"
        'message(STATUS "kernels ${gsa_kernels_FOUND} torch ${gsa_torch_FOUND} server ${gsa_server_FOUND} ${torch_version}")\n'
        "if(NOT TARGET gsa::kernels)\n  message(FATAL_ERROR none)\nendif()\n"
    )
    status, output = configure(tmp_path, prefix)
    assert status == 0 and "kernels TRUE torch TRUE server FALSE mine" in output, output
    shutil.rmtree(FOLDER / tmp_path.name)
    status, output = configure(tmp_path, prefix, "-DGSA_PYTHON=/nowhere/python3")
    assert status == 0 and "kernels TRUE torch FALSE server FALSE mine" in output, output
    assert "no usable torch in GSA_PYTHON=/nowhere/python3" in output, output


def as_a_part(folder, target, source, *options):
    """A project that takes this one in, configured: the command that compiles its own file, and all commands."""
    torch = "ON" if target == "gsa::torch" else "OFF"
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\nset(GSA_TORCH {torch})\nset(GSA_CUDA OFF)\n"
        f"set(GSA_PYTHON {sys.executable})\nadd_subdirectory({ROOT} gsa)\nadd_executable(app {source})\n"
        f"target_link_libraries(app PRIVATE {target})\n"
    )
    status, output = call("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", *options)
    assert status == 0, output
    commands = call("ninja", "-C", folder / "build", "-t", "commands", "app")[1].splitlines()
    (own,) = [line for line in commands if " -c " in line and str(source) in line]
    return own, commands


def test_as_a_part_of_another_project_it_is_libraries(tmp_path):
    own, commands = as_a_part(tmp_path, "gsa::kernels", HERE / "kernels/main.cc",
                              "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DTHE_USERS")  # fmt: skip
    targets = call("cmake", "--build", tmp_path / "build", "--target", "help")[1]
    assert "libgsa_kernels.a" in targets and "gsa_kernels_tests" not in targets and "gsa_data" not in targets
    status, output = call("ninja", "-C", tmp_path / "build", "gsa/include/stamp")
    assert status == 0 and (tmp_path / "build/gsa/include/gsa/kernels/attend/attend.h").is_file(), output
    assert "-Wshadow" not in own and "-iquote" not in own and "-std=gnu++20" in own
    kernels = [line for line in commands if " -c " in line and "gsa_kernels.dir" in line]
    assert kernels and all("-O2 -DTHE_USERS" in line and "-O3" not in line for line in kernels)


def test_with_torch_as_a_part_of_another_project(tmp_path):
    own, commands = as_a_part(tmp_path, "gsa::torch", HERE / "torch/main.cc")
    targets = call("cmake", "--build", tmp_path / "build", "--target", "help")[1]
    assert "libgsa.so" in targets and "gsa_nn_tests" not in targets and "gsa_cli" not in targets
    assert "gsa/include" in own and "torch/include" in own and "-fopenmp" in own
    assert "-Wshadow" not in own and "-iquote" not in own and "-O1" not in own
    (link,) = [line for line in commands if " -o app " in line]
    assert "libgsa.so" in link and "libtorch_cpu.so" in link


def test_an_install_tree_without_torch(tmp_path):
    """Whose kernels are those of this build: they know no torch, so they are not compiled once more."""
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    status, output = call("cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "-DGSA_TORCH=OFF", "-DGSA_CUDA=OFF",
                          *(f"-DGSA_BUILD_{part}=OFF" for part in ("PROGRAM", "TESTS", "BENCH", "EXAMPLES")))  # fmt: skip
    assert status == 0, output
    shutil.copy(BUILD / "libgsa_kernels.a", build)
    for command in (("cmake", "--build", build, "--target", "gsa_headers"),
                    ("cmake", "--install", build, "--component", "development", "--prefix", prefix)):  # fmt: skip
        status, output = call(*command)
        assert status == 0, output
    assert not [*prefix.rglob("gsa/torch"), *prefix.rglob("gsa/nn"), *prefix.rglob("libgsa.so")]
    project = tmp_path / "without_torch"
    shutil.copytree(HERE / "kernels", project)
    for status, output in (
        configure(project, prefix),
        call("cmake", "--build", FOLDER / project.name),
        call(FOLDER / project.name / "app"),
    ):
        assert status == 0, output
    assert output == "keys 4, error below 1e-5\n"
    status, output = configure(HERE / "torch", prefix, "--fresh")
    assert status != 0 and "component torch" in output and "expected one of kernels" in output, output


def test_the_page_shows_these_projects():
    page = (ROOT / "docs" / "cpp.md").read_text(encoding="utf-8")
    for name in ("kernels/CMakeLists.txt", "kernels/main.cc", "torch/CMakeLists.txt", "torch/main.cc"):
        text = (HERE / name).read_text(encoding="utf-8").strip()
        assert text in page, f"docs/cpp.md differs from tests/package/{name}"
