// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

const passing = `{"Action":"output","Package":"p","Test":"TestA","Output":"    x_test.go:3: count: 7 rows\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0.1}
`

const skipping = `{"Action":"output","Package":"q","Test":"TestB","Output":"    y_test.go:9: no PyTorch\n"}
{"Action":"skip","Package":"q","Test":"TestB"}
{"Action":"pass","Package":"q","Elapsed":0.1}
`

func TestReport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in, want string
		noskip, ok     bool
	}{
		{"pass", passing, "1 passed, 0 failed, 0 skipped", true, true},
		{"counts", passing, "  7 rows\n", true, true},
		{"skip allowed", passing + skipping, "skipped 1: no PyTorch", false, true},
		{"skip forbidden", passing + skipping, "required was skipped", true, false},
		{"nothing ran", "", "no test was run", false, false},
		{"fail", passing + `{"Action":"fail","Package":"p","Test":"TestC"}`, "1 passed, 1 failed", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if ok := report(strings.NewReader(c.in), &out, c.noskip); ok != c.ok || !strings.Contains(out.String(), c.want) {
				t.Fatalf("ok = %v, output:\n%s", ok, out.String())
			}
		})
	}
}
