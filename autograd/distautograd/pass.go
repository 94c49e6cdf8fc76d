// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// pass is this worker's part of a pass.
type pass struct {
	c      *Context
	id     backwardcore.PassID
	retain bool
	ctx    context.Context //nolint:containedctx // it ends with the pass, and is what its functions run with
	cancel context.CancelCauseFunc
	expiry *time.Timer
	ended  *cohort.Promise[struct{}]

	// Guarded by the engine's lock.
	starts []backwardcore.Node // functions that will be run with gradients from elsewhere
	queue  []job
	active bool // a goroutine runs the queue

	// Of the goroutine that runs the queue.
	local *autograd.Pass
	out   map[backwardcore.Node]*gradient // of receive functions that have run
}

type job struct {
	node backwardcore.Node
	grad *gradient
}

type passKey struct{}

var errOver = errors.New("the pass is over")

// pass returns a pass under way.
func (c *Context) pass(id backwardcore.PassID) *pass {
	if c == nil {
		return nil
	}
	return c.passes[id]
}

// enterLocked returns a pass that is under way, or begins with ctx.
func (c *Context) enterLocked(ctx context.Context, id backwardcore.PassID, retain bool) *pass {
	p := c.passes[id]
	if p == nil {
		p = &pass{c: c, id: id, retain: retain, ended: cohort.NewPromise[struct{}](), out: map[backwardcore.Node]*gradient{}}
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(c.e.timeout)
		}
		base, cancel := context.WithCancelCause(context.Background())
		bounded, stop := context.WithDeadline(context.WithValue(base, passKey{}, p), deadline)
		p.ctx, p.cancel = bounded, func(err error) { cancel(err); stop() }
		// A little before the deadline, so that the error which says what is missing arrives in time.
		left := time.Until(deadline)
		p.expiry = time.AfterFunc(left-min(time.Second, left/10), func() { p.giveUp(cohort.DeadlineExceeded) })
		c.passes[id] = p
	}
	return p
}

// giveUp ends the pass everywhere because this worker does not wait for it any longer.
func (p *pass) giveUp(code cohort.Code) {
	e := p.c.e
	failpoint.At("distautograd.give_up")
	e.after(e.step(func(m *machine) {
		if p.c.passes[p.id] != p {
			return
		}
		cause := backwardcore.Cause{Worker: e.self(), Code: int(code), Text: "the pass was cancelled"}
		if code == cohort.DeadlineExceeded {
			cause = p.lateLocked(m)
		}
		m.Failed(p.c.id, p.id, cause)
	}))
}

// end ends the part of this worker.
func (p *pass) end(err error) {
	p.expiry.Stop()
	p.ended.Complete(struct{}{}, err)
	p.cancel(errOver)
}

// PassOption changes what a backward pass does.
type PassOption interface{ applyPass(*passOptions) }

type passOptions struct{ retain, fast bool }

type passOption func(*passOptions)

func (o passOption) applyPass(p *passOptions) { o(p) }

func optionsOf(opts []PassOption) (o passOptions) {
	for _, opt := range opts {
		if opt != nil {
			opt.applyPass(&o)
		}
	}
	return o
}

// RetainGraph keeps what functions saved, at all workers, so that another pass can run through the same graph. It corresponds to
// retain_graph=True.
func RetainGraph() PassOption { return passOption(func(p *passOptions) { p.retain = true }) }

// Fast runs the pass in PyTorch's FAST mode: it takes one wave of messages instead of two, but waits for a gradient for
// every value that was sent in the context. If the loss does not depend on one of them, the pass fails at its deadline.
// With PyTorch workers in the world every pass is FAST.
func Fast() PassOption { return passOption(func(p *passOptions) { p.fast = true }) }

