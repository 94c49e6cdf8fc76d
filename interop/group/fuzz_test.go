// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

var (
	fuzzSeeds = flag.Int("worlds", 3, "how many random worlds to run with each PyTorch")
	fuzzFirst = flag.Uint64("world", 1, "the seed of the first random world")
)

// overlap posts several operations, on several groups, and waits for them in another order.
func overlap(ctx context.Context, world *group.Group, groups map[string]*group.Group, k int, s step) (string, error) {
	type posted struct {
		works  []*group.Work
		digest func() string
	}
	parts := make([]posted, len(s.Parts))
	for i, p := range s.Parts {
		g := world
		if p.Group != "" {
			if g = groups[p.Group]; g == nil {
				parts[i].digest = func() string { return "-" }
				continue
			}
		}
		parts[i].works, parts[i].digest = post(ctx, g, k*100+i, p)
	}
	for _, i := range s.Waits {
		if err := group.WaitAll(ctx, parts[i].works...); err != nil {
			return "", fmt.Errorf("part %d (%+v): %w", i, s.Parts[i], err)
		}
	}
	var all []string
	for _, p := range parts {
		all = append(all, p.digest())
	}
	return strings.Join(all, " "), nil
}

// post is post in rank.py.
func post(ctx context.Context, g *group.Group, k int, s step) (works []*group.Work, finish func() string) {
	me, n, dt, op := g.Rank(), s.N, dtypeOf(s.DType), reduceOps[s.Reduce]
	x := data(k, me, n, dt, 0)
	one := func(w *group.Work, outs ...*tensor.Tensor) ([]*group.Work, func() string) {
		return []*group.Work{w}, func() string { return digest(outs...) }
	}
	none := func(w *group.Work) ([]*group.Work, func() string) {
		return []*group.Work{w}, func() string { return "-" }
	}
	list := func(each func(i int) *tensor.Tensor) []*tensor.Tensor {
		var all []*tensor.Tensor
		for i := range g.Size() {
			all = append(all, each(i))
		}
		return all
	}
	empty := func(int) *tensor.Tensor { return tensor.Must(tensor.New(dt, n)) }
	switch s.Op {
	case "all_reduce":
		return one(g.AllReduce(ctx, x, op), x)
	case "reduce":
		if w := g.Reduce(ctx, x, op, s.Root); me != s.Root {
			return none(w)
		} else {
			return one(w, x)
		}
	case "broadcast":
		return one(g.Broadcast(ctx, x, s.Root), x)
	case "all_gather":
		outs := list(empty)
		return one(g.AllGather(ctx, outs, x), outs...)
	case "gather":
		if me != s.Root {
			return none(g.Gather(ctx, nil, x, s.Root))
		}
		outs := list(empty)
		return one(g.Gather(ctx, outs, x, s.Root), outs...)
	case "scatter":
		var ins []*tensor.Tensor
		if me == s.Root {
			ins = list(func(i int) *tensor.Tensor { return data(k, me, n, dt, i) })
		}
		return one(g.Scatter(ctx, x, ins, s.Root), x)
	case "all_to_all_single":
		out, in := tensor.Must(tensor.New(dt, n*g.Size())), data(k, me, n*g.Size(), dt, 0)
		return one(g.AllToAllInto(ctx, out, in, nil, nil), out, in)
	case "barrier":
		return none(g.Barrier(ctx))
	case "ring":
		y := empty(0)
		works := []*group.Work{
			g.Send(ctx, x, (me+1)%cohort.Rank(g.Size()), s.Tag),
			g.Recv(ctx, y, (me-1+cohort.Rank(g.Size()))%cohort.Rank(g.Size()), s.Tag),
		}
		return works, func() string { return digest(y, x) }
	}
	panic("unknown operation " + s.Op)
}

// fuzzer makes random worlds and plans from a seed.
type fuzzer struct {
	*rand.Rand
	version string
	peers   torchcaps.Peers // what the PyTorch ranks are
	halves  bool            // all builds have them
	detail  bool
	size    int
	goRanks []int
	groups  []step   // new_group steps so far
	joined  []int    // groups that each rank is a member of
	refused []string // groups in which operations were refused
}

// pick returns one of a list.
func pick[T any](f *fuzzer, list ...T) T { return list[f.IntN(len(list))] }

func (f *fuzzer) length() int {
	switch f.IntN(8) {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		return 2*f.IntN(500) + 1
	case 3:
		return 260_000 + f.IntN(300_000) // over a megabyte, over gloo's segments
	default:
		return f.IntN(3000)
	}
}

func (f *fuzzer) dtype() string {
	types := []string{"float32", "float64", "int8", "uint8", "int32", "int64"}
	if f.halves {
		types = append(types, "float16")
	}
	if f.halves && f.version != "1.13" {
		types = append(types, "bfloat16")
	}
	return pick(f, types...)
}

