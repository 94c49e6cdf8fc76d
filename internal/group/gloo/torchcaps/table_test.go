// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchcaps

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Level{
		"1.13.1": V1_13, "torch-1.13": V1_13, "2.0.1": V1_13, "2.3.0": V2_6, "2.6.0+debian": V2_6, "2.7": V2_6, "torch-2.8": V2_8,
		"2.9.1":  V2_9,
		"2.10.0": V2_10, "2.11.0+cpu": V2_11, "2.12": V2_12, "2.13.0": V2_12, "2.14.1+debian": V2_14, "2.15.0a0": V2_14, "3.0": V2_14,
	} {
		l, newer, ok := Parse(text)
		if !ok || l != want || newer != (text == "2.15.0a0" || text == "3.0") {
			t.Errorf("%q: %v %v %v, want %v", text, l, newer, ok, want)
		}
	}
	for _, text := range []string{"", "x", "torch-", "1.12.0", "0.4"} {
		if l, _, ok := Parse(text); ok {
			t.Errorf("%q: %v", text, l)
		}
	}
	for l := V1_13; l <= Newest; l++ {
		if got, _, ok := Parse(l.String()); !ok || got != l {
			t.Errorf("%v is read as %v", l, got)
		}
	}
}

// TestTable holds the table against the facts, cell by cell: r runs, a digit is the tags of a refusal, p is one in Python, n is
// something that PyTorch runs and Go does not.
func TestTable(t *testing.T) {
	levels := []Level{V1_13, V2_6, V2_8, V2_9, V2_10, V2_11, V2_12, V2_14}
	for _, row := range []struct {
		op   Op
		r    reduce.Op
		dt   tensor.DType
		want string
	}{
		{AllReduce, reduce.Sum, tensor.Float32, "rrrrrrrr"},
		{AllReduce, reduce.Sum, tensor.BFloat16, "1rrrrrrr"},
		{AllReduce, reduce.Sum, tensor.Int16, "11111111"},
		{AllReduce, reduce.Sum, tensor.Complex64, "rrrrrrrr"},
		{AllReduce, reduce.Max, tensor.Complex64, "pppppppp"},
		{AllReduce, reduce.And, tensor.Int32, "rrrrrrrr"},
		{AllReduce, reduce.And, tensor.Float32, "11111111"},
		{AllReduce, reduce.Or, tensor.Bool, "1rrrrrrr"},
		{AllReduce, reduce.Avg, tensor.Float32, "11rrrrrr"},
		{AllReduce, reduce.Avg, tensor.Complex64, "11rrrrrr"},
		{AllReduce, reduce.Avg, tensor.Int64, "11nnnnnn"},
		{Reduce, reduce.Sum, tensor.Complex128, "111rrrrr"},
		{Reduce, reduce.Avg, tensor.Complex128, "111rrrrr"},
		{Reduce, reduce.Max, tensor.Complex128, "11111111"},
		{Reduce, reduce.Avg, tensor.Float64, "11rrrrrr"},
		{ReduceScatterInto, reduce.Sum, tensor.Float32, "0rrrrrrr"},
		{ReduceScatterInto, reduce.Max, tensor.Float32, "0nnrrrrr"},
		{ReduceScatterInto, reduce.Avg, tensor.Float32, "0nnrrrrr"},
		{ReduceScatterInto, reduce.Sum, tensor.Complex64, "011rrrrr"},
		{ReduceScatterInto, reduce.Min, tensor.Complex64, "01111111"},
		{ReduceScatter, reduce.Sum, tensor.Float32, "00rrrrrr"},
		{ReduceScatter, reduce.Max, tensor.Float32, "00nrrrrr"},
		{ReduceScatter, reduce.Sum, tensor.Int16, "00333333"},
		{Broadcast, reduce.Sum, tensor.Complex64, "111rrrrr"},
		{Gather, reduce.Sum, tensor.Complex64, "11111111"},
		{Scatter, reduce.Sum, tensor.Complex64, "rrrrrrrr"},
		{AllGather, reduce.Sum, tensor.Complex64, "rrrrrrrr"},
		{AllToAllInto, reduce.Sum, tensor.Bool, "1rrrrrrr"},
		{AllToAll, reduce.Sum, tensor.Float32, "000000rr"},
		{AllToAll, reduce.Sum, tensor.Complex64, "000000rr"},
		{AllReduce, reduce.PremulSum, tensor.Float32, "11111111"},
		{Reduce, reduce.PremulSum, tensor.Int64, "11111111"},
		{ReduceScatterInto, reduce.PremulSum, tensor.Float32, "0nn11111"},
		{AllGatherCoalesced, reduce.Sum, tensor.Int16, "11111111"},
		{AllGatherIntoCoalesced, reduce.Sum, tensor.Float32, "0rrrrrrr"},
		{ReduceScatterIntoCoalesced, reduce.Sum, tensor.Float32, "0rrrrrrr"},
		{ReduceScatterIntoCoalesced, reduce.Sum, tensor.Int16, "03333333"},
		{ReduceScatterIntoCoalesced, reduce.Max, tensor.Float32, "0nnrrrrr"},
		{Send, reduce.Sum, tensor.Int16, "rrrrrrrr"},
		{Barrier, reduce.Sum, tensor.Uint8, "rrrrrrrr"},
	} {
		got := ""
		for _, l := range levels {
			o := l.outcome(&Call{Op: row.op, DType: row.dt, Reduce: row.r, Numel: 4, Parts: 3})
			switch {
			case !o.refused:
				got += "r"
			case o.where == Nowhere:
				got += "n"
			case o.where == InPython:
				got += "p"
			default:
				got += string(rune('0' + o.tags))
			}
		}
		if got != row.want {
			t.Errorf("%s (%v) of %v: %s, want %s", names[row.op], row.r, row.dt, got, row.want)
		}
	}
}

