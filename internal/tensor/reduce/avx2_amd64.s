// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// Every kernel here has the signature func(dst, a, b unsafe.Pointer, n int), n counting blocks of 32 bytes, and
// computes dst = op(a, b). VEX encodings only, and VZEROUPPER at the end, so that no caller pays for a transition.

#define PROLOGUE \
	MOVQ dst+0(FP), DI; \
	MOVQ a+8(FP), SI;   \
	MOVQ b+16(FP), DX;  \
	MOVQ n+24(FP), CX

// SIMPLE is a kernel of one instruction whose first source is loaded from F and whose second is read from G. Which of
// the two is a matters: sums return the first NaN, minima and maxima the second source unless the first is better.
#define SIMPLE(NAME, OP, F, G) \
TEXT NAME(SB), NOSPLIT, $0-32; \
	PROLOGUE;               \
four:                           \
	SUBQ    $4, CX;         \
	JLT     rest;           \
	VMOVDQU (F), Y0;        \
	VMOVDQU 32(F), Y1;      \
	VMOVDQU 64(F), Y2;      \
	VMOVDQU 96(F), Y3;      \
	OP      (G), Y0, Y0;    \
	OP      32(G), Y1, Y1;  \
	OP      64(G), Y2, Y2;  \
	OP      96(G), Y3, Y3;  \
	VMOVDQU Y0, (DI);       \
	VMOVDQU Y1, 32(DI);     \
	VMOVDQU Y2, 64(DI);     \
	VMOVDQU Y3, 96(DI);     \
	ADDQ    $128, SI;       \
	ADDQ    $128, DX;       \
	ADDQ    $128, DI;       \
	JMP     four;           \
rest:                           \
	ADDQ    $4, CX;         \
	JEQ     done;           \
one:                            \
	VMOVDQU (F), Y0;        \
	OP      (G), Y0, Y0;    \
	VMOVDQU Y0, (DI);       \
	ADDQ    $32, SI;        \
	ADDQ    $32, DX;        \
	ADDQ    $32, DI;        \
	DECQ    CX;             \
	JNE     one;            \
done:                           \
	VZEROUPPER;             \
	RET

// LOOP is a kernel that calls BODY with a in Y0 and b in Y1 and takes the result from Y0.
#define LOOP(NAME, SETUP, BODY) \
TEXT NAME(SB), NOSPLIT, $0-32; \
	PROLOGUE;               \
	SETUP;                  \
	TESTQ   CX, CX;         \
	JEQ     done;           \
one:                            \
	VMOVDQU (SI), Y0;       \
	VMOVDQU (DX), Y1;       \
	BODY;                   \
	VMOVDQU Y0, (DI);       \
	ADDQ    $32, SI;        \
	ADDQ    $32, DX;        \
	ADDQ    $32, DI;        \
	DECQ    CX;             \
	JNE     one;            \
done:                           \
	VZEROUPPER;             \
	RET

#define NONE XORL AX, AX

// Minimum and maximum of int64: no instruction before AVX-512, so compare and blend.
#define BODY_MINI64 VPCMPGTQ Y1, Y0, Y2; VPBLENDVB Y2, Y1, Y0, Y0
#define BODY_MAXI64 VPCMPGTQ Y0, Y1, Y2; VPBLENDVB Y2, Y1, Y0, Y0

// The low 64 bits of a product from 32-bit halves.
#define BODY_PRODI64 \
	VPSRLQ   $32, Y0, Y2;    \
	VPSRLQ   $32, Y1, Y3;    \
	VPMULUDQ Y1, Y2, Y2;     \
	VPMULUDQ Y0, Y3, Y3;     \
	VPADDQ   Y3, Y2, Y2;     \
	VPSLLQ   $32, Y2, Y2;    \
	VPMULUDQ Y1, Y0, Y0;     \
	VPADDQ   Y2, Y0, Y0

