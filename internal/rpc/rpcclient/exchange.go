// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// Config is what calls need to know of their worker.
type Config struct {
	Rank    cohort.Rank
	Net     *rpcsession.Links
	Refs    *rpcref.Refs
	Self    *rpcsession.Peer
	Hook    observe.Hook     // may be nil
	Calls   *flightrec.Calls // may be nil
	Timeout func() time.Duration
	// Outgoing lets an extension take part in a request. Nil without one.
	Outgoing func(ctx context.Context, to *rpcsession.Peer, toGo bool, fn string, m *rpcwire.Message) (*rpcext.Exchange, error)
	// Exception makes the error of an EXCEPTION.
	Exception func(op, fn, worker string, payload []byte) error
}

// Caller sends the requests of a worker and waits for their answers.
type Caller struct {
	cfg       Config
	Active    activeCalls
	InFlight  atomic.Int64
	profiles  atomic.Int64 // how many requests were profiled: each has its number
	watchList watchList
}

// New returns the sender of a worker's requests.
func New(cfg Config) *Caller { return &Caller{cfg: cfg} }

// Exception is the error of an EXCEPTION that a worker has answered.
func (k *Caller) Exception(op, fn, worker string, payload []byte) error {
	return k.cfg.Exception(op, fn, worker, payload)
}

// Deadline returns when a call ends: with its ctx, or after the agent's timeout.
func (k *Caller) Deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	if k.cfg.Timeout() > 0 {
		return time.Now().Add(k.cfg.Timeout())
	}
	return time.Time{}
}

var answerChannels = sync.Pool{New: func() any { return make(chan rpcsession.Reply, 1) }} // empty channels: no shared state

// callTimers are stopped timers; since Go 1.23 a stopped timer's channel is empty.
var callTimers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// Exchange sends a request and waits for its answer.
func (k *Caller) Exchange(ctx context.Context, o *Outgoing) (rpcsession.Reply, error) {
	if err := k.Active.Enter(ctx); err != nil {
		return rpcsession.Reply{}, err
	}
	defer k.Active.Leave()
	return k.ExchangeActive(ctx, o)
}

// ExchangeActive is Exchange for a request that the caller has counted as active.
func (k *Caller) ExchangeActive(ctx context.Context, o *Outgoing) (rpcsession.Reply, error) {
	if err := ctx.Err(); err != nil {
		return rpcsession.Reply{}, Named("rpc: "+o.Op, o.Func, o.Peer, cohort.FromContext(ctx, "rpc: "+o.Op))
	}
	deadline := k.Deadline(ctx)
	for tries := 0; ; tries++ {
		c := o.Peer.Current()
		if c == nil {
			var err error
			bounded, cancel := Until(ctx, deadline)
			c, err = o.Peer.Connect(bounded)
			cancel()
			if err != nil {
				return rpcsession.Reply{}, k.Failed(o, err)
			}
		}
		x, again, err := k.exchangeOn(ctx, c, o, deadline)
		if err == nil || !again || tries >= maxRetries || !k.pauseBeforeRetry(ctx, tries) {
			return x, err
		}
	}
}

// exchangeOn is ExchangeActive on one session. again says that the session had ended, and the request may be sent on another.
func (k *Caller) exchangeOn(ctx context.Context, c *rpcsession.Conn, o *Outgoing, deadline time.Time) (x rpcsession.Reply,
	again bool, err error,
) {
	m, wires, flags, err := o.Make(ctx, c.Cohort())
	if err != nil {
		return rpcsession.Reply{}, false, err
	}
	k.cfg.Refs.FlushNow(o.Peer, wires)
	ch := answerChannels.Get().(chan rpcsession.Reply) //nolint:errcheck,forcetypeassert // only channels are put there
	id, err := c.Begin(ctx, m, &rpcsession.Pending{Ch: ch}, rpcref.HeaderForks(wires), flags, deadline)
	if err != nil {
		k.unsent(c, o, wires, err)
		return rpcsession.Reply{}, id == rpcsession.Unsent || o.mayRetry(c, err), k.Failed(o, err)
	}
	pl := rpcslots.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	var own bool
	if x, own = c.Await(id); own {
		answerChannels.Put(ch)
		x.Due = deadline
		return k.receivedOn(c, o, x, wires)
	}
	var timeout <-chan time.Time
	if _, has := ctx.Deadline(); !has && !deadline.IsZero() {
		timer := callTimers.Get().(*time.Timer) //nolint:errcheck,forcetypeassert // only timers are put there
		timer.Reset(time.Until(deadline))
		defer func() { timer.Stop(); callTimers.Put(timer) }()
		timeout = timer.C
	}
	failpoint.At("rpc.call.wait")
	select {
	case x = <-ch:
		answerChannels.Put(ch)
		x.Due = deadline
		return k.receivedOn(c, o, x, wires)
	case <-ctx.Done():
		err = cohort.FromContext(ctx, "rpc: "+o.Op)
	case <-timeout:
		err = timedOut(o.Op, k.cfg.Timeout())
	}
	if !c.Forget(id) { // the answer came at this moment
		failpoint.At("rpc.call.late")
		x = <-ch
		answerChannels.Put(ch)
		x.Due = deadline
		return k.receivedOn(c, o, x, wires)
	}
	answerChannels.Put(ch)
	c.Cancel(id)
	k.cfg.Refs.Undelivered(o.Peer, wires)
	return rpcsession.Reply{}, false, k.Failed(o, err)
}

