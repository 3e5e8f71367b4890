# What the toolchain files here have in common. They set CMAKE_SYSTEM_PROCESSOR; the compilers are named for it.
set(triple ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_C_COMPILER ${triple}-gcc)
set(CMAKE_CXX_COMPILER ${triple}-g++)

# Libraries of this machine are for the wrong processor. Debian installs those of the other one beside them, in
# /usr/lib/TRIPLE: `dpkg --add-architecture arm64 && apt install libpng-dev:arm64 libjpeg-dev:arm64`. For those of the
# device give a copy of its root with -DCMAKE_SYSROOT=…
set(CMAKE_LIBRARY_ARCHITECTURE ${triple})
set(CMAKE_FIND_ROOT_PATH /usr/${triple} /)
set(CMAKE_IGNORE_PREFIX_PATH /usr/local)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(QCN_QEMU qemu-${CMAKE_SYSTEM_PROCESSOR})
if(QCN_QEMU)
  # With LD_LIBRARY_PATH: the loader would take a C library of the other architecture from /lib, if there is one there too,
  # and that of another build ends every program ("stack smashing detected").
  set(CMAKE_CROSSCOMPILING_EMULATOR ${QCN_QEMU} -L /usr/${triple} -E LD_LIBRARY_PATH=/usr/${triple}/lib)
endif()
