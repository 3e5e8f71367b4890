# For the Python package (scikit-build-core, pyproject.toml): qcn/lib/libqcn.so, qcn/bin/qcn-run and qcn/bin/qcn-bench.
install(TARGETS qcn LIBRARY DESTINATION qcn/lib COMPONENT python)
foreach(program qcn-run qcn-bench)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  install(TARGETS ${program} RUNTIME DESTINATION qcn/bin COMPONENT python)
endforeach()
