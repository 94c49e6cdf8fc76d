// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func spinUntil(word *uint32, target uint32, turns int) bool
TEXT ·spinUntil(SB), NOSPLIT, $0-25
	MOVQ word+0(FP), DI
	MOVL target+8(FP), SI
	MOVQ turns+16(FP), CX
	TESTQ CX, CX
	JLE  late

again:
	MOVL (DI), AX
	SUBL SI, AX
	JPL  reached
	PAUSE
	DECQ CX
	JNE  again

late:
	MOVB $0, ret+24(FP)
	RET

reached:
	MOVB $1, ret+24(FP)
	RET
