// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/tensorlike"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Variable is a tensor that remembers how it was computed. It corresponds to torch.Tensor.
//
// A variable made by [Parameter] is a leaf that gradients are wanted for. What is computed from it is not a leaf and
// requires gradients too, unless something says otherwise: see [NoGrad] and [Variable.Detach].
//
// An operation that cannot be done returns a variable that carries the error: [Variable.Err] returns it, every operation
// on it returns it again, and so does [Variable.Backward]. An expression is thus checked once, at its end.
//
// Computing with variables is safe from several goroutines as long as none of them changes the memory of their tensors.
type Variable struct {
	data     *tensor.Tensor // nil when it is sparse
	sparse   *tensor.Sparse
	err      error
	requires bool
	noGrad   bool
	node     *Node // what computed it: nil for a leaf
	output   int

	mu struct {
		sync.Mutex
		grad    Value
		owned   bool  // there is not another reference to grad: it may be added to in place
		retains bool  // of a variable that is not a leaf: grad is kept
		sink    *Node // of a leaf: where its gradients go
		sent    Value // what stands for the variable in messages
		// memory is where a gradient may be computed when there is none yet, or nil.
		memory *tensor.Tensor
	}
}

// Constant returns a variable that no gradients are wanted for.
func Constant(t *tensor.Tensor) *Variable {
	if t == nil {
		return failed(cohort.New("autograd: constant", cohort.InvalidArgument, "no tensor"))
	}
	return &Variable{data: t}
}

// Parameter returns a leaf that gradients are wanted for; t is float32, float64 or half. It corresponds to
// torch.nn.Parameter and to Tensor.requires_grad_.
func Parameter(t *tensor.Tensor) *Variable {
	v := Constant(t)
	if v.err == nil && (!t.DType().Floating() || !tensorops.Computes(t.DType())) {
		return failed(cohort.Newf("autograd: parameter", cohort.InvalidArgument,
			"only floating point tensors can require gradients, not %v", t.DType()))
	}
	v.requires = v.err == nil
	return v
}

// NoGrad returns a constant that switches recording off for everything that is computed from it: an operation with such
// an input remembers nothing, whatever its other inputs require, and its result switches off recording too. It is how a
// model is only evaluated, and corresponds to torch.no_grad and torch.inference_mode; the package has no global mode, so
// goroutines do not disturb each other.
func NoGrad(t *tensor.Tensor) *Variable {
	v := Constant(t)
	v.noGrad = true
	return v
}

func failed(err error) *Variable { return &Variable{err: err} }

// Err returns the error of the operation that failed, or nil.
func (v *Variable) Err() error {
	if v == nil || v.err == nil && v.Value().IsNone() {
		return cohort.New("autograd", cohort.InvalidArgument, "no variable: it was made without a tensor")
	}
	return v.err
}

// Data returns the tensor, or nil when the variable carries an error or is sparse. It corresponds to Tensor.data.
func (v *Variable) Data() *tensor.Tensor { return v.data }

// Value returns the tensor, dense or sparse, or none when the variable carries an error.
func (v *Variable) Value() Value { return Value{v.data, v.sparse} }

// Shape returns the size of every dimension; the caller may keep it.
func (v *Variable) Shape() []int {
	return v.Value().Shape()
}

// DType returns the element type.
func (v *Variable) DType() tensor.DType {
	return v.Value().DType()
}

// Dims returns the number of dimensions.
func (v *Variable) Dims() int {
	if v.data == nil {
		return len(v.Shape())
	}
	return v.data.Dims()
}

// RequiresGrad reports whether gradients flow to this variable. It corresponds to Tensor.requires_grad.
func (v *Variable) RequiresGrad() bool { return v.requires }

// SetRequiresGrad switches gradients of a leaf on or off: off freezes a parameter. It corresponds to
// Tensor.requires_grad_.
func (v *Variable) SetRequiresGrad(on bool) error {
	const op = "autograd: requires grad"
	switch {
	case v.err != nil:
		return v.err
	case v.node != nil:
		return cohort.New(op, cohort.InvalidArgument, "you can only change requires_grad flags of leaf variables: use Detach")
	case on && !v.DType().Floating():
		return cohort.Newf(op, cohort.InvalidArgument, "only floating point tensors can require gradients, not %v", v.DType())
	}
	v.requires = on
	return nil
}

// IsLeaf reports whether the variable was made rather than computed from one that requires gradients. It corresponds to
// Tensor.is_leaf.
func (v *Variable) IsLeaf() bool { return v.node == nil }

// Detach returns a constant with the same memory. It corresponds to Tensor.detach.
func (v *Variable) Detach() *Variable {
	if v.err != nil {
		return v
	}
	return &Variable{data: v.data, sparse: v.sparse, noGrad: v.noGrad}
}

// Item returns the only element as a number, or NaN when there is an error: check [Variable.Err]. The variable must be dense.
func (v *Variable) Item() float64 {
	if v.err != nil || v.data == nil {
		return nan
	}
	t, err := tensorops.Convert(v.data, tensor.Float64)
	if err != nil {
		return nan
	}
	x, err := t.Item()
	if f, ok := x.(float64); ok && err == nil {
		return f
	}
	return nan
}

