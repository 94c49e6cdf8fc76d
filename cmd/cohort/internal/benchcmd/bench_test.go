// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"bytes"
	"encoding/json"
	"regexp"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// TestLitteringKeepsTheCollectorBusy: with --garbage the collector runs again and again, and the goroutines end when told to.
func TestLitteringKeepsTheCollectorBusy(t *testing.T) {
	cycles := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumGC
	}
	before := cycles()
	stop := keepBusy(1, littering)
	for deadline := time.Now().Add(time.Minute); cycles() < before+20; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the collector ran %d times in a minute", cycles()-before)
		}
	}
	stop()
}

func TestCollOptionsRefuseWrongCounts(t *testing.T) {
	good := collOptions{ranks: 2, transport: "auto", scale: 1}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*collOptions){
		"busy":         func(o *collOptions) { o.busy = -1 },
		"much busy":    func(o *collOptions) { o.busy = 1025 },
		"garbage":      func(o *collOptions) { o.garbage = -1 },
		"much garbage": func(o *collOptions) { o.garbage = 1025 },
	} {
		wrong := good
		if change(&wrong); wrong.check() == nil {
			t.Errorf("%s: no error for %+v", name, wrong)
		}
	}
}
