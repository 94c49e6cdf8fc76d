// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// A tile is 6 rows of two registers of 32 bytes. The kernels for both element types are made of the same macros,
// which take the size of an element and the instructions for it.

#define AVX2_CLEAR \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3; \
	VXORPS Y4, Y4, Y4; \
	VXORPS Y5, Y5, Y5; \
	VXORPS Y6, Y6, Y6; \
	VXORPS Y7, Y7, Y7; \
	VXORPS Y8, Y8, Y8; \
	VXORPS Y9, Y9, Y9; \
	VXORPS Y10, Y10, Y10; \
	VXORPS Y11, Y11, Y11

// One row of the tile: a broadcast element of a times two registers of b.
#define AVX2_ROW(broadcast, fma, at, lo, hi) \
	broadcast (at)(SI), Y14; \
	fma Y12, Y14, lo; \
	fma Y13, Y14, hi

#define AVX2_STEP(size, broadcast, fma) \
	VMOVUPS (DX), Y12; \
	VMOVUPS 32(DX), Y13; \
	AVX2_ROW(broadcast, fma, 0*size, Y0, Y1); \
	AVX2_ROW(broadcast, fma, 1*size, Y2, Y3); \
	AVX2_ROW(broadcast, fma, 2*size, Y4, Y5); \
	AVX2_ROW(broadcast, fma, 3*size, Y6, Y7); \
	AVX2_ROW(broadcast, fma, 4*size, Y8, Y9); \
	AVX2_ROW(broadcast, fma, 5*size, Y10, Y11); \
	ADDQ $64, DX; \
	ADDQ $(6*size), SI

#define AVX2_SET_ROW(lo, hi) \
	VMOVUPS lo, (DI); \
	VMOVUPS hi, 32(DI); \
	ADDQ R8, DI

#define AVX2_ADD_ROW(plus, lo, hi) \
	plus (DI), lo, lo; \
	plus 32(DI), hi, hi; \
	AVX2_SET_ROW(lo, hi)

#define AVX2_SET \
	AVX2_SET_ROW(Y0, Y1); \
	AVX2_SET_ROW(Y2, Y3); \
	AVX2_SET_ROW(Y4, Y5); \
	AVX2_SET_ROW(Y6, Y7); \
	AVX2_SET_ROW(Y8, Y9); \
	AVX2_SET_ROW(Y10, Y11)

#define AVX2_ADD(plus) \
	AVX2_ADD_ROW(plus, Y0, Y1); \
	AVX2_ADD_ROW(plus, Y2, Y3); \
	AVX2_ADD_ROW(plus, Y4, Y5); \
	AVX2_ADD_ROW(plus, Y6, Y7); \
	AVX2_ADD_ROW(plus, Y8, Y9); \
	AVX2_ADD_ROW(plus, Y10, Y11)

// func avx2F32(k int, a, b, c unsafe.Pointer, ldc int, add bool)
TEXT ·avx2F32(SB), NOSPLIT, $0-41
	MOVQ k+0(FP), CX
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ c+24(FP), DI
	MOVQ ldc+32(FP), R8
	AVX2_CLEAR
	TESTQ CX, CX
	JZ store

loop:
	AVX2_STEP(4, VBROADCASTSS, VFMADD231PS)
	DECQ CX
	JNZ loop

store:
	MOVBLZX add+40(FP), AX
	TESTL AX, AX
	JZ set
	AVX2_ADD(VADDPS)
	VZEROUPPER
	RET

set:
	AVX2_SET
	VZEROUPPER
	RET

// func avx2F64(k int, a, b, c unsafe.Pointer, ldc int, add bool)
TEXT ·avx2F64(SB), NOSPLIT, $0-41
	MOVQ k+0(FP), CX
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ c+24(FP), DI
	MOVQ ldc+32(FP), R8
	AVX2_CLEAR
	TESTQ CX, CX
	JZ store

loop:
	AVX2_STEP(8, VBROADCASTSD, VFMADD231PD)
	DECQ CX
	JNZ loop

store:
	MOVBLZX add+40(FP), AX
	TESTL AX, AX
	JZ set
	AVX2_ADD(VADDPD)
	VZEROUPPER
	RET

set:
	AVX2_SET
	VZEROUPPER
	RET