// Backward computes the gradients of the sum of some roots by all leaves that they depend on, at all workers. Roots have one
// element each. Gradients are added to those of the context, at the worker that has the leaf: see [Context.Gradients]. A failure
// anywhere ends the pass everywhere; the error says where it failed and in which function. ctx bounds the pass. It corresponds to
// torch.distributed.autograd.backward.
func (c *Context) Backward(ctx context.Context, roots []*autograd.Variable, opts ...PassOption) error {
	const op = "distautograd: backward"
	o := optionsOf(opts)
	nodes, grads, err := rootGradients(roots)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return cohort.FromContext(ctx, op)
	}
	e := c.e
	mode := e.mode(o)
	next := make([][]backwardcore.Node, len(nodes))
	for i, n := range nodes {
		next[i] = c.reachable(n)
	}
	var p *pass
	begun := false
	failpoint.At("distautograd.backward")
	w := e.step(func(m *machine) {
		if e.mu.contexts[c.id] != c {
			return
		}
		begun = true
		start := map[backwardcore.Node]*gradient{}
		for i, n := range nodes {
			at, known := c.nodes[n]
			if !known {
				if at, known = m.Record(c.id, next[i]...); !known {
					return
				}
				c.nodes[n], c.points[at] = at, &point{node: n, next: next[i]}
			}
			start[at] = &gradient{grads[n], o.retain}
		}
		if id, ok := m.Backward(c.id, start, mode); ok {
			p = c.enterLocked(ctx, id, o.retain)
		}
	})
	if !begun {
		return c.over(op)
	}
	if p == nil {
		return cohort.New(op, cohort.InvalidArgument,
			"another pass is under way in this context: with PyTorch workers there can be one at a time")
	}
	defer context.AfterFunc(ctx, func() { p.giveUp(cohort.CodeOf(cohort.FromContext(ctx, op))) })()
	waits := context.WithoutCancel(ctx) // its end is the end of the pass, everywhere
	ended := c.began()
	e.drive(waits, w)
	failpoint.At("distautograd.await")
	_, err = rpc.Await(waits, p.ended.Future())
	ended(err)
	return err
}

// rootGradients returns the functions of roots, and the gradients of their outputs.
func rootGradients(roots []*autograd.Variable) (nodes []*autograd.Node, grads map[*autograd.Node][]autograd.Value, err error) {
	const op = "distautograd: backward"
	if len(roots) == 0 {
		return nil, nil, cohort.New(op, cohort.InvalidArgument, "no tensors provided for gradient computation")
	}
	grads = map[*autograd.Node][]autograd.Value{}
	counts := map[autograd.Edge]float64{}
	for i, v := range roots {
		if err = v.Err(); err != nil {
			return nil, nil, err
		}
		edge := v.Edge()
		switch {
		case edge.Node == nil:
			return nil, nil, cohort.Newf(op, cohort.InvalidArgument, "root %d of %d: requires_grad not set on it", i, len(roots))
		case v.Data() == nil || v.Data().Numel() != 1:
			return nil, nil, cohort.Newf(op, cohort.InvalidArgument,
				"root %d of %d is not a scalar: all roots need to be, and dense; this one is %v", i, len(roots), v.Shape())
		case edge.Node.Leaf() != nil:
			return nil, nil, cohort.Newf(op, cohort.InvalidArgument,
				"root %d of %d is a leaf: it does not have a valid gradient function", i, len(roots))
		}
		if grads[edge.Node] == nil {
			nodes = append(nodes, edge.Node)
			grads[edge.Node] = make([]autograd.Value, edge.Node.Outputs())
		}
		counts[edge]++
		if grads[edge.Node][edge.Output].Dense, err = tensor.Full(v.DType(), counts[edge], v.Shape()...); err != nil {
			return nil, nil, err
		}
	}
	return nodes, grads, nil
}

// mode is how a pass of this worker runs.
func (e *Engine) mode(o passOptions) backwardcore.Mode {
	for _, w := range e.agent.Workers() {
		if !w.Go {
			return backwardcore.Foreign
		}
	}
	if o.fast {
		return backwardcore.Fast
	}
	return backwardcore.Smart
}

// lateLocked is the cause of a pass that has not ended in time: it says what it still waits for.
func (p *pass) lateLocked(m *machine) backwardcore.Cause {
	return backwardcore.Cause{Worker: p.c.e.self(), Code: int(cohort.DeadlineExceeded), Text: p.missingLocked(m)}
}

// missingLocked says what a pass still waits for.
func (p *pass) missingLocked(m *machine) string {
	var names []string
	for _, call := range m.Missing(p.c.id, p.id) {
		if pt := p.c.calls[call]; pt != nil {
			names = append(names, fmt.Sprintf("%s (message %d)", pt.what, number(call)))
		}
		if len(names) == 8 {
			names = append(names, "and more")
			break
		}
	}
	if len(names) == 0 {
		return "the pass did not end in time"
	}
	return "no gradient arrived in time for what was sent in " + strings.Join(names, ", ") + ": the loss may not depend on it"
}

