// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/rpc/py"
)

// TestZeroNumbers: a PyTorch worker that asks for a zero which a rule would take for its default gets an error, not the default.
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
		if pairs[c.key] != [2]string{} {
			zero, some = py.Tuple{0.5, 0.0}, py.Tuple{0.5, 2.0}
		}
		name := py.Global{Module: ordinary, Name: c.class}
		_, err := parse(name, nil, &py.Dict{Pairs: []py.Pair{{Key: c.key, Value: zero}}})
		if !errors.Is(err, dist.InvalidArgument) || !strings.Contains(err.Error(), "0 stands for the default") {
			t.Errorf("%s with %s of %v: %v", c.class, c.key, zero, err)
		}
		if _, err := parse(name, nil, &py.Dict{Pairs: []py.Pair{{Key: c.key, Value: some}}}); err != nil {
			t.Errorf("%s with %s of %v: %v", c.class, c.key, some, err)
		}
	}
}
