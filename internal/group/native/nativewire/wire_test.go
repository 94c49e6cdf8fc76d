// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativewire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

func TestHeadersTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Header{
			Type: Type(rapid.IntRange(int(Eager), int(Notice)).Draw(t, "type")), Slot: rapid.Uint64().Draw(t, "slot"),
			Credit: rapid.Uint32().Draw(t, "credit"), Core: rapid.Uint16().Draw(t, "core"),
		}
		if h.Type == Eager || h.Type == Data {
			h.Length = rapid.Uint32Range(0, MaxPiece).Draw(t, "length")
		}
		if rapid.Bool().Draw(t, "called") {
			h.Flags |= Called
			h.Total = rapid.Uint64Range(0, 1<<32-1).Draw(t, "total")
			h.Call = Call{
				Kind:  collective.Kind(rapid.IntRange(0, int(collective.Barrier)).Draw(t, "kind")),
				Op:    reduce.Op(rapid.IntRange(0, 7).Draw(t, "op")),
				DType: tensor.DType(rapid.IntRange(0, 15).Draw(t, "dtype")), Root: rapid.Uint16().Draw(t, "root"),
				Bytes: rapid.Uint64().Draw(t, "bytes"),
				Shape: collective.Shape{Lo: rapid.Uint64().Draw(t, "shape"), Hi: rapid.Uint64().Draw(t, "shape, second word")},
			}
		} else {
			h.Total = rapid.Uint64().Draw(t, "total")
		}
		var b [HeaderSize]byte
		h.Put(b[:])
		got, err := Parse(b[:])
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(h, got, cmp.AllowUnexported(collective.Shape{})); d != "" {
			t.Fatal(d)
		}
	})
}

func TestHellosTravel(t *testing.T) {
	want := Hello{Version: Version, Group: [16]byte{1, 2, 3}, From: 3, To: 1, Size: 4, Window: 99, Lanes: 2}
	var b [HelloSize]byte
	want.Put(b[:])
	got, err := ParseHello(b[:])
	if err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
	for name, spoil := range map[string]func(*Hello){
		"version": func(h *Hello) { h.Version++ },
		"no lane": func(h *Hello) { h.Lanes = 0 },
		"lanes":   func(h *Hello) { h.Lanes = MaxLanes + 1 },
		"rank":    func(h *Hello) { h.From = 4 },
		"size":    func(h *Hello) { h.Size = MaxRanks + 1 },
	} {
		bad := want
		spoil(&bad)
		bad.Put(b[:])
		if _, err := ParseHello(b[:]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCallsAsText(t *testing.T) {
	for want, q := range map[string]collective.Request{
		"all_reduce(sum, float32, 4 elements)": {Kind: collective.AllReduce, DType: tensor.Float32, Out: make([]byte, 16)},
		"broadcast(int64, 2 elements, root 3)": {
			Kind: collective.Broadcast, DType: tensor.Int64,
			Out: make([]byte, 16), Root: 3,
		},
		"all_reduce(sum, float32, shape [2, 3])": {
			Kind: collective.AllReduce, DType: tensor.Float32,
			Out: make([]byte, 24), Shape: shape(2, 3),
		},
		"barrier()":                         {Kind: collective.Barrier},
		"gather(uint8, 3 elements, root 1)": {Kind: collective.Gather, DType: tensor.Uint8, Root: 1, In: make([]byte, 3)},
		"scatter(uint8, uneven, shape [3], root 1)": {
			Kind: collective.Scatter, DType: tensor.Uint8, Root: 1,
			Out: make([]byte, 3), Uneven: true, Shape: shape(3),
		},
		"gather(uint8, uneven, root 1)": {
			Kind: collective.Gather, DType: tensor.Uint8, Root: 1,
			In: make([]byte, 3), Uneven: true,
		},
		"reduce_scatter(max, float64, uneven blocks #" +
			"": {Kind: collective.ReduceScatter, Op: reduce.Max, DType: tensor.Float64, InCounts: []int{8, 16}},
	} {
		c := CallOf(&q)
		if got := c.String(); len(got) < len(want) || got[:len(want)] != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func shape(dims ...int) collective.Shape {
	return collective.ShapeOf(tensor.Must(tensor.New(tensor.Float32, dims...)))
}

func TestCallsAgree(t *testing.T) {
	call := func(k collective.Kind, root int, s collective.Shape) *Call {
		c := CallOf(&collective.Request{Kind: k, DType: tensor.Float32, Root: root, Out: make([]byte, 24), In: make([]byte, 24), Shape: s})
		return &c
	}
	uneven := func(k collective.Kind, root int, s collective.Shape) *Call {
		c := CallOf(&collective.Request{Kind: k, DType: tensor.Float32, Root: root, Uneven: true, Shape: s})
		return &c
	}
	none := collective.Shape{}
	for name, c := range map[string]struct {
		a, b *Call
		want bool
	}{
		"equal":                  {call(collective.AllReduce, 0, shape(2, 3)), call(collective.AllReduce, 0, shape(2, 3)), true},
		"another shape":          {call(collective.AllReduce, 0, shape(2, 3)), call(collective.AllReduce, 0, shape(3, 2)), false},
		"a dimension more":       {call(collective.AllReduce, 0, shape(6)), call(collective.AllReduce, 0, shape(6, 1)), false},
		"no opinion":             {call(collective.AllReduce, 0, shape(2, 3)), call(collective.AllReduce, 0, none), true},
		"another operation":      {call(collective.AllReduce, 0, none), call(collective.Reduce, 0, none), false},
		"gather, to the root":    {call(collective.Gather, 0, shape(2, 3)), call(collective.Gather, 0, shape(3, 2)), false},
		"gather, among leaves":   {call(collective.Gather, 2, shape(2)), call(collective.Gather, 2, shape(3)), false},
		"uneven, to the root":    {uneven(collective.Gather, 0, shape(2, 3)), uneven(collective.Gather, 0, shape(3, 2)), false},
		"uneven, among leaves":   {uneven(collective.Gather, 2, shape(2)), uneven(collective.Gather, 2, shape(3)), true},
		"one of two uneven":      {uneven(collective.Gather, 2, shape(2)), call(collective.Gather, 2, shape(2)), false},
		"scatter, from the root": {call(collective.Scatter, 1, shape(2)), call(collective.Scatter, 1, shape(2, 1)), false},
		"broadcast, leaves":      {call(collective.Broadcast, 2, shape(2)), call(collective.Broadcast, 2, shape(2, 1)), false},
	} {
		if c.a.Agrees(c.b, 0, 1) != c.want || c.b.Agrees(c.a, 1, 0) != c.want {
			t.Errorf("%s: %v and %v", name, c.a, c.b)
		}
	}
}

func FuzzParse(f *testing.F) {
	var b [HeaderSize]byte
	(&Header{Type: Eager, Length: 4, Slot: 7}).Put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < HeaderSize {
			return
		}
		h, err := Parse(data)
		if err != nil {
			return
		}
		if h.Length > MaxPiece {
			t.Errorf("a frame of %d bytes", h.Length)
		}
		_ = h.String()
	})
}

func FuzzHello(f *testing.F) {
	var b [HelloSize]byte
	(&Hello{Version: Version, Size: 2, To: 1}).Put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < HelloSize {
			return
		}
		if h, err := ParseHello(data); err == nil && (h.From >= h.Size || h.To >= h.Size) {
			t.Errorf("%+v", h)
		}
	})
}
