# For the Python package (scikit-build-core, pyproject.toml): qcn/lib/libqcn.so, qcn/bin/qcn-run and qcn/bin/qcn-bench;
# and qcn/web/qcn-*.wasm, where they were built before (deploy/web), for `qcn export --format web`.
install(TARGETS qcn LIBRARY DESTINATION qcn/lib COMPONENT python)
foreach(program qcn-run qcn-bench)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  install(TARGETS ${program} RUNTIME DESTINATION qcn/bin COMPONENT python)
endforeach()
set(QCN_WASM ${CMAKE_CURRENT_SOURCE_DIR}/../build/web CACHE PATH "Folder of libqcn as WebAssembly")
file(GLOB wasm ${QCN_WASM}/qcn-*.wasm)
install(FILES ${wasm} DESTINATION qcn/web COMPONENT python)
