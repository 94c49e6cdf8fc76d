// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

func leaf(x ...float32) *autograd.Variable {
	return autograd.Parameter(tensor.Must(tensor.From(x)))
}

func constant(x ...float32) *autograd.Variable {
	return autograd.Constant(tensor.Must(tensor.From(x)))
}

func values(t *testing.T, x *tensor.Tensor) []float32 {
	t.Helper()
	if x == nil {
		return nil
	}
	out, err := tensor.Copy[float32](x)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantGrad(t *testing.T, v *autograd.Variable, want ...float32) {
	t.Helper()
	if got := values(t, v.Grad()); !slices.Equal(got, want) {
		t.Errorf("gradient %v, want %v", got, want)
	}
}

func backward(t *testing.T, v *autograd.Variable, opts ...autograd.Option) {
	t.Helper()
	if err := v.Backward(t.Context(), opts...); err != nil {
		t.Fatal(err)
	}
}

func TestAccumulation(t *testing.T) {
	t.Parallel()
	x := leaf(1, 2)
	for i := range 3 {
		backward(t, x.Scale(2).Sum())
		wantGrad(t, x, float32(2*(i+1)), float32(2*(i+1)))
	}
	x.ZeroGrad()
	wantGrad(t, x)
}

// TestGradientsAreNotShared: the two leaves of a sum get the same numbers, not the same memory, and neither do a leaf and
// what a hook was given.
func TestGradientsAreNotShared(t *testing.T) {
	t.Parallel()
	x, y := leaf(1, 2), leaf(3, 4)
	var seen *tensor.Tensor
	if _, err := y.OnGrad(func(g *tensor.Tensor) (*tensor.Tensor, error) { seen = g; return nil, nil }); err != nil {
		t.Fatal(err)
	}
	backward(t, x.Add(y).Mul(constant(5, 6)).Sum())
	if err := x.Grad().Fill(0); err != nil {
		t.Fatal(err)
	}
	wantGrad(t, y, 5, 6)
	if err := y.Grad().Fill(0); err != nil {
		t.Fatal(err)
	}
	if got := values(t, seen); !slices.Equal(got, []float32{5, 6}) {
		t.Errorf("the hook's gradient changed: %v", got)
	}
}

func TestRetain(t *testing.T) {
	t.Parallel()
	x := leaf(3)
	y := x.Mul(x).Sum()
	backward(t, y, autograd.RetainGraph())
	backward(t, y)
	wantGrad(t, x, 12)
	err := y.Backward(t.Context())
	if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "second time") {
		t.Errorf("a third pass: %v", err)
	}
}

func TestLeaves(t *testing.T) {
	t.Parallel()
	x, c := leaf(1), constant(2)
	y := x.Mul(c)
	if !x.IsLeaf() || y.IsLeaf() || !y.RequiresGrad() || !c.Mul(c).IsLeaf() {
		t.Error("leaves are wrong")
	}
	if d := y.Detach(); d.RequiresGrad() || !d.IsLeaf() || d.Data() != y.Data() {
		t.Error("Detach is wrong")
	}
	if err := y.SetRequiresGrad(false); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("freezing what is not a leaf: %v", err)
	}
	if err := x.SetRequiresGrad(false); err != nil {
		t.Fatal(err)
	}
	if err := x.Mul(c).Sum().Backward(t.Context()); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a pass without leaves: %v", err)
	}
	if v := autograd.Parameter(tensor.Must(tensor.From([]int64{1}))); !errors.Is(v.Err(), cohort.InvalidArgument) {
		t.Errorf("an integer parameter: %v", v.Err())
	}
}

