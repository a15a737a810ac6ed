# What pyproject.toml packs beside the Python sources: libgsa.so, and what it stands on that a machine may lack.

# The same objects as libgsa.so, linked for another place. Torch's libraries are those that the process has imported:
# the run path names their folder relative to site-packages only. OpenMP is torch's own, whose file has another name in
# other wheels of torch: it is found through libtorch_cpu.so, not asked for by name. (That no other symbol is undefined,
# the link of libgsa.so itself checks.)
if(GSA_BUILD_TESTS OR SKBUILD)
  set(in_all)
else()
  set(in_all EXCLUDE_FROM_ALL)
endif()
add_library(gsa_wheel SHARED ${in_all} $<TARGET_OBJECTS:gsa> $<TARGET_OBJECTS:gsa_operators>)
set_target_properties(gsa_wheel PROPERTIES
  OUTPUT_NAME gsa LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python" LINKER_LANGUAGE CXX
  INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib" BUILD_WITH_INSTALL_RPATH ON)
target_link_libraries(gsa_wheel PRIVATE stdc++ ${torch_libraries}
                      "$<LINK_LIBRARY:WHOLE_ARCHIVE,gsa_kernels,gsa_model>")
if(gsa_cuda)
  target_link_libraries(gsa_wheel PRIVATE gsa_kernels_cuda)
endif()
target_link_options(gsa_wheel PRIVATE ${hidden_libraries} ${gsa_link_flags})

# Read at import (python/gated_sparse_attention/_library.py), before a library for another torch gives an undefined
# symbol.
file(CONFIGURE OUTPUT libgsa.json CONTENT [[{"version": "@PROJECT_VERSION@", "torch": "@torch_version@"}
]] @ONLY)

install(TARGETS gsa_wheel DESTINATION gated_sparse_attention COMPONENT python EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_BINARY_DIR}/libgsa.json" DESTINATION gated_sparse_attention COMPONENT python EXCLUDE_FROM_ALL)
if(hwy_library MATCHES "\\.so$")
  file(REAL_PATH "${hwy_library}" hwy_file)
  string(REGEX MATCH "libhwy\\.so\\.[0-9]+" hwy_name "${hwy_file}")
  install(FILES "${hwy_file}" DESTINATION gated_sparse_attention RENAME "${hwy_name}" COMPONENT python EXCLUDE_FROM_ALL)
  # Its licence asks to go along: Debian's package has it, and so has the folder of `make deps`.
  find_file(GSA_HWY_LICENSE copyright LICENSE
            PATHS "${GSA_HWY_INCLUDE_DIR}/../share/doc" "${GSA_HWY_INCLUDE_DIR}/../share/licenses"
            PATH_SUFFIXES libhwy-dev libhwy1 libhwy1t64 highway NO_DEFAULT_PATH)
  if(GSA_HWY_LICENSE)
    install(FILES "${GSA_HWY_LICENSE}" DESTINATION gated_sparse_attention RENAME "libhwy.LICENSE" COMPONENT python
            EXCLUDE_FROM_ALL)
  elseif(SKBUILD)
    message(WARNING "Highway's licence not found: the wheel holds libhwy without it, so do not hand it on "
                    "(-DGSA_HWY_LICENSE=/path names the file)")
  endif()
endif()
