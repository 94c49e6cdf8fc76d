// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The loops over long vectors take blocks of 8 elements and at least one.

// func axpyF32(alpha float32, x, y unsafe.Pointer, blocks int)
TEXT ·axpyF32(SB), NOSPLIT, $0-32
	VBROADCASTSS alpha+0(FP), Y2
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DI
	MOVQ blocks+24(FP), CX

loop:
	VMULPS (SI), Y2, Y0
	VADDPS (DI), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	DECQ CX
	JNZ loop
	VZEROUPPER
	RET

#define VECTORS_STEP(instruction) \
	VMOVUPS (SI), Y0; \
	instruction (DX), Y0, Y0; \
	VMOVUPS Y0, (DI); \
	ADDQ $32, SI; \
	ADDQ $32, DX; \
	ADDQ $32, DI; \
	DECQ CX

// func addF32(dst, a, b unsafe.Pointer, blocks int)
TEXT ·addF32(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ blocks+24(FP), CX

loop:
	VECTORS_STEP(VADDPS)
	JNZ loop
	VZEROUPPER
	RET

// func mulF32(dst, a, b unsafe.Pointer, blocks int)
TEXT ·mulF32(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ blocks+24(FP), CX

loop:
	VECTORS_STEP(VMULPS)
	JNZ loop
	VZEROUPPER
	RET