// unsent releases the references of a request that could not be sent. On a pipe, a request whose caller gives up while it is written is
// written to its end, so that the other side still gets them.
func (k *Caller) unsent(c *rpcsession.Conn, o *Outgoing, wires []rrefcore.Wire, err error) {
	code := cohort.CodeOf(err)
	if gaveUp := code == cohort.DeadlineExceeded || code == cohort.Canceled; gaveUp && !c.Cohort() &&
		!errors.Is(err, tensorpipe.ErrUnsent) {
		k.cfg.Refs.Undelivered(o.Peer, wires)
		return
	}
	k.cfg.Refs.Undecoded(o.Peer, wires)
}

func (k *Caller) receivedOn(c *rpcsession.Conn, o *Outgoing, x rpcsession.Reply, wires []rrefcore.Wire) (rpcsession.Reply, bool, error) {
	lost := x.Err
	x, err := k.received(o, x, wires)
	return x, lost != nil && o.mayRetry(c, lost), err
}

func timedOut(op string, limit time.Duration) error {
	return cohort.Newf("rpc: "+op, cohort.DeadlineExceeded, "RPC ran for more than set timeout (%d ms)", limit.Milliseconds())
}

// Until is [context.WithDeadline]; a zero deadline is none.
func Until(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	if deadline.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}

// Within is [context.WithTimeout] for a context without a deadline; a limit of zero or less is none.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded || limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// received evaluates an answer.
func (k *Caller) received(o *Outgoing, x rpcsession.Reply, wires []rrefcore.Wire) (rpcsession.Reply, error) {
	if x.Err != nil {
		k.cfg.Refs.Undelivered(o.Peer, wires)
		return x, k.Failed(o, x.Err)
	}
	if x.Msg.Type == rpcwire.Exception {
		err := k.cfg.Exception("rpc: "+o.Op, o.Func, o.Peer.Name, x.Msg.Payload)
		k.cfg.Refs.Undelivered(o.Peer, wires)
		return x, k.notifyFailed(o, err)
	}
	x.Wires = wires
	if err := o.Answered(x.Msg); err != nil {
		return x, k.Failed(o, err)
	}
	return x, nil
}

// Failed is the error of a request that has failed. It notifies the extension.
func (k *Caller) Failed(o *Outgoing, err error) error {
	if k.cfg.Net.Context.Err() != nil && cohort.CodeOf(err) != cohort.DeadlineExceeded {
		err = rpcsession.ErrClosed(o.Op)
	}
	return k.notifyFailed(o, err)
}

// notifyFailed is the error of a request that failed for a reason of its own, not with this worker's end.
func (k *Caller) notifyFailed(o *Outgoing, err error) *cohort.Error {
	o.Lost()
	o.Peer.Stats.Errors.Add(1)
	return Named("rpc: "+o.Op, o.Func, o.Peer, err)
}

// Named is err as the failure of a request: it names the function and the worker, and has the code and the text of err.
func Named(op, fn string, p *rpcsession.Peer, err error) *cohort.Error {
	e := cohort.Wrap(op, cohort.Unavailable, err)
	e.Key, e.Peer = fn, p.Name
	if inner, ok := err.(*cohort.Error); ok { //nolint:errorlint // only the outermost
		e.Detail = inner.Detail
		if e.Detail == "" && inner.Err != nil {
			e.Detail = inner.Err.Error()
		}
	}
	if p.ID >= 0 {
		e.Rank = cohort.Rank(p.ID)
	}
	return e
}

// UnexpectedAnswer is the error of an answer of another kind than was asked for.
func UnexpectedAnswer(fn string, p *rpcsession.Peer, m *rpcwire.Message) error {
	e := cohort.Newf("rpc: call", cohort.Protocol, "answered by %v", m.Type)
	e.Key, e.Peer = fn, p.Name
	return e
}

// Begin reports the start of a request of this worker. The event's kind is rpc.call, rpc.remote or rpc.fetch; of a call the
// detail is its mode, "sync" or "async".
func (k *Caller) Begin(ctx context.Context, o *Outgoing) time.Time {
	k.InFlight.Add(1)
	if k.cfg.Hook == nil && k.cfg.Calls == nil {
		return time.Time{}
	}
	started := time.Now()
	if k.cfg.Calls != nil {
		o.noted = k.cfg.Calls.Begin(flightrec.Call{Op: o.Op, Func: o.Func, To: o.Peer.Name, ToID: int(o.Peer.ID), Since: started})
	}
	if k.cfg.Hook == nil {
		return started
	}
	o.trace, o.span = observe.SplitTrace(observe.Trace(ctx))
	k.cfg.Hook.Emit(observe.Event{
		Time: started, Kind: observe.Kind("rpc." + o.Op), Phase: observe.Begin, Rank: k.cfg.Rank, Peer: o.Peer.Name, Key: o.Func,
		Detail: o.Mode,
		Trace:  o.trace, Span: o.span,
	})
	return started
}

// End reports the end of a request.
func (k *Caller) End(o *Outgoing, started time.Time, err error) {
	k.InFlight.Add(-1)
	if k.cfg.Calls != nil {
		k.cfg.Calls.End(o.noted)
	}
	if k.cfg.Hook != nil {
		k.cfg.Hook.Emit(observe.Event{
			Kind: observe.Kind("rpc." + o.Op), Phase: observe.End, Rank: k.cfg.Rank, Peer: o.Peer.Name, Key: o.Func, Detail: o.Mode,
			Dur: time.Since(started), Err: err, Trace: o.trace, Span: o.span,
		})
	}
}
