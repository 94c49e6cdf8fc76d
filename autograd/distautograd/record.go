// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/tensor/tensorlike"
	"github.com/cohort-dist/cohort/tensor"
)

// point is a function of a context that the machine knows: a send or receive function, or a root.
type point struct {
	node *autograd.Node
	next []backwardcore.Node // receive functions that its gradients can reach
	what label
	kind []autograd.Value
}

// label names a message, in errors: it is put into words only then.
type label struct {
	before string
	fn     string       // of a request that this worker has made
	inner  rpcwire.Type // of one that it serves
	joint  string
	peer   string
}

func (l label) String() string {
	name := l.inner.String()
	if l.inner == 0 {
		name = strconv.Quote(l.fn)
	}
	return l.before + name + l.joint + l.peer
}

// sent is the send function of a message: gradients of what it carried arrive here and go on as they are.
type sent struct {
	e    *Engine
	what label
}

func (s *sent) Name() string { return "SendRpcBackward of " + s.what.String() }

func (s *sent) Forward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, notForward()
}

func (s *sent) Backward(_ *autograd.Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error) {
	s.e.note("autograd.send", s.what)
	return grads, nil
}

func (s *sent) ForwardValues(*autograd.Context, []autograd.Value) ([]autograd.Value, error) {
	return nil, notForward()
}

func (s *sent) BackwardValues(_ *autograd.Context, grads []autograd.Value) ([]autograd.Value, error) {
	s.e.note("autograd.send", s.what)
	return grads, nil
}

// received is the receive function of a message: gradients of what it carried leave from here.
type received struct {
	c    *Context
	at   backwardcore.Node
	what label
}

func (r *received) Name() string { return "RecvRpcBackward of " + r.what.String() }

func (r *received) Forward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, notForward()
}

func (r *received) ForwardValues(*autograd.Context, []autograd.Value) ([]autograd.Value, error) {
	return nil, notForward()
}

func (r *received) Backward(c *autograd.Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error) {
	values := make([]autograd.Value, len(grads))
	for i, t := range grads {
		values[i].Dense = t
	}
	_, err := r.BackwardValues(c, values)
	return nil, err
}

func (r *received) BackwardValues(c *autograd.Context, grads []autograd.Value) ([]autograd.Value, error) {
	p, _ := c.Ctx().Value(passKey{}).(*pass)
	switch {
	case p == nil:
		return nil, cohort.New("distautograd: backward", cohort.InvalidArgument,
			"the value came from another worker: use Backward of its distributed autograd context instead of Variable.Backward")
	case p.c != r.c:
		return nil, cohort.Newf("distautograd: backward", cohort.InvalidArgument,
			"the value was received in autograd context %d, and the pass runs in context %d", r.c.ID(), p.c.ID())
	}
	r.c.e.note("autograd.recv", r.what)
	p.out[r.at] = &gradient{grads, p.retain}
	return nil, nil
}

func notForward() error {
	return cohort.New("distautograd: forward", cohort.Internal, "a send or receive function has no forward part")
}

// reachable returns the receive functions of a context that gradients can reach from some functions.
func (c *Context) reachable(from ...*autograd.Node) (found []backwardcore.Node) {
	seen := map[*autograd.Node]bool{}
	var todo []*autograd.Node
	begin := func(n *autograd.Node) {
		if n != nil && !seen[n] {
			seen[n] = true
			todo = append(todo, n)
		}
	}
	for _, n := range from {
		begin(n)
	}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if r, ok := n.Function().(*received); ok && r.c == c {
			found = append(found, r.at)
		}
		n.Inputs(begin)
	}
	return found
}

// differentiable returns the places in a message of the tensors that gradients are wanted for.
func differentiable(m *rpcwire.Message) (at []int, kinds []autograd.Value) {
	for i, v := range m.Tensors {
		switch t := v.(type) {
		case *tensor.Tensor:
			if t.RequiresGrad() {
				at, kinds = append(at, i), append(kinds, autograd.Value{Dense: t})
			}
		case *tensor.Sparse:
			if t.RequiresGrad {
				at, kinds = append(at, i), append(kinds, autograd.Value{Sparse: t})
			}
		}
	}
	return at, kinds
}

