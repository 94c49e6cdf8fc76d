// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/internal/testing/datatest"
)

// goldenDumps are two ranks, of which the clock of the second is five seconds ahead.
func goldenDumps() []Dump {
	a := newStory("0", 0, 2).does(reduction(1024), barrier).enters(message("recv", 1, 3)).enters(reduction(64))
	b := newStory("0", 1, 2)
	b.now = base.Add(5 * time.Second)
	b.does(reduction(1024), barrier).does(message("send", 0, 4)).queues(reduction(64))
	sub := newStory("sub", 0, 1, 1)
	sub.ring.about.Description = "the second rank alone"
	sub.now = base.Add(5 * time.Second)
	sub.fails(broadcast(0), "timeout")
	return []Dump{
		NewDump(base.Add(20*time.Millisecond), "asked", a.snapshot()),
		NewDump(base.Add(5*time.Second+20*time.Millisecond), "signal", b.snapshot(), sub.snapshot()),
	}
}

func TestPerfettoGolden(t *testing.T) {
	got, err := Perfetto(goldenDumps())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "perfetto.json")
	if datatest.Updates() {
		if err = os.WriteFile(path, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Error(diff)
	}
}

// TestPerfettoClocks: an operation that needs all ranks never ends before another rank entered it, once the clocks are moved.
func TestPerfettoClocks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 5 * time.Second, -time.Hour} {
		a := newStory("0", 0, 2).does(reduction(8), barrier, barrier)
		b := newStory("0", 1, 2)
		b.now = b.now.Add(ahead)
		b.does(reduction(8), barrier, barrier)
		teams, _ := assemble(dumpsOf(a, b))
		got := alignClocks(teams)[1]
		if diff := (got - ahead).Abs(); diff > time.Millisecond {
			t.Errorf("clock ahead by %v, found %v", ahead, got)
		}
	}
}

// TestPerfettoShape: the file has what Chrome's format asks for, and slices of a thread do not overlap.
func TestPerfettoShape(t *testing.T) {
	data, err := Perfetto(goldenDumps())
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []struct {
			Name, Ph, Cat, ID string
			TS, Dur           float64
			PID, TID          *int
		}
		DisplayTimeUnit string
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if file.DisplayTimeUnit != "ms" {
		t.Errorf("unit %q", file.DisplayTimeUnit)
	}
	type thread struct{ pid, tid int }
	ends := map[thread]float64{}
	begun := map[string]bool{}
	for _, e := range file.TraceEvents {
		if e.PID == nil || e.TID == nil || e.Name == "" {
			t.Fatalf("event without process, thread or name: %+v", e)
		}
		switch e.Ph {
		case "X":
			at := thread{*e.PID, *e.TID}
			if e.TS < ends[at] {
				t.Errorf("%s begins at %v, before the last one ends at %v", e.Name, e.TS, ends[at])
			}
			ends[at] = e.TS + e.Dur
		case "b":
			begun[e.ID] = true
		case "e":
			if !begun[e.ID] {
				t.Errorf("%s ends without a beginning", e.ID)
			}
			delete(begun, e.ID)
		case "M":
		default:
			t.Errorf("phase %q", e.Ph)
		}
	}
	if len(begun) > 0 {
		t.Errorf("no end of %v", begun)
	}
}
