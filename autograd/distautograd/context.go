// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// ID is the id of a context, PyTorch's context_id: the worker that opened it in the upper 16 bits, a number below.
type ID int64

const (
	idBits = 48
	idMask = 1<<idBits - 1
)

func idOf(c backwardcore.Context) ID {
	return ID(uint64(uint16(c.Origin))<<idBits | c.N&idMask) //nolint:gosec // two's complement
}

func (id ID) context() backwardcore.Context {
	//nolint:gosec // two's complement
	return backwardcore.Context{Origin: backwardcore.Worker(uint64(id) >> idBits), N: uint64(id) & idMask}
}

// callOf and number translate between the ids of PyTorch's messages and calls.
func callOf(from int, id int64) backwardcore.Call {
	return backwardcore.Call{From: backwardcore.Worker(from), N: uint64(id) & idMask} //nolint:gosec // two's complement
}

func number(c backwardcore.Call) int64 {
	return int64(uint64(uint16(c.From))<<idBits | c.N&idMask) //nolint:gosec // two's complement
}

// Context is a distributed autograd context: it connects the calls of one forward pass on all workers that they reach,
// and holds the gradients that backward passes have computed on this worker. It corresponds to
// torch.distributed.autograd.context.
//
// The worker that opened it closes it. Other workers have it from the first message that belongs to it; their handlers find it
// with [From].
type Context struct {
	e    *Engine
	id   backwardcore.Context
	seen time.Time
	done chan struct{} // closed when the context is over

	// Guarded by the engine's lock.
	nodes  map[*autograd.Node]backwardcore.Node // send functions and roots
	points map[backwardcore.Node]*point
	calls  map[backwardcore.Call]*point // of send functions, and of receive functions
	passes map[backwardcore.PassID]*pass

	mu struct {
		sync.Mutex
		grads map[*autograd.Variable]autograd.Value
	}
}

type contextKey struct{}

// From returns the context that a ctx carries, or nil: that of [Engine.Open], or in a handler that of its caller.
func From(ctx context.Context) *Context {
	c, _ := ctx.Value(contextKey{}).(*Context)
	return c
}

func (c *Context) carried(ctx context.Context) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// Open opens a context. Calls that are made with the ctx that it returns belong to it, and so do calls that their handlers make
// with theirs. The context must be closed. It corresponds to "with torch.distributed.autograd.context() as context_id".
func (e *Engine) Open(ctx context.Context) (context.Context, *Context, error) {
	const op = "distautograd: open context"
	if From(ctx) != nil {
		return nil, nil, cohort.New(op, cohort.InvalidArgument,
			"already inside an autograd context: close it first, or use a ctx without one")
	}
	var c *Context
	w := e.step(func(m *machine) { c = e.contextLocked(m.Open()) })
	e.after(w)
	if c == nil {
		return nil, nil, cohort.New(op, cohort.Closed, "the engine has no agent, or its agent is closed: pass Engine.Join to rpc.Join")
	}
	return c.carried(ctx), c, nil
}

// contextLocked returns what there is about a context that the machine knows.
func (e *Engine) contextLocked(id backwardcore.Context) *Context {
	c := e.mu.contexts[id]
	if c == nil {
		c = &Context{
			e: e, id: id, seen: time.Now(), done: make(chan struct{}),
			nodes: map[*autograd.Node]backwardcore.Node{}, points: map[backwardcore.Node]*point{}, calls: map[backwardcore.Call]*point{},
			passes: map[backwardcore.PassID]*pass{},
		}
		c.mu.grads = map[*autograd.Variable]autograd.Value{}
		e.mu.contexts[id] = c
	}
	return c
}

// Context returns a context that this worker has seen by its id, or nil. It corresponds to
// torch.distributed.autograd._retrieve_context.
func (e *Engine) Context(id ID) *Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.contexts[id.context()]
}

// ID returns the id.
func (c *Context) ID() ID { return idOf(c.id) }

// Done returns a channel that is closed when the context is over at this worker.
func (c *Context) Done() <-chan struct{} { return c.done }

func (c *Context) free() { close(c.done) }

// Close ends the context at this worker, and then at every worker that has seen it; that goes on in the background, and
// does not wait for workers that are dead. Passes under way in it fail with [cohort.Aborted]. Only the worker that
// opened the context can close it. It is idempotent, and corresponds to leaving PyTorch's with statement.
func (c *Context) Close() error {
	if c.id.Origin != c.e.self() {
		return cohort.Newf("distautograd: close context", cohort.InvalidArgument, "worker %d has opened it: only it can close it",
			c.id.Origin)
	}
	c.e.after(c.e.step(func(m *machine) { m.Release(c.id) }))
	return nil
}

// over is the error of using a context that is over.
func (c *Context) over(op string) error {
	return cohort.Newf(op, cohort.Closed, "the autograd context %d is closed", c.ID())
}

// Gradients returns the gradients that passes in this context have computed for variables of this worker. [autograd.Variable.Grad]
// is left alone by them. Tensors are shared: do not change them. It corresponds to torch.distributed.autograd.get_gradients.
func (c *Context) Gradients() (map[*autograd.Variable]autograd.Value, error) {
	failpoint.At("distautograd.gradients")
	select {
	case <-c.done:
		return nil, c.over("distautograd: gradients")
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.mu.grads), nil
}

// Gradient returns the gradient of one variable of this worker, or nil when it has none, or a sparse one: see
// [Context.GradientValue].
func (c *Context) Gradient(v *autograd.Variable) *tensor.Tensor { return c.GradientValue(v).Dense }

// GradientValue returns the gradient of one variable of this worker, dense or sparse, or none.
func (c *Context) GradientValue(v *autograd.Variable) autograd.Value {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.grads[v]
}

// gradients are those of a context, as a pass sees them.
type gradients struct{ *Context }

var _ autograd.Gradients = gradients{}

func (c gradients) Gradient(leaf *autograd.Variable) autograd.Value { return c.GradientValue(leaf) }

func (c gradients) SetGradient(leaf *autograd.Variable, grad autograd.Value) error {
	failpoint.At("distautograd.set_gradient")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.grads[leaf] = grad
	return nil
}

// Accumulate adds a gradient of a leaf. What is there may be used elsewhere too, so a sum is a new tensor.
func (c gradients) Accumulate(leaf *autograd.Variable, grad autograd.Value) error {
	failpoint.At("distautograd.accumulate")
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.mu.grads[leaf]; !old.IsNone() {
		sum, err := autograd.AddValues(old, grad)
		if err != nil {
			return err
		}
		grad = sum
	}
	c.mu.grads[leaf] = grad
	return nil
}