// TestSparseComplex: PyTorch takes sparse tensors of complex numbers from 2.11 on, exchanges a copy and leaves the tensors as they were.
// Before that Python refuses them, and nothing is sent.
func TestSparseComplex(t *testing.T) {
	for l := V1_13; l <= Newest; l++ {
		want := InPython
		if l >= V2_11 {
			want = BeforeSum
		}
		for _, dt := range []tensor.DType{tensor.Complex64, tensor.Complex128} {
			o := l.outcome(&Call{Op: AllReduce, DType: dt, Numel: 4, Parts: 3, Sparse: &Sparse{Indexed: 1}})
			if !o.refused || o.where != want {
				t.Errorf("%v of %v: %+v, want %v", dt, l, o, want)
			}
		}
	}
}

// TestSeveralVersions: of ranks of several versions all are named, and what they do not run alike is refused without asking for more.
func TestSeveralVersions(t *testing.T) {
	p, newer, ok := ParsePeers("torch-2.14.1, 2.6.0,torch-2.11")
	if want := (Peers{Low: V2_6, High: V2_14, Several: true}); p != want || newer || !ok || p.String() != "PyTorch 2.6 and 2.14" {
		t.Fatalf("%v %v %v", p, newer, ok)
	}
	err := p.Check("x", Call{Op: AllReduce, DType: tensor.Float32, Reduce: reduce.Avg, Numel: 1, Parts: 2})
	var r *Refusal
	if !errors.As(err, &r) || r.Where != Nowhere || strings.Contains(err.Error(), Option) ||
		!strings.Contains(err.Error(), "2.6 and 2.14, which do not agree") {
		t.Errorf("%v", err)
	}
	if err = p.Check("x", Call{Op: AllReduce, DType: tensor.Float32, Numel: 1, Parts: 2}); err != nil {
		t.Error(err)
	}
	err = p.Check("x", Call{Op: Gather, DType: tensor.Int16, Numel: 1, Parts: 2})
	if !errors.As(err, &r) || r.Where != AtTheWait {
		t.Errorf("all refuse it alike: %v", err)
	}
	if p.SplitsGroups() || p.OrdersGroups() || p.KnowsHashedGroups() || p.MeshOrder() != AnyMeshOrder {
		t.Error("2.6 and 2.14 make groups alike")
	}
	if p, newer, ok = ParsePeers("2.8,2.99"); p != (Peers{Low: V2_8, High: V2_14, Several: true}) || !newer || !ok {
		t.Errorf("%v %v %v", p, newer, ok)
	}
	if p, _, ok = ParsePeers("2.3,2.6"); p != Exactly(V2_6) || !ok {
		t.Errorf("%v %v", p, ok)
	}
	for _, text := range []string{"", "2.6,", "2.6,x", ","} {
		if _, _, ok = ParsePeers(text); ok {
			t.Errorf("%q is read", text)
		}
	}
}

