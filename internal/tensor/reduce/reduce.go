// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package reduce combines buffers element by element, with gloo's semantics.
package reduce

import "strconv"

// Op is a reduction operator.
type Op uint8

// The operators. Avg is a sum that is divided by the number of ranks at the end, PremulSum one of elements that were multiplied
// by a factor before.
const (
	Sum Op = iota
	Product
	Min
	Max
	And
	Or
	Xor
	Avg
	PremulSum
)

// String returns the operator's name as PyTorch spells it.
func (o Op) String() string {
	if !o.Valid() {
		return "reduce_op(" + strconv.Itoa(int(o)) + ")"
	}
	return [...]string{"sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum"}[o]
}
