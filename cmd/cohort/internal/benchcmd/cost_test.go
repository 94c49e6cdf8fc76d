// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"runtime"
	"testing"
	"time"
)

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
