// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/rpc"
)

// Fault is what becomes of a message of an engine.
type Fault int

const (
	Refuse     Fault = iota // it is not sent, as by PyTorch's FaultyTensorPipeAgent
	LoseAnswer              // it is sent, and its answer is lost
	Repeat                  // it is sent twice
)

// faultyTimes is how often each message meets its fault, as in PyTorch's tests.
const faultyTimes = 3

// FaultyJoin is Join with an agent that fails the engine's own messages, those of passes and of clean-ups, each the first times it is
// sent. The agents and their sockets are real.
func (e *Engine) FaultyJoin(f Fault) (option rpc.Option, count func() int) {
	e.retry = 20 * time.Millisecond
	x := &faultyAgent{fault: f, times: map[string]int{}}
	option, _ = rpcext.Option(faultyExtension{extension{e}, x}).(rpc.Option)
	return option, func() int {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.failed
	}
}

type faultyExtension struct {
	extension
	faulty *faultyAgent
}

func (s faultyExtension) Attach(a rpcext.Agent) error {
	s.faulty.Agent = a
	return s.e.attach(s.faulty)
}

type faultyAgent struct {
	rpcext.Agent
	fault Fault

	mu     sync.Mutex
	times  map[string]int
	failed int
}

// fails reports whether a message meets the fault this time.
func (a *faultyAgent) fails(to int, m *rpcwire.Message) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := fmt.Sprintf("%d %d %x", to, m.Type, m.Payload)
	if a.times[key]++; a.times[key] > faultyTimes {
		return false
	}
	a.failed++
	return true
}

func (a *faultyAgent) Send(ctx context.Context, to int, m *rpcwire.Message) (*rpcwire.Message, error) {
	lost := cohort.New("faulty", cohort.Unavailable, "the message fails on purpose")
	if !a.fails(to, m) {
		return a.Agent.Send(ctx, to, m)
	}
	if a.fault == Refuse {
		return nil, lost
	}
	back, err := a.Agent.Send(ctx, to, m)
	switch {
	case a.fault == LoseAnswer:
		return nil, lost
	case err != nil:
		return nil, err
	}
	_, _ = a.Agent.Send(ctx, to, m) // whatever it is answered
	return back, nil
}

func (a *faultyAgent) Post(ctx context.Context, to int, m *rpcwire.Message, done func(*rpcwire.Message, error)) {
	if !a.Go(func(context.Context) { done(a.Send(ctx, to, m)) }) {
		done(nil, cohort.New("faulty", cohort.Closed, "the agent is closed"))
	}
}
