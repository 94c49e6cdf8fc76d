// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The kernels of 16-bit floats once more, with 512-bit registers: a block of 16 elements is one register of float32, and
// masks replace the packing. The signature and the rules are those of avx2_amd64.s.

#define CONST16(BITS, Y) MOVL $BITS, AX; VPBROADCASTW AX, Y
#define CONST32(BITS, Z) MOVL $BITS, AX; VPBROADCASTD AX, Z

#define LOOP(NAME, SETUP, BODY) \
TEXT NAME(SB), NOSPLIT, $0-32; \
	MOVQ    dst+0(FP), DI;  \
	MOVQ    a+8(FP), SI;    \
	MOVQ    b+16(FP), DX;   \
	MOVQ    n+24(FP), CX;   \
	SETUP;                  \
	TESTQ   CX, CX;         \
	JEQ     done;           \
one:                            \
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

// --- float16

#define LOADF16 VCVTPH2PS (SI), Z0; VCVTPH2PS (DX), Z1
#define SETUPF16 CONST16(0x7fff, Y15)
#define ROUNDF16 VCMPPS $3, Z0, Z0, K1; VCVTPS2PH $0, Z0, Y0; VMOVDQU16 Y15, K1, Y0

#define BODY_SUMF16  LOADF16; VADDPS Z1, Z0, Z0; ROUNDF16
#define BODY_PRODF16 LOADF16; VMULPS Z1, Z0, Z0; ROUNDF16

// The bits of b where the comparison holds, else those of a.
#define CHOOSE VMOVDQU (SI), Y0; VMOVDQU16 (DX), K1, Y0
#define BODY_MINF16 LOADF16; VCMPPS $0x11, Z0, Z1, K1; CHOOSE
#define BODY_MAXF16 LOADF16; VCMPPS $0x11, Z1, Z0, K1; CHOOSE

// gloo's assignment: see halves_amd64.s.
#define ASSIGN \
	VPMOVZXWD (SI), Z2;      \
	VCVTDQ2PS Z2, Z2;        \
	VCVTPS2PH $0, Z2, Y2;    \
	VPCMPEQW  Y0, Y2, K2;    \
	VMOVDQU16 (SI), K2, Y0

#define BODY_GLOOSUMF16  BODY_SUMF16; ASSIGN
#define BODY_GLOOPRODF16 BODY_PRODF16; ASSIGN
#define BODY_GLOOMINF16  BODY_MINF16; ASSIGN
#define BODY_GLOOMAXF16  BODY_MAXF16; ASSIGN

// --- bfloat16. VCVTNEPS2BF16 is not used: it flushes denormals.

#define LOADBF16 \
	VPMOVZXWD (SI), Z0;      \
	VPMOVZXWD (DX), Z1;      \
	VPSLLD    $16, Z0, Z0;   \
	VPSLLD    $16, Z1, Z1

#define SETUPBF16 CONST32(0x7fff, Z15); CONST32(1, Z14); CONST32(0x7fc0, Z13)

#define ROUNDBF16 \
	VCMPPS    $3, Z0, Z0, K1; \
	VPSRLD    $16, Z0, Z2;    \
	VPANDD    Z14, Z2, Z2;    \
	VPADDD    Z15, Z0, Z0;    \
	VPADDD    Z2, Z0, Z0;     \
	VPSRLD    $16, Z0, Z0;    \
	VMOVDQA32 Z13, K1, Z0;    \
	VPMOVDW   Z0, Y0

#define BODY_SUMBF16  LOADBF16; VADDPS Z1, Z0, Z0; ROUNDBF16
#define BODY_PRODBF16 LOADBF16; VMULPS Z1, Z0, Z0; ROUNDBF16
#define BODY_MINBF16  LOADBF16; VCMPPS $0x11, Z0, Z1, K1; CHOOSE
#define BODY_MAXBF16  LOADBF16; VCMPPS $0x11, Z1, Z0, K1; CHOOSE

LOOP(·avx512SumF16, SETUPF16, BODY_SUMF16)
LOOP(·avx512ProductF16, SETUPF16, BODY_PRODF16)
LOOP(·avx512MinF16, NONE, BODY_MINF16)
LOOP(·avx512MaxF16, NONE, BODY_MAXF16)
LOOP(·avx512GlooSumF16, SETUPF16, BODY_GLOOSUMF16)
LOOP(·avx512GlooProductF16, SETUPF16, BODY_GLOOPRODF16)
LOOP(·avx512GlooMinF16, NONE, BODY_GLOOMINF16)
LOOP(·avx512GlooMaxF16, NONE, BODY_GLOOMAXF16)
LOOP(·avx512SumBF16, SETUPBF16, BODY_SUMBF16)
LOOP(·avx512ProductBF16, SETUPBF16, BODY_PRODBF16)
LOOP(·avx512MinBF16, NONE, BODY_MINBF16)
LOOP(·avx512MaxBF16, NONE, BODY_MAXBF16)
