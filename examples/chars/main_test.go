// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

// TestLearns: the loss falls well below that of guessing by how frequent characters are, and the parameters of all stages change.
func TestLearns(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "chars.safetensors")
	losses, err := run(t.Context(), 25, 10, file, &out)
	if err != nil {
		t.Fatal(err)
	}
	mean := func(part []float64) (m float64) {
		for _, v := range part {
			m += v / float64(len(part))
		}
		return m
	}
	if first, last := mean(losses[:5]), mean(losses[len(losses)-5:]); last > 3.3 || last > first-0.8 {
		t.Errorf("loss %v -> %v", first, last)
	}
	if !strings.Contains(out.String(), "You may ") || !strings.Contains(out.String(), "▁") {
		t.Errorf("the report:\n%s", &out)
	}
	saved, err := safetensors.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	net := newModel(rand.New(rand.NewPCG(1, 2)), newAlphabet(text).size(), length)
	for _, p := range net.Params() {
		if tensor.Equal(p.Value.Data(), saved.Tensors[p.Name]) {
			t.Errorf("the training left %s as it was", p.Name)
		}
	}
	if err := nn.LoadState(net, saved.Tensors); err != nil {
		t.Error(err)
	}
}
