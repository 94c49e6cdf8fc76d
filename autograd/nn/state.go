// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"maps"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

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