// Grad returns the gradient that was accumulated, or nil. It corresponds to Tensor.grad. Of a variable that is not a leaf
// it is only there after [Variable.RetainGrad]. A sparse gradient is not returned: see [Variable.GradValue].
func (v *Variable) Grad() *tensor.Tensor { return v.GradValue().Dense }

// GradValue returns the gradient that was accumulated, dense or sparse, or none.
func (v *Variable) GradValue() Value {
	failpoint.At("autograd.variable.grad")
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.grad
}

// SetGrad replaces the gradient; nil forgets it. A gradient has the shape and the type of the variable. Later passes add
// to it in place, so t must be dense and belongs to the variable from now on.
func (v *Variable) SetGrad(t *tensor.Tensor) error {
	if v.err != nil {
		return v.err
	}
	if t != nil && (!metaOf(v.Value()).fits(Value{Dense: t}) || !t.IsContiguous()) {
		return cohort.Newf("autograd: set grad", cohort.InvalidArgument,
			"assigned grad has %v%v, the variable %v%v: want a dense tensor of the same type and shape", t.DType(), t.Shape(),
			v.DType(), v.Shape())
	}
	failpoint.At("autograd.variable.set_grad")
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.grad, v.mu.owned = Value{Dense: t}, true
	return nil
}

// SetGradValue is [Variable.SetGrad] with a gradient that may be sparse. The caller no longer changes it.
func (v *Variable) SetGradValue(g Value) error {
	if g.Sparse == nil {
		return v.SetGrad(g.Dense)
	}
	if v.err != nil {
		return v.err
	}
	const op = "autograd: set grad"
	if err := g.Sparse.Check(); err != nil {
		return cohort.Wrap(op, cohort.InvalidArgument, err)
	}
	if !metaOf(v.Value()).fits(g) {
		return cohort.Newf(op, cohort.InvalidArgument, "assigned grad has %v%v, the variable %v%v", g.DType(), g.Shape(),
			v.DType(), v.Shape())
	}
	failpoint.At("autograd.variable.set_grad")
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.grad, v.mu.owned = g, true
	return nil
}

// SetGradMemory lends the variable memory for its gradients, until it is called with another t; nil takes it back. A gradient that a
// variable without one gets may be computed there, if the operation can, instead of in new memory: then t is what [Variable.Grad]
// returns. So the memory is used again after [Variable.ZeroGrad]: copy a gradient to keep it, and only one pass at a
// time may reach the variable. It is for code that gathers gradients, as gradient_as_bucket_view of DistributedDataParallel.
func (v *Variable) SetGradMemory(t *tensor.Tensor) error {
	if v.err != nil {
		return v.err
	}
	if t != nil && (!metaOf(v.Value()).fits(Value{Dense: t}) || !t.IsContiguous()) {
		return cohort.Newf("autograd: set grad memory", cohort.InvalidArgument,
			"the memory has %v%v, the variable %v%v: want a dense tensor of the same type and shape", t.DType(), t.Shape(),
			v.DType(), v.Shape())
	}
	failpoint.At("autograd.variable.set_memory")
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.memory = t
	return nil
}

// room returns the memory for a gradient that becomes the only one, or nil.
func (v *Variable) room() *tensor.Tensor {
	failpoint.At("autograd.variable.room")
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.mu.grad.IsNone() {
		return nil
	}
	return v.mu.memory
}

// ZeroGrad forgets the gradient. It corresponds to Optimizer.zero_grad(set_to_none=True).
func (v *Variable) ZeroGrad() {
	failpoint.At("autograd.variable.zero_grad")
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.grad, v.mu.owned = Value{}, false
}

// accumulate adds a gradient to the slot of a leaf. owned says that it is the only reference to it.
func (v *Variable) accumulate(grad Value, owned bool) error {
	failpoint.At("autograd.variable.accumulate")
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case !v.mu.grad.IsNone():
		sum, err := v.mu.grad.plus(grad, v.mu.owned)
		if err != nil {
			return err
		}
		grad = sum
	case !owned || grad.Dense != nil && !grad.Dense.IsContiguous():
		c, err := grad.clone()
		if err != nil {
			return err
		}
		grad = c
	}
	v.mu.grad, v.mu.owned = grad, true
	return nil
}

// edge returns where gradients of this variable go, or a zero edge.
func (v *Variable) edge() Edge {
	switch {
	case v.err != nil || !v.requires:
		return Edge{}
	case v.node != nil:
		return Edge{v.node, v.output}
	}
	failpoint.At("autograd.variable.sink")
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.sink == nil {
		v.mu.sink = newNode("AccumulateGrad", nil, nil, nil)
		v.mu.sink.outputs = []meta{metaOf(v.Value())}
		v.mu.sink.leaf = v
	}
	return Edge{v.mu.sink, 0}
}

// Edge returns the function that gradients of this variable go to and which of its outputs the variable is: the
// accumulator of a leaf. The zero Edge means that no gradients are wanted. It corresponds to
// torch::autograd::impl::gradient_edge, and is for code that builds graphs of its own, such as one that spans processes.
func (v *Variable) Edge() Edge { return v.edge() }

