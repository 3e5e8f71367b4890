// The kernels are compiled once for each instruction set, each copy in a namespace of that name. This picks the copy of
// `table` for the CPU the program runs on.
#ifndef QCN_KERNELS_FOR_THIS_CPU_H
#define QCN_KERNELS_FOR_THIS_CPU_H

#if defined(__aarch64__)
#define QCN_FOR_THIS_CPU(table) (::qcn::neon::table)
#else
#define QCN_FOR_THIS_CPU(table)                                                             \
  (__builtin_cpu_supports("avx512f")                                 ? ::qcn::avx512::table \
   : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? ::qcn::avx2::table   \
                                                                     : ::qcn::sse2::table)
#endif

#endif
