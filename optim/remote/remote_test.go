// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package remote_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

type worker struct {
	engine *distautograd.Engine
	agent  *rpc.Agent
}

// newWorld starts n workers that make parameters ("p.new") and multiply by them ("p.mul").
func newWorld(t *testing.T, n int, locks ...sync.Locker) (context.Context, []worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	ws := make([]worker, n)
	for i := range ws {
		e := distautograd.New()
		reg := rpc.NewRegistry().
			MustHandle("p.new", func(xs ...float64) *autograd.Variable { return param(xs...) }).
			MustHandle("p.frozen", func(xs ...float64) *autograd.Variable { return param(xs...).Detach() }).
			MustHandle("p.mul", func(ctx context.Context, w *rpc.Ref[*autograd.Variable],
				x *autograd.Variable,
			) (*autograd.Variable, error) {
				defer func() { _ = w.Close() }()
				v, err := w.LocalValue(ctx)
				if err != nil {
					return nil, err
				}
				return v.Mul(x).Tanh(), nil
			})
		var lock sync.Locker
		if i < len(locks) {
			lock = locks[i]
		}
		if err := remote.Serve(reg, e, lock); err != nil {
			t.Fatal(err)
		}
		a, err := rpc.Join(ctx, st, fmt.Sprintf("w%d", i), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), e.Join())
		if err != nil {
			t.Fatal(err)
		}
		ws[i] = worker{e, a}
	}
	t.Cleanup(func() {
		for i, w := range ws {
			for end := time.Now().Add(10 * time.Second); w.engine.Stats() != (distautograd.Stats{}) &&
				time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			if s := w.engine.Stats(); s != (distautograd.Stats{}) {
				t.Errorf("w%d still holds %+v", i, s)
			}
		}
		for _, w := range ws {
			_ = w.agent.Close()
		}
	})
	return ctx, ws
}

func param(xs ...float64) *autograd.Variable {
	return autograd.Parameter(tensor.Must(tensor.From(xs, len(xs))))
}

func newParam(ctx context.Context, t *testing.T, a *rpc.Agent, owner string, xs ...any) *rpc.Ref[*autograd.Variable] {
	t.Helper()
	return create(ctx, t, a, owner, "p.new", xs...)
}

func create(ctx context.Context, t *testing.T, a *rpc.Agent, owner, fn string, xs ...any) *rpc.Ref[*autograd.Variable] {
	t.Helper()
	ref, err := rpc.Remote[*autograd.Variable](ctx, a, owner, fn, xs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ref.Close() })
	return ref
}

