// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// step is one operation of a plan, as rank.py reads it.
type step struct {
	Op        string      `json:"op"`
	N         int         `json:"n"`
	DType     string      `json:"dtype,omitempty"`
	Root      cohort.Rank `json:"root"`
	Reduce    string      `json:"reduce,omitempty"`
	Group     string      `json:"group,omitempty"`
	Name      string      `json:"name,omitempty"`
	Ranks     []int       `json:"ranks,omitempty"`
	MayRefuse bool        `json:"may_refuse,omitempty"` // an error before anything is sent is a result
	Local     bool        `json:"local,omitempty"`      // a new group that only its members know of
	Order     bool        `json:"order,omitempty"`      // a new group with its ranks as they are given
	Tag       int         `json:"tag,omitempty"`
	Parts     []step      `json:"parts,omitempty"` // of an overlap: posted one after the other
	Waits     []int       `json:"waits,omitempty"` // the order in which they are waited for
	Shape     []int       `json:"shape,omitempty"` // of a sparse tensor
	Dims      int         `json:"dims,omitempty"`  // of it that have indices
	Holes     bool        `json:"holes,omitempty"` // some ranks have no entries
}

func dtypeOf(name string) tensor.DType {
	for d := range tensor.DType(16) {
		if d.Valid() && d.String() == name {
			return d
		}
	}
	return tensor.Float32
}

var reduceOps = map[string]group.ReduceOp{
	"": group.Sum, "sum": group.Sum, "product": group.Product, "min": group.Min, "max": group.Max, "band": group.And, "bor": group.Or,
	"bxor": group.Xor, "avg": group.Avg, "premul_sum": group.PremulSum,
}

// data makes the same numbers as data in rank.py.
func data(k int, r cohort.Rank, n int, dt tensor.DType, salt int) *tensor.Tensor {
	return special(k, r, n, dt, salt, false)
}

// period is after how many elements the numbers repeat: to make them must not take longer than to exchange them. It is
// a prime number, so no part of a tensor that is sent by itself looks like another.
const period = 10_007

// special makes some elements NaN and some a negative zero.
func special(k int, r cohort.Rank, n int, dt tensor.DType, salt int, on bool) *tensor.Tensor {
	t := tensor.Must(tensor.New(dt, n))
	whole := raw(t)
	b := whole[:0]
	for i := range min(n, period) {
		x := (uint64(i)*2654435761 + uint64(r)*40503 + uint64(k)*977 + uint64(salt)*7919) & 0xFFFFFFFF
		v := int64(x>>8)%2001 - 1000
		f := float64(v) / 8
		if on && x%7 == 0 {
			f = math.Float64frombits(0x7ff8 << 48) // Python's
		}
		if on && x%11 == 0 {
			f = math.Copysign(0, -1)
		}
		switch dt {
		case tensor.Bool:
			b = append(b, byte(v&1))
		case tensor.Uint8, tensor.Int8:
			b = append(b, byte(v))
		case tensor.Int16:
			b = binary.LittleEndian.AppendUint16(b, uint16(v))
		case tensor.Int32:
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		case tensor.Int64:
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		case tensor.Float16:
			if math.IsNaN(f) { // PyTorch's
				b = append(b, 0x00, 0x7e)
				continue
			}
			b = binary.LittleEndian.AppendUint16(b, uint16(tensor.ToF16(float32(f))))
		case tensor.BFloat16:
			if math.IsNaN(f) { // PyTorch's
				b = append(b, 0xc0, 0x7f)
				continue
			}
			b = binary.LittleEndian.AppendUint16(b, uint16(tensor.ToBF16(float32(f))))
		case tensor.Float32:
			b, _ = binary.Append(b, binary.LittleEndian, float32(f))
		case tensor.Float64:
			b, _ = binary.Append(b, binary.LittleEndian, f)
		case tensor.Complex64:
			b, _ = binary.Append(b, binary.LittleEndian, []float32{float32(f), float32((float64(v) + 3) / 16)})
		case tensor.Complex128:
			b, _ = binary.Append(b, binary.LittleEndian, []float64{f, (float64(v) + 3) / 16})
		}
	}
	for done := len(b); done < len(whole); {
		done += copy(whole[done:], whole[:done])
	}
	return t
}

// sparseData makes the same tensor as sparse in rank.py.
func sparseData(k int, rank cohort.Rank, s step) *tensor.Sparse {
	n, r := s.N, int(rank)
	if s.Holes && (r+k)%3 == 0 || s.Tag == 1 && r != 0 {
		n = 0
	}
	rows, width := 1, 1
	for i, d := range s.Shape {
		if i < s.Dims {
			rows *= d
		} else {
			width *= d
		}
	}
	index := make([]int64, s.Dims*n)
	for i := range n {
		place := (i*7919 + r*31 + k) % max(rows, 1)
		for d := s.Dims - 1; d >= 0; d-- {
			index[d*n+i] = int64(place % max(s.Shape[d], 1))
			place /= max(s.Shape[d], 1)
		}
	}
	dt := dtypeOf(s.DType)
	values := special(k, rank, n*width, dt, 0, strings.HasPrefix(s.DType, "float"))
	return &tensor.Sparse{
		Shape: s.Shape, Indices: tensor.Must(tensor.From(index, s.Dims, n)),
		Values: tensor.Must(values.Reshape(append([]int{n}, s.Shape[s.Dims:]...)...)),
	}
}

