# `cmake --install BUILD --prefix PREFIX`: the library, its headers, and what finds them, for CMake and pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/qcn)

install(TARGETS qcn EXPORT qcnTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/qcn/export.h include/qcn/qcn.h include/qcn/qcn.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qcn)
if(TARGET qcn_cuda)
  install(TARGETS qcn_cuda)
endif()

install(EXPORT qcnTargets NAMESPACE qcn:: DESTINATION ${package})
configure_package_config_file(cmake/qcnConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/qcnConfig.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/qcnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qcnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/qcnConfigVersion.cmake
  DESTINATION ${package})

# A static library brings what it needs; a program in C has to name the C++ library too.
set(private_libraries "-lstdc++ -lm -ldl -pthread")
if(BUILD_SHARED_LIBS)
  set(qcn_libraries_private ${private_libraries})
else()
  set(qcn_libraries ${private_libraries})
endif()
# Relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH qcn_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/qcn.pc.in ${CMAKE_CURRENT_BINARY_DIR}/qcn.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qcn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
