// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"container/heap"
	"context"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Pass is one run through a graph from its roots to its leaves. [Variable.Backward] and [Backward] make one and run it at
// once. Code whose gradients arrive in pieces, such as a graph over several processes, makes one with [NewPass], hands it
// the gradients of roots as they come ([Pass.Deliver]), runs what has become possible ([Pass.Run]), and ends the pass when
// nothing is left to wait for ([Pass.Finish]).
//
// A function runs when all gradients that can reach it have; which ones can is counted when the pass is made. A Pass is
// for one goroutine at a time.
type Pass struct {
	retain    bool
	elsewhere Gradients // nil: gradients of leaves become theirs
	captures  map[Edge]*slot
	needed    map[*Node]bool // nil: all

	waiting map[*Node]int // gradients that a node still waits for, its own delivery included
	roots   map[*Node]bool
	slots   map[*Node][]slot
	ready   readyNodes
	atEnd   []func(context.Context) error
	err     error
}

// slot is the gradient of one output while it is being summed.
type slot struct {
	grad  Value
	owned bool // the tensor was made here or handed over, and may be changed
}

// Option changes what a pass does.
type Option interface{ applyPass(*Pass) }

type optionFunc func(*Pass)

func (f optionFunc) applyPass(p *Pass) { f(p) }

// RetainGraph keeps what functions saved, so that another pass can run through the same graph. It corresponds to
// retain_graph=True.
func RetainGraph() Option { return optionFunc(func(p *Pass) { p.retain = true }) }

// AccumulateInto has a pass put the gradients of leaves elsewhere instead of adding them to [Variable.Grad]. Hooks of the
// leaves run as usual.
func AccumulateInto(g Gradients) Option {
	return optionFunc(func(p *Pass) { p.elsewhere = g })
}

// Gradients holds the gradients of leaves: see [AccumulateInto] and [Pass.Gradients].
type Gradients interface {
	// Accumulate adds to the gradient of a leaf. A pass calls it once per leaf. It may keep the tensor but not change it.
	Accumulate(leaf *Variable, grad Value) error
	// Gradient returns the gradient of a leaf, or none.
	Gradient(leaf *Variable) Value
	// SetGradient replaces the gradient of a leaf. The caller no longer changes the tensor.
	SetGradient(leaf *Variable, grad Value) error
}

// Gradients returns where the pass puts the gradients of leaves, for hooks that read or replace them: what
// [AccumulateInto] was given, or the variables themselves.
func (p *Pass) Gradients() Gradients {
	if p.elsewhere != nil {
		return p.elsewhere
	}
	return ownGradients{}
}

// AccumulatesElsewhere reports whether the pass has [AccumulateInto]: the gradients of leaves are not in [Variable.Grad].
func (p *Pass) AccumulatesElsewhere() bool { return p.elsewhere != nil }

// ownGradients are those of [Variable.Grad].
type ownGradients struct{}

func (ownGradients) Accumulate(leaf *Variable, grad Value) error  { return leaf.accumulate(grad, false) }
func (ownGradients) Gradient(leaf *Variable) Value                { return leaf.GradValue() }
func (ownGradients) SetGradient(leaf *Variable, grad Value) error { return leaf.SetGradValue(grad) }

// NewPass prepares a pass over everything that can be reached from roots. Every root waits for its own [Pass.Deliver].
func NewPass(roots []*Node, opts ...Option) *Pass {
	p := &Pass{waiting: map[*Node]int{}, roots: map[*Node]bool{}, slots: map[*Node][]slot{}}
	for _, o := range opts {
		o.applyPass(p)
	}
	seen := map[*Node]bool{}
	stack := make([]*Node, 0, len(roots))
	for _, n := range roots {
		if n == nil || p.roots[n] {
			continue
		}
		p.roots[n] = true
		p.waiting[n]++
		if !seen[n] {
			seen[n] = true
			stack = append(stack, n)
		}
	}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range n.edges {
			if e.Node == nil {
				continue
			}
			p.waiting[e.Node]++
			if !seen[e.Node] {
				seen[e.Node] = true
				stack = append(stack, e.Node)
			}
		}
	}
	return p
}

// Undelivered returns how many roots have not got their gradients.
func (p *Pass) Undelivered() int { return len(p.roots) }

