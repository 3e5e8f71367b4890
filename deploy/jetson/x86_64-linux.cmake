# Builds for x86_64 Linux on another machine, with Debian's or Ubuntu's cross compiler:
#
#     apt install g++-x86-64-linux-gnu qemu-user
#     cmake -S deploy -B build-x86_64 --toolchain $PWD/deploy/jetson/x86_64-linux.cmake -DQCN_CUDA=OFF
#
# The tests then run under qemu.
set(CMAKE_SYSTEM_PROCESSOR x86_64)
include(${CMAKE_CURRENT_LIST_DIR}/cross.cmake)
