// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// Kernels of 16-bit floats, 16 elements to the block of 32 bytes. The arithmetic is float32's; the signature and the
// rules are those of avx2_amd64.s.

// Y12..Y15 hold constants that SETUP made.
#define CONST16(BITS, Y, X) \
	MOVL         $BITS, AX;  \
	VMOVD        AX, X;      \
	VPBROADCASTW X, Y

#define CONST32(BITS, Y, X) \
	MOVL         $BITS, AX;  \
	VMOVD        AX, X;      \
	VPBROADCASTD X, Y

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

// --- float16: a in Y0:Y1, b in Y2:Y3.

#define LOADF16 \
	VCVTPH2PS (SI), Y0;      \
	VCVTPH2PS 16(SI), Y1;    \
	VCVTPH2PS (DX), Y2;      \
	VCVTPH2PS 16(DX), Y3

// Round to nearest even and give every NaN gloo's bits, 0x7fff.
#define SETUPF16 CONST16(0x7fff, Y15, X15); CONST16(0x7c00, Y14, X14)
#define ROUNDF16 \
	VCVTPS2PH   $0, Y0, X0;         \
	VCVTPS2PH   $0, Y1, X1;         \
	VINSERTI128 $1, X1, Y0, Y0;     \
	VPAND       Y15, Y0, Y4;        \
	VPCMPGTW    Y14, Y4, Y4;        \
	VPBLENDVB   Y4, Y15, Y0, Y0

#define BODY_SUMF16  LOADF16; VADDPS Y2, Y0, Y0; VADDPS Y3, Y1, Y1; ROUNDF16
#define BODY_PRODF16 LOADF16; VMULPS Y2, Y0, Y0; VMULPS Y3, Y1, Y1; ROUNDF16

// Take the bits of b where the comparison in Y0:Y1 holds, else those of a.
#define CHOOSE \
	VPACKSSDW Y1, Y0, Y0;    \
	VPERMQ    $0xd8, Y0, Y0; \
	VMOVDQU   (SI), Y1;      \
	VMOVDQU   (DX), Y2;      \
	VPBLENDVB Y0, Y2, Y1, Y0

// 0x11 is "less than, false on NaN": b < a for the minimum, a < b for the maximum.
#define BODY_MINF16 LOADF16; VCMPPS $0x11, Y0, Y2, Y0; VCMPPS $0x11, Y1, Y3, Y1; CHOOSE
#define BODY_MAXF16 LOADF16; VCMPPS $0x11, Y2, Y0, Y0; VCMPPS $0x11, Y3, Y1, Y1; CHOOSE

// gloo's float16 assignment compares with the number that the old bits make when they are read as an integer, and does
// nothing when the new bits equal it. Y0 holds the new bits, a the old ones.
#define ASSIGN \
	VPMOVZXWD   (SI), Y2;           \
	VPMOVZXWD   16(SI), Y3;         \
	VCVTDQ2PS   Y2, Y2;             \
	VCVTDQ2PS   Y3, Y3;             \
	VCVTPS2PH   $0, Y2, X2;         \
	VCVTPS2PH   $0, Y3, X3;         \
	VINSERTI128 $1, X3, Y2, Y2;     \
	VPCMPEQW    Y0, Y2, Y2;         \
	VMOVDQU     (SI), Y1;           \
	VPBLENDVB   Y2, Y1, Y0, Y0

#define BODY_GLOOSUMF16  BODY_SUMF16; ASSIGN
#define BODY_GLOOPRODF16 BODY_PRODF16; ASSIGN
#define BODY_GLOOMINF16  BODY_MINF16; ASSIGN
#define BODY_GLOOMAXF16  BODY_MAXF16; ASSIGN

// --- bfloat16: the upper half of a float32.

#define LOADBF16 \
	VPMOVZXWD (SI), Y0;      \
	VPMOVZXWD 16(SI), Y1;    \
	VPMOVZXWD (DX), Y2;      \
	VPMOVZXWD 16(DX), Y3;    \
	VPSLLD    $16, Y0, Y0;   \
	VPSLLD    $16, Y1, Y1;   \
	VPSLLD    $16, Y2, Y2;   \
	VPSLLD    $16, Y3, Y3

#define SETUPBF16 CONST32(0x7fff, Y15, X15); CONST32(1, Y14, X14); CONST32(0x7fc0, Y13, X13)

// Add half of the last place, less one if that place is even; every NaN becomes PyTorch's 0x7fc0.
#define ROUND1BF16(Y, T, U) \
	VCMPPS    $3, Y, Y, U;   \
	VPSRLD    $16, Y, T;     \
	VPAND     Y14, T, T;     \
	VPADDD    Y15, Y, Y;     \
	VPADDD    T, Y, Y;       \
	VPSRLD    $16, Y, Y;     \
	VPBLENDVB U, Y13, Y, Y

#define ROUNDBF16 \
	ROUND1BF16(Y0, Y4, Y5);  \
	ROUND1BF16(Y1, Y6, Y7);  \
	VPACKUSDW Y1, Y0, Y0;    \
	VPERMQ    $0xd8, Y0, Y0

#define BODY_SUMBF16  LOADBF16; VADDPS Y2, Y0, Y0; VADDPS Y3, Y1, Y1; ROUNDBF16
#define BODY_PRODBF16 LOADBF16; VMULPS Y2, Y0, Y0; VMULPS Y3, Y1, Y1; ROUNDBF16
#define BODY_MINBF16  LOADBF16; VCMPPS $0x11, Y0, Y2, Y0; VCMPPS $0x11, Y1, Y3, Y1; CHOOSE
#define BODY_MAXBF16  LOADBF16; VCMPPS $0x11, Y2, Y0, Y0; VCMPPS $0x11, Y3, Y1, Y1; CHOOSE

#define NONE XORL AX, AX

LOOP(·avx2SumF16, SETUPF16, BODY_SUMF16)
LOOP(·avx2ProductF16, SETUPF16, BODY_PRODF16)
LOOP(·avx2MinF16, NONE, BODY_MINF16)
LOOP(·avx2MaxF16, NONE, BODY_MAXF16)
LOOP(·avx2GlooSumF16, SETUPF16, BODY_GLOOSUMF16)
LOOP(·avx2GlooProductF16, SETUPF16, BODY_GLOOPRODF16)
LOOP(·avx2GlooMinF16, NONE, BODY_GLOOMINF16)
LOOP(·avx2GlooMaxF16, NONE, BODY_GLOOMAXF16)
LOOP(·avx2SumBF16, SETUPBF16, BODY_SUMBF16)
LOOP(·avx2ProductBF16, SETUPBF16, BODY_PRODBF16)
LOOP(·avx2MinBF16, NONE, BODY_MINBF16)
LOOP(·avx2MaxBF16, NONE, BODY_MAXBF16)