// Deliver hands a root the gradients of its outputs, one per output, some of which may be none. Each root gets them once.
func (p *Pass) Deliver(root *Node, grads []Value) error {
	const op = "autograd: deliver"
	if p.err != nil {
		return p.err
	}
	if !p.roots[root] {
		return cohort.New(op, cohort.InvalidArgument, "the function is not a root of this pass, or already has gradients")
	}
	if len(grads) != len(root.outputs) {
		return cohort.Newf(op, cohort.InvalidArgument, "%d gradients for %d outputs of %s", len(grads), len(root.outputs), root.Name())
	}
	for i, g := range grads {
		if g.IsNone() {
			continue
		}
		if err := p.add(Edge{root, i}, g, false); err != nil {
			return p.fail(root, err)
		}
	}
	delete(p.roots, root)
	p.arrived(root)
	return nil
}

// arrived counts one thing less that a node waits for.
func (p *Pass) arrived(n *Node) {
	p.waiting[n]--
	if p.waiting[n] == 0 {
		delete(p.waiting, n)
		heap.Push(&p.ready, n)
	}
}

// AtEnd has f called by [Pass.Finish], once all leaves have their gradients. It corresponds to Engine.queue_callback.
func (p *Pass) AtEnd(f func(context.Context) error) { p.atEnd = append(p.atEnd, f) }

// Run runs all functions that have their gradients. It returns the first error; the pass is over then.
func (p *Pass) Run(ctx context.Context) error {
	for p.err == nil && len(p.ready) > 0 {
		failpoint.At("autograd.pass.step")
		if ctx.Err() != nil {
			p.err = cohort.FromContext(ctx, "autograd: backward")
			break
		}
		n, _ := heap.Pop(&p.ready).(*Node)
		if err := p.step(ctx, n); err != nil {
			return p.fail(n, err)
		}
	}
	return p.err
}

// Finishes reports whether all functions have run and [Pass.Finish] has something to do.
func (p *Pass) Finishes() bool {
	return p.err == nil && len(p.roots) == 0 && len(p.ready) == 0 && len(p.atEnd) > 0
}

// Finish calls the functions of [Pass.AtEnd] when all other functions have run. They may wait for other processes, which
// may themselves wait for gradients of this pass: the program sends those first.
func (p *Pass) Finish(ctx context.Context) error {
	for p.Finishes() {
		f := p.atEnd[0]
		p.atEnd = p.atEnd[1:]
		if err := f(ctx); err != nil {
			p.err = err
		}
	}
	return p.err
}

func (p *Pass) fail(n *Node, err error) error {
	if p.err == nil {
		wrapped := cohort.Wrap("autograd: backward", cohort.CodeOf(err), err)
		wrapped.Key = n.Name()
		p.err = wrapped
	}
	return p.err
}

// add adds a gradient to what an output has got.
func (p *Pass) add(to Edge, grad Value, owned bool) error {
	if to.Output >= len(to.Node.outputs) {
		return cohort.Newf("autograd: backward", cohort.Internal, "%s has no output %d", to.Node.Name(), to.Output)
	}
	grad, fitted, err := to.Node.outputs[to.Output].fit(grad)
	if err != nil {
		return err
	}
	owned = owned || fitted
	slots := p.slots[to.Node]
	if slots == nil {
		slots = make([]slot, len(to.Node.outputs))
		p.slots[to.Node] = slots
	}
	s := &slots[to.Output]
	if s.grad.IsNone() {
		s.grad, s.owned = grad, owned
		return nil
	}
	sum, err := s.grad.plus(grad, s.owned)
	if err != nil {
		return err
	}
	s.grad, s.owned = sum, true
	return nil
}

// step runs one function.
func (p *Pass) step(ctx context.Context, n *Node) error {
	slots := p.slots[n]
	delete(p.slots, n)
	if slots == nil {
		slots = make([]slot, len(n.outputs))
	}
	hooks := n.hooks()
	for _, h := range hooks {
		if err := h.before(slots); err != nil {
			return err
		}
	}
	for i := range slots {
		if c := p.captures[Edge{n, i}]; c != nil && !slots[i].grad.IsNone() {
			*c = slots[i]
			slots[i].owned = false
		}
	}
	if p.needed != nil && !p.needed[n] {
		return nil
	}
	if n.leaf != nil {
		return p.reachLeaf(ctx, n, slots[0], hooks)
	}
	return p.call(ctx, n, slots)
}

// before runs the part of a hook that comes before the function.
func (h hook) before(slots []slot) error {
	if h.accumulated != nil || h.output >= len(slots) || slots[h.output].grad.IsNone() {
		return nil
	}
	s := &slots[h.output]
	if h.retain != nil {
		s.owned = false
		return h.retain.addRetained(s.grad)
	}
	g, err := h.grad(s.grad)
	if err != nil {
		return err
	}
	s.owned = false // the hook may have kept it
	if !g.IsNone() {
		if !metaOf(s.grad).fits(g) {
			return cohort.Newf("autograd: hook", cohort.InvalidArgument, "a hook returned %v%v for a gradient of %v%v", g.DType(),
				g.Shape(), s.grad.DType(), s.grad.Shape())
		}
		s.grad = g
	}
	return nil
}

