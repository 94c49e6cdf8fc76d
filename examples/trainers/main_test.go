// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestLearns: the loss of every trainer falls, although each knows a third of the points only.
func TestLearns(t *testing.T) {
	var out bytes.Buffer
	losses, err := run(t.Context(), 120, &out)
	if err != nil {
		t.Fatal(err)
	}
	mean := func(xs []float64) (m float64) {
		for _, x := range xs {
			m += x / float64(len(xs))
		}
		return m
	}
	var begin, end []float64
	for _, l := range losses {
		begin, end = append(begin, mean(l[:5])), append(end, mean(l[len(l)-20:]))
	}
	if mean(end) > mean(begin)/2 {
		t.Errorf("losses from %v to %v", begin, end)
	}
	if !strings.Contains(out.String(), "3 trainers") {
		t.Errorf("the report:\n%s", &out)
	}
}