// TestUnknownVersionIsAskedFor: what versions do differently is refused until the user sets the version, and nothing else is.
func TestUnknownVersionIsAskedFor(t *testing.T) {
	all := Peers{Low: V2_6, High: Newest}
	avg := Call{Op: AllReduce, DType: tensor.Float32, Reduce: reduce.Avg, Numel: 1, Parts: 2}
	err := all.Check("group: all_reduce", avg)
	if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), Option) ||
		!strings.Contains(err.Error(), Variable) || !strings.Contains(err.Error(), "2.6 or newer") {
		t.Errorf("%v", err)
	}
	if err = all.AtLeast(V2_8).Check("x", avg); err != nil {
		t.Errorf("%v", err)
	}
	if err = all.AtMost(V2_6).Check("x", avg); err == nil || strings.Contains(err.Error(), Option) {
		t.Errorf("%v", err)
	}
	half := Call{Op: AllReduce, DType: tensor.Float16, Reduce: reduce.Max, Numel: 1, Parts: 2}
	if err = all.Check("x", half); err == nil {
		t.Error("float16 is computed in two ways")
	}
	for _, p := range []Peers{Exactly(V2_6), Exactly(V2_14), {}} {
		if err = p.Check("x", half); err != nil {
			t.Errorf("%v: %v", p, err)
		}
	}
	var r *Refusal
	err = Exactly(V2_6).Check("x", Call{Op: ReduceScatterInto, DType: tensor.Float32, Reduce: reduce.Max, Parts: 2})
	if !errors.As(err, &r) || r.Where != Nowhere {
		t.Errorf("PyTorch 2.6 runs it: %v", err)
	}
	err = Exactly(V2_14).Check("x", Call{Op: ReduceScatter, DType: tensor.Int16, Parts: 4})
	if !errors.As(err, &r) || r.Where != AtTheWait || r.Tags != 4 {
		t.Errorf("PyTorch 2.14 takes a tag per rank: %v", err)
	}
}

// arithmetic names how a level computes what it runs: the same name means the same bits. The facts know of one change, that of
// float16 in 2.8.
func arithmetic(l Level, c *Call) string {
	if c.DType == tensor.Float16 && c.reduces() && l < V2_8 {
		return "gloo's float16"
	}
	return "torch"
}