// somewhere puts a step on a random group.
func (f *fuzzer) somewhere(s step) step {
	members := f.size
	if len(f.groups) > 0 && f.IntN(2) == 0 {
		g := pick(f, f.groups...)
		s.Group, s.Ranks = g.Name, g.Ranks
		members = len(g.Ranks)
	}
	s.Root = cohort.Rank(f.IntN(members))
	return s
}

// operation is a random one of those that may overlap.
func (f *fuzzer) operation() step {
	s := f.somewhere(step{
		Op: pick(f, "all_reduce", "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "all_to_all_single",
			"barrier", "ring"),
		N: f.length(), DType: f.dtype(),
	})
	switch s.Op {
	case "all_reduce", "reduce":
		s.Reduce = pick(f, "sum", "sum", "product", "min", "max")
	case "all_gather":
		if f.version == "1.13" && s.N == 0 {
			s.N = 1 // gloo of 1.13 divides by zero
		}
	case "all_to_all_single", "scatter", "gather":
		s.N /= 4
	case "ring":
		s.Tag = f.IntN(5)
	}
	if s.Op == "ring" && (s.Group != "" && len(s.Ranks) == 1 || f.size == 1) {
		s.Op = "barrier"
	}
	if f.version != "several" && f.IntN(3) == 0 {
		s = f.rarer(s)
	}
	return s
}

// rarer gives an operation any element type and operator that the PyTorch ranks have for it, if it finds one.
func (f *fuzzer) rarer(s step) step {
	number, known := refusable[s.Op]
	members := f.size
	if s.Group != "" {
		members = len(s.Ranks)
	}
	for range 20 {
		dt, op := pick(f, allDTypes...), s.Reduce
		if op != "" {
			op = pick(f, allReduces...)
		}
		if !known || !f.halves && (dt == "float16" || dt == "bfloat16") {
			continue
		}
		if f.peers.Check("x", torchcaps.Call{
			Op: number, DType: dtypeOf(dt), Reduce: reduce.Op(reduceOps[op]), Numel: s.N,
			Parts: members,
		}) == nil {
			s.DType, s.Reduce = dt, op
			return s
		}
	}
	return s
}

// refusable are operations of which PyTorch refuses some types and operators, with their numbers.
var refusable = map[string]torchcaps.Op{
	"all_reduce": torchcaps.AllReduce, "all_reduce_coalesced": torchcaps.AllReduceCoalesced, "reduce": torchcaps.Reduce,
	"broadcast":  torchcaps.Broadcast,
	"all_gather": torchcaps.AllGather, "gather": torchcaps.Gather, "scatter": torchcaps.Scatter,
	"all_to_all_single":     torchcaps.AllToAllInto,
	"reduce_scatter_tensor": torchcaps.ReduceScatterInto, "reduce_scatter": torchcaps.ReduceScatter, "all_to_all": torchcaps.AllToAll,
}

// refusal is an operation that all ranks refuse alike, if it finds one.
func (f *fuzzer) refusal() (step, bool) {
	for range 50 {
		s := f.somewhere(step{
			Op: pick(f, slices.Sorted(maps.Keys(refusable))...), N: 4, DType: pick(f, allDTypes...),
			Reduce: "sum", MayRefuse: true,
		})
		if f.IntN(2) == 0 {
			s.Reduce = pick(f, allReduces...)
		}
		if !f.halves && (s.DType == "float16" || s.DType == "bfloat16") {
			continue // it cannot be told from outside that the build refuses them
		}
		members := f.size
		if s.Group != "" {
			members = len(s.Ranks)
		}
		if f.onlyGo(s) {
			continue // it does everything
		}
		var r *torchcaps.Refusal
		err := f.peers.Check("x", torchcaps.Call{
			Op: refusable[s.Op], DType: dtypeOf(s.DType),
			Reduce: reduce.Op(reduceOps[s.Reduce]), Numel: s.N, Parts: members,
		})
		if errors.As(err, &r) && r.Where != torchcaps.Nowhere {
			return s, true
		}
	}
	return step{}, false
}

// newGroup makes a group, sometimes one that only its members know of. PyTorch names those by the number of groups that a
// rank is in, which must be the same on all members.
func (f *fuzzer) newGroup(ranks []int) step {
	s := step{Op: "new_group", Name: fmt.Sprintf("g%d", len(f.groups)), Ranks: ranks}
	s.Local = f.version == "2.6" && f.IntN(2) == 0 // 1.13 has none; 2.14 waits for ranks that are no members
	for _, r := range ranks {
		s.Local = s.Local && f.joined[r] == f.joined[ranks[0]]
	}
	for _, r := range ranks {
		f.joined[r]++
	}
	f.groups = append(f.groups, s)
	return s
}

