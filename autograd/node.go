// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

var nan = math.NaN()

// Function is a differentiable function of tensors. It corresponds to torch.autograd.Function; every operation of this
// package is one.
//
// Forward computes the outputs. Backward gets one gradient per output and returns one per input; nil means that there is
// none. Neither may change what it is given. A value of the type belongs to one call, so it may keep what it needs in its
// fields, but tensors are better kept with [Context.Save], which frees them after the backward pass.
type Function interface {
	Forward(c *Context, inputs []*tensor.Tensor) ([]*tensor.Tensor, error)
	Backward(c *Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error)
}

// Named gives a function a name for errors; without it the name of the type is used.
type Named interface{ Name() string }

// fresh is a function whose gradients are new tensors to which no other reference exists, so that a leaf can keep them.
type fresh interface{ fresh() }

// Context is what a [Function] keeps between forward and backward. It corresponds to the ctx of torch.autograd.Function.
type Context struct {
	needs     []bool
	saved     []*tensor.Tensor
	values    []Value
	hasSaved  bool
	released  bool
	undefined bool // gradients may be nil
	byValue   bool // BackwardValues is called in any case
	nonDiff   []int
	running   running
}

// Save keeps tensors for the backward pass. It corresponds to ctx.save_for_backward.
func (c *Context) Save(ts ...*tensor.Tensor) {
	c.saved, c.hasSaved = append(c.saved, ts...), true
}

// Saved returns what Save kept.
func (c *Context) Saved() []*tensor.Tensor { return c.saved }

// SaveValues keeps tensors that may be sparse, as [Context.Save] does.
func (c *Context) SaveValues(vs ...Value) {
	c.values, c.hasSaved = append(c.values, vs...), true
}

// SavedValues returns what SaveValues kept.
func (c *Context) SavedValues() []Value { return c.values }

// NeedsGrad reports whether the gradient of an input will be used. It corresponds to ctx.needs_input_grad.
func (c *Context) NeedsGrad(input int) bool { return input < len(c.needs) && c.needs[input] }

// KeepUndefined has Backward see nil for an output that got no gradient instead of zeros. It corresponds to
// ctx.set_materialize_grads(False).
func (c *Context) KeepUndefined() { c.undefined = true }

// SparseGrads has BackwardValues of a [ValueFunction] called in any case: for a function of dense tensors whose gradients are
// sparse.
func (c *Context) SparseGrads() { c.byValue = true }

// MarkNonDifferentiable marks outputs as having no gradient: indices, for instance. It corresponds to
// ctx.mark_non_differentiable.
func (c *Context) MarkNonDifferentiable(outputs ...int) { c.nonDiff = append(c.nonDiff, outputs...) }

// Pass returns the running pass during Backward, and nil during Forward.
func (c *Context) Pass() *Pass { return c.running.pass }

// Ctx returns the context of the running pass during Backward, for functions that wait or communicate.
func (c *Context) Ctx() context.Context {
	if c.running.ctx == nil {
		return context.Background()
	}
	return c.running.ctx
}

// running is the call of Backward that is under way.
type running struct {
	ctx  context.Context //nolint:containedctx // set for one call, whose interface has no room for it
	pass *Pass
	node *Node
}

// room returns the memory that the gradient of an input may be computed into, or nil: see [Variable.SetGradMemory].
func (c *Context) room(input int) *tensor.Tensor {
	p, n := c.running.pass, c.running.node
	if p == nil || input >= len(n.edges) {
		return nil
	}
	return p.room(n.edges[input].Node)
}

// Edge leads to a function and to one of its outputs.
type Edge struct {
	Node   *Node
	Output int
}

// Node is a recorded call of a function, or the accumulator of a leaf. It corresponds to torch::autograd::Node.
type Node struct {
	name    string // of an accumulator; others have the name of their function
	seq     uint64
	fn      Function
	context *Context
	edges   []Edge // by input
	outputs []meta
	sparse  bool // an input or output is
	leaf    *Variable

	mu struct {
		sync.Mutex
		hooks  []hook
		hookID int
	}
}

type hook struct {
	id          int
	output      int
	grad        func(Value) (Value, error)
	retain      *Variable
	accumulated func(context.Context, *Pass, *Variable) error
}

