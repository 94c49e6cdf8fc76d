// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

// TestBenchTrain: the cases without other processes print their rows.
func TestBenchTrain(t *testing.T) {
	var out bytes.Buffer
	a := &app{&command.App{IO: command.IO{Out: &out}}}
	m := &meter{out: a.Out, group: "autograd", peer: "test", dur: time.Millisecond, only: regexp.MustCompile("t1|step")}
	if err := a.measureTrain(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for d := json.NewDecoder(&out); d.More(); {
		var row struct {
			Case  string
			Value float64
		}
		if err := d.Decode(&row); err != nil {
			t.Fatal(err)
		}
		seen[row.Case] = row.Value
	}
	if len(seen) != 2 || seen["matmul1024.t1"] <= 0 || seen["step784.p50"] <= 0 {
		t.Errorf("rows %v", seen)
	}
}
