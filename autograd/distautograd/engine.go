// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc"
)

// Engine is one worker's part in distributed autograd: the contexts that it has seen, and the passes under way in them. It
// belongs to one agent, see [Engine.Join].
type Engine struct {
	retry, lease, timeout time.Duration
	hook                  observe.Hook

	agent rpcext.Agent
	wake  chan struct{} // something may have to be repeated

	mu struct {
		sync.Mutex
		machine  *machine // nil before the first use: only then is the id of this worker known
		contexts map[backwardcore.Context]*Context
		waiters  map[exchange]answer // requests of others that are answered later
		flying   map[exchange]bool   // messages that are being sent
		cleanups map[backwardcore.Worker][]backwardcore.Context
		due      *time.Timer // when cleanups are sent; nil while there are none
		awake    bool        // the keeper looks again soon
		closed   bool
	}
}

type machine = backwardcore.Machine[*gradient]

type message = backwardcore.Message[*gradient]

// gradient is the gradients of one message, or of the outputs of one root, some of which may be none; so does nil for all.
type gradient struct {
	ts     []autograd.Value
	retain bool
}

// merge is how the machine adds gradients: those of a receive function were added by the local pass, which gives them to the
// last function that leads there.
func merge(a, b *gradient) *gradient {
	if a == nil {
		return b
	}
	return a
}

// Option configures an [Engine].
type Option interface{ apply(*Engine) }

type option func(*Engine)

func (o option) apply(e *Engine) { o(e) }

// WithLease sets after how long a worker asks the worker that opened a context whether it still exists. The default is 30
// seconds.
func WithLease(d time.Duration) Option { return option(func(e *Engine) { e.lease = d }) }

// WithTimeout bounds a pass that was begun with a ctx without deadline, or by a PyTorch worker. The default is a minute, as
// that of PyTorch's calls.
func WithTimeout(d time.Duration) Option { return option(func(e *Engine) { e.timeout = d }) }

// New returns the engine of a worker that is about to join a world.
func New(opts ...Option) *Engine {
	e := &Engine{retry: 200 * time.Millisecond, lease: 30 * time.Second, timeout: time.Minute, wake: make(chan struct{}, 1)}
	e.mu.contexts, e.mu.waiters, e.mu.flying = map[backwardcore.Context]*Context{}, map[exchange]answer{}, map[exchange]bool{}
	e.mu.cleanups = map[backwardcore.Worker][]backwardcore.Context{}
	for _, o := range opts {
		if o != nil {
			o.apply(e)
		}
	}
	e.hook = safecall.Hook(nil, e.hook)
	return e
}

// Join is the option of [rpc.Join] that lets an agent take part in distributed autograd with this engine. An engine
// belongs to one agent.
//
//nolint:errcheck,forcetypeassert // package rpc made it
func (e *Engine) Join() rpc.Option { return rpcext.Option(extension{e}).(rpc.Option) }

// attach gives the engine the agent that it belongs to.
func (e *Engine) attach(a rpcext.Agent) error {
	if e.agent != nil {
		return cohort.New("distautograd: join", cohort.InvalidArgument, "the engine belongs to another agent: make one per agent")
	}
	e.agent = a
	return nil
}

// self is the id of this worker.
func (e *Engine) self() backwardcore.Worker { return backwardcore.Worker(e.agent.Self().ID) } //nolint:gosec // 16 bits

// Stats are counts of what an engine holds. They correspond to torch.distributed.autograd._get_debug_info.
type Stats struct {
	Contexts int // that this worker has seen and that are not cleaned up
	Passes   int // under way
	Cleaning int // clean-ups that were not answered yet
	Waiting  int // messages of passes, of this worker or to it, that are not answered yet
}

// Stats returns what the engine holds.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Stats{Waiting: len(e.mu.waiters) + len(e.mu.flying)}
	if e.mu.machine != nil {
		s.Contexts, s.Cleaning = e.mu.machine.Contexts()
	}
	for _, c := range e.mu.contexts {
		s.Passes += len(c.passes)
	}
	return s
}

// work is what has to be done outside of the lock.
type work struct {
	runs    []*pass
	sends   []sending
	answers []func()
}