// recordSend records that a message leaves in the context. It returns its number.
func (c *Context) recordSend(to rpcext.Worker, what label, m *rpcwire.Message) (call backwardcore.Call, recorded bool, err error) {
	_, kinds := differentiable(m)
	var edges []autograd.Edge
	if len(kinds) > 0 {
		of := make(map[any]autograd.Edge, len(m.Holders))
		for _, h := range m.Holders {
			if v, ok := h.(*autograd.Variable); ok {
				of[tensorlike.Tensor(v)] = v.Edge()
			}
		}
		for _, t := range kinds {
			edges = append(edges, of[tensorOf(t)]) // none for a tensor that only claims to require gradients
		}
	}
	p := &point{what: what, kind: kinds}
	if len(kinds) > 0 {
		p.node = autograd.NewNode(&sent{c.e, what}, kinds, edges)
		p.next = c.reachable(p.node)
	}
	over := true
	w := c.e.step(func(m *machine) {
		if p.node == nil {
			call, over = m.Number(), !m.Meet(c.id, backwardcore.Worker(to.ID)) //nolint:gosec // 16 bits
			return
		}
		var ok bool
		if call, ok = m.RecordSend(c.id, backwardcore.Worker(to.ID), p.next...); ok { //nolint:gosec // 16 bits
			over = false
			at, _ := m.Sent(c.id, call)
			c.nodes[p.node], c.points[at], c.calls[call] = at, p, p
		}
	})
	c.e.after(w)
	if over {
		return call, false, c.over("distautograd: " + what.String())
	}
	return call, p.node != nil, nil
}

// wrap puts the wrapper of a context around a message, in the compact form for a Go worker.
func (c *Context) wrap(m *rpcwire.Message, call backwardcore.Call, kind rpcwire.Type, compact bool) error {
	self := rpcwire.WorkerID(c.e.agent.Self().ID) //nolint:gosec // 16 bits
	x := rpcwire.Autograd{Inner: m.Type, ContextID: int64(c.ID()), MessageID: number(call), From: self, Compact: compact}
	payload, err := x.Wrap(m.Payload)
	m.Type, m.Payload = kind, payload
	return err
}

// unwrap takes the wrapper off a message that has arrived, the answer to fn or a request, and records it. Its tensors become
// variables. A request of PyTorch whose context is over, and which can do without, has none.
func (e *Engine) unwrap(from rpcext.Worker, fn string, m *rpcwire.Message) (*Context, rpcwire.Autograd, error) {
	const op = "distautograd: message"
	x, inner, err := rpcwire.UnwrapAutograd(m.Payload)
	if err != nil {
		return nil, x, err
	}
	if from.ID < 0 || int(x.From) != from.ID {
		return nil, x, cohort.Newf(op, cohort.Protocol,
			"%q, worker %d, sends a message of worker %d: only workers take part in autograd contexts", from.Name, from.ID, x.From)
	}
	at, kinds := differentiable(m)
	what := label{inner: x.Inner, joint: " from ", peer: from.Name}
	if m.Type == rpcwire.ForwardAutogradResp {
		what.before, what.fn, what.inner = "the answer to ", fn, 0
	}
	id, call := ID(x.ContextID).context(), callOf(from.ID, x.MessageID)
	var c *Context
	var node *autograd.Node
	w := e.step(func(m *machine) {
		m.PeerBack(call.From)
		if len(at) == 0 {
			if m.Meet(id, call.From) {
				c = e.contextLocked(id)
			}
			return
		}
		n, ok := m.RecordRecv(id, call)
		if !ok {
			return
		}
		c = e.contextLocked(id)
		node = autograd.NewNode(&received{c, n, what}, kinds, nil)
		p := &point{node: node, what: what, kind: kinds}
		c.points[n], c.calls[call] = p, p
	})
	e.after(w)
	if c == nil && len(at) == 0 && !from.Go && m.Type == rpcwire.ForwardAutogradReq {
		// It needs nothing of the context. PyTorch says within one, for example, that it leaves the world.
		m.Type, m.Payload = x.Inner, inner
		return nil, x, nil
	}
	if c == nil {
		return nil, x, cohort.Newf(op, cohort.Closed, "the autograd context %d is closed: the message %s arrived late", x.ContextID, what)
	}
	if node != nil {
		for _, v := range kinds { // the variable says so from now on
			if v.Sparse != nil {
				v.Sparse.RequiresGrad = false
			} else {
				v.Dense.SetRequiresGrad(false)
			}
		}
		vs, err := node.Variables(kinds)
		if err != nil {
			return nil, x, err
		}
		for i, v := range vs {
			m.Tensors[at[i]] = v
		}
	}
	m.Type, m.Payload = x.Inner, inner
	return c, x, nil
}

