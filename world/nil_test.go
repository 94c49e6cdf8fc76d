// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

// survives calls f and turns a panic into an error, so that a test can distinguish them.
func survives(f func() error) (panicked any, err error) {
	defer func() { panicked = recover() }()
	return nil, f()
}

// refusesNil checks calls that are given a nil where something is needed: each returns cohort.InvalidArgument, and none panics. A nil group
// or agent is not among them: whatever is called on one panics, as with any nil receiver in Go.
func refusesNil(t *testing.T, calls map[string]func() error) {
	t.Helper()
	for name, call := range calls {
		panicked, err := survives(call)
		if panicked != nil || !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: error %v, panic %v", name, err, panicked)
		}
	}
}

// takesNil checks calls in which a nil means "none".
func takesNil(t *testing.T, calls map[string]func() error) {
	t.Helper()
	for name, call := range calls {
		if panicked, err := survives(call); panicked != nil || err != nil {
			t.Errorf("%s: error %v, panic %v", name, err, panicked)
		}
	}
}

func onlyErr[T any](_ T, err error) error { return err }

// waited waits for a work that must not be nil.
func waited(ctx context.Context, w *group.Work) error {
	if w == nil {
		return errors.New("no work")
	}
	return w.Wait(ctx)
}

func TestNilInGroups(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := group.New(ctx, store.NewMemory(), 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	x := tensor.Must(tensor.New(tensor.Float32, 1))
	none, nones := (*tensor.Tensor)(nil), []*tensor.Tensor{nil}
	refusesNil(t, map[string]func() error{
		"New, store":         func() error { return onlyErr(group.New(ctx, nil, 0, 1)) },
		"Merge, store":       func() error { return onlyErr(g.Merge(ctx, nil, 1)) },
		"AllReduce":          func() error { return waited(ctx, g.AllReduce(ctx, none, group.Sum)) },
		"AllReduceSparse":    func() error { return waited(ctx, g.AllReduceSparse(ctx, nil, group.Sum)) },
		"AllReduceCoalesced": func() error { return waited(ctx, g.AllReduceCoalesced(ctx, nones, group.Sum)) },
		"AllGather, outputs": func() error { return waited(ctx, g.AllGather(ctx, nones, x)) },
		"AllGather, input":   func() error { return waited(ctx, g.AllGather(ctx, []*tensor.Tensor{x}, none)) },
		"AllGatherCoalesced": func() error { return waited(ctx, g.AllGatherCoalesced(ctx, [][]*tensor.Tensor{nones}, nones)) },
		"AllGatherCoalesced, lists": func() error {
			return waited(ctx, g.AllGatherCoalesced(ctx, [][]*tensor.Tensor{nil}, []*tensor.Tensor{x}))
		},
		"AllGatherInto, output":      func() error { return waited(ctx, g.AllGatherInto(ctx, none, x)) },
		"AllGatherInto, input":       func() error { return waited(ctx, g.AllGatherInto(ctx, x, none)) },
		"AllGatherIntoCoalesced":     func() error { return waited(ctx, g.AllGatherIntoCoalesced(ctx, nones, nones)) },
		"AllToAll":                   func() error { return waited(ctx, g.AllToAll(ctx, nones, nones)) },
		"AllToAllInto, output":       func() error { return waited(ctx, g.AllToAllInto(ctx, none, x, nil, nil)) },
		"AllToAllInto, input":        func() error { return waited(ctx, g.AllToAllInto(ctx, x, none, nil, nil)) },
		"Broadcast":                  func() error { return waited(ctx, g.Broadcast(ctx, none, 0)) },
		"BroadcastCoalesced":         func() error { return g.BroadcastCoalesced(ctx, nones, 1, 0) },
		"Gather, outputs":            func() error { return waited(ctx, g.Gather(ctx, nones, x, 0)) },
		"Gather, input":              func() error { return waited(ctx, g.Gather(ctx, []*tensor.Tensor{x}, none, 0)) },
		"Scatter, output":            func() error { return waited(ctx, g.Scatter(ctx, none, []*tensor.Tensor{x}, 0)) },
		"Scatter, inputs":            func() error { return waited(ctx, g.Scatter(ctx, x, nones, 0)) },
		"Reduce":                     func() error { return waited(ctx, g.Reduce(ctx, none, group.Sum, 0)) },
		"ReduceScatter, output":      func() error { return waited(ctx, g.ReduceScatter(ctx, none, []*tensor.Tensor{x}, group.Sum)) },
		"ReduceScatter, inputs":      func() error { return waited(ctx, g.ReduceScatter(ctx, x, nones, group.Sum)) },
		"ReduceScatterInto":          func() error { return waited(ctx, g.ReduceScatterInto(ctx, x, none, group.Sum)) },
		"ReduceScatterIntoCoalesced": func() error { return waited(ctx, g.ReduceScatterIntoCoalesced(ctx, nones, nones, group.Sum)) },
		"Send":                       func() error { return waited(ctx, g.Send(ctx, none, 0, 0)) },
		"Recv":                       func() error { return waited(ctx, g.Recv(ctx, none, 0, 0)) },
		"RecvAny":                    func() error { return waited(ctx, g.RecvAny(ctx, none, 0)) },
		"Coalesce, function":         func() error { return waited(ctx, g.Coalesce(ctx, nil)) },
		"Coalesce, AllReduce": func() error {
			return waited(ctx, g.Coalesce(ctx, func(c *group.Coalescer) { c.AllReduce(nil, group.Sum) }))
		},
		"Coalesce, Broadcast": func() error { return waited(ctx, g.Coalesce(ctx, func(c *group.Coalescer) { c.Broadcast(nil, 0) })) },
		"Coalesce, AllGatherInto": func() error {
			return waited(ctx, g.Coalesce(ctx, func(c *group.Coalescer) { c.AllGatherInto(nil, x) }))
		},
		"Coalesce, ReduceScatterInto": func() error {
			return waited(ctx, g.Coalesce(ctx, func(c *group.Coalescer) { c.ReduceScatterInto(x, nil, group.Sum) }))
		},
		"Batch":                func() error { return group.WaitAll(ctx, g.Batch(ctx, []group.P2POp{{}})...) },
		"WaitAll":              func() error { return group.WaitAll(ctx, nil) },
		"WaitAll, with others": func() error { return group.WaitAll(ctx, g.Barrier(ctx), nil) },
		"FromFuture":           func() error { return waited(ctx, group.FromFuture(nil)) },
		"ddp.New, group":       func() error { return onlyErr(ddp.New(ctx, nil, nn.Sequential{})) },
		"ddp.New, module":      func() error { return onlyErr(ddp.New(ctx, g, nil)) },
		"OnDone":               func() error { return asError(func() { g.Barrier(ctx).OnDone(nil) }) },
	})
	takesNil(t, map[string]func() error{
		"an option": func() error { return waited(ctx, g.Barrier(ctx, nil)) },
		"Reuse":     func() error { return waited(ctx, g.Barrier(ctx, group.Reuse(nil))) },
		"options of New": func() error {
			other, err := group.New(ctx, store.NewMemory(), 0, 1, nil, group.WithHook(nil), group.WithLogger(nil),
				group.WithDump(nil), group.WithProfiler(nil))
			if err != nil {
				return err
			}
			return other.Close()
		},
		"nothing to wait for": func() error { return group.WaitAll(ctx) },
		"nothing to batch":    func() error { return group.WaitAll(ctx, g.Batch(ctx, nil)...) },
	})
	if err := g.Barrier(ctx).Wait(ctx); err != nil { // none of it has hurt the group
		t.Error(err)
	}
}

// asError runs what has no error to return: it may do nothing with a nil, and must not panic later in a separate goroutine.
func asError(f func()) error {
	f()
	return cohort.InvalidArgument
}

func TestNilInRPC(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	st := store.NewMemory()
	a, err := rpc.Join(ctx, st, "one", rpc.WithRank(0), rpc.WithWorldSize(1), rpc.WithAddr("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	var ref *rpc.Ref[int]
	var future *cohort.Future[int]
	refusesNil(t, map[string]func() error{
		"Join, store":            func() error { return onlyErr(rpc.Join(ctx, nil, "x", rpc.WithWorldSize(1))) },
		"NewClient, store":       func() error { return onlyErr(rpc.NewClient(ctx, nil, "x")) },
		"ListWorkers, store":     func() error { return onlyErr(rpc.ListWorkers(ctx, nil, 0)) },
		"CallMethod, reference":  func() error { return onlyErr(rpc.CallMethod[int](ctx, ref, "m")) },
		"AsyncMethod, reference": func() error { return onlyErr(rpc.AsyncMethod[int](ctx, ref, "m").Await(ctx)) },
		"RemoteMethod":           func() error { return onlyErr(rpc.RemoteMethod[int](ctx, ref, "m")) },
		"Fetch":                  func() error { return onlyErr(ref.Fetch(ctx)) },
		"Await":                  func() error { return onlyErr(rpc.Await(ctx, future)) },
		"All":                    func() error { return onlyErr(cohort.All(future).Await(ctx)) },
		"Then, future": func() error {
			return onlyErr(cohort.Then(future, func(int, error) (int, error) { return 0, nil }).Await(ctx))
		},
		"Handle, function":  func() error { return rpc.NewRegistry().Handle("f", nil) },
		"Handle, typed":     func() error { return rpc.Handle[int, int](rpc.NewRegistry(), "f", nil) },
		"Handle, registry":  func() error { return rpc.Handle(nil, "f", func(context.Context, int) (int, error) { return 0, nil }) },
		"remote.New, agent": func() error { return onlyErr(remote.New(ctx, nil, optim.SGD{LR: 1}, nil)) },
		"remote.New, references": func() error {
			return onlyErr(remote.New(ctx, a, optim.SGD{LR: 1}, []*rpc.Ref[*autograd.Variable]{nil}))
		},
		"remote.Serve, registry": func() error { return remote.Serve(nil, distautograd.New(), nil) },
		"remote.Serve, engine":   func() error { return remote.Serve(rpc.NewRegistry(), nil, nil) },
	})
	takesNil(t, map[string]func() error{
		"options of Join": func() error {
			b, err := rpc.Join(ctx, store.NewMemory(), "x", nil, rpc.WithWorldSize(1), rpc.WithRank(0),
				rpc.WithAddr("127.0.0.1:0"), rpc.WithHook(nil), rpc.WithLogger(nil),
				rpc.WithHandlers(nil), rpc.WithAlloc(nil), rpc.WithCallInterceptors(nil), rpc.WithServeInterceptors(nil))
			if err != nil {
				return err
			}
			return b.Shutdown(ctx)
		},
		"no arguments": func() error { return rpc.Barrier(ctx, a) },
	})
}

func TestNilElsewhere(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v := autograd.Parameter(tensor.Must(tensor.New(tensor.Float32, 1)))
	one := tensor.Must(tensor.New(tensor.Float32, 1))
	var none *autograd.Variable
	refusesNil(t, map[string]func() error{
		"cohort.WithStore": func() error {
			return onlyErr(world.Join(ctx, "", world.WithStore(nil), world.WithRank(0), world.WithWorldSize(1)))
		},
		"elastic.Join":        func() error { return onlyErr(elastic.Join(ctx, nil)) },
		"elastic.New":         func() error { return onlyErr(elastic.New(nil, 1, 1)) },
		"elastic.NewStarter":  func() error { return onlyErr(elastic.NewStarter(nil)) },
		"store.Append":        func() error { return store.Append(ctx, nil, "k", nil) },
		"store.Barrier":       func() error { return store.Barrier(ctx, nil, "k", 1) },
		"store.Clone":         func() error { return onlyErr(store.Clone(ctx, nil)) },
		"store.ListKeys":      func() error { return onlyErr(store.ListKeys(ctx, nil)) },
		"store.MultiGet":      func() error { return onlyErr(store.MultiGet(ctx, nil, "k")) },
		"store.MultiSet":      func() error { return store.MultiSet(ctx, nil, []string{"k"}, [][]byte{nil}) },
		"store.QueueLen":      func() error { return onlyErr(store.QueueLen(ctx, nil, "k")) },
		"store.QueuePop":      func() error { return onlyErr(store.QueuePop(ctx, nil, "k", false)) },
		"store.QueuePush":     func() error { return store.QueuePush(ctx, nil, "k", nil) },
		"store.AskSupport":    func() error { return onlyErr(store.AskSupport(ctx, nil, store.FeatureQueue)) },
		"store.Prefix, Get":   func() error { return onlyErr(store.Prefix("p", nil).Get(ctx, "k")) },
		"store.Prefix, Set":   func() error { return store.Prefix("p", nil).Set(ctx, "k", nil) },
		"store.Prefix, Wait":  func() error { return store.Prefix("p", nil).Wait(ctx, "k") },
		"rendezvous.Register": func() error { return rendezvous.NewRegistry().Register("mine", nil) },
		"rendezvous.Shared":   func() error { return onlyErr(joinShared(ctx)) },
		"optim.New":           func() error { return onlyErr(optim.New(optim.SGD{LR: 1}, []*autograd.Variable{none})) },
		"optim.New, rule":     func() error { return onlyErr(optim.New(nil, []*autograd.Variable{v})) },
		"optim.ClipGradNorm":  func() error { return onlyErr(optim.ClipGradNorm([]*autograd.Variable{none}, 1, 2)) },
		"optim.ClipGradValue": func() error { return optim.ClipGradValue([]*autograd.Variable{none}, 1) },
		"autograd.Backward":   func() error { return autograd.Backward(ctx, []*autograd.Variable{none}, nil) },
		"autograd.Grad, outputs": func() error {
			return onlyErr(autograd.Grad(ctx, []*autograd.Variable{none}, nil, []*autograd.Variable{v}))
		},
		"autograd.Grad, inputs": func() error {
			return onlyErr(autograd.Grad(ctx, []*autograd.Variable{v}, nil, []*autograd.Variable{none}))
		},
		"autograd.Apply, inputs":   func() error { return onlyErr(autograd.Apply(nil, v)) },
		"autograd.Add":             func() error { return v.Add(none).Err() },
		"autograd.Sub":             func() error { return v.Sub(none).Err() },
		"autograd.Mul":             func() error { return v.Mul(none).Err() },
		"autograd.Div":             func() error { return v.Div(none).Err() },
		"autograd.MatMul":          func() error { return v.MatMul(none).Err() },
		"autograd.Cat":             func() error { return autograd.Cat(0, v, none).Err() },
		"autograd.Stack":           func() error { return autograd.Stack(0, v, none).Err() },
		"autograd.MSE":             func() error { return autograd.MSE(v, none, autograd.ReduceMean).Err() },
		"autograd.Linear":          func() error { return autograd.Linear(v, none, nil).Err() },
		"autograd.CrossEntropy":    func() error { return autograd.CrossEntropy(v, nil, autograd.ReduceMean).Err() },
		"autograd.IndexSelect":     func() error { return v.IndexSelect(nil).Err() },
		"autograd.MaskedFill":      func() error { return v.MaskedFill(nil, 0).Err() },
		"autograd.Embedding":       func() error { return autograd.Embedding(v, none, -1).Err() },
		"autograd.LayerNorm":       func() error { return autograd.LayerNorm(none, v, v, 1, 1e-5).Err() },
		"autograd.Parameter":       func() error { return autograd.Parameter(nil).Err() },
		"autograd.Constant":        func() error { return autograd.Constant(nil).Err() },
		"autograd.SparseParameter": func() error { return autograd.SparseParameter(nil).Err() },
		"autograd.OnGrad":          func() error { return onlyErr(v.OnGrad(nil)) },
		"tensor.CopyFrom":          func() error { return one.CopyFrom(nil) },
		"tensor.Data":              func() error { return onlyErr(tensor.Data[float32](nil)) },
		"tensor.Copy":              func() error { return onlyErr(tensor.Copy[float32](nil)) },
		"tensor.FromStorage":       func() error { return onlyErr(tensor.FromStorage(nil, tensor.Float32, []int{1}, []int{1}, 0)) },
		"nn.State":                 func() error { return onlyErr(nn.State(nil)) },
		"nn.LoadState":             func() error { return nn.LoadState(nil, nil) },
		"nn.Sequential":            func() error { return nn.Sequential{nil}.Forward(v).Err() },
	})
	takesNil(t, map[string]func() error{
		"world.Join": func() error {
			w, err := world.Join(ctx, "", nil, world.WithStore(store.NewMemory()), world.WithRank(0), world.WithWorldSize(1),
				world.WithHook(nil), world.WithLogger(nil), world.WithGroup(nil), world.WithRendezvous(nil))
			if err != nil {
				return err
			}
			return w.Close()
		},
		"observe":        func() error { observe.Tee(nil, nil); observe.Log(nil); return nil },
		"store.Supports": func() error { return falsehood(store.Supports(nil, store.FeatureQueue)) },
		"tensor.Equal":   func() error { return falsehood(tensor.Equal(nil, one)) },
		"tensor.Same":    func() error { return falsehood(tensor.SameBits(one, nil)) },
		"tensor.Close":   func() error { return falsehood(tensor.AllClose(one, nil, 1, 1, false)) },
		"tensor.Overlap": func() error { return falsehood(tensor.Overlaps(one, nil)) },
		"SetGrad":        func() error { return v.SetGrad(nil) },
	})
}

func falsehood(is bool) error {
	if is {
		return errors.New("it is true")
	}
	return nil
}

func joinShared(ctx context.Context) (*rendezvous.Member, error) {
	r := rendezvous.NewRegistry()
	if err := r.Register("mine", rendezvous.Shared(nil)); err != nil {
		return nil, err
	}
	return rendezvous.Join(ctx, fmt.Sprintf("mine://?rank=%d&world_size=%d", 0, 1), rendezvous.WithRegistry(r))
}
