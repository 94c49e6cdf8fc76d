// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// A tile is 8 rows of two registers of 64 bytes. The kernels for both element types are made of the same macros,
// which take the size of an element and the instructions for it.

#define AVX512_CLEAR \
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
	VXORPS Y11, Y11, Y11; \
	VXORPS Y12, Y12, Y12; \
	VXORPS Y13, Y13, Y13; \
	VXORPS Y14, Y14, Y14; \
	VXORPS Y15, Y15, Y15

// One row of the tile: a broadcast element of a times two registers of b.
#define AVX512_ROW(broadcast, fma, at, lo, hi) \
	broadcast at, Z18; \
	fma Z16, Z18, lo; \
	fma Z17, Z18, hi

// One step along packed panels of a: the rows lie side by side.
#define AVX512_PACKED(size, broadcast, fma) \
	VMOVUPS (DX), Z16; \
	VMOVUPS 64(DX), Z17; \
	AVX512_ROW(broadcast, fma, (0*size)(SI), Z0, Z1); \
	AVX512_ROW(broadcast, fma, (1*size)(SI), Z2, Z3); \
	AVX512_ROW(broadcast, fma, (2*size)(SI), Z4, Z5); \
	AVX512_ROW(broadcast, fma, (3*size)(SI), Z6, Z7); \
	AVX512_ROW(broadcast, fma, (4*size)(SI), Z8, Z9); \
	AVX512_ROW(broadcast, fma, (5*size)(SI), Z10, Z11); \
	AVX512_ROW(broadcast, fma, (6*size)(SI), Z12, Z13); \
	AVX512_ROW(broadcast, fma, (7*size)(SI), Z14, Z15); \
	ADDQ R12, DX; \
	ADDQ R11, SI

// The same for rows that are R9 apart. R10 is three times that; the rows from the fifth on are at R13.
#define AVX512_IN_PLACE(broadcast, fma) \
	VMOVUPS (DX), Z16; \
	VMOVUPS 64(DX), Z17; \
	AVX512_ROW(broadcast, fma, (SI), Z0, Z1); \
	AVX512_ROW(broadcast, fma, (SI)(R9*1), Z2, Z3); \
	AVX512_ROW(broadcast, fma, (SI)(R9*2), Z4, Z5); \
	AVX512_ROW(broadcast, fma, (SI)(R10*1), Z6, Z7); \
	AVX512_ROW(broadcast, fma, (R13), Z8, Z9); \
	AVX512_ROW(broadcast, fma, (R13)(R9*1), Z10, Z11); \
	AVX512_ROW(broadcast, fma, (R13)(R9*2), Z12, Z13); \
	AVX512_ROW(broadcast, fma, (R13)(R10*1), Z14, Z15); \
	ADDQ R12, DX; \
	ADDQ R11, SI; \
	ADDQ R11, R13

#define AVX512_SET_ROW(lo, hi) \
	VMOVUPS lo, (DI); \
	VMOVUPS hi, 64(DI); \
	ADDQ R8, DI

#define AVX512_ADD_ROW(plus, lo, hi) \
	plus (DI), lo, lo; \
	plus 64(DI), hi, hi; \
	AVX512_SET_ROW(lo, hi)

#define AVX512_SET \
	AVX512_SET_ROW(Z0, Z1); \
	AVX512_SET_ROW(Z2, Z3); \
	AVX512_SET_ROW(Z4, Z5); \
	AVX512_SET_ROW(Z6, Z7); \
	AVX512_SET_ROW(Z8, Z9); \
	AVX512_SET_ROW(Z10, Z11); \
	AVX512_SET_ROW(Z12, Z13); \
	AVX512_SET_ROW(Z14, Z15)

#define AVX512_ADD(plus) \
	AVX512_ADD_ROW(plus, Z0, Z1); \
	AVX512_ADD_ROW(plus, Z2, Z3); \
	AVX512_ADD_ROW(plus, Z4, Z5); \
	AVX512_ADD_ROW(plus, Z6, Z7); \
	AVX512_ADD_ROW(plus, Z8, Z9); \
	AVX512_ADD_ROW(plus, Z10, Z11); \
	AVX512_ADD_ROW(plus, Z12, Z13); \
	AVX512_ADD_ROW(plus, Z14, Z15)

// func avx512F32(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)
TEXT ·avx512F32(SB), NOSPLIT, $0-65
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
	AVX512_CLEAR
	TESTQ CX, CX
	JZ store
	CMPQ R9, $4
	JEQ packed

place:
	AVX512_IN_PLACE(VBROADCASTSS, VFMADD231PS)
	DECQ CX
	JNZ place
	JMP store

packed:
	AVX512_PACKED(4, VBROADCASTSS, VFMADD231PS)
	DECQ CX
	JNZ packed

store:
	MOVBLZX add+64(FP), AX
	TESTL AX, AX
	JZ set
	AVX512_ADD(VADDPS)
	VZEROUPPER
	RET

set:
	AVX512_SET
	VZEROUPPER
	RET

// func avx512F64(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)
TEXT ·avx512F64(SB), NOSPLIT, $0-65
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
	AVX512_CLEAR
	TESTQ CX, CX
	JZ store
	CMPQ R9, $8
	JEQ packed

place:
	AVX512_IN_PLACE(VBROADCASTSD, VFMADD231PD)
	DECQ CX
	JNZ place
	JMP store

packed:
	AVX512_PACKED(8, VBROADCASTSD, VFMADD231PD)
	DECQ CX
	JNZ packed

store:
	MOVBLZX add+64(FP), AX
	TESTL AX, AX
	JZ set
	AVX512_ADD(VADDPD)
	VZEROUPPER
	RET

set:
	AVX512_SET
	VZEROUPPER
	RET