func TestNoGrad(t *testing.T) {
	t.Parallel()
	w := leaf(1, 2)
	in := autograd.NoGrad(tensor.Must(tensor.From([]float32{3, 4})))
	y := in.Mul(w).Sum()
	if y.RequiresGrad() || w.Mul(y).RequiresGrad() {
		t.Error("recorded in spite of NoGrad")
	}
	if y.Item() != 11 {
		t.Errorf("value %v", y.Item())
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	x := leaf(1, 2)
	y := x.Scale(3)
	var order []string
	double := func(g *tensor.Tensor) (*tensor.Tensor, error) {
		order = append(order, "y")
		return autograd.Constant(g).Scale(2).Data(), nil
	}
	remove, err := y.OnGrad(double)
	if err != nil {
		t.Fatal(err)
	}
	if err := y.RetainGrad(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) { order = append(order, "x"); return nil, nil }); err != nil {
		t.Fatal(err)
	}
	ended := 0
	if _, err := x.OnAccumulated(func(_ context.Context, p *autograd.Pass, v *autograd.Variable) error {
		order = append(order, "accumulated")
		if v != x || v.Grad() == nil {
			t.Error("the hook was called too early")
		}
		p.AtEnd(func(context.Context) error { ended++; return nil })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	backward(t, y.Sum())
	wantGrad(t, x, 6, 6)
	wantGrad(t, y, 2, 2)
	if want := []string{"y", "x", "accumulated"}; !slices.Equal(order, want) || ended != 1 {
		t.Errorf("order %v, ended %d", order, ended)
	}
	remove()
	x.ZeroGrad()
	backward(t, x.Scale(3).Sum())
	wantGrad(t, x, 3, 3)
	failure := errors.New("no")
	if _, err := x.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, failure }); err != nil {
		t.Fatal(err)
	}
	if err := x.Sum().Backward(t.Context()); !errors.Is(err, failure) {
		t.Errorf("a failing hook: %v", err)
	}
	if _, err := constant(1).OnGrad(double); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a hook on a constant: %v", err)
	}
}

func TestGrad(t *testing.T) {
	t.Parallel()
	x, y, unused := leaf(2), leaf(5), leaf(1)
	z := x.Mul(y)
	out := z.Mul(x).Add(unused.Scale(0).Detach()).Sum()
	got, err := autograd.Grad(t.Context(), []*autograd.Variable{out}, nil, []*autograd.Variable{x, z, unused})
	if err != nil {
		t.Fatal(err)
	}
	if values(t, got[0].Dense)[0] != 20 || values(t, got[1].Dense)[0] != 2 || !got[2].IsNone() {
		t.Errorf("gradients %v", got)
	}
	if x.Grad() != nil || y.Grad() != nil {
		t.Error("Grad wrote to the leaves")
	}
}

func TestSeveralRoots(t *testing.T) {
	t.Parallel()
	x := leaf(1, 2)
	a, b := x.Scale(2), x.Scale(3).Sum()
	seed := tensor.Must(tensor.From([]float32{1, 10}))
	if err := autograd.Backward(t.Context(), []*autograd.Variable{a, b, b, x},
		[]autograd.Value{{Dense: seed}, {}, {}, {Dense: seed}}); err != nil {
		t.Fatal(err)
	}
	wantGrad(t, x, 2+3+3+1, 20+3+3+10)
	if err := a.Backward(t.Context()); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a root of two elements: %v", err)
	}
}

func TestErrorsTravel(t *testing.T) {
	t.Parallel()
	x := leaf(1, 2)
	bad := x.Add(constant(1, 2, 3)).Scale(2).Sum()
	for _, err := range []error{bad.Err(), bad.Backward(t.Context()), autograd.Cat(0, x, bad).Err()} {
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "must match the size") {
			t.Errorf("error %v", err)
		}
	}
	if err := autograd.Linear(constant(1, 2), constant(1, 2, 3).Reshape(1, 3), constant(1)).Err(); err == nil ||
		strings.Count(err.Error(), "autograd: linear") != 1 {
		t.Errorf("it names its operation once: %v", err)
	}
	if v := bad.Item(); v == v {
		t.Errorf("the item of an error is %v", v)
	}
	if err := (*autograd.Variable)(nil).Err(); err == nil {
		t.Error("nil has no error")
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	x := leaf(1)
	y := x.Scale(2)
	if _, err := y.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) { cancel(); return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if err := y.Sum().Backward(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled pass: %v", err)
	}
	wantGrad(t, x)
}

// TestManyGoroutines: passes of several goroutines add to one leaf.
func TestManyGoroutines(t *testing.T) {
	t.Parallel()
	x := leaf(1, 1)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := x.Scale(2).Mul(constant(1, 3)).Sum().Backward(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantGrad(t, x, 32, 96)
}

// TestManyPasses: passes of several goroutines run through one graph at the same time.
func TestManyPasses(t *testing.T) {
	t.Parallel()
	x := leaf(1, 2)
	y := x.Mul(x).Tanh().Sum()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := autograd.Grad(t.Context(), []*autograd.Variable{y}, nil, []*autograd.Variable{x}, autograd.RetainGraph())
			if err != nil || got[0].IsNone() {
				t.Error(got, err)
			}
		})
	}
	wg.Wait()
}

// mailbox stands for the two ends of a wire between processes: one end sends gradients away, the other hands them to a
// pass.
type mailbox struct{ sent [][]*tensor.Tensor }

