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
	broadcast at, Y14; \
	fma Y12, Y14, lo; \
	fma Y13, Y14, hi

// One step along packed panels of a: the rows lie side by side.
#define AVX2_PACKED(size, broadcast, fma) \
	VMOVUPS (DX), Y12; \
	VMOVUPS 32(DX), Y13; \
	AVX2_ROW(broadcast, fma, (0*size)(SI), Y0, Y1); \
	AVX2_ROW(broadcast, fma, (1*size)(SI), Y2, Y3); \
	AVX2_ROW(broadcast, fma, (2*size)(SI), Y4, Y5); \
	AVX2_ROW(broadcast, fma, (3*size)(SI), Y6, Y7); \
	AVX2_ROW(broadcast, fma, (4*size)(SI), Y8, Y9); \
	AVX2_ROW(broadcast, fma, (5*size)(SI), Y10, Y11); \
	ADDQ R12, DX; \
	ADDQ R11, SI

// The same for rows that are R9 apart. R10 is three times that; the rows from the fifth on are at R13.
#define AVX2_IN_PLACE(broadcast, fma) \
	VMOVUPS (DX), Y12; \
	VMOVUPS 32(DX), Y13; \
	AVX2_ROW(broadcast, fma, (SI), Y0, Y1); \
	AVX2_ROW(broadcast, fma, (SI)(R9*1), Y2, Y3); \
	AVX2_ROW(broadcast, fma, (SI)(R9*2), Y4, Y5); \
	AVX2_ROW(broadcast, fma, (SI)(R10*1), Y6, Y7); \
	AVX2_ROW(broadcast, fma, (R13), Y8, Y9); \
	AVX2_ROW(broadcast, fma, (R13)(R9*1), Y10, Y11); \
	ADDQ R12, DX; \
	ADDQ R11, SI; \
	ADDQ R11, R13

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

// func avx2F32(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)
TEXT ·avx2F32(SB), NOSPLIT, $0-65
	MOVQ k+0(FP), CX
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ c+24(FP), DI
	MOVQ rowA+32(FP), R9
	MOVQ stepA+40(FP), R11
	MOVQ stepB+48(FP), R12
	MOVQ rowC+56(FP), R8
	LEAQ (R9)(R9*2), R10
	LEAQ (SI)(R9*4), R13
	AVX2_CLEAR
	TESTQ CX, CX
	JZ store
	CMPQ R9, $4
	JEQ packed

place:
	AVX2_IN_PLACE(VBROADCASTSS, VFMADD231PS)
	DECQ CX
	JNZ place
	JMP store

packed:
	AVX2_PACKED(4, VBROADCASTSS, VFMADD231PS)
	DECQ CX
	JNZ packed

store:
	MOVBLZX add+64(FP), AX
	TESTL AX, AX
	JZ set
	AVX2_ADD(VADDPS)
	VZEROUPPER
	RET

set:
	AVX2_SET
	VZEROUPPER
	RET

// func avx2F64(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)
TEXT ·avx2F64(SB), NOSPLIT, $0-65
	MOVQ k+0(FP), CX
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ c+24(FP), DI
	MOVQ rowA+32(FP), R9
	MOVQ stepA+40(FP), R11
	MOVQ stepB+48(FP), R12
	MOVQ rowC+56(FP), R8
	LEAQ (R9)(R9*2), R10
	LEAQ (SI)(R9*4), R13
	AVX2_CLEAR
	TESTQ CX, CX
	JZ store
	CMPQ R9, $8
	JEQ packed

place:
	AVX2_IN_PLACE(VBROADCASTSD, VFMADD231PD)
	DECQ CX
	JNZ place
	JMP store

packed:
	AVX2_PACKED(8, VBROADCASTSD, VFMADD231PD)
	DECQ CX
	JNZ packed

store:
	MOVBLZX add+64(FP), AX
	TESTL AX, AX
	JZ set
	AVX2_ADD(VADDPD)
	VZEROUPPER
	RET

set:
	AVX2_SET
	VZEROUPPER
	RET