// Every rule does at several workers what it does at one: it changes the parameters that have got gradients, and leaves alone those that
// were not used or do not require any.
func TestSteps(t *testing.T) {
	rules := []optim.Rule{
		optim.SGD{LR: 0.05},
		optim.SGD{LR: 1e-3, Momentum: 0.9, WeightDecay: 0.01, Nesterov: true},
		optim.SGD{LR: 1e-3, Momentum: 1, WeightDecay: 1, Nesterov: true},
		optim.SGD{LR: 1e-3, Momentum: 0.9, Dampening: 0.5},
		optim.Adam{LR: 1e-2, Beta1: 0.8, Beta2: 0.99, WeightDecay: 0.1},
		optim.Adam{LR: 1e-2},
		optim.AdamW{LR: 1e-2, WeightDecay: 0.05},
		optim.Adagrad{LR: 1e-2, LRDecay: 0.1, InitialAccumulator: 0.1},
		optim.RMSprop{LR: 1e-2, Alpha: 0.9, Momentum: 0.5, Centered: true},
		optim.Adam{LR: 1e-2, AMSGrad: true, Maximize: true},
		optim.AdamW{LR: 0.05, AMSGrad: true},
		optim.Adadelta{LR: 1, Rho: 0.95},
		optim.Adamax{LR: 0.05, Beta2: 0.9, WeightDecay: 0.1},
		optim.Rprop{LR: 0.05, EtaPlus: 1.5, StepMax: 0.06},
	}
	ctx, ws := newWorld(t, 3)
	for _, rule := range rules {
		t.Run(fmt.Sprintf("%T", rule), func(t *testing.T) {
			a := ws[0].agent
			refs := []*rpc.Ref[*autograd.Variable]{
				newParam(ctx, t, a, "w1", 1.0, 2.0), newParam(ctx, t, a, "w2", -1.0, 0.5),
				newParam(ctx, t, a, "w1", 3.0, 4.0), newParam(ctx, t, a, "w0", 0.1, 0.2), create(ctx, t, a, "w2", "p.frozen", 0.7, -0.6),
			}
			same := []*autograd.Variable{param(1, 2), param(-1, 0.5), param(3, 4), param(0.1, 0.2), param(0.7, -0.6).Detach()}
			var before [][]float64
			for _, v := range same {
				xs, err := tensor.Copy[float64](v.Data())
				if err != nil {
					t.Fatal(err)
				}
				before = append(before, xs)
			}
			opt, err := remote.New(ctx, a, rule, refs)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = opt.Close() }()
			alone, err := optim.New(rule, same)
			if err != nil {
				t.Fatal(err)
			}
			x := autograd.Constant(tensor.Must(tensor.From([]float64{0.3, -0.7}, 2)))
			for range 3 {
				gctx, c, err := ws[0].engine.Open(ctx)
				if err != nil {
					t.Fatal(err)
				}
				far, near := x, x
				for i, ref := range refs {
					if i == 2 {
						continue // it gets no gradient
					}
					if far, err = rpc.Call[*autograd.Variable](gctx, a, ref.Owner().Name, "p.mul", ref, far); err != nil {
						t.Fatal(err)
					}
					near = same[i].Mul(near).Tanh()
				}
				if err := errors.Join(c.Backward(gctx, []*autograd.Variable{far.Sum()}), opt.Step(gctx, c)); err != nil {
					t.Fatal(err)
				}
				alone.ZeroGrad()
				if err := errors.Join(near.Sum().Backward(ctx), alone.Step()); err != nil {
					t.Fatal(err)
				}
				_ = c.Close()
			}
			for i, ref := range refs {
				got, err := ref.Fetch(ctx)
				if ref.IsOwner() {
					got, err = ref.LocalValue(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
				g, _ := tensor.Data[float64](got.Data())
				w, _ := tensor.Data[float64](same[i].Data())
				if unchanged := slices.Equal(g, before[i]); unchanged != (i == 2 || i == 4) {
					t.Errorf("parameter %d is %v, was %v", i, g, before[i])
				}
				for k := range w {
					if d := g[k] - w[k]; d > 1e-12 || d < -1e-12 {
						t.Errorf("parameter %d is %v, want %v", i, g, w)
						break
					}
				}
			}
		})
	}
}

// A rule for sparse gradients reaches the owners, which refuse dense ones: one error that names both.
func TestSparseAdamAtOwner(t *testing.T) {
	ctx, ws := newWorld(t, 3)
	a := ws[0].agent
	refs := []*rpc.Ref[*autograd.Variable]{newParam(ctx, t, a, "w1", 1.0), newParam(ctx, t, a, "w2", 2.0)}
	opt, err := remote.New(ctx, a, optim.SparseAdam{LR: 0.1, Beta1: 0.8, Eps: 1e-6}, refs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opt.Close() }()
	gctx, c, err := ws[0].engine.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	y := param(2)
	for _, ref := range refs {
		if y, err = rpc.Call[*autograd.Variable](gctx, a, ref.Owner().Name, "p.mul", ref, y); err != nil {
			t.Fatal(err)
		}
	}
	if err = c.Backward(gctx, []*autograd.Variable{y.Sum()}); err != nil {
		t.Fatal(err)
	}
	err = opt.Step(gctx, c)
	for _, want := range []string{"w1", "w2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that names %s", err, want)
		}
	}
	if err == nil || strings.Count(err.Error(), "SparseAdam does not support dense gradients") != 2 {
		t.Errorf("dense gradients: %v", err)
	}
}

