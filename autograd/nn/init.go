// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"
	"math/rand/v2"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

// The initialisers set a parameter of float32 or float64 in place; one that carries an error stays as it is. They
// correspond to the functions of torch.nn.init with the same names. The random numbers are Go's: the distributions are
// PyTorch's, the values are not.

// Fill sets every element to a number.
func Fill(v *autograd.Variable, value float64) { set(v, func() float64 { return value }) }

// Uniform draws from [lo, hi).
func Uniform(r *rand.Rand, v *autograd.Variable, lo, hi float64) {
	set(v, func() float64 { return lo + (hi-lo)*r.Float64() })
}

// Normal draws from a normal distribution.
func Normal(r *rand.Rand, v *autograd.Variable, mean, deviation float64) {
	set(v, func() float64 { return mean + deviation*r.NormFloat64() })
}

// XavierUniform draws uniformly with a variance of 2 / (inputs + outputs).
func XavierUniform(r *rand.Rand, v *autograd.Variable) {
	in, out := fans(v)
	bound := math.Sqrt(6 / float64(max(in+out, 1)))
	Uniform(r, v, -bound, bound)
}

// XavierNormal draws from a normal distribution with a variance of 2 / (inputs + outputs).
func XavierNormal(r *rand.Rand, v *autograd.Variable) {
	in, out := fans(v)
	Normal(r, v, 0, math.Sqrt(2/float64(max(in+out, 1))))
}

// KaimingUniform draws uniformly with a variance of 2 / inputs, for layers before a ReLU.
func KaimingUniform(r *rand.Rand, v *autograd.Variable) {
	in, _ := fans(v)
	bound := math.Sqrt(6 / float64(max(in, 1)))
	Uniform(r, v, -bound, bound)
}

// KaimingNormal draws from a normal distribution with a variance of 2 / inputs, for layers before a ReLU.
func KaimingNormal(r *rand.Rand, v *autograd.Variable) {
	in, _ := fans(v)
	Normal(r, v, 0, math.Sqrt(2/float64(max(in, 1))))
}

// fans returns inputs and outputs of a weight: PyTorch's _calculate_fan_in_and_fan_out.
func fans(v *autograd.Variable) (in, out int) {
	s := v.Shape()
	switch {
	case len(s) == 0:
		return 1, 1
	case len(s) == 1:
		return s[0], s[0]
	}
	field := 1
	for _, d := range s[2:] {
		field *= d
	}
	return s[1] * field, s[0] * field
}

func set(v *autograd.Variable, next func() float64) {
	if v.Err() != nil {
		return
	}
	if x, err := tensor.Data[float32](v.Data()); err == nil {
		for i := range x {
			x[i] = float32(next())
		}
	} else if x, err := tensor.Data[float64](v.Data()); err == nil {
		for i := range x {
			x[i] = next()
		}
	}
}

func sqrt(n int) float64 { return math.Sqrt(float64(n)) }
