// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"reflect"
	"testing"

	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/rpc/py"
)

// TestZeroNumbers: a zero that a PyTorch worker asks for is one here, though a rule takes 0 for its default, and is sent on as one.
func TestZeroNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ class, key string }{
		{"Adam", "eps"},
		{"Adam", "betas"},
		{"SparseAdam", "betas"},
		{"AdamW", "eps"},
		{"Adamax", "eps"},
		{"Adagrad", "eps"},
		{"RMSprop", "alpha"},
		{"RMSprop", "eps"},
		{"Adadelta", "rho"},
		{"Adadelta", "eps"},
		{"Rprop", "etas"},
		{"Rprop", "step_sizes"},
	} {
		zero, some := any(0.0), any(0.5)
		if c.key == "betas" || c.key == "etas" || c.key == "step_sizes" {
			zero, some = py.Tuple{0.5, 0.0}, py.Tuple{0.5, 2.0}
		}
		name := py.Global{Module: ordinary, Name: c.class}
		rule, err := parse(name, nil, &py.Dict{Pairs: []py.Pair{{Key: c.key, Value: zero}}})
		if err != nil {
			t.Errorf("%s with %s of %v: %v", c.class, c.key, zero, err)
			continue
		}
		if _, kw, err := describe(rule); err != nil || !reflect.DeepEqual(kw[c.key], zero) {
			t.Errorf("%s with %s of %v is sent as %v, %v", c.class, c.key, zero, kw[c.key], err)
		}
		if _, err := parse(name, nil, &py.Dict{Pairs: []py.Pair{{Key: c.key, Value: some}}}); err != nil {
			t.Errorf("%s with %s of %v: %v", c.class, c.key, some, err)
		}
	}
}

// TestRulesTravel: what describe writes, parse reads: every field of every rule that has a name.
func TestRulesTravel(t *testing.T) {
	t.Parallel()
	for short, c := range classes {
		all, finished := c.begin()
		for i, a := range all {
			for j, x := range a.numbers {
				*x = 0.5 + float64(i) + float64(j)/4
			}
			if a.on != nil {
				*a.on = true
			}
		}
		rule := finished()
		fields := reflect.ValueOf(rule)
		for i := range fields.NumField() {
			if fields.Field(i).IsZero() {
				t.Errorf("%s: no argument stands for %s", short, fields.Type().Field(i).Name)
			}
		}
		name, kw, err := describe(rule)
		if err != nil {
			t.Fatal(err)
		}
		d := &py.Dict{}
		for key, x := range kw {
			d.Pairs = append(d.Pairs, py.Pair{Key: key, Value: x})
		}
		got, err := parse(name, nil, d)
		if err != nil || got != rule {
			t.Errorf("%v became %v, %v", rule, got, err)
		}
	}
	if rule, err := parse(py.Global{Module: ordinary, Name: "AdamW"}, nil, nil); err != nil ||
		rule != (optim.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 1e-2}) {
		t.Errorf("AdamW without arguments is %v, %v", rule, err)
	}
	if _, kw, err := describe(optim.AdamW{}); err != nil || kw["weight_decay"] != 0.0 || kw["lr"] != 0.0 || len(kw) != 2 {
		t.Errorf("AdamW of zeros has arguments %v, %v", kw, err)
	}
}