// TestEveryPairOfVersions holds every operation, type and operator against every pair of versions between which the peers may be: what
// any two of them run differently, or to different bits, is refused with an error that names the option, and nothing else is.
func TestEveryPairOfVersions(t *testing.T) {
	var types []tensor.DType
	for dt := range tensor.DType(64) {
		if dt.Valid() {
			types = append(types, dt)
		}
	}
	operators := []reduce.Op{
		reduce.Sum, reduce.Product, reduce.Min, reduce.Max, reduce.And, reduce.Or, reduce.Xor, reduce.Avg,
		reduce.PremulSum,
	}
	asked, ran := 0, 0
	for low := V1_13; low <= Newest; low++ {
		for high := low; high <= Newest; high++ {
			peers := Peers{Low: low, High: high}
			for op := Op(0); int(op) < len(names); op++ {
				if names[op] == "" {
					continue // PyTorch does not have the operation
				}
				for _, dt := range types {
					for _, r := range operators {
						for _, numel := range []int{0, 4} {
							c := Call{Op: op, DType: dt, Reduce: r, Numel: numel, Parts: 3}
							first, differs := low.outcome(&c), false
							if low == V1_13 && first.where == Nowhere {
								t.Errorf("PyTorch 1.13 performs what a Go rank refuses: %+v", c)
							}
							for l := low; l <= high; l++ {
								o := l.outcome(&c)
								differs = differs || o.refused != first.refused || o.where != first.where ||
									o.tags != first.tags || arithmetic(l, &c) != arithmetic(low, &c)
							}
							err := peers.Check("x", c)
							var refusal *Refusal
							named := err != nil && strings.Contains(err.Error(), Option) && strings.Contains(err.Error(), Variable)
							switch {
							case differs && (!named || !errors.As(err, &refusal) || refusal.Where != Nowhere):
								t.Errorf("%v: %v (%v) of %v, %d elements, differs: %v", peers, op, r, dt, numel, err)
							case differs:
								asked++
							case first.refused &&
								(err == nil || named || !errors.As(err, &refusal) || refusal.Tags != first.tags ||
									refusal.Where != first.where):
								t.Errorf("%v: %v (%v) of %v, %d elements, is refused by all: %v", peers, op, r, dt, numel, err)
							case !first.refused && err != nil:
								t.Errorf("%v: %v (%v) of %v, %d elements, runs: %v", peers, op, r, dt, numel, err)
							case !first.refused:
								ran++
							}
						}
					}
				}
			}
			// Names and numbers of groups: what is not the same for all of them is not reported as known.
			for l := low; l <= high; l++ {
				one := Exactly(l)
				if order := peers.MeshOrder(); order != AnyMeshOrder && order != one.MeshOrder() {
					t.Errorf("%v: the order of a mesh's groups is %v, that of %v is %v", peers, order, one, one.MeshOrder())
				}
				if peers.OrdersGroups() && !one.OrdersGroups() || peers.CountsHashedGroups() && !one.CountsHashedGroups() ||
					peers.TorchHalves() && !one.TorchHalves() {
					t.Errorf("%v: more than %v can", peers, one)
				}
				if peers.KnowsHashedGroups() && peers.CountsHashedGroups() != one.CountsHashedGroups() {
					t.Errorf("%v: the names of groups are reported as known, and those of %v differ", peers, one)
				}
			}
		}
	}
	if asked < 1000 || ran < 10000 {
		t.Errorf("%d calls were asked about and %d ran: that is too few to mean something", asked, ran)
	}
}

// TestHostOfTheStoreStandsForOthers: of ranks that are only taken to be what the host of the store is, nothing is expected that another
// version would compute otherwise without an error. What another version refuses is run.
func TestHostOfTheStoreStandsForOthers(t *testing.T) {
	for _, host := range []Peers{{Low: V2_6, High: V2_9}, {Low: V2_10, High: V2_11}, {Low: V2_12, High: Newest}, Exactly(Newest)} {
		for _, r := range []reduce.Op{reduce.Sum, reduce.Product, reduce.Min, reduce.Max, reduce.Avg} {
			for _, op := range []Op{ReduceScatterInto, ReduceScatter, AllReduce, Reduce} {
				c := Call{Op: op, DType: tensor.Float32, Reduce: r, Numel: 4, Parts: 3}
				alike, other := host, host
				other.Assumed = true
				want := alike.Check("x", c)
				if op != AllReduce && op != Reduce && r != reduce.Sum {
					want = errors.New("it is refused")
				}
				err := other.Check("x", c)
				if (err == nil) != (want == nil) {
					t.Errorf("%v hosts the store: %v (%v): %v, want %v", host, op, r, err, want)
				}
				if err != nil && (!strings.Contains(err.Error(), Option) || !strings.Contains(err.Error(), Variable)) {
					t.Errorf("%v hosts the store: %v (%v): %v", host, op, r, err)
				}
			}
		}
	}
	if err := (Peers{Low: Newest, High: Newest, Assumed: true}).Check("x",
		Call{Op: ReduceScatterInto, DType: tensor.Float32, Reduce: reduce.Max}); !strings.Contains(err.Error(), "hosts the store") {
		t.Error(err)
	}
}

