include(GNUInstallDirs)

file(RELATIVE_PATH WEFT_PC_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(${CMAKE_SOURCE_DIR}/cmake/weft.pc.in ${CMAKE_BINARY_DIR}/weft.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(TARGETS weft ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_SOURCE_DIR}/include/weft.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# The program writes its own man page and completion from its option tables.
if(TARGET weft_cli)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/weft.1
    COMMAND weft_cli man > ${CMAKE_BINARY_DIR}/weft.1
    DEPENDS weft_cli VERBATIM)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/weft.bash
    COMMAND weft_cli completion bash > ${CMAKE_BINARY_DIR}/weft.bash
    DEPENDS weft_cli VERBATIM)
  add_custom_target(weft_pages ALL DEPENDS ${CMAKE_BINARY_DIR}/weft.1 ${CMAKE_BINARY_DIR}/weft.bash)
  install(TARGETS weft_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${CMAKE_BINARY_DIR}/weft.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${CMAKE_BINARY_DIR}/weft.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME weft)
endif()
