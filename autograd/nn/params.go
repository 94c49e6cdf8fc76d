// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
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

// State returns the parameters and buffers of a module by name. The tensors are those of the module, not copies. It
// corresponds to Module.state_dict.
func State(m Module) (map[string]*tensor.Tensor, error) {
	if m == nil {
		return nil, cohort.New("nn: state", cohort.InvalidArgument, "the module is nil")
	}
	out := map[string]*tensor.Tensor{}
	for _, p := range m.Params() {
		if err := p.Value.Err(); err != nil {
			return nil, err
		}
		if out[p.Name] != nil {
			return nil, cohort.Newf("nn: state", cohort.InvalidArgument, "two parameters are called %q", p.Name)
		}
		if out[p.Name] = p.Value.Data(); out[p.Name] == nil {
			return nil, cohort.Newf("nn: state", cohort.NotSupported, "parameter %q is sparse: only dense ones have a state", p.Name)
		}
	}
	for _, b := range Buffers(m) {
		if out[b.Name] != nil {
			return nil, cohort.Newf("nn: state", cohort.InvalidArgument, "a buffer and something else are called %q", b.Name)
		}
		out[b.Name] = b.Value
	}
	return out, nil
}

// LoadState copies tensors into the parameters of the same names; names, types and shapes must agree exactly. When they
// do not, nothing is copied. It corresponds to Module.load_state_dict.
func LoadState(m Module, state map[string]*tensor.Tensor) error {
	const op = "nn: load state"
	own, err := State(m)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if own[name] == nil {
			return cohort.Newf(op, cohort.InvalidArgument, "unexpected key %q: the model has %v", name, slices.Sorted(maps.Keys(own)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		t, p := state[name], own[name]
		switch {
		case t == nil:
			return cohort.Newf(op, cohort.InvalidArgument, "missing key %q: there are %v", name, slices.Sorted(maps.Keys(state)))
		case t.DType() != p.DType() || !t.SameShape(p):
			return cohort.Newf(op, cohort.InvalidArgument, "size mismatch for %s: %v%v, the model has %v%v", name, t.DType(),
				t.Shape(), p.DType(), p.Shape())
		}
	}
	for name, p := range own {
		if tensor.Overlaps(p, state[name]) {
			continue // the parameter itself
		}
		if err := p.CopyFrom(state[name]); err != nil {
			return err
		}
	}
	return nil
}

// Save writes the parameters to a safetensors file that PyTorch users open with safetensors.torch.load_file.
func Save(path string, m Module) error {
	state, err := State(m)
	if err != nil {
		return err
	}
	return (&safetensors.File{Tensors: state, Metadata: map[string]string{"format": "pt"}}).Save(path)
}

// Load reads the parameters from a safetensors file.
func Load(path string, m Module) error {
	f, err := safetensors.Load(path)
	if err != nil {
		return err
	}
	return LoadState(m, f.Tensors)
}
