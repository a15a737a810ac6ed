# cmake -DSOURCE=src -DOUTPUT=folder -DROOTS=file -P public_headers.cmake      in the file: core/parallel.h;...
#
# Writes the public headers below OUTPUT, as others include them. In src/ includes start at src/ ("core/parallel.h"); a
# folder of such names in the search path of others would answer for theirs, so here they start at gsa/
# ("gsa/core/parallel.h"). What the roots include of src/ comes along.
cmake_minimum_required(VERSION 3.25...4.0)
file(READ "${ROOTS}" waiting)
set(done)
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST done)
    continue()
  endif()
  list(APPEND done "${header}")
  file(READ "${SOURCE}/${header}" text)
  string(REGEX MATCHALL "\n#include \"[^\"]+\"" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "\n#include \"([^\"]+)\"" "\\1" path "${include}")
    if(EXISTS "${SOURCE}/${path}")
      list(APPEND waiting "${path}")
      string(REPLACE "${include}" "\n#include \"gsa/${path}\"" text "${text}")
    elseif(NOT path MATCHES "^gsa/")
      message(FATAL_ERROR "public header ${header}: expected includes of src/ or gsa/, got \"${path}\"")
    endif()
  endforeach()
  set(written "")
  if(EXISTS "${OUTPUT}/gsa/${header}")
    file(READ "${OUTPUT}/gsa/${header}" written)
  endif()
  if(NOT written STREQUAL text)  # an older time stamp keeps who includes it from being compiled again
    file(WRITE "${OUTPUT}/gsa/${header}" "${text}")
  endif()
endwhile()

file(GLOB_RECURSE written RELATIVE "${OUTPUT}/gsa" "${OUTPUT}/gsa/*.h")
foreach(header IN LISTS written)
  if(NOT header IN_LIST done)
    file(REMOVE "${OUTPUT}/gsa/${header}")  # of an earlier run, not public any more
  endif()
endforeach()