// step lets the machine handle something and notes the effects. What is left has to be done by one of [Engine.drive],
// [Engine.serve] and [Engine.after].
func (e *Engine) step(f func(m *machine)) work {
	failpoint.At("distautograd.step")
	var w work
	e.mu.Lock()
	m := e.machineLocked()
	if m != nil {
		f(m)
		for effects := m.Take(); len(effects) > 0; effects = m.Take() {
			for i := range effects {
				e.noteLocked(m, &effects[i], &w)
			}
		}
	}
	wake := m != nil && !e.mu.awake && m.Busy()
	e.mu.awake = e.mu.awake || wake
	e.mu.Unlock()
	if wake {
		e.rouse()
	}
	return w
}

func (e *Engine) rouse() {
	failpoint.At("distautograd.rouse")
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// machineLocked returns the machine, or nil when the agent is not there, or not any more.
func (e *Engine) machineLocked() *machine {
	if e.mu.machine == nil && !e.mu.closed && e.agent != nil {
		id := e.self()
		if id < 0 || !e.agent.Go(e.keep) {
			return nil
		}
		e.mu.machine = backwardcore.New(id, merge, backwardcore.Options{Retry: e.retry, First: firstNumber(), Cleaned: int(cohort.Aborted)})
	}
	if e.mu.closed {
		return nil
	}
	return e.mu.machine
}

// firstNumber returns where the numbers of a worker begin, so that they differ from those of a former worker with its
// id, which may have died in this very second, or with another time. There is room for as many again.
func firstNumber() uint64 { return rand.Uint64N(1 << (idBits - 1)) } //nolint:gosec // not secret

// noteLocked does what an effect needs under the lock, and adds the rest to w.
func (e *Engine) noteLocked(m *machine, x *backwardcore.Effect[*gradient], w *work) {
	c := e.mu.contexts[x.Context]
	switch x.Kind {
	case backwardcore.Send:
		e.sendLocked(m, x.Msg, w)
	case backwardcore.Enter:
		if p := c.pass(x.Pass); p != nil {
			p.starts = x.Nodes
		}
	case backwardcore.Run:
		if p := c.pass(x.Pass); p != nil {
			p.queue = append(p.queue, job{x.Node, x.Gradient})
			if !p.active {
				p.active = true
				w.runs = append(w.runs, p)
			}
		}
	case backwardcore.Ended, backwardcore.Left:
		if p := c.pass(x.Pass); p != nil {
			delete(c.passes, x.Pass)
			var err error
			if x.Failed {
				err = e.failure(x.Cause)
			}
			p.end(err)
		}
	case backwardcore.Freed:
		if c == nil {
			return
		}
		delete(e.mu.contexts, x.Context)
		cause := backwardcore.Cause{Worker: e.self(), Code: int(cohort.Aborted), Text: "the context was cleaned up"}
		for id, p := range c.passes {
			delete(c.passes, id)
			p.end(e.failure(cause))
		}
		e.failLocked(w, cause, func(key exchange) bool { return key.context == x.Context })
		c.free()
	}
}

// keep runs as long as the agent: it repeats what was not answered and looks after the leases.
func (e *Engine) keep(ctx context.Context) {
	begun := time.Now()
	timer := time.NewTimer(e.lease)
	defer timer.Stop()
	asked := begun
	for {
		failpoint.At("distautograd.keep")
		select {
		case <-ctx.Done():
			e.close()
			return
		case <-e.wake:
		case <-timer.C:
		}
		now := time.Now()
		busy := false
		w := e.step(func(m *machine) {
			m.Tick(now.Sub(begun))
			if now.Sub(asked) >= e.lease {
				asked = now
				for id, c := range e.mu.contexts {
					if now.Sub(c.seen) >= e.lease {
						m.Ask(id)
					}
				}
			}
			busy = m.Busy()
			e.mu.awake = busy
		})
		e.after(w)
		if busy {
			timer.Reset(e.retry)
		} else {
			timer.Reset(e.lease)
		}
	}
}

// close ends everything with the agent.
func (e *Engine) close() {
	var w work
	failpoint.At("distautograd.close")
	e.mu.Lock()
	e.closeLocked(&w)
	e.mu.Unlock()
	e.after(w)
}

func (e *Engine) closeLocked(w *work) {
	err := cohort.New("distautograd: backward", cohort.Closed, "the agent is closed")
	e.mu.closed = true
	if e.mu.due != nil {
		e.mu.due.Stop()
	}
	for id, c := range e.mu.contexts {
		delete(e.mu.contexts, id)
		for _, p := range c.passes {
			p.end(err)
		}
		c.free()
	}
	cause := backwardcore.Cause{Code: int(cohort.Closed), Text: "the agent is closed"}
	if m := e.mu.machine; m != nil {
		cause.Worker = e.self()
		e.mu.machine = nil
	}
	e.failLocked(w, cause, func(exchange) bool { return true })
}

// died is notified of a worker that has died.
func (e *Engine) died(w rpcext.Worker) {
	failpoint.At("distautograd.died")
	e.mu.Lock()
	used := e.mu.machine != nil
	e.mu.Unlock()
	if used && w.ID >= 0 {
		e.after(e.step(func(m *machine) { m.PeerDied(backwardcore.Worker(w.ID)) })) //nolint:gosec // 16 bits
	}
}

// failure is the error of a pass that ended for a reason.
func (e *Engine) failure(cause backwardcore.Cause) error {
	code := cohort.Code(cause.Code) //nolint:gosec // checked where it arrives
	switch {
	case cause.Died:
		code = cohort.PeerLost
	case code == cohort.Unknown:
		code = cohort.Remote
	}
	err := cohort.New("distautograd: backward", code, cause.Text)
	err.Key, err.Rank = cause.Function, cohort.Rank(cause.Worker)
	if w, unknown := e.agent.Worker(int(cause.Worker)); unknown == nil {
		err.Peer = w.Name
	}
	return err
}

// extension is the engine as its agent sees it. It is a type of its own so that programs do not see these methods.
type extension struct{ e *Engine }

var _ rpcext.Extension = extension{}

func (s extension) Attach(a rpcext.Agent) error { return s.e.attach(a) }

func (s extension) Wrappers() []rpcwire.Type { return []rpcwire.Type{rpcwire.ForwardAutogradReq} }

func (s extension) Unwrap(from rpcext.Worker, m *rpcwire.Message) (*rpcext.Wrapped, error) {
	return s.e.incoming(from, m)
}

func (s extension) Kinds() []rpcwire.Type {
	return []rpcwire.Type{rpcwire.BackwardAutogradReq, rpcwire.CleanupAutogradReq, rpcwire.RRefBackwardReq}
}

func (s extension) Serve(ctx context.Context, from rpcext.Worker, m *rpcwire.Message, answer func(*rpcwire.Message, error)) {
	s.e.dispatch(ctx, from, m, answer)
}

func (s extension) Counts() map[string]int {
	n := s.e.Stats()
	return map[string]int{"num_current_backward_passes": n.Passes, "num_autograd_contexts": n.Contexts}
}

func (s extension) Outgoing(ctx context.Context, to rpcext.Worker, fn string, m *rpcwire.Message) (*rpcext.Exchange, error) {
	return s.e.outgoing(ctx, to, fn, m)
}

func (s extension) Died(w rpcext.Worker) { s.e.died(w) }

// WithHook sends events of backward passes to h: "autograd.backward" when a pass that this worker has begun begins and
// ends, and at every worker "autograd.recv" when gradients leave for the worker that a value came from, and
// "autograd.send" when those of a value that was sent arrive. They correspond to what torch.autograd.profiler shows of
// a pass: torch::distributed::autograd::backward, RecvRpcBackward and SendRpcBackward. A panic in h is logged by
// slog.Default, and the pass goes on.
func WithHook(h observe.Hook) Option { return option(func(e *Engine) { e.hook = h }) }

// note reports that gradients of a message arrive or leave.
func (e *Engine) note(kind observe.Kind, what label) {
	if e.hook != nil {
		e.hook.Emit(observe.Event{Kind: kind, Rank: cohort.Rank(e.self()), Peer: what.peer, Key: what.String()})
	}
}

// began reports that a pass begins, and returns what reports its end.
func (c *Context) began() (ended func(error)) {
	if c.e.hook == nil {
		return func(error) {}
	}
	x := observe.Event{
		Kind: "autograd.backward", Phase: observe.Begin, Time: time.Now(), Rank: cohort.Rank(c.e.self()),
		Key: strconv.FormatInt(int64(c.ID()), 10),
	}
	c.e.hook.Emit(x)
	return func(err error) {
		end := x
		end.Phase, end.Time, end.Err = observe.End, time.Now(), err
		end.Dur = end.Time.Sub(x.Time)
		c.e.hook.Emit(end)
	}
}

// String names the context by its id.
func (c *Context) String() string { return fmt.Sprintf("autograd context %d", int64(c.ID())) }

// String says how many contexts and passes there are.
func (e *Engine) String() string {
	s := e.Stats()
	return fmt.Sprintf("autograd engine (%d contexts, %d passes)", s.Contexts, s.Passes)
}
