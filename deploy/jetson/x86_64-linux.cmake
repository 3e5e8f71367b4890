# Builds for x86_64 Linux on another machine, with Debian's or Ubuntu's cross compiler:
#
#     apt install g++-x86-64-linux-gnu qemu-user
#     cmake -S deploy -B build-x86_64 --toolchain $PWD/deploy/jetson/x86_64-linux.cmake -DQCN_CUDA=OFF
#
# The tests then run under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER x86_64-linux-gnu-g++)

# Libraries of this machine are of the wrong kind. Those for the other, from a copy of its root: -DCMAKE_SYSROOT=…
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(QCN_QEMU qemu-x86_64)
if(QCN_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${QCN_QEMU} -L /usr/x86_64-linux-gnu)
endif()
