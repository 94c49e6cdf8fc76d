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
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

// TestLearns: the loss falls well below that of guessing by how frequent characters are.
func TestLearns(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "chars.safetensors")
	losses, err := run(t.Context(), 40, file, &out)
	if err != nil {
		t.Fatal(err)
	}
	mean := func(part []float64) (m float64) {
		for _, v := range part {
			m += v / float64(len(part))
		}
		return m
	}
	if first, last := mean(losses[:5]), mean(losses[len(losses)-5:]); last > 3.2 || last > first-1 {
		t.Errorf("loss %v -> %v", first, last)
	}
	if !strings.Contains(out.String(), "You may ") || !strings.Contains(out.String(), "▁") {
		t.Errorf("the report:\n%s", &out)
	}
	saved, err := safetensors.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	net := newModel(rand.New(rand.NewPCG(9, 9)), newAlphabet(text).size(), length)
	if err := nn.LoadState(net, saved.Tensors); err != nil {
		t.Error(err)
	}
}