// Bytes are multiplied as the two bytes of a 16-bit word.
#define SETUP_PRODI8 VPCMPEQW Y7, Y7, Y7; VPSRLW $8, Y7, Y7
#define BODY_PRODI8 \
	VPSRLW  $8, Y0, Y2;      \
	VPSRLW  $8, Y1, Y3;      \
	VPMULLW Y1, Y0, Y0;      \
	VPMULLW Y3, Y2, Y2;      \
	VPAND   Y7, Y0, Y0;      \
	VPSLLW  $8, Y2, Y2;      \
	VPOR    Y2, Y0, Y0

// (ar*br - ai*bi, ar*bi + ai*br), a's factor first in every product.
#define BODY_PRODC64 \
	VMOVSLDUP Y0, Y2;        \
	VMOVSHDUP Y0, Y3;        \
	VPERMILPS $0xb1, Y1, Y4; \
	VMULPS    Y1, Y2, Y2;    \
	VMULPS    Y4, Y3, Y3;    \
	VADDSUBPS Y3, Y2, Y0

#define BODY_PRODC128 \
	VMOVDDUP  Y0, Y2;        \
	VPERMILPD $0xf, Y0, Y3;  \
	VPERMILPD $5, Y1, Y4;    \
	VMULPD    Y1, Y2, Y2;    \
	VMULPD    Y4, Y3, Y3;    \
	VADDSUBPD Y3, Y2, Y0

SIMPLE(·avx2SumF32, VADDPS, SI, DX)
SIMPLE(·avx2ProductF32, VMULPS, SI, DX)
SIMPLE(·avx2MinF32, VMINPS, DX, SI)
SIMPLE(·avx2MaxF32, VMAXPS, DX, SI)
SIMPLE(·avx2SumF64, VADDPD, SI, DX)
SIMPLE(·avx2ProductF64, VMULPD, SI, DX)
SIMPLE(·avx2MinF64, VMINPD, DX, SI)
SIMPLE(·avx2MaxF64, VMAXPD, DX, SI)
SIMPLE(·avx2SumI8, VPADDB, SI, DX)
SIMPLE(·avx2SumI16, VPADDW, SI, DX)
SIMPLE(·avx2SumI32, VPADDD, SI, DX)
SIMPLE(·avx2SumI64, VPADDQ, SI, DX)
SIMPLE(·avx2ProductI16, VPMULLW, SI, DX)
SIMPLE(·avx2ProductI32, VPMULLD, SI, DX)
SIMPLE(·avx2MinU8, VPMINUB, SI, DX)
SIMPLE(·avx2MaxU8, VPMAXUB, SI, DX)
SIMPLE(·avx2MinI8, VPMINSB, SI, DX)
SIMPLE(·avx2MaxI8, VPMAXSB, SI, DX)
SIMPLE(·avx2MinI16, VPMINSW, SI, DX)
SIMPLE(·avx2MaxI16, VPMAXSW, SI, DX)
SIMPLE(·avx2MinI32, VPMINSD, SI, DX)
SIMPLE(·avx2MaxI32, VPMAXSD, SI, DX)
SIMPLE(·avx2AndBits, VPAND, SI, DX)
SIMPLE(·avx2OrBits, VPOR, SI, DX)
SIMPLE(·avx2XorBits, VPXOR, SI, DX)
LOOP(·avx2MinI64, NONE, BODY_MINI64)
LOOP(·avx2MaxI64, NONE, BODY_MAXI64)
LOOP(·avx2ProductI64, NONE, BODY_PRODI64)
LOOP(·avx2ProductI8, SETUP_PRODI8, BODY_PRODI8)
LOOP(·avx2ProductC64, NONE, BODY_PRODC64)
LOOP(·avx2ProductC128, NONE, BODY_PRODC128)

// func avx2DivideF32(p unsafe.Pointer, by float32, n int)
TEXT ·avx2DivideF32(SB), NOSPLIT, $0-24
	MOVQ         p+0(FP), DI
	VBROADCASTSS by+8(FP), Y2
	MOVQ         n+16(FP), CX

one:
	VMOVUPS (DI), Y0
	VDIVPS  Y2, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, DI
	DECQ    CX
	JNE     one
	VZEROUPPER
	RET