func TestExplain(t *testing.T) {
	late, lost := cohort.New("x", cohort.DeadlineExceeded, "it is late"), cohort.New("x", cohort.PeerLost, "")
	lost.Err, lost.Rank = errors.New("reset"), 3
	wrapped := errors.Join(errors.New("the first"), late)
	for _, c := range []struct {
		peers   Peers
		dt      tensor.DType
		message bool
		err     error
		want    string // a part of it, "" for the error as it was
	}{
		{Exactly(Newest), tensor.Float16, false, late, "no half types"},
		{Exactly(Newest), tensor.BFloat16, false, lost, "reset; a PyTorch rank whose build has no half types"},
		{Exactly(Newest), tensor.Float16, false, wrapped, "the first"},
		{Peers{Low: V2_6, High: V2_9}, tensor.Float16, false, late, "no half types"},
		{Exactly(V2_6), tensor.Float16, false, late, "see what the PyTorch ranks say"},
		{Exactly(V1_13), tensor.Float32, false, late, "see what the PyTorch ranks say"},
		{Exactly(Newest), tensor.Float32, false, lost, ""},
		{Exactly(Newest), tensor.Float16, true, late, ""},
		{Peers{}, tensor.Float16, false, late, ""},
		{Exactly(Newest), tensor.Float16, false, cohort.New("x", cohort.Closed, "closed"), ""},
		{Exactly(Newest), tensor.Float16, false, nil, ""},
	} {
		err := c.peers.Explain(c.dt, c.message, c.err)
		switch {
		case !errors.Is(err, c.err):
			t.Errorf("%v, %v: %v is not in %v", c.peers, c.dt, c.err, err)
		case c.want == "" && err != c.err: //nolint:errorlint // as it was
			t.Errorf("%v, %v: %v became %v", c.peers, c.dt, c.err, err)
		case c.want != "" && (!strings.Contains(err.Error(), c.want) || cohort.CodeOf(err) != cohort.CodeOf(c.err)):
			t.Errorf("%v, %v: %v became %v", c.peers, c.dt, c.err, err)
		}
	}
	if late.Detail != "it is late" {
		t.Error("the error itself was changed:", late)
	}
}

// TestMeshOrder holds the order in which groups are made against what init_device_mesh of 2.6 and 2.14 did in a world of 24.
func TestMeshOrder(t *testing.T) {
	rows := func(order meshOrder, sizes ...int) string { return fmt.Sprint(order.Rows(sizes)) }
	const b, c = "[[0 4 8] [1 5 9] [2 6 10] [3 7 11] [12 16 20] [13 17 21] [14 18 22] [15 19 23]]", "[[0 1 2 3] [4 5 6 7] [8 9 10 " +
		"11] [12 13 14 15] [16 17 18 19] [20 21 22 23]]"
	for _, x := range []struct{ got, want string }{
		{rows(LastFirst, 2, 3, 4), "[[[0 12] [4 16] [8 20] [1 13] [5 17] [9 21] [2 14] [6 18] [10 22] [3 15] [7 19] [11 23]] " +
			b + " " + c + "]"},
		{rows(FirstFirst, 2, 3, 4), "[[[0 12] [1 13] [2 14] [3 15] [4 16] [5 17] [6 18] [7 19] [8 20] [9 21] [10 22] [11 23]] " +
			b + " " + c + "]"},
		{rows(LastFirst, 24), "[[]]"}, // the world's own group
		{rows(FirstFirst, 24), "[[]]"},
		{rows(FirstFirst, 24, 1)[:3], "[[]"},
		{rows(LastFirst, 24, 1)[:6], "[[[0 1"},
	} {
		if x.got != x.want {
			t.Errorf("%s, want %s", x.got, x.want)
		}
	}
}