// sequence orders functions by the time they were recorded: of those that could run, a pass runs the latest first.
var sequence atomic.Uint64

func newNode(name string, fn Function, c *Context, edges []Edge) *Node {
	return &Node{name: name, seq: sequence.Add(1), fn: fn, context: c, edges: edges}
}

// NewNode records a function that has no forward part: Backward of fn will get gradients for outputs of the given kinds
// (only types and shapes of the tensors are looked at), and the gradients that it returns go along edges. It is for graphs
// that span processes: a node without outputs' variables is a place where gradients arrive from elsewhere
// ([Pass.Deliver]), and one without edges a place from which they are sent away.
func NewNode(fn Function, outputs []Value, edges []Edge) *Node {
	c := &Context{needs: make([]bool, len(edges))}
	for i, e := range edges {
		c.needs[i] = e.Node != nil
	}
	n := newNode("", fn, c, slices.Clone(edges))
	n.sparse = anySparse(outputs)
	for _, v := range outputs {
		n.outputs = append(n.outputs, metaOf(v))
	}
	return n
}

// Variables returns variables over vs that were computed by n: output i is vs[i]. Types and shapes are those that n was
// made with. It is for graphs that span processes.
func (n *Node) Variables(vs []Value) ([]*Variable, error) {
	if len(vs) != len(n.outputs) {
		return nil, cohort.Newf("autograd: variables", cohort.InvalidArgument, "%d tensors for %d outputs of %s", len(vs),
			len(n.outputs), n.Name())
	}
	out := make([]*Variable, len(vs))
	for i, v := range vs {
		if !n.outputs[i].fits(v) || n.outputs[i].sparse != (v.Sparse != nil) {
			return nil, cohort.Newf("autograd: variables", cohort.InvalidArgument, "output %d of %s is %v%v, the tensor %v%v",
				i, n.Name(), n.outputs[i].dtype, n.outputs[i].shape, v.DType(), v.Shape())
		}
		out[i] = &Variable{data: v.Dense, sparse: v.Sparse, requires: true, node: n, output: i}
	}
	return out, nil
}

// Name is the name of the function.
func (n *Node) Name() string {
	if n.fn != nil {
		return nameOf(n.fn)
	}
	return n.name
}

// Edges returns where the gradients of the inputs go; the caller may keep it.
func (n *Node) Edges() []Edge { return slices.Clone(n.edges) }

// Outputs returns the number of outputs.
func (n *Node) Outputs() int { return len(n.outputs) }

// Inputs calls f with every function that gradients of this one go to, a function of several inputs several times.
func (n *Node) Inputs(f func(*Node)) {
	for _, e := range n.edges {
		if e.Node != nil {
			f(e.Node)
		}
	}
}

// Leaf returns the variable whose gradients this node accumulates, or nil.
func (n *Node) Leaf() *Variable { return n.leaf }

// Function returns what the node runs, or nil for an accumulator.
func (n *Node) Function() Function { return n.fn }

func (n *Node) addHook(h hook) (remove func()) {
	failpoint.At("autograd.node.add_hook")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.hookID++
	id := n.mu.hookID
	h.id = id
	n.mu.hooks = append(slices.Clone(n.mu.hooks), h) // passes may be reading the old list
	return func() {
		failpoint.At("autograd.node.remove_hook")
		n.mu.Lock()
		defer n.mu.Unlock()
		n.mu.hooks = slices.DeleteFunc(slices.Clone(n.mu.hooks), func(h hook) bool { return h.id == id })
	}
}

// snapshot returns a copy of the context as it is now.
func (n *Node) snapshot() *Context {
	failpoint.At("autograd.node.snapshot")
	n.mu.Lock()
	defer n.mu.Unlock()
	c := *n.context
	return &c
}

// release frees what the function saved.
func (n *Node) release() {
	failpoint.At("autograd.node.release")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.context.saved, n.context.values, n.context.released = nil, nil, true
}

func (n *Node) hooks() []hook {
	failpoint.At("autograd.node.hooks")
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.hooks
}

func nameOf(fn Function) string {
	if n, ok := fn.(Named); ok {
		return n.Name()
	}
	name := fmt.Sprintf("%T", fn)
	return name[strings.LastIndexByte(name, '.')+1:]
}

