// The inner loops of routing in half precision, in NEON's instructions: GCC 12 does not multiply float16 by a lane,
// keeps vectors by threes in memory, and leaves instructions beside each other that wait for each other. Here four
// children take turns: of multiply-adds two begin per cycle, and the next of a sum waits two to four. A store takes the
// place of a multiplication, a load does not. Bits are those of the plain loops in em_routing_half.cpp.
#ifndef QCN_KERNELS_HALF_NEON_H
#define QCN_KERNELS_HALF_NEON_H

#include "half_vector.h"

namespace qcn::QCN_INSTRUCTION_SET {
// clang-format off

#define QCN_ALL_REGISTERS \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", \
  "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

// ---- votes ----
// v0 to v8: the entries of rotations, a lane for each of eight children. v9 to v20: x, y, z of the votes of four.

#define QCN_LOAD_ROTATIONS \
  "ldp q0, q1, [%[rotations]]\n" \
  "ldp q2, q3, [%[rotations], #32]\n" \
  "ldp q4, q5, [%[rotations], #64]\n" \
  "ldp q6, q7, [%[rotations], #96]\n" \
  "ldr q8, [%[rotations], #128]\n"
// An axis of the pose of child k times a column of its rotation. Poses are 80 bytes apart.
#define QCN_TURN(op, k, pose, axis, x, y, z, row0, row1, row2) \
  "ldr q" #pose ", [%[poses], #(" #k " * 80 + " #axis " * 16)]\n" \
  #op " v" #x ".8h, v" #pose ".8h, v" #row0 ".h[" #k "]\n" \
  #op " v" #y ".8h, v" #pose ".8h, v" #row1 ".h[" #k "]\n" \
  #op " v" #z ".8h, v" #pose ".8h, v" #row2 ".h[" #k "]\n"
#define QCN_TURN_FOUR(op, a, b, c, d, axis, row0, row1, row2) \
  QCN_TURN(op, a, 21, axis, 9, 10, 11, row0, row1, row2) \
  QCN_TURN(op, b, 22, axis, 12, 13, 14, row0, row1, row2) \
  QCN_TURN(op, c, 23, axis, 15, 16, 17, row0, row1, row2) \
  QCN_TURN(op, d, 24, axis, 18, 19, 20, row0, row1, row2)
#define QCN_VOTES_OF_FOUR(op, a, b, c, d) \
  QCN_TURN_FOUR(op, a, b, c, d, 0, 0, 3, 6) \
  QCN_TURN_FOUR(fmla, a, b, c, d, 1, 1, 4, 7) \
  QCN_TURN_FOUR(fmla, a, b, c, d, 2, 2, 5, 8)

#define QCN_SUM(op, k, root, x, y, z) \
  "ldr q" #root ", [%[poses], #(" #k " * 80 + 48)]\n" \
  #op " v25.8h, v" #root ".8h, v" #x ".8h\n" \
  #op " v28.8h, v" #x ".8h, v" #x ".8h\n" \
  #op " v26.8h, v" #root ".8h, v" #y ".8h\n" \
  #op " v29.8h, v" #y ".8h, v" #y ".8h\n" \
  #op " v27.8h, v" #root ".8h, v" #z ".8h\n" \
  #op " v30.8h, v" #z ".8h, v" #z ".8h\n"
#define QCN_SUMS_OF_FOUR(op, a, b, c, d) \
  QCN_SUM(op, a, 21, 9, 10, 11) \
  QCN_SUM(fmla, b, 22, 12, 13, 14) \
  QCN_SUM(fmla, c, 23, 15, 16, 17) \
  QCN_SUM(fmla, d, 24, 18, 19, 20)
// Of eight children, each x, y, z and the root of the activation that is in them: sums of root * vote, then of squares.
inline void uniform_sums(const uint16_t* rotations, const void* poses, Half* sums) {
  __asm__ volatile(
      QCN_LOAD_ROTATIONS
      QCN_VOTES_OF_FOUR(fmul, 0, 1, 2, 3)
      QCN_SUMS_OF_FOUR(fmul, 0, 1, 2, 3)
      QCN_VOTES_OF_FOUR(fmul, 4, 5, 6, 7)
      QCN_SUMS_OF_FOUR(fmla, 4, 5, 6, 7)
      "stp q25, q26, [%[sums]]\n"
      "stp q27, q28, [%[sums], #32]\n"
      "stp q29, q30, [%[sums], #64]\n"
      :
      : [rotations] "r"(rotations), [poses] "r"(poses), [sums] "r"(sums)
      : "memory", QCN_ALL_REGISTERS);
}
#undef QCN_SUMS_OF_FOUR
#undef QCN_SUM

#define QCN_START(x, y, z) \
  "ldp q" #x ", q" #y ", [%[gaussian]]\n" \
  "ldr q" #z ", [%[gaussian], #32]\n"
#define QCN_LOGIT(k, logit, x, y, z) \
  "ldr q" #logit ", [%[gaussian], #96]\n" \
  "stp q" #x ", q" #y ", [%[votes], #(" #k " * 48)]\n" \
  "fmul v25.8h, v" #x ".8h, v29.8h\n" \
  "fmul v26.8h, v" #y ".8h, v30.8h\n" \
  "fmul v27.8h, v" #z ".8h, v31.8h\n" \
  "str q" #z ", [%[votes], #(" #k " * 48 + 32)]\n" \
  "fmls v" #logit ".8h, v25.8h, v25.8h\n" \
  "fmls v" #logit ".8h, v26.8h, v26.8h\n" \
  "fmls v" #logit ".8h, v27.8h, v27.8h\n" \
  "str q" #logit ", [%[logits], #(" #k " * 16)]\n"
#define QCN_LOGITS_OF_FOUR(a, b, c, d) \
  QCN_START(9, 10, 11) QCN_START(12, 13, 14) QCN_START(15, 16, 17) QCN_START(18, 19, 20) \
  QCN_VOTES_OF_FOUR(fmla, a, b, c, d) \
  QCN_LOGIT(a, 21, 9, 10, 11) \
  QCN_LOGIT(b, 22, 12, 13, 14) \
  QCN_LOGIT(c, 23, 15, 16, 17) \
  QCN_LOGIT(d, 24, 18, 19, 20)
// Of eight children, each beginning with x, y, z: votes less the mean, and logits = prior - sum of (vote * inverse)^2.
// `gaussian` is minus_mean[3], inverse[3], prior.
inline void votes_about_mean(const uint16_t* rotations, const void* poses, const Half* gaussian, Half (*votes)[3],
                             Half* logits) {
  __asm__ volatile(
      QCN_LOAD_ROTATIONS
      "ldp q29, q30, [%[gaussian], #48]\n"
      "ldr q31, [%[gaussian], #80]\n"
      QCN_LOGITS_OF_FOUR(0, 1, 2, 3)
      QCN_LOGITS_OF_FOUR(4, 5, 6, 7)
      :
      : [rotations] "r"(rotations), [poses] "r"(poses), [gaussian] "r"(gaussian), [votes] "r"(votes),
        [logits] "r"(logits)
      : "memory", QCN_ALL_REGISTERS);
}
#undef QCN_LOGITS_OF_FOUR
#undef QCN_LOGIT
#undef QCN_START
#undef QCN_VOTES_OF_FOUR
#undef QCN_TURN_FOUR
#undef QCN_TURN
#undef QCN_LOAD_ROTATIONS

// ---- powers of 2, as the class Powers has them ----
// Of child c of four, v0 + c: floor, v4 + c: round, v8 + c: sum, then x (later f), rounded, and two of the polynomial.

#define QCN_FOUR(line) \
  line(0, 4, 8, 12, 16, 20, 24) \
  line(1, 5, 9, 13, 17, 21, 25) \
  line(2, 6, 10, 14, 18, 22, 26) \
  line(3, 7, 11, 15, 19, 23, 27)
#define QCN_LOAD(c, round, sum, f, n, a, b) "ldr q" #f ", [%[p], #(16 * " #c ")]\n"
#define QCN_CUT_OFF(c, round, sum, f, n, a, b) "fmax v" #f ".8h, v" #f ".8h, v" #c ".8h\n"
#define QCN_ROUND(c, round, sum, f, n, a, b) "fadd v" #n ".8h, v" #f ".8h, v" #round ".8h\n"
#define QCN_INTEGER(c, round, sum, f, n, a, b) "fsub v" #a ".8h, v" #n ".8h, v" #round ".8h\n"
#define QCN_FRACTION(c, round, sum, f, n, a, b) \
  "ldr q" #b ", [%[terms], #16]\n" \
  "fsub v" #f ".8h, v" #f ".8h, v" #a ".8h\n"
#define QCN_TERM_1(c, round, sum, f, n, a, b) \
  "ldr q" #a ", [%[terms], #32]\n" \
  "fmla v" #b ".8h, v28.8h, v" #f ".8h\n"
#define QCN_TERM_2(c, round, sum, f, n, a, b) \
  "shl v" #n ".8h, v" #n ".8h, #10\n" \
  "fmla v" #a ".8h, v" #b ".8h, v" #f ".8h\n"
#define QCN_TERM_3(c, round, sum, f, n, a, b) \
  "ldr q" #b ", [%[terms], #48]\n" \
  "fmla v" #b ".8h, v" #a ".8h, v" #f ".8h\n"
#define QCN_EXPONENT(c, round, sum, f, n, a, b) "fmul v" #b ".8h, v" #b ".8h, v" #n ".8h\n"
#define QCN_ADD(c, round, sum, f, n, a, b) \
  "str q" #b ", [%[p], #(16 * " #c ")]\n" \
  "fadd v" #sum ".8h, v" #sum ".8h, v" #b ".8h\n"
// For `vectors` (at least one) of parents: replaces what p has of four children, and sets the sums of their powers.
inline void powers_of_four(size_t vectors, const Half* floor, const Half* round, const Half* terms, Half (*p)[kSummed],
                           Half* sums) {
  __asm__ volatile(
      "ldp q0, q1, [%[floor]]\n"
      "ldp q2, q3, [%[floor], #32]\n"
      "ldp q4, q5, [%[round]]\n"
      "ldp q6, q7, [%[round], #32]\n"
      "movi v8.8h, #0\n movi v9.8h, #0\n movi v10.8h, #0\n movi v11.8h, #0\n"
      "ldr q28, [%[terms]]\n"
      "1:\n"
      QCN_FOUR(QCN_LOAD) QCN_FOUR(QCN_CUT_OFF) QCN_FOUR(QCN_ROUND) QCN_FOUR(QCN_INTEGER) QCN_FOUR(QCN_FRACTION)
      QCN_FOUR(QCN_TERM_1) QCN_FOUR(QCN_TERM_2) QCN_FOUR(QCN_TERM_3) QCN_FOUR(QCN_EXPONENT) QCN_FOUR(QCN_ADD)
      "add %[p], %[p], %[step]\n"
      "subs %[vectors], %[vectors], #1\n"
      "b.ne 1b\n"
      "stp q8, q9, [%[sums]]\n"
      "stp q10, q11, [%[sums], #32]\n"
      : [vectors] "+r"(vectors), [p] "+r"(p)
      : [floor] "r"(floor), [round] "r"(round), [terms] "r"(terms), [sums] "r"(sums), [step] "i"(sizeof *p)
      : "memory", "cc", QCN_ALL_REGISTERS);
}
#undef QCN_ADD
#undef QCN_EXPONENT
#undef QCN_TERM_3
#undef QCN_TERM_2
#undef QCN_TERM_1
#undef QCN_FRACTION
#undef QCN_INTEGER
#undef QCN_ROUND
#undef QCN_CUT_OFF
#undef QCN_LOAD
#undef QCN_FOUR
#undef QCN_ALL_REGISTERS

// clang-format on
}  // namespace qcn::QCN_INSTRUCTION_SET

#endif