func TestRefused(t *testing.T) {
	ctx, ws := newWorld(t, 2)
	a := ws[0].agent
	p := newParam(ctx, t, a, "w1", 1.0)
	if _, err := remote.New(ctx, a, optim.SGD{LR: -1}, []*rpc.Ref[*autograd.Variable]{p}); err == nil ||
		!strings.Contains(err.Error(), "learning rate") {
		t.Errorf("a rule that the owner refuses: %v", err)
	}
	if _, err := remote.New(ctx, a, optim.SGD{LR: 1}, nil); err == nil {
		t.Error("no parameters")
	}
	opt, err := remote.New(ctx, a, optim.SGD{LR: 1}, []*rpc.Ref[*autograd.Variable]{p})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opt.Close() }()
	_, c, err := ws[0].engine.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := opt.Step(ctx, c); err == nil || !strings.Contains(err.Error(), "could not find autograd context") {
		t.Errorf("a context that the owner has not seen: %v", err)
	}
	_ = c.Close()
	if err := opt.Step(ctx, c); !errors.Is(err, cohort.Closed) {
		t.Errorf("a closed context: %v", err)
	}
	for what, args := range map[string][]any{
		"no optimizer":         {py.Global{Module: "torch.optim.lbfgs", Name: "LBFGS"}, []any{p}},
		"SGD has no amsgrad":   {py.Global{Module: "torch.optim.sgd", Name: "SGD"}, []any{p}, rpc.Kw{"amsgrad": true}},
		"SGD has no upwards":   {py.Global{Module: "torch.optim.sgd", Name: "SGD"}, []any{p}, rpc.Kw{"upwards": true}},
		"SGD has no eps":       {py.Global{Module: "torch.optim.sgd", Name: "SGD"}, []any{p}, rpc.Kw{"eps": 1e-3}},
		"cannot do":            {py.Global{Module: "torch.optim.sgd", Name: "SGD"}, []any{p}, rpc.Kw{"momentum": "much"}},
		"positional arguments": {py.Global{Module: "torch.optim.sgd", Name: "SGD"}, []any{p}, 1, 2, 3, 4, true, 6},
		"betas":                {py.Global{Module: "torch.optim.adam", Name: "Adam"}, []any{p}, rpc.Kw{"betas": 3}},
		"want a class":         {1, 2},
	} {
		if _, err := rpc.Call[any](ctx, a, "w1", "torch.distributed.optim.optimizer._new_local_optimizer", args...); err == nil ||
			!strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestErrorsNameTheWorker: a context ends while a worker has not yet stepped its parameters, and while it has not yet made its optimizer.
// The errors name which one.
func TestErrorsNameTheWorker(t *testing.T) {
	var busy sync.Mutex
	ctx, ws := newWorld(t, 2, nil, &busy)
	a := ws[0].agent
	p := newParam(ctx, t, a, "w1", 1.0)
	opt, err := remote.New(ctx, a, optim.SGD{LR: 1}, []*rpc.Ref[*autograd.Variable]{p})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opt.Close() }()
	gctx, c, err := ws[0].engine.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	y, err := rpc.Call[*autograd.Variable](gctx, a, "w1", "p.mul", p, param(2))
	if err != nil {
		t.Fatal(err)
	}
	if err = c.Backward(gctx, []*autograd.Variable{y.Sum()}); err != nil {
		t.Fatal(err)
	}
	named := func(what string, err error) {
		t.Helper()
		var e *cohort.Error
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Peer != "w1" {
			t.Errorf("%s: %v", what, err)
		}
	}
	busy.Lock()
	short, cancel := context.WithTimeout(gctx, 50*time.Millisecond)
	defer cancel()
	named("a step", opt.Step(short, c))
	busy.Unlock()
	_, err = remote.New(short, a, optim.SGD{LR: 1}, []*rpc.Ref[*autograd.Variable]{p})
	named("a new optimizer", err)
}