func raw(t *tensor.Tensor) []byte {
	b, err := t.Bytes()
	if err != nil {
		panic(err)
	}
	return b
}

func digest(ts ...*tensor.Tensor) string {
	h := sha256.New()
	for _, t := range ts {
		h.Write(raw(t))
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// runPlan executes a plan on a Go rank.
func runPlan(ctx context.Context, world *group.Group, plan []step) ([]string, error) {
	groups := map[string]*group.Group{}
	results := make([]string, 0, len(plan))
	for k, s := range plan {
		g := world
		if s.Group != "" {
			if g = groups[s.Group]; g == nil {
				results = append(results, "-")
				continue
			}
		}
		got, err := runStep(ctx, g, groups, k, s)
		if s.MayRefuse && g.Err() == nil && (errors.Is(err, cohort.NotSupported) || errors.Is(err, cohort.InvalidArgument)) {
			got, err = "refused", nil
		}
		if err != nil {
			return results, fmt.Errorf("step %d (%+v): %w", k, s, err)
		}
		results = append(results, got)
	}
	return results, nil
}

func runStep(ctx context.Context, g *group.Group, groups map[string]*group.Group, k int, s step) (string, error) {
	me, n, dt, op := g.Rank(), s.N, dtypeOf(s.DType), reduceOps[s.Reduce]
	x := special(k, me, n, dt, 0, s.Reduce == "min" || s.Reduce == "max")
	empty := func(count int) *tensor.Tensor { return tensor.Must(tensor.New(dt, count)) }
	wait := func(w *group.Work, outs ...*tensor.Tensor) (string, error) {
		if err := w.Wait(ctx); err != nil {
			return "", err
		}
		return digest(outs...), nil
	}
	list := func(each func(i int) *tensor.Tensor) []*tensor.Tensor {
		var all []*tensor.Tensor
		for i := range g.Size() {
			all = append(all, each(i))
		}
		return all
	}
	switch s.Op {
	case "sparse":
		t := sparseData(k, me, s)
		err := g.AllReduceSparse(ctx, t, op).Wait(ctx)
		return digestAfter(err, t.Indices, t.Values)
	case "all_reduce":
		return wait(g.AllReduce(ctx, x, op), x)
	case "all_reduce_coalesced":
		y := data(k, me, n+3, dt, 1)
		return wait(g.AllReduceCoalesced(ctx, []*tensor.Tensor{x, y}, op), x, y)
	case "all_gather_coalesced", "all_reduce_parts", "all_gather_parts", "all_gather_scope", "reduce_scatter_scope", "broadcast_coalesced":
		return coalesced(ctx, g, k, s)
	case "object_lists":
		return objectLists(ctx, g, k, s)
	case "reduce":
		got, err := wait(g.Reduce(ctx, x, op, s.Root), x)
		if me != s.Root && err == nil {
			got = "-"
		}
		return got, err
	case "broadcast":
		return wait(g.Broadcast(ctx, x, s.Root), x)
	case "all_gather":
		outs := list(func(int) *tensor.Tensor { return empty(n) })
		return wait(g.AllGather(ctx, outs, x), outs...)
	case "all_gather_into_tensor":
		out := empty(n * g.Size())
		return wait(g.AllGatherInto(ctx, out, x), out)
	case "gather":
		if me != s.Root {
			return "-", g.Gather(ctx, nil, x, s.Root).Wait(ctx)
		}
		outs := list(func(int) *tensor.Tensor { return empty(n) })
		return wait(g.Gather(ctx, outs, x, s.Root), outs...)
	case "scatter":
		var ins []*tensor.Tensor
		if me == s.Root {
			ins = list(func(i int) *tensor.Tensor { return data(k, me, n, dt, i) })
		}
		return wait(g.Scatter(ctx, x, ins, s.Root), x)
	case "reduce_scatter":
		out := empty(n)
		return wait(g.ReduceScatter(ctx, out, list(func(i int) *tensor.Tensor { return data(k, me, n, dt, i) }), op), out)
	case "all_to_all":
		outs := list(func(int) *tensor.Tensor { return empty(n) })
		return wait(g.AllToAll(ctx, outs, list(func(i int) *tensor.Tensor { return data(k, me, n, dt, i) })), outs...)
	case "all_gather_uneven":
		outs := list(func(i int) *tensor.Tensor { return empty(n + i) })
		return wait(g.AllGather(ctx, outs, data(k, me, n+int(me), dt, 0)), outs...)
	case "reduce_scatter_tensor":
		out := empty(n)
		return wait(g.ReduceScatterInto(ctx, out, data(k, me, n*g.Size(), dt, 0), op), out)
	case "all_to_all_single":
		out := empty(n * g.Size())
		return wait(g.AllToAllInto(ctx, out, data(k, me, n*g.Size(), dt, 0), nil, nil), out)
	case "all_to_all_uneven":
		splits, total := make([]int, g.Size()), 0
		for i := range splits {
			splits[i] = n + (int(me)+i)%3
			total += splits[i]
		}
		out := empty(total)
		return wait(g.AllToAllInto(ctx, out, data(k, me, total, dt, 0), splits, splits), out)
	case "ring", "batch":
		y := empty(n)
		tag := 5
		if s.Op == "batch" {
			tag = 0
		}
		works := g.Batch(ctx, []group.P2POp{
			{Op: group.OpSend, Tensor: x, Peer: (me + 1) % cohort.Rank(g.Size()), Tag: tag},
			{Op: group.OpRecv, Tensor: y, Peer: (me - 1 + cohort.Rank(g.Size())) % cohort.Rank(g.Size()), Tag: tag},
		})
		return digestAfter(group.WaitAll(ctx, works...), y)
	case "any":
		if me != s.Root {
			return "-", g.Send(ctx, x, s.Root, 1000+k).Wait(ctx)
		}
		got := map[cohort.Rank]*tensor.Tensor{}
		for range g.Size() - 1 {
			y := empty(n)
			w := g.RecvAny(ctx, y, 1000+k)
			if err := w.Wait(ctx); err != nil {
				return "", err
			}
			source, err := w.SourceRank()
			if err != nil {
				return "", err
			}
			got[source] = y
		}
		var outs []*tensor.Tensor
		for _, r := range slices.Sorted(maps.Keys(got)) {
			outs = append(outs, got[r])
		}
		return digest(outs...), nil
	case "async":
		var xs []*tensor.Tensor
		var works []*group.Work
		for i := range 6 {
			xs = append(xs, data(k, me, n, dt, i))
			works = append(works, g.AllReduce(ctx, xs[i], op))
		}
		return digestAfter(group.WaitAll(ctx, works...), xs...)
	case "overlap":
		return overlap(ctx, g, groups, k, s)
	case "barrier":
		return "-", g.Barrier(ctx).Wait(ctx)
	case "monitored_barrier":
		return "-", g.MonitoredBarrier(ctx)
	case "new_group":
		if s.Local && !slices.Contains(s.Ranks, int(me)) {
			return "-", nil
		}
		var opts []group.Option
		if s.Local {
			opts = append(opts, group.WithLocalSync())
		}
		if s.Order {
			opts = append(opts, group.WithRankOrder())
		}
		sub, err := g.NewGroup(ctx, ranksOf(s.Ranks), opts...)
		groups[s.Name] = sub
		return "-", err
	case "mesh":
		return meshStep(ctx, g, groups, s)
	case "objects":
		return objects(ctx, g, k, s.Root)
	}
	return "", fmt.Errorf("unknown operation %q", s.Op)
}

func digestAfter(err error, outs ...*tensor.Tensor) (string, error) {
	if err != nil {
		return "", err
	}
	return digest(outs...), nil
}

// pickled writes text as Python's pickle.dumps does (protocol 2), unpickled reads it back.
func pickled(text string) []byte {
	b := append([]byte("\x80\x02X"), binary.LittleEndian.AppendUint32(nil, uint32(len(text)))...)
	return append(append(b, text...), '.')
}

func unpickled(b []byte) string {
	s := string(b)
	at := strings.Index(s, "object")
	if at < 0 {
		return s
	}
	return strings.TrimSuffix(strings.TrimSuffix(s[at:], "."), "\x94")
}

func objects(ctx context.Context, g *group.Group, k int, root cohort.Rank) (string, error) {
	me := g.Rank()
	text := func(r cohort.Rank, i int) []byte {
		return pickled(strings.Repeat(fmt.Sprintf("object %d of %d.%d", k, r, i), int(r)+1))
	}
	objs := make([][]byte, 3)
	if me == root {
		objs = [][]byte{text(root, 0), text(root, 1), text(root, 2)}
	}
	if err := g.BroadcastObjects(ctx, objs, root); err != nil {
		return "", err
	}
	alls, err := g.AllGatherObject(ctx, text(me, 0))
	if err != nil {
		return "", err
	}
	gathered, err := g.GatherObject(ctx, text(me, 1), root)
	if err != nil {
		return "", err
	}
	var list [][]byte
	if me == root {
		for i := range g.Size() {
			list = append(list, text(root, i))
		}
	}
	out, err := g.ScatterObjects(ctx, list, root)
	if err != nil {
		return "", err
	}
	var all []string
	for _, b := range slices.Concat(objs, alls, gathered, [][]byte{out}) {
		all = append(all, unpickled(b))
	}
	return strings.Join(all, "|"), nil
}

func ranksOf(numbers []int) []cohort.Rank {
	ranks := make([]cohort.Rank, len(numbers))
	for i, n := range numbers {
		ranks[i] = cohort.Rank(n)
	}
	return ranks
}