var _ = tensorlike.Register((*Variable).sent, (*Variable).receive)

// sent returns the tensor that stands for the variable in a message to another worker: a *tensor.Tensor or *tensor.Sparse,
// or nil. Its requires-grad bit is that of the variable. The same variable always has the same tensor, and no other variable has
// it.
func (v *Variable) sent() any {
	if v == nil || v.Value().IsNone() {
		return nil
	}
	failpoint.At("autograd.variable.held")
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sparse != nil {
		if v.mu.sent.Sparse == nil || v.mu.sent.Sparse.RequiresGrad != v.requires {
			twin := *v.sparse
			twin.RequiresGrad = v.requires
			v.mu.sent.Sparse = &twin
		}
		return v.mu.sent.Sparse
	}
	if v.mu.sent.Dense == nil || v.mu.sent.Dense.RequiresGrad() != v.requires {
		twin, err := tensor.FromStorage(v.data.Storage(), v.data.DType(), v.data.Shape(), v.data.Strides(), v.data.Offset())
		if err != nil {
			return nil // released
		}
		v.mu.sent.Dense = twin.SetRequiresGrad(v.requires)
	}
	return v.mu.sent.Dense
}

// receive makes a variable that has just been allocated a leaf over a received tensor, which requires gradients if the
// tensor did where it came from. It is for handlers of package rpc that have *Variable parameters.
func (v *Variable) receive(t any) error {
	switch t := t.(type) {
	case *tensor.Tensor:
		v.data, v.requires = t, t.RequiresGrad() && tensorops.Computes(t.DType())
	case *tensor.Sparse:
		v.sparse, v.requires = t, t.RequiresGrad && tensorops.Computes(t.Values.DType())
	default:
		return cohort.Newf("autograd: assign", cohort.InvalidArgument, "a variable is made of a tensor, not of a %T", t)
	}
	return nil
}

// OnGrad has f called with every gradient that arrives at this variable; when it returns a tensor, that takes the place
// of the gradient. It corresponds to Tensor.register_hook. The returned function removes it. A sparse gradient fails the pass: see
// [Variable.OnGradValue].
func (v *Variable) OnGrad(f func(grad *tensor.Tensor) (*tensor.Tensor, error)) (remove func(), err error) {
	if f == nil {
		return nil, errNoHook
	}
	return v.OnGradValue(func(grad Value) (Value, error) {
		if grad.Dense == nil {
			return Value{}, cohort.New("autograd: hook", cohort.NotSupported,
				"the gradient is sparse, and a hook of OnGrad takes dense ones: use OnGradValue")
		}
		t, err := f(grad.Dense)
		return Value{Dense: t}, err
	})
}

// OnGradValue is [Variable.OnGrad] for gradients that may be sparse.
func (v *Variable) OnGradValue(f func(grad Value) (Value, error)) (remove func(), err error) {
	if f == nil {
		return nil, errNoHook
	}
	e := v.edge()
	if e.Node == nil {
		return nil, hookError(v)
	}
	return e.Node.addHook(hook{output: e.Output, grad: f}), nil
}

// OnAccumulated has f called each time a pass has added to the gradient of this leaf. It corresponds to
// Tensor.register_post_accumulate_grad_hook. The returned function removes it.
func (v *Variable) OnAccumulated(f func(ctx context.Context, pass *Pass, v *Variable) error) (remove func(), err error) {
	if f == nil {
		return nil, errNoHook
	}
	e := v.edge()
	if e.Node == nil || e.Node.leaf == nil {
		return nil, hookError(v)
	}
	return e.Node.addHook(hook{accumulated: f}), nil
}

// RetainGrad keeps the gradient of a variable that is not a leaf in [Variable.Grad], where further passes add to it. It corresponds to
// Tensor.retain_grad.
func (v *Variable) RetainGrad() error {
	e := v.edge()
	if e.Node == nil {
		return hookError(v)
	}
	failpoint.At("autograd.variable.retain")
	v.mu.Lock()
	again := v.mu.retains
	v.mu.retains = true
	v.mu.Unlock()
	if e.Node.leaf == nil && !again {
		e.Node.addHook(hook{output: e.Output, retain: v})
	}
	return nil
}

// errNoHook is the error of a hook that is nil.
var errNoHook = cohort.New("autograd: hook", cohort.InvalidArgument, "the function is nil")

func hookError(v *Variable) error {
	if v.err != nil {
		return v.err
	}
	return cohort.New("autograd: hook", cohort.InvalidArgument, "cannot register a hook on a variable that doesn't require gradient")
}

// String is the text of the tensor, or of the error.
func (v *Variable) String() string {
	if v.err != nil {
		return "autograd: " + v.err.Error()
	}
	return v.Value().String()
}

// Failed returns a variable that carries an error, for code outside this package that computes as its operations do.
func Failed(err error) *Variable {
	if err == nil {
		err = cohort.New("autograd", cohort.InvalidArgument, "a failure without an error")
	}
	return failed(err)
}
