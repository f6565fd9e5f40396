# fuzz/fuzz_<name>.c: one libFuzzer program each, linked to the modules whose headers it includes, all with sanitizers. Its seeds
# are fuzz/corpus/<name>/; ctest fuzz.<name>.replay runs them (and the golden broken files) once.
if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "WEFT_FUZZ needs clang: configure with -DCMAKE_C_COMPILER=clang")
endif()

foreach(module ${WEFT_MODULES})
  # -Wno-error: clang warns of more than gcc, whose build is the one that must be free of warnings
  target_compile_options(weft_${module} PRIVATE -fsanitize=fuzzer-no-link,address,undefined
    -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-error)
  target_link_options(weft_${module} PUBLIC -fsanitize=address,undefined)
endforeach()
target_link_options(weft PUBLIC -fsanitize=address,undefined)

set(fuzz_golden_gguf ${WEFT_GOLDEN}/gguf/bad)

enable_testing()
file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/fuzz/fuzz_*.c)
foreach(file ${fuzzers})
  get_filename_component(target ${file} NAME_WE)
  string(REPLACE "fuzz_" "" name ${target})
  add_executable(${target} ${file})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  # by its includes and not the whole library: instrumented kernels take minutes to compile
  file(STRINGS ${file} includes REGEX "^#include \"[a-z]+/")
  foreach(line ${includes})
    string(REGEX REPLACE "^#include \"([a-z]+)/.*" "\\1" module ${line})
    target_link_libraries(${target} PRIVATE weft_${module})
  endforeach()
  target_compile_options(${target} PRIVATE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  set(seeds "")
  foreach(folder ${CMAKE_SOURCE_DIR}/fuzz/corpus/${name} ${fuzz_golden_${name}})
    if(IS_DIRECTORY ${folder})
      list(APPEND seeds ${folder})
    endif()
  endforeach()
  add_test(NAME fuzz.${name}.replay COMMAND ${target} -runs=0 ${seeds})
  set_tests_properties(fuzz.${name}.replay PROPERTIES TIMEOUT 300)
endforeach()
