// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchdump

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read(t *testing.T, name string) *Dump {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse(data)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

// TestBothKinds: the pickle and the JSON of a rank say the same; only pickles have source lines.
func TestBothKinds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"missing/rank0", "missing/rank1", "mismatch/rank1", "subgroup/rank0", "init/rank0", "nccl/rank0"} {
		a, b := read(t, name+".pickle"), read(t, name+".json")
		for i := range a.Entries {
			a.Entries[i].Where = ""
		}
		if name == "nccl/rank0" { // taken at another moment
			a.Entries = a.Entries[:min(len(a.Entries), 1)]
			b.Entries = b.Entries[:min(len(b.Entries), 1)]
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s (-pickle +json):\n%s", name, diff)
		}
	}
}

func TestEntry(t *testing.T) {
	t.Parallel()
	d := read(t, "mismatch/rank1.pickle")
	last := d.Entries[len(d.Entries)-1]
	last.Created = 0
	want := Entry{
		Group: "0", Desc: "default_pg", Seq: 4, Backend: "gloo", Op: "broadcast", Open: true, Sizes: "[[4, 2]]",
		Types: "[Float]", Peer: -1, Where: last.Where,
	}
	if diff := cmp.Diff(want, last); diff != "" {
		t.Error(diff)
	}
	if last.Where == "" {
		t.Error("the source line is missing")
	}
}

// TestUnfinished: each backend has its own way to record what is not finished. The dump of nccl2 has the form of PyTorch's hook that
// records it; that of a rank of NCCL's older backend was written when a collective of it had timed out.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"nccl2/rank0.json":      {"nccl2:reduce_scatter_tensor_coalesced 3 of default_pg"},
		"nccl/timedout0.pickle": {"nccl:all_reduce 2 of undefined"},
		"missing/rank0.json":    {"gloo:all_reduce 4 of default_pg"},
	} {
		var got []string
		for _, e := range read(t, name).Entries {
			if e.Open {
				got = append(got, fmt.Sprintf("%s:%s %d of %s", e.Backend, e.Op, e.Seq, e.Desc))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, c := range []struct {
		name string
		open bool
	}{
		{`"nccl:all_reduce","state":"scheduled","retired":true`, true}, // timed out
		{`"nccl:all_reduce","state":"completed","retired":false`, false},
		{`"nccl2:all_reduce","state":"scheduled","retired":true`, false}, // its end is not known
		{`"nccl2:all_reduce","state":"completed","retired":false`, false},
		{`"nccl-lazy:all_reduce","state":"started","retired":false`, true},
		{`"gloo:all_reduce","state":"scheduled","retired":true`, false},
	} {
		d, err := Parse([]byte(`{"version":"2.10","entries":[{"profiling_name":` + c.name + `}]}`))
		if err != nil || len(d.Entries) != 1 || d.Entries[0].Open != c.open {
			t.Errorf("%s: %+v, %v", c.name, d, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"missing/rank0.pickle", "missing/rank0.json", "nccl/rank0.pickle"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, err := Parse(data); err == nil && d == nil {
			t.Error("neither a dump nor an error")
		}
	})
}