func (m *mailbox) Forward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, errors.New("has no forward part")
}

func (m *mailbox) Backward(c *autograd.Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if c.Pass() == nil || c.Ctx() == nil {
		return nil, errors.New("no pass")
	}
	m.sent = append(m.sent, g)
	return nil, nil
}

// arrival passes gradients that came from elsewhere on.
type arrival struct{}

func (arrival) Forward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, errors.New("has no forward part")
}

func (arrival) Backward(_ *autograd.Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return g, nil
}

// elsewhere keeps gradients apart from the variables.
type elsewhere map[*autograd.Variable]autograd.Value

func (e elsewhere) Accumulate(v *autograd.Variable, g autograd.Value) (err error) {
	if old := e[v]; !old.IsNone() {
		if g, err = autograd.AddValues(old, g); err != nil {
			return err
		}
	}
	return e.SetGradient(v, g)
}

func (e elsewhere) Gradient(v *autograd.Variable) autograd.Value { return e[v] }

func (e elsewhere) SetGradient(v *autograd.Variable, g autograd.Value) error {
	e[v] = g
	return nil
}

// TestPieces runs one graph in two passes that hand gradients to each other, with gradients kept apart from Grad: what a
// backward pass over several processes is made of.
func TestPieces(t *testing.T) {
	t.Parallel()
	// "Worker 1": y = x*x, sent away; and a second value that is sent too and whose gradient comes later.
	x := leaf(3, 4)
	y, side := x.Mul(x), x.Scale(10)
	send := autograd.NewNode(arrival{}, []autograd.Value{y.Value()}, []autograd.Edge{y.Edge()})
	late := autograd.NewNode(arrival{}, []autograd.Value{side.Value()}, []autograd.Edge{side.Edge()})
	// "Worker 2": receives y and computes the loss.
	box := &mailbox{}
	recv := autograd.NewNode(box, []autograd.Value{y.Value()}, nil)
	got, err := recv.Variables([]autograd.Value{y.Value()})
	if err != nil {
		t.Fatal(err)
	}
	w := leaf(2, 5)
	grads := elsewhere{}
	into := autograd.AccumulateInto(grads)
	if err := got[0].Mul(w).Sum().Backward(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	if len(box.sent) != 1 || !slices.Equal(values(t, box.sent[0][0]), []float32{2, 5}) ||
		!slices.Equal(values(t, grads[w].Dense), []float32{9, 16}) {
		t.Fatalf("sent %v, gradients %v", box.sent, grads)
	}
	// Worker 1 runs what it can when the gradient arrives, and the rest when the other one does.
	ended := false
	arrived := []autograd.Value{{Dense: box.sent[0][0]}}
	p := autograd.NewPass([]*autograd.Node{send, late}, into)
	p.AtEnd(func(context.Context) error { ended = true; return nil })
	if err := p.Deliver(send, arrived); err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.Undelivered() != 1 || !grads[x].IsNone() || ended || p.Finishes() {
		t.Fatalf("the pass did not wait: %d undelivered, %v", p.Undelivered(), grads[x])
	}
	if err := p.Deliver(send, arrived); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a second delivery: %v", err)
	}
	if err := p.Deliver(late, []autograd.Value{{Dense: tensor.Must(tensor.From([]float32{1, 1}))}}); err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ended || !p.Finishes() || !slices.Equal(values(t, grads[x].Dense), []float32{2*3*2 + 10, 2*4*5 + 10}) {
		t.Errorf("gradient %v, ended %v", grads[x], ended)
	}
	if err := p.Finish(t.Context()); err != nil || !ended || p.Finishes() {
		t.Errorf("finished with %v, ended %v", err, ended)
	}
	if x.Grad() != nil || w.Grad() != nil {
		t.Error("gradients went to the leaves")
	}
}

// TestTypes: gradients come back in the type of the variable.
func TestTypes(t *testing.T) {
	t.Parallel()
	x := leaf(1, 2)
	d := autograd.Parameter(tensor.Must(tensor.From([]float64{3, 4})))
	y := x.Mul(d)
	if y.DType() != tensor.Float64 {
		t.Errorf("float32 times float64 is %v", y.DType())
	}
	backward(t, y.Sum())
	if x.Grad().DType() != tensor.Float32 || d.Grad().DType() != tensor.Float64 {
		t.Errorf("gradients of %v and %v", x.Grad().DType(), d.Grad().DType())
	}
	wantGrad(t, x, 3, 4)
}