// run runs the functions of w.runs that can run. What is to be done then is added to w; it is done at once where there is more to
// run.
func (e *Engine) run(w *work) {
	for len(w.runs) > 0 {
		failpoint.At("distautograd.run")
		p := w.runs[0]
		e.mu.Lock()
		if len(p.queue) == 0 {
			p.active = false
			e.mu.Unlock()
			w.runs = w.runs[1:]
			continue
		}
		j := p.queue[0]
		p.queue = p.queue[1:]
		pt := p.c.points[j.node]
		var roots []*autograd.Node
		if p.local == nil {
			for _, n := range p.starts {
				roots = append(roots, p.c.points[n].node)
			}
		}
		e.mu.Unlock()
		e.after(work{sends: w.sends, answers: w.answers})
		w.sends, w.answers = nil, nil
		if p.local == nil {
			opts := []autograd.Option{autograd.AccumulateInto(gradients{p.c})}
			if p.retain {
				opts = append(opts, autograd.RetainGraph())
			}
			p.local = autograd.NewPass(roots, opts...)
		}
		ran := func(err error) work { return e.ran(p, j.node, pt, err) }
		next := ran(protected(func(err error) { e.after(ran(err)) }, func() error { return p.deliver(pt.node, j.grad) }))
		w.sends, w.answers, w.runs = next.sends, next.answers, append(w.runs, next.runs...)
	}
}

// ran reports to the machine that a function has run, or has failed.
func (e *Engine) ran(p *pass, node backwardcore.Node, pt *point, err error) work {
	finish := false
	w := e.step(func(m *machine) {
		switch {
		case p.c.passes[p.id] != p: // it is over
		case err != nil:
			m.Failed(p.c.id, p.id, e.cause(err))
		default:
			out := make([]*gradient, len(pt.next))
			for i, n := range pt.next {
				out[i] = p.out[n]
				delete(p.out, n)
			}
			if p.local.Finishes() {
				m.Hold(p.c.id, p.id)
				finish = true
			}
			m.Ran(p.c.id, p.id, node, out)
		}
	})
	if finish {
		e.agent.Go(func(context.Context) { e.finish(p) })
	}
	return w
}

// finish does what is left to do when all functions of this worker have run, and then lets the pass end. It has a goroutine of its
// own: code such as the reduction of data-parallel gradients waits for other workers, which may need gradients and answers of this one.
func (e *Engine) finish(p *pass) {
	finished := func(err error) {
		e.after(e.step(func(m *machine) {
			switch {
			case p.c.passes[p.id] != p: // it is over
			case err != nil:
				m.Failed(p.c.id, p.id, e.cause(err))
			default:
				m.Unhold(p.c.id, p.id)
			}
		}))
	}
	finished(protected(finished, func() error { return p.local.Finish(p.ctx) }))
}

// deliver gives a function its gradients and runs what can run then.
func (p *pass) deliver(n *autograd.Node, g *gradient) error {
	var ts []autograd.Value
	if g != nil {
		ts = g.ts
	} else {
		ts = make([]autograd.Value, n.Outputs())
	}
	if err := p.local.Deliver(n, ts); err != nil {
		return err
	}
	return p.local.Run(p.ctx)
}

// protected runs code of the program, which may panic: that is an error. If it ends its goroutine, exited is called instead of a
// return.
func protected(exited func(error), f func() error) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			err = cohort.Newf("distautograd: backward", cohort.Internal, "a function panicked: %v", v)
			return
		}
		exited(cohort.New("distautograd: backward", cohort.Internal,
			"a function has ended its goroutine (runtime.Goexit) instead of returning"))
	}()
	err = f()
	returned = true
	return err
}

// cause says why a function of this worker failed.
func (e *Engine) cause(err error) backwardcore.Cause {
	c := backwardcore.Cause{Worker: e.self(), Code: int(cohort.CodeOf(err)), Text: err.Error()}
	if e, ok := err.(*cohort.Error); ok { //nolint:errorlint // the one of the pass, which names the function
		c.Function = e.Key
		if e.Err != nil {
			c.Text = e.Err.Error()
		}
	}
	return c
}
