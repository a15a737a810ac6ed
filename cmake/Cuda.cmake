# Decides whether the CUDA operators are built, and enables the language if so. Sets gsa_cuda to ON or OFF and
# says in one line why.
#
#   GSA_CUDA        AUTO: with nvcc and a torch that has CUDA; ON: always (needs nvcc); OFF: never
#   GSA_CUDA_ARCHS  what is compiled for. 90a-real: Hopper's own kernels; 80-virtual: PTX that the driver
#                   compiles for any GPU from compute capability 8.0 on
#   GSA_SELECT_SPREAD  an experiment (docs/kernels/select.md, "What remains"): select's pass on Hopper with its sigmoids
#                   spread over the other instructions; the same bits. OFF until it has been measured

set(GSA_CUDA AUTO CACHE STRING "Build the CUDA operators: AUTO, ON or OFF")
set_property(CACHE GSA_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GSA_CUDA_ARCHS "90a-real;80-virtual" CACHE STRING "Architectures, as CMAKE_CUDA_ARCHITECTURES names them")

option(GSA_SELECT_SPREAD "Spread the sigmoids of select's pass on Hopper over its other instructions (not measured)" OFF)

find_program(GSA_NVCC nvcc PATHS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
set(gsa_cuda OFF)
if(GSA_CUDA STREQUAL "AUTO")
  if(NOT GSA_NVCC)
    set(reason "nvcc not found")
  elseif(NOT GSA_TORCH)
    set(reason "built without torch; -DGSA_CUDA=ON builds the kernels and their tests")
  elseif(NOT torch_cuda)
    set(reason "torch ${torch_version} has no CUDA")
  else()
    set(gsa_cuda ON)
  endif()
elseif(GSA_CUDA)
  if(NOT GSA_NVCC)
    message(FATAL_ERROR "GSA_CUDA=ON: nvcc not found, neither in PATH nor in /usr/local/cuda/bin")
  endif()
  set(gsa_cuda ON)
else()
  set(reason "GSA_CUDA=OFF")
endif()

if(NOT gsa_cuda)
  message(STATUS "CUDA operators: not built (${reason})")
  return()
endif()

foreach(arch IN LISTS GSA_CUDA_ARCHS)
  if(arch MATCHES "^90(-|$)")  # Hopper's own instructions exist in 90a only
    message(FATAL_ERROR "GSA_CUDA_ARCHS: expected 90a-real for Hopper, got ${arch}")
  endif()
endforeach()
set(CMAKE_CUDA_COMPILER "${GSA_NVCC}")
set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
set(CMAKE_CUDA_ARCHITECTURES "${GSA_CUDA_ARCHS}")
# A second copy of the runtime beside torch's does no harm: both work in the device's primary context. In
# return libgsa.so runs with any torch whose driver suffices.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  message(FATAL_ERROR "nvcc: expected version 12.4 or newer, got ${CMAKE_CUDA_COMPILER_VERSION} (${GSA_NVCC})")
endif()
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # older CMakes do not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
endif()
message(STATUS "CUDA operators: built for ${GSA_CUDA_ARCHS} by nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
