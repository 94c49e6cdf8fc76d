// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestLearns: the loss falls, and most points are told apart, which a straight line could not do.
func TestLearns(t *testing.T) {
	var out bytes.Buffer
	r, err := train(t.Context(), 100, &out)
	if err != nil {
		t.Fatal(err)
	}
	if last := r.losses[len(r.losses)-1]; last > r.losses[0]/3 || r.accuracy < 0.9 {
		t.Errorf("loss from %v to %v, accuracy %v", r.losses[0], last, r.accuracy)
	}
	if !strings.Contains(out.String(), "▁") || !strings.Contains(out.String(), "3 stages") {
		t.Errorf("the report:\n%s", &out)
	}
}
