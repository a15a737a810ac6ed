# A text file as a C++ function: cmake -DINPUT=page.html -DOUTPUT=page_html.cc -DHEADER=serve/core/page.h
#                                      -DPARTS=page.css:page.js -DNAMESPACE=gsa::serve -DFUNCTION=page_html
#                                      -P EmbedText.cmake
# A line @part@ stands for the file of that name beside it. Raw strings of some lines each, because compilers promise no
# more than 64 KiB for one.

file(READ "${INPUT}" text)
get_filename_component(folder "${INPUT}" DIRECTORY)
string(REPLACE ":" ";" PARTS "${PARTS}")
foreach(part IN LISTS PARTS)
  file(READ "${folder}/${part}" content)
  string(FIND "${text}" "@${part}@\n" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${INPUT}: expected a line '@${part}@'")
  endif()
  string(REPLACE "@${part}@\n" "${content}" text "${text}")
endforeach()
string(FIND "${text}" ")gsa_text\"" found)
if(NOT found EQUAL -1)
  message(FATAL_ERROR "${INPUT}: expected no ')gsa_text\"', which would end the string in C++")
endif()

set(pieces "")
while(NOT text STREQUAL "")
  string(SUBSTRING "${text}" 0 8000 piece)
  string(FIND "${piece}" "\n" end REVERSE)  # whole lines: a cut must not go through a character
  if(end EQUAL -1)
    message(FATAL_ERROR "${INPUT}: expected lines of less than 8000 bytes, and a line end at the end")
  endif()
  math(EXPR end "${end} + 1")
  string(SUBSTRING "${text}" 0 ${end} piece)
  string(SUBSTRING "${text}" ${end} -1 text)
  string(APPEND pieces "R\"gsa_text(${piece})gsa_text\"\n")
endwhile()

get_filename_component(name "${INPUT}" NAME)
file(WRITE "${OUTPUT}" "// Made from ${name}.
#include \"${HEADER}\"

namespace ${NAMESPACE} {

const std::string& ${FUNCTION}() {
  static const std::string text =
${pieces};
  return text;
}

}  // namespace ${NAMESPACE}
")
