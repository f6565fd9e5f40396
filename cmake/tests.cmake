pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

# Tests that go through many cases take a part of them under a sanitizer.
if(WEFT_SANITIZE)
  set(WEFT_TEST_SCALE small)
else()
  set(WEFT_TEST_SCALE full)
endif()

# Labels pick what a preset runs (CMakePresets.json): unit, cp, golden, cli say what kind of test it is; unit tests
# carry their module too (comm, engine, ...). A test whose name ends in _long is labelled long, and only long.
# Exit code 77 = skipped, and ctest says so; it never counts as passed.
function(weft_test_properties name kind)
  if(name MATCHES "_long$")
    set(labels long)
  else()
    set(labels ${kind})
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 LABELS "${labels}"
    ENVIRONMENT WEFT_TEST_SCALE=${WEFT_TEST_SCALE})
  if(name MATCHES "_long$")
    set_tests_properties(${name} PROPERTIES TIMEOUT 3600)
  endif()
endfunction()

set(WEFT_TWINS ${CMAKE_BINARY_DIR}/twins) # made by tools.make-gguf-twin and tools.make-folders

# A test program of the given sources, linked to `module`, and its line in ctest. After the list of sources come
# its labels.
function(weft_test_program name prefix module sources)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE weft_${module} PkgConfig::CMOCKA PkgConfig::JANSSON m)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    WEFT_GOLDEN="${WEFT_GOLDEN}" WEFT_DEMO_MODEL="${WEFT_DEMO_MODEL}" WEFT_SOURCE="${CMAKE_SOURCE_DIR}"
    WEFT_TWINS="${WEFT_TWINS}")
  add_test(NAME ${prefix}.${name} COMMAND ${name})
  weft_test_properties(${prefix}.${name} "${ARGN}")
endfunction()

# One program for each test_<what>.c of a folder; the folder's other C files belong to all of them.
function(weft_test_folder folder prefix module)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/test_*.c)
  if(NOT tests OR NOT TARGET weft_${module})
    return()
  endif()
  file(GLOB shared CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.c)
  list(REMOVE_ITEM shared ${tests})
  weft_isa_flags(${shared})
  foreach(file ${tests})
    get_filename_component(name ${file} NAME_WE)
    weft_test_program(${name} ${prefix} ${module} "${file};${shared}" ${ARGN})
  endforeach()
endfunction()

