pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

# tests/unit/<module>/test_<what>.c: one program each, linked to its module. Exit code 77 = skipped, and ctest says so.
file(GLOB unit CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/unit/*/test_*.c)
foreach(file ${unit})
  get_filename_component(name ${file} NAME_WE)
  get_filename_component(dir ${file} DIRECTORY)
  get_filename_component(module ${dir} NAME)
  if(NOT TARGET weft_${module})
    continue()
  endif()
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE weft_${module} PkgConfig::CMOCKA PkgConfig::JANSSON)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    WEFT_GOLDEN="${WEFT_GOLDEN}" WEFT_DEMO_MODEL="${WEFT_DEMO_MODEL}" WEFT_SOURCE="${CMAKE_SOURCE_DIR}")
  add_test(NAME unit.${module}.${name} COMMAND ${name})
  set_tests_properties(unit.${module}.${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
endforeach()
