# Builds for aarch64 Linux on another machine, with Debian's or Ubuntu's cross compiler:
#
#     apt install g++-aarch64-linux-gnu qemu-user
#     cmake -S deploy -B build-aarch64 --toolchain $PWD/deploy/jetson/aarch64-linux.cmake -DQCN_CUDA=OFF
#
# The tests then run under qemu.
set(CMAKE_SYSTEM_PROCESSOR aarch64)
include(${CMAKE_CURRENT_LIST_DIR}/cross.cmake)