// addRetained adds to the gradient that a variable keeps.
func (v *Variable) addRetained(g Value) (err error) {
	failpoint.At("autograd.variable.retained")
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.grad.IsNone() {
		g, err = g.clone()
	} else {
		g, err = v.mu.grad.plus(g, false)
	}
	if err == nil {
		v.mu.grad, v.mu.owned = g, true
	}
	return err
}

func (p *Pass) reachLeaf(ctx context.Context, n *Node, s slot, hooks []hook) error {
	if s.grad.IsNone() || p.captures != nil {
		return nil
	}
	if p.elsewhere != nil {
		if err := p.elsewhere.Accumulate(n.leaf, s.grad); err != nil {
			return err
		}
	} else if err := n.leaf.accumulate(s.grad, s.owned); err != nil {
		return err
	}
	for _, h := range hooks {
		if h.accumulated != nil {
			if err := h.accumulated(ctx, p, n.leaf); err != nil {
				return err
			}
		}
	}
	return nil
}

// room returns the memory of a leaf for its gradient, if the next gradient that reaches it is the only one and becomes what the leaf
// has.
func (p *Pass) room(n *Node) *tensor.Tensor {
	if n == nil || n.leaf == nil || p.elsewhere != nil || p.captures != nil || p.waiting[n] != 1 || p.slots[n] != nil {
		return nil
	}
	for _, h := range n.hooks() {
		if h.accumulated == nil {
			return nil // the hook may keep the gradient
		}
	}
	return n.leaf.room()
}

// call runs the backward part of a function and passes its gradients on.
func (p *Pass) call(ctx context.Context, n *Node, slots []slot) error {
	// A copy of this call's own: another pass may run through the same graph.
	c := n.snapshot()
	if c.released {
		return cohort.New("autograd: backward", cohort.InvalidArgument,
			"trying to backward through the graph a second time: what the function saved has been freed; pass RetainGraph to the "+
				"first pass")
	}
	grads := make([]Value, len(slots))
	some := false
	for i, s := range slots {
		grads[i] = s.grad
		some = some || !s.grad.IsNone()
	}
	var results []Value
	if some || c.undefined {
		c.running = running{ctx, p, n}
		var err error
		if results, err = n.backward(c, grads); err != nil {
			return err
		}
		if len(results) > len(n.edges) || len(results) < len(n.edges) &&
			slices.ContainsFunc(n.edges[len(results):], func(e Edge) bool { return e.Node != nil }) {
			return cohort.Newf("autograd: backward", cohort.InvalidArgument, "%s returned %d gradients for %d inputs", n.Name(),
				len(results), len(n.edges))
		}
	}
	if !p.retain && c.hasSaved {
		n.release()
	}
	_, owned := n.fn.(fresh)
	for i, e := range n.edges {
		if e.Node == nil {
			continue
		}
		if i < len(results) && !results[i].IsNone() {
			if err := p.add(e, results[i], owned); err != nil {
				return err
			}
		}
		p.arrived(e.Node)
	}
	return nil
}

// backward computes the gradients of the inputs of a function.
func (n *Node) backward(c *Context, grads []Value) ([]Value, error) {
	if !c.undefined {
		for i, g := range grads {
			if !g.IsNone() {
				continue
			}
			var err error
			if grads[i], err = n.outputs[i].zeros(); err != nil {
				return nil, err
			}
		}
	}
	if fn, ok := n.fn.(ValueFunction); ok && (n.sparse || c.byValue || anySparse(grads)) {
		return fn.BackwardValues(c, grads)
	}
	ts, err := denses(grads)
	if err != nil {
		return nil, err
	}
	out, err := n.fn.Backward(c, ts)
	if err != nil {
		return nil, err
	}
	return values(out), nil
}

// readyNodes is a heap of nodes, the one recorded last on top. Accumulators come first of all, as in PyTorch: their
// gradients are needed as early as possible where they are reduced across ranks.
type readyNodes []*Node

func (r *readyNodes) Len() int { return len(*r) }

func (r *readyNodes) Less(i, j int) bool {
	x, y := (*r)[i], (*r)[j]
	if a, b := x.leaf != nil, y.leaf != nil; a != b {
		return a
	}
	return x.seq > y.seq
}

func (r *readyNodes) Swap(i, j int) { (*r)[i], (*r)[j] = (*r)[j], (*r)[i] }

func (r *readyNodes) Push(x any) {
	if n, ok := x.(*Node); ok {
		*r = append(*r, n)
	}
}

func (r *readyNodes) Pop() any {
	old := *r
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return n
}
