// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
)

func TestRingForgetsTheOldest(t *testing.T) {
	r := New(About{Group: "g", Size: 1}, 4)
	var first uint64
	for i := range 10 {
		id := r.Post(uint64(i), false).ID
		if i == 0 {
			first = id
		}
		if i != 9 {
			r.Start(id, base)
			r.End(id, base, -1, nil)
		}
	}
	r.End(first, base, -1, errors.New("too late")) // its place belongs to another now
	g := r.Snapshot()
	if g.Lost != 6 || len(g.Entries) != 4 || g.Entries[0].Seq != 6 || g.Entries[3].State != Posted || g.Entries[0].Err != "" {
		t.Errorf("%+v", g)
	}
	if want := (Status{LastPosted: 9, LastStarted: 8, LastCompleted: 8}); g.Status != want {
		t.Errorf("status %+v, want %+v", g.Status, want)
	}
}

func TestRingStates(t *testing.T) {
	r := New(About{Group: "g", Size: 1}, 0)
	entry := r.Post(0, true)
	entry.Op, entry.Peer = "recv_any", -1
	id := entry.ID
	r.Start(id, base)
	r.End(id, base.Add(time.Second), 3, nil)
	r.End(id, base, 5, errors.New("again")) // an operation ends once
	r.Start(id, base)
	e := r.Snapshot().Entries[0]
	if e.State != Completed || e.Peer != 3 || e.Err != "" || !e.Ended.Equal(base.Add(time.Second)) {
		t.Errorf("%+v", e)
	}
	if s := r.Snapshot().Status; s != (Status{-1, -1, -1}) {
		t.Errorf("messages count as collectives: %+v", s)
	}
}

func TestRingTakesNoMemory(t *testing.T) {
	r := New(About{Group: "g", Size: 1}, 8)
	if n := testing.AllocsPerRun(100, func() {
		id := r.Post(0, false).ID
		r.Start(id, base)
		r.End(id, base, -1, nil)
	}); n != 0 {
		t.Errorf("%v allocations for an operation", n)
	}
}

func TestDumpTravels(t *testing.T) {
	want := goldenDumps()[1]
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		data string
		code cohort.Code
		text string
	}{
		{"", cohort.Protocol, "not a dump"},
		{"[]", cohort.Protocol, "not a dump"},
		{"{}", cohort.Protocol, `format is ""`},
		{`{"format":"other"}`, cohort.Protocol, `format is "other"`},
		{`{"format":"cohort-flight-recorder","version":99}`, cohort.NotSupported, "version 99"},
		{`{"format":"cohort-flight-recorder","version":1,"groups":[{"group":"g","rank":3,"size":2}]}`, cohort.Protocol, "rank 3 of 2"},
	} {
		_, err := Parse([]byte(c.data))
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.data, err)
		}
	}
}

// FuzzParse: what Parse takes, the readers can read.
func FuzzParse(f *testing.F) {
	data, err := json.Marshal(goldenDumps()[1])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(
		[]byte(
			`{"format":"cohort-flight-recorder","version":1,"groups":[{"group":"g","size":1,` +
				`"entries":[{"op":"send","p2p":true,"peer":9}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Parse(data)
		if err != nil {
			return
		}
		if Analyze([]Dump{d}).Sentence == "" {
			t.Error("no sentence")
		}
		if trace, err := Perfetto([]Dump{d}); err == nil && !json.Valid(trace) {
			t.Error("the trace is not JSON")
		}
	})
}