// incoming handles a request that belongs to a context.
func (e *Engine) incoming(from rpcext.Worker, m *rpcwire.Message) (*rpcext.Wrapped, error) {
	c, x, err := e.unwrap(from, "", m)
	if err != nil {
		return nil, err
	}
	what := label{before: "the answer to ", inner: x.Inner, joint: " of ", peer: from.Name}
	if c == nil {
		return &rpcext.Wrapped{Message: m, Answer: func(m *rpcwire.Message) error {
			if at, _ := differentiable(m); len(at) > 0 { // they would be lost
				return cohort.Newf("distautograd: "+what.String(), cohort.Closed, "the autograd context %d is closed", x.ContextID)
			}
			return nil
		}}, nil
	}
	return &rpcext.Wrapped{Message: m, Context: c.carried, Answer: func(m *rpcwire.Message) error {
		call, recorded, err := c.recordSend(from, what, m)
		if at, _ := differentiable(m); err != nil && len(at) == 0 {
			return nil // the context is over, and the answer has nothing of it: see unwrap
		}
		if err != nil || !recorded {
			return err
		}
		return c.wrap(m, call, rpcwire.ForwardAutogradResp, x.Compact) // who writes a form reads it
	}}, nil
}

// outgoing is asked about every request that leaves.
func (e *Engine) outgoing(ctx context.Context, to rpcext.Worker, fn string, m *rpcwire.Message) (*rpcext.Exchange, error) {
	c := From(ctx)
	if c == nil || to.ID < 0 {
		return nil, nil //nolint:nilnil // it is of no context
	}
	if c.e != e {
		return nil, cohort.Newf("distautograd: call", cohort.InvalidArgument, "the ctx has autograd context %d of another agent", c.ID())
	}
	switch m.Type { //nolint:exhaustive // a builtin operator has no result with gradients unless an argument has
	case rpcwire.ScriptCall, rpcwire.ScriptRemoteCall:
		if at, _ := differentiable(m); len(at) == 0 {
			return nil, nil //nolint:nilnil // it is of no context
		}
	}
	call, recorded, err := c.recordSend(to, label{fn: fn, joint: " to ", peer: to.Name}, m)
	if err != nil {
		return nil, err
	}
	out := *m
	if err := c.wrap(&out, call, rpcwire.ForwardAutogradReq, to.Go); err != nil {
		return nil, err
	}
	lost := func() {
		if recorded {
			e.after(e.step(func(m *machine) { m.Lost(c.id, call) }))
		}
	}
	return &rpcext.Exchange{
		Message: &out,
		Answered: func(m *rpcwire.Message) error {
			if m.Type != rpcwire.ForwardAutogradResp { // nothing in it requires gradients
				if recorded && raised(m) {
					lost()
				}
				return nil
			}
			_, _, err := e.unwrap(to, fn, m)
			return err
		},
		Lost: lost,
	}, nil
}

// raised reports whether an answer is an exception of the function that was called.
func raised(m *rpcwire.Message) bool {
	if m.Type != rpcwire.PythonRet || len(m.Tensors) > 0 {
		return false
	}
	v, err := (&rpcwire.Decoder{}).PythonRet(m.Payload)
	_, is := v.(*rpcwire.RemoteException)
	return err == nil && is
}