func (f *fuzzer) step() step {
	switch f.IntN(10) {
	case 0:
		ranks := f.Perm(f.size)[:1+f.IntN(f.size)]
		slices.Sort(ranks)
		return f.newGroup(ranks)
	case 1, 2, 3:
		s := step{Op: "overlap"}
		for range 2 + f.IntN(6) {
			s.Parts = append(s.Parts, f.operation())
		}
		s.Waits = f.Perm(len(s.Parts))
		return s
	case 4:
		if f.version != "1.13" {
			s := f.somewhere(step{Op: pick(f, "all_gather_into_tensor", "reduce_scatter_tensor"), N: f.length() / 4, DType: "float32"})
			if s.Op == "reduce_scatter_tensor" && f.version != "several" {
				s.Reduce = "sum"
				s = f.rarer(s)
			}
			return s
		}
		return f.somewhere(step{Op: "all_reduce_coalesced", N: f.length(), DType: f.dtype()})
	case 5:
		return f.somewhere(step{Op: "all_to_all_uneven", N: f.length() / 4, DType: f.dtype()})
	case 6:
		if f.IntN(3) == 0 {
			if s, ok := f.refusal(); ok {
				return s
			}
		}
		objects := step{Op: "objects", Root: cohort.Rank(f.IntN(f.size))}
		if f.version != "1.13" { // which takes world ranks for the ranks of a group
			objects = f.somewhere(objects)
		}
		// gloo's own receive from any rank fails when it is empty
		s := f.somewhere(step{Op: pick(f, "monitored_barrier", "any", "batch"), N: 1 + f.length(), DType: "int16"})
		switch {
		case f.detail && f.size > 2 || f.IntN(4) == 0: // PyTorch 2.x counts the messages: see detailPlan
			return objects
		case s.Op == "batch" && s.Group != "" && len(s.Ranks) == 1:
			s.Op = "barrier" // it has no peer to send to
		}
		return s
	default:
		s := f.operation()
		s.Tag = 0
		return s
	}
}

// randomWorld returns the world and the plan of a seed.
func randomWorld(seed uint64, version string, about torchtest.About) (world, []step) {
	f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 7)), version: version, halves: about.Has(torchtest.Halves)}
	f.peers, _, _ = torchcaps.ParsePeers(about.Version)
	f.size = 2 + f.IntN(5)
	f.joined = make([]int, f.size)
	w := world{size: f.size}
	w.goRanks = f.Perm(f.size)[:min(1+f.IntN(3), f.size-1)]
	slices.Sort(w.goRanks)
	f.goRanks = w.goRanks
	w.env = map[string]string{}
	if f.detail = f.IntN(4) == 0; f.detail {
		w.env = maps.Clone(detailEnv)
		w.options = append(w.options, group.WithDetail())
	}
	if f.IntN(4) == 0 {
		w.env["GLOO_SOCKET_IFNAME"] = "lo,lo"
		w.options = append(w.options, group.WithDevices("lo", "lo"))
	}
	return w, f.plan()
}

func (f *fuzzer) plan() (plan []step) {
	for range 12 + f.IntN(20) {
		plan = f.add(plan, f.step())
	}
	return f.add(plan, step{Op: "barrier"})
}

// flat is a short plan without groups of its own.
func (f *fuzzer) flat() (plan []step) {
	for range 2 + f.IntN(6) {
		s := f.operation()
		if f.IntN(4) == 0 {
			if r, ok := f.refusal(); ok {
				s = r
			}
		}
		plan = f.add(plan, s)
	}
	return plan
}

func (f *fuzzer) add(plan []step, s step) []step {
	if f.onlyGo(s) && (s.Reduce == "min" || s.Reduce == "max") {
		s.Reduce = "sum" // what becomes of NaN depends on the transport
	}
	s = f.withoutBarrier(s)
	for i, part := range s.Parts {
		s.Parts[i] = f.withoutBarrier(part)
	}
	if plan = append(plan, s); s.MayRefuse {
		f.refused = append(f.refused, s.Group)
	}
	return plan
}

// withoutBarrier has something else instead of a barrier in a group in which an operation was refused: PyTorch's barrier could still find
// that operation, and its error.
func (f *fuzzer) withoutBarrier(s step) step {
	if s.Op == "barrier" && slices.Contains(f.refused, s.Group) {
		s.Op, s.N, s.DType, s.Reduce = "all_reduce", 100, "float32", "sum"
	}
	return s
}

// onlyGo reports whether a step is one of a group of Go ranks.
func (f *fuzzer) onlyGo(s step) bool {
	return s.Group != "" && !slices.ContainsFunc(s.Ranks, func(r int) bool { return !slices.Contains(f.goRanks, r) })
}

// TestRandomWorlds runs random plans in random worlds, and compares each with a world of PyTorch ranks only. More of them:
//
//	COHORT_INTEROP=auto go test ./interop/group -run RandomWorlds -worlds 100 -world 1000
func TestRandomWorlds(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for i := range *fuzzSeeds {
			seed := *fuzzFirst + uint64(i)
			w, plan := randomWorld(seed, tr.Name, tr.About(t))
			t.Run(fmt.Sprintf("seed=%d,%v", seed, w), func(t *testing.T) {
				t.Parallel()
				want := world{size: w.size, env: w.env}.run(t, tr, plan)
				compare(t, plan, want, w.run(t, tr, plan))
			})
		}
	})
}
