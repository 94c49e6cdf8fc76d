// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestLearns trains on four ranks: the loss falls, and digits that were never seen are read.
func TestLearns(t *testing.T) {
	var out bytes.Buffer
	r, err := local(t.Context(), 4, 8, &out)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(r.losses); i++ {
		if r.losses[i] > 1.1*r.losses[i-1] {
			t.Errorf("the loss rises in epoch %d: %v", i+1, r.losses)
		}
	}
	if last := r.losses[len(r.losses)-1]; last > r.losses[0]/4 || r.accuracy < 0.92 {
		t.Errorf("losses %v, accuracy %v", r.losses, r.accuracy)
	}
	if !strings.Contains(out.String(), "▁") || !strings.Contains(out.String(), "4 ranks") {
		t.Errorf("the report:\n%s", &out)
	}
}

func TestData(t *testing.T) {
	t.Parallel()
	training, test, err := load()
	if err != nil || len(training) != 1438 || len(test) != 359 {
		t.Fatalf("%d and %d images, %v", len(training), len(test), err)
	}
	var counts [10]int
	for _, d := range append(training, test...) {
		counts[d.class]++
	}
	for class, n := range counts {
		if n < 170 || n > 185 {
			t.Errorf("%d images of %d", n, class)
		}
	}
}
