# What `cmake --install` writes: headers, libraries, gsaConfig.cmake (docs/cpp.md). The targets have the same names for
# a project that takes this one in with add_subdirectory.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gsa")

# The contract of every operator, with what it takes threads and a CUDA stream from; torch's operators and the modules.
set(public_headers core/parallel.h core/cuda_context.h)
gsa_sources(kernel_headers "src/kernels/*/*.h")
foreach(header IN LISTS kernel_headers)
  cmake_path(GET header PARENT_PATH folder)
  cmake_path(GET folder FILENAME operator)
  cmake_path(GET header STEM name)
  if(name STREQUAL operator OR (gsa_cuda AND name STREQUAL "${operator}_cuda"))
    list(APPEND public_headers "kernels/${operator}/${name}.h")
  endif()
endforeach()
if(GSA_TORCH)
  list(APPEND public_headers torch/ops.h torch/parallel.h nn/attention.h nn/device.h nn/model.h nn/model_io.h)
endif()
set(header_folder "${PROJECT_BINARY_DIR}/include")
file(CONFIGURE OUTPUT public_headers.txt CONTENT "${public_headers}")
gsa_sources(all_headers "src/core/*.h" "src/kernels/*/*.h" "src/model/*.h" "src/torch/*.h" "src/nn/*.h")
add_custom_command(
  OUTPUT "${header_folder}/stamp"
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}/src" "-DOUTPUT=${header_folder}"
          "-DROOTS=${PROJECT_BINARY_DIR}/public_headers.txt" -P "${PROJECT_SOURCE_DIR}/cmake/public_headers.cmake"
  COMMAND "${CMAKE_COMMAND}" -E touch "${header_folder}/stamp"
  DEPENDS ${all_headers} "${PROJECT_SOURCE_DIR}/cmake/public_headers.cmake" "${PROJECT_BINARY_DIR}/public_headers.txt"
  COMMENT "Public headers" VERBATIM)
add_custom_target(gsa_headers ALL DEPENDS "${header_folder}/stamp")
install(DIRECTORY include/gsa "${header_folder}/gsa" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")

# gsa_export(<name> <target> [<linked>...]): the library as gsa::<name>, installed and in this tree. In this tree it
# stands for the target with the public headers before it; ours know the target itself, and src/.
# Where libraries are found that we were linked with: torch's, and those of `make deps`. Said here, because
# INSTALL_RPATH_USE_LINK_PATH leaves out what lies in the source tree, as .venv and .deps do.
set(run_path)
if(GSA_TORCH)
  list(GET torch_libraries 0 torch_library)
  cmake_path(GET torch_library PARENT_PATH torch_folder)
  list(APPEND run_path "${torch_folder}")
endif()
if(EXISTS "${GSA_DEPS_DIR}/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  list(APPEND run_path "${GSA_DEPS_DIR}/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
endif()

set(gsa_components)
function(gsa_export name target)
  target_include_directories(${target} INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(${target} INTERFACE "$<INSTALL_INTERFACE:cxx_std_20>")
  foreach(linked IN LISTS ARGN)
    target_link_libraries(${target} INTERFACE "$<INSTALL_INTERFACE:${linked}>")
  endforeach()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} INSTALL_RPATH "${run_path}")
  install(TARGETS ${target} EXPORT gsa_${name} DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT gsa_${name} NAMESPACE gsa:: FILE gsa_${name}.cmake DESTINATION "${package_dir}")

  add_library(gsa_public_${name} INTERFACE)
  add_library(gsa::${name} ALIAS gsa_public_${name})
  add_dependencies(gsa_public_${name} gsa_headers)
  target_include_directories(gsa_public_${name} INTERFACE "${header_folder}" "${PROJECT_SOURCE_DIR}/include")
  target_compile_features(gsa_public_${name} INTERFACE cxx_std_20)
  target_link_libraries(gsa_public_${name} INTERFACE ${target} ${ARGN})
  set(gsa_components ${gsa_components} ${name} PARENT_SCOPE)
endfunction()

gsa_export(kernels gsa_kernels)
if(gsa_cuda)
  find_package(CUDAToolkit REQUIRED)
  gsa_export(kernels_cuda gsa_kernels_cuda gsa_kernels CUDA::cudart_static)
endif()
if(GSA_TORCH)
  gsa_export(torch gsa)
  install(FILES tools/torch_config.py cmake/gsaTorch.cmake DESTINATION "${package_dir}")
endif()
if(TARGET gsa_cli)
  set_target_properties(gsa_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${run_path}")
  install(TARGETS gsa_cli DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
endif()

get_target_property(hwy_library gsa::hwy INTERFACE_LINK_LIBRARIES)
cmake_path(GET hwy_library PARENT_PATH hwy_folder)
configure_package_config_file(cmake/gsaConfig.cmake.in gsaConfig.cmake INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(gsaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/gsaConfig.cmake" "${PROJECT_BINARY_DIR}/gsaConfigVersion.cmake"
        DESTINATION "${package_dir}")