// Apply computes a function and records it when one of its inputs requires gradients. It corresponds to
// torch.autograd.Function.apply.
func Apply(fn Function, inputs ...*Variable) ([]*Variable, error) {
	if fn == nil {
		return nil, cohort.New("autograd: apply", cohort.InvalidArgument, "the function is nil")
	}
	vs := make([]Value, len(inputs))
	c := &Context{needs: make([]bool, len(inputs))}
	edges := make([]Edge, len(inputs))
	record, off := false, false
	for i, v := range inputs {
		if err := v.Err(); err != nil {
			return nil, err
		}
		vs[i] = v.Value()
		edges[i] = v.edge()
		c.needs[i] = edges[i].Node != nil
		record = record || c.needs[i]
		off = off || v.noGrad
	}
	if off {
		record = false
		clear(c.needs)
	}
	results, err := forward(fn, c, vs)
	if err != nil {
		return nil, withOp("autograd: "+nameOf(fn), err)
	}
	var n *Node
	if record {
		n = newNode("", fn, c, edges)
		n.sparse = anySparse(vs) || anySparse(results)
	}
	out := make([]*Variable, len(results))
	for i, v := range results {
		if v.IsNone() {
			return nil, cohort.Newf("autograd: "+nameOf(fn), cohort.InvalidArgument, "output %d is nil", i)
		}
		out[i] = &Variable{data: v.Dense, sparse: v.Sparse, noGrad: off}
		if n == nil {
			continue
		}
		n.outputs = append(n.outputs, metaOf(v))
		if v.DType().Floating() && !slices.Contains(c.nonDiff, i) {
			out[i].requires, out[i].node, out[i].output = true, n, i
		}
	}
	return out, nil
}

// denseOnly refuses sparse inputs.
func denseOnly() error {
	return cohort.New("sparse", cohort.NotSupported, "the function takes dense tensors only: use ToDense")
}

// forward computes the outputs of a function.
func forward(fn Function, c *Context, inputs []Value) ([]Value, error) {
	if anySparse(inputs) {
		f, ok := fn.(ValueFunction)
		if !ok {
			return nil, denseOnly()
		}
		return f.ForwardValues(c, inputs)
	}
	ts := make([]*tensor.Tensor, len(inputs))
	for i, v := range inputs {
		ts[i] = v.Dense
	}
	out, err := fn.Forward(c, ts)
	if err != nil {
		return nil, err
	}
	return values(out), nil
}

// apply is Apply for a function of one output, with the error in the result.
func apply(fn Function, inputs ...*Variable) *Variable {
	out, err := Apply(fn, inputs...)
	if err != nil {
		return failed(err)
	}
	return out[0]
}

// withOp names the operation in an error of a lower layer.
func withOp(op string, err error) error {
	if e, ok := err.(*cohort.Error); ok && e.Op == op { //nolint:errorlint // one that is wrapped has another name in front
		return err
	}
	if cohort.CodeOf(err) == cohort.Unknown {
		return cohort.Wrap(op, cohort.InvalidArgument, err)
	}
	return cohort.Wrap(op, cohort.CodeOf(err), err)
}

// String names the function and reports how much it was given and has made.
func (n *Node) String() string {
	return n.Name() + " (" + strconv.Itoa(len(n.edges)) + " inputs, " + strconv.Itoa(len(n.outputs)) + " outputs)"
}

// String reports how many inputs the function has and how many tensors it has saved.
func (c *Context) String() string {
	return "autograd context (" + strconv.Itoa(len(c.needs)) + " inputs, " + strconv.Itoa(len(c.saved)) + " saved)"
}

// String reports how far the pass is.
func (p *Pass) String() string {
	return "backward pass (" + strconv.Itoa(len(p.waiting)) + " functions wait, " + strconv.Itoa(len(p.ready)) + " are ready)"
}

// String returns PyTorch's name of the reduction.
func (r Reduction) String() string {
	switch r {
	case ReduceMean:
		return "mean"
	case ReduceSum:
		return "sum"
	case ReduceNone:
		return "none"
	}
	return "reduction " + strconv.Itoa(int(r))
}
