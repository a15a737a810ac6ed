# Libraries that come from the system or, on machines without root, from .deps (see `make deps`).
#
# Headers and libraries are looked for by name, not through the packages' own CMake files: those carry the
# paths of an installed package and break in an unpacked one.

set(GSA_DEPS_DIR "${PROJECT_SOURCE_DIR}/.deps/usr" CACHE PATH "Unpacked packages, searched after the system")

# gsa_find(<target> PACKAGE <Debian package> HEADER <file> [LIBRARIES <name>...])
# makes the imported target gsa::<target>, or stops with the package to install.
function(gsa_find target)
  cmake_parse_arguments(ARG "" "PACKAGE;HEADER" "LIBRARIES" ${ARGN})
  set(missing "run `make deps` (no root needed) or `apt-get install ${ARG_PACKAGE}`")

  string(TOUPPER "GSA_${target}" prefix)
  find_path(${prefix}_INCLUDE_DIR "${ARG_HEADER}" PATHS "${GSA_DEPS_DIR}/include")
  if(NOT ${prefix}_INCLUDE_DIR)
    message(FATAL_ERROR "header ${ARG_HEADER} not found: ${missing}")
  endif()

  add_library(gsa::${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(gsa::${target} SYSTEM INTERFACE "${${prefix}_INCLUDE_DIR}")

  foreach(name IN LISTS ARG_LIBRARIES)
    string(TOUPPER "GSA_${name}_LIBRARY" variable)
    find_library(${variable} "${name}" PATHS "${GSA_DEPS_DIR}"
                 PATH_SUFFIXES "lib/${CMAKE_LIBRARY_ARCHITECTURE}" lib)
    if(NOT ${variable})
      message(FATAL_ERROR "library ${name} not found: ${missing}")
    endif()
    # A full path: CMake then writes the library's folder into the run path of what links it.
    target_link_libraries(gsa::${target} INTERFACE "${${variable}}")
    message(STATUS "${name}: ${${variable}}")
  endforeach()
endfunction()