file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${CMAKE_SOURCE_DIR}/tests/unit/*)
foreach(folder ${folders})
  get_filename_component(module ${folder} NAME)
  weft_test_folder(unit/${module} unit.${module} ${module} unit ${module})
endforeach()
weft_test_folder(kern kern kern unit kern)
if(NOT WEFT_SANITIZE) # minutes of compiling, for reads that the scalar level is checked for
  add_subdirectory(${CMAKE_SOURCE_DIR}/tests/emulate)
endif()
weft_test_folder(cp cp engine cp)
weft_test_folder(golden golden engine golden)

# ThreadSanitizer makes these programs 20 times as slow: the tsan preset takes the ones with the most different steps.
foreach(name clients numeric trap_mixed)
  if(TEST cp.test_${name})
    set_property(TEST cp.test_${name} APPEND PROPERTY LABELS tsan)
  endif()
endforeach()

# The golden models as GGUF files and in other forms of folders, for the tests that read them.
file(GLOB golden_models ${WEFT_GOLDEN}/models/*)
if(NOT golden_models)
  set(golden_models ${WEFT_GOLDEN}/models/none)
endif()
add_test(NAME tools.make-golden
  COMMAND ${CMAKE_SOURCE_DIR}/tests/tools/make-golden ${WEFT_TWINS} ${CMAKE_SOURCE_DIR}/tests/data/golden/gemma4_moe)
weft_test_properties(tools.make-golden golden)
set_tests_properties(tools.make-golden PROPERTIES FIXTURES_SETUP made_golden)
add_test(NAME tools.make-gguf-twin
  COMMAND ${CMAKE_SOURCE_DIR}/tests/tools/make-gguf-twin ${WEFT_TWINS} ${golden_models} ${WEFT_TWINS}/gemma4_moe)
weft_test_properties(tools.make-gguf-twin golden)
add_test(NAME tools.make-folders
  COMMAND ${CMAKE_SOURCE_DIR}/tests/tools/make-folders ${WEFT_TWINS} ${WEFT_GOLDEN}/models)
weft_test_properties(tools.make-folders golden)
set_tests_properties(tools.make-gguf-twin tools.make-folders PROPERTIES
  FIXTURES_SETUP twins FIXTURES_REQUIRED made_golden)
function(weft_test_needs_twins)
  foreach(name ${ARGN})
    if(TEST ${name})
      set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED twins)
    endif()
  endforeach()
endfunction()
weft_test_needs_twins(unit.model.test_refusals unit.model.test_architectures cp.test_field_models)

# The include direction is checked by make lint; here its checker is checked.
add_test(NAME scripts.check-includes COMMAND ${CMAKE_SOURCE_DIR}/scripts/check-includes --self-test)
weft_test_properties(scripts.check-includes unit)

# docs/traps.md names tests; they exist.
add_test(NAME scripts.check-traps COMMAND ${CMAKE_SOURCE_DIR}/scripts/check-traps)
weft_test_properties(scripts.check-traps unit)

# tests/cli/test-<what>.sh: scripts around the program, with its path and the data in their environment.
function(weft_cli_test name file)
  add_test(NAME cli.${name} COMMAND bash ${CMAKE_SOURCE_DIR}/tests/cli/${file})
  weft_test_properties(cli.${name} cli)
  set_tests_properties(cli.${name} PROPERTIES ENVIRONMENT
    "WEFT=$<TARGET_FILE:weft_cli>;WEFT_BUILD=${CMAKE_BINARY_DIR};WEFT_SOURCE=${CMAKE_SOURCE_DIR};WEFT_GOLDEN=${WEFT_GOLDEN};WEFT_DEMO_MODEL=${WEFT_DEMO_MODEL};WEFT_SANITIZE=${WEFT_SANITIZE};WEFT_TWINS=${WEFT_TWINS};WEFT_TEST_SCALE=${WEFT_TEST_SCALE};CC=${CMAKE_C_COMPILER}")
endfunction()

if(TARGET weft_cli)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cli/test-*.sh)
  foreach(file ${scripts})
    get_filename_component(base ${file} NAME)
    string(REGEX REPLACE "^test-(.*)\\.sh$" "\\1" name ${base})
    # minutes under a sanitizer, for scripts, timings and whole runs around code that other tests run there
    if(WEFT_SANITIZE AND name MATCHES "^(bench|check|compare|compare-serve|eval|interrupt|models|models_check|random-model|trace)$")
      continue()
    endif()
    weft_cli_test(${name} ${base})
  endforeach()
  weft_test_needs_twins(cli.models cli.models_check cli.models_check_long)
  # An instrumented library does not link into a program built without the sanitizer.
  if(NOT WEFT_SANITIZE)
    weft_cli_test(example run-example.sh)
  endif()
  add_executable(example_complete ${CMAKE_SOURCE_DIR}/examples/complete.c)
  set_target_properties(example_complete PROPERTIES EXCLUDE_FROM_ALL ON)
  target_link_libraries(example_complete PRIVATE weft)
endif()

# tests/serve/<script>: Python programs around a running server. After the script come its arguments.
function(weft_serve_test name script)
  add_test(NAME serve.${name} COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/serve/${script} ${ARGN})
  weft_test_properties(serve.${name} serve)
  set_tests_properties(serve.${name} PROPERTIES ENVIRONMENT
    "WEFT=$<TARGET_FILE:weft_cli>;WEFT_BUILD=${CMAKE_BINARY_DIR};WEFT_GOLDEN=${WEFT_GOLDEN};WEFT_DEMO_MODEL=${WEFT_DEMO_MODEL}")
endfunction()

if(TARGET weft_cli)
  weft_serve_test(hostile test_hostile.py)
  weft_serve_test(reports test_reports.py)
  weft_serve_test(life test_life.py)
  weft_serve_test(soak soak.py --quick)
  weft_serve_test(soak_long soak.py 600)
  weft_serve_test(readme test_readme.py)
  # clients from PyPI, in venvs in the build folder
  weft_serve_test(openai test_openai.py)
  weft_serve_test(vllm_bench_long test_vllm_bench_long.py)
  weft_serve_test(lm_eval_long test_lm_eval_long.py)
  set_tests_properties(serve.lm_eval_long PROPERTIES TIMEOUT 14400) # 400 long prompts
endif()
