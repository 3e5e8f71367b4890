// The kernels are compiled once for each instruction set, each copy in a namespace of that name. These pick the copy of
// `table` for the CPU the program runs on. The body in half precision is there if the compiler knows it (QCN_HAS_HALF).
//
// The environment variable QCN_INSTRUCTION_SET names the last of the list below that may be used: for tests, and to see
// what another CPU would do. Unknown values are ignored.
#ifndef QCN_KERNELS_FOR_THIS_CPU_H
#define QCN_KERNELS_FOR_THIS_CPU_H

#include <cstdlib>
#include <cstring>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif !defined(__wasm__)
#include <cpuid.h>
#endif

namespace qcn {

// Whether this instruction set is not beyond what the environment allows.
static inline bool may_use(const char* instruction_set) {
#if defined(__aarch64__)
  const char* const all[] = {"neon", "neondot", "neonfp16"};
#else
  const char* const all[] = {"sse2", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512fp16"};
#endif
  const char* limit = std::getenv("QCN_INSTRUCTION_SET");
  bool beyond = false;
  for (const char* one : all) {
    if (std::strcmp(one, instruction_set) == 0) return !beyond;
    beyond = beyond || (limit && std::strcmp(one, limit) == 0);
  }
  return false;
}

#if !defined(__aarch64__) && !defined(__wasm__)
// These two have no name in __builtin_cpu_supports of older compilers. That the system keeps the registers is what the
// other flag says.
static inline bool cpu_has_avxvnni() {
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
static inline bool cpu_has_avx512fp16() {
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1);
}
#endif

}  // namespace qcn

#if defined(__aarch64__)
#define QCN_CPU_HAS_HALF (getauxval(AT_HWCAP) & HWCAP_ASIMDHP && ::qcn::may_use("neonfp16"))
#define QCN_HALF_BODY ::qcn::neonfp16::half_kernels
#define QCN_INTEGERS_FOR_THIS_CPU(table) \
  (getauxval(AT_HWCAP) & HWCAP_ASIMDDP && ::qcn::may_use("neondot") ? ::qcn::neondot::table : ::qcn::neon::table)
#define QCN_FOR_THIS_CPU(table) (::qcn::neon::table)
#elif defined(__wasm_simd128__)
#define QCN_FOR_THIS_CPU(table) (::qcn::simd128::table)
#define QCN_INTEGERS_FOR_THIS_CPU(table) QCN_FOR_THIS_CPU(table)
#elif defined(__wasm__)
#define QCN_FOR_THIS_CPU(table) (::qcn::plain::table)
#define QCN_INTEGERS_FOR_THIS_CPU(table) QCN_FOR_THIS_CPU(table)
#else
#define QCN_CPU_HAS(flag, set) (__builtin_cpu_supports(flag) && ::qcn::may_use(set))
#define QCN_CPU_HAS_AVX2 (QCN_CPU_HAS("avx2", "avx2") && __builtin_cpu_supports("fma"))
#define QCN_CPU_HAS_HALF (::qcn::cpu_has_avx512fp16() && ::qcn::may_use("avx512fp16"))
#define QCN_HALF_BODY ::qcn::avx512fp16::half_kernels
#define QCN_INTEGERS_FOR_THIS_CPU(table)                                              \
  (QCN_CPU_HAS("avx512vnni", "avx512vnni")                 ? ::qcn::avx512vnni::table \
   : ::qcn::cpu_has_avxvnni() && ::qcn::may_use("avxvnni") ? ::qcn::avxvnni::table    \
   : QCN_CPU_HAS_AVX2                                      ? ::qcn::avx2::table       \
                                                           : ::qcn::sse2::table)
#define QCN_FOR_THIS_CPU(table) \
  (QCN_CPU_HAS("avx512f", "avx512") ? ::qcn::avx512::table : QCN_CPU_HAS_AVX2 ? ::qcn::avx2::table : ::qcn::sse2::table)
#endif

#endif
