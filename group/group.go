// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/muster"
	"github.com/cohort-dist/cohort/internal/recorder"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

// Group is a process group: a fixed set of ranks that do collectives and exchange messages. It is safe for concurrent use;
// collectives run in the order in which they are posted, which must be the same on all ranks.
//
// It corresponds to torch.distributed.ProcessGroup with the gloo backend.
type Group struct {
	name, description string
	rank, size        int
	globals           []int // world ranks of the members, by group rank
	config            config
	transport         Transport
	torch             torchVersion // what the PyTorch members can do; torchNone without them
	members           []member
	place             *muster.Place // among the Go ranks in the store; nil in a group of one
	verdict           verdict       // why the group ended, as all ranks report it
	store             store.Store
	family            *family // what the groups of one world share
	index             int     // number of the group in its world

	mesh   link.Mesh
	engine coll.Engine
	checks *checks     // of operations before they run; nil unless PyTorch ranks make them
	proven atomic.Bool // a collective with PyTorch ranks has succeeded
	// resumable tells that a waiter may run an operation in its own goroutine whatever its context is.
	resumable bool
	records   *recorder.Ring
	watched   atomic.Bool     // the clock ticks for the group
	life      context.Context //nolint:containedctx // ends with Close
	end       context.CancelCauseFunc
	working   context.Context //nolint:containedctx // ends with a failure too
	halt      context.CancelCauseFunc

	mu         sync.Mutex
	failure    error
	closed     bool
	dumped     bool
	tag        uint32
	p2pSeq     uint64
	torchSeq   uint64  // PyTorch's count of operations
	head, tail *Work   // collectives that have not started, in order
	running    *Work   // the collective that runs
	busy       bool    // somebody runs collectives
	messages   []*Work // point-to-point operations that are not complete
	posted     int     // operations that are not complete
	room       chan struct{}
	eager      bool // wake the pump at once: nobody waits for operations right after posting
	prompt     int  // operations in a row that were waited for at once
	timer      *time.Timer
	timerAt    time.Time
	pumpWake   chan struct{}
	tasks      sync.WaitGroup
}

// member is what is known about a rank.
type member struct {
	Go   bool
	Host string
	PID  int
	Addr string
}

// Name returns the group's name. It corresponds to ProcessGroup.group_name.
func (g *Group) Name() string { return g.name }

// Description returns the words given with [WithDescription].
func (g *Group) Description() string { return g.description }

// Rank returns the own rank in the group.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks in the group.
func (g *Group) Size() int { return g.size }

// Transport returns how the group exchanges data.
func (g *Group) Transport() Transport { return g.transport }

// GlobalRank translates a group rank into the rank of the world, NoSource where there is none. Ranks in this package are
// group ranks; PyTorch's Python API takes global ranks. It corresponds to torch.distributed.get_global_rank.
func (g *Group) GlobalRank(groupRank int) int {
	if groupRank < 0 || groupRank >= g.size {
		return NoSource
	}
	return g.globals[groupRank]
}

// GroupRank translates a rank of the world into the group's rank, NoSource for a rank that is no member. It corresponds to
// torch.distributed.get_group_rank.
func (g *Group) GroupRank(globalRank int) int { return slices.Index(g.globals, globalRank) }

// GlobalRanks returns the world ranks of the members. It corresponds to torch.distributed.get_process_group_ranks.
func (g *Group) GlobalRanks() []int { return slices.Clone(g.globals) }

// Timeout returns the bound of operations that have none of their own.
func (g *Group) Timeout() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.config.timeout
}

// SetTimeout changes the bound for operations that are posted later. It corresponds to
// torch.distributed.distributed_c10d._set_pg_timeout.
func (g *Group) SetTimeout(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d > 0 {
		g.config.timeout = d
	}
}

// Err returns why the group has failed, nil while it works.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failure
}

// Sequence returns the number of collectives that this rank has posted.
func (g *Group) Sequence() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return uint64(g.tag)
}

// Trace returns the flight recorder's dump: the last operations of this group with their state and times, as JSON for
// "cohort trace". It corresponds to torch._C._distributed_c10d._dump_nccl_trace_json.
func (g *Group) Trace() ([]byte, error) { return g.trace("asked") }

func (g *Group) trace(reason string) ([]byte, error) {
	s := g.records.Snapshot()
	if err := g.Err(); err != nil {
		s.Failed = err.Error()
	}
	return json.MarshalIndent(recorder.NewDump(time.Now(), reason, s), "", " ")
}

// Close leaves the group: operations that are not complete end with [dist.Closed], connections are closed and goroutines
// joined. Other ranks that still need this one get [dist.PeerLost], so a program ends with Barrier and then Close. Close
// also closes the sub-groups that were made from the group while it worked; those that were made after its failure go on
// without it. It is idempotent.
//
// It corresponds to torch.distributed.destroy_process_group.
func (g *Group) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		g.tasks.Wait()
		return nil
	}
	g.closed = true
	closing := dist.New("group "+g.name, dist.Closed, "the group was closed")
	if g.failure == nil {
		g.failure = closing
	}
	queued := g.takeQueueLocked()
	if g.timer != nil {
		g.timer.Stop()
	}
	close(g.room)
	g.room = make(chan struct{})
	g.mu.Unlock()
	for _, sub := range g.family.children(g) {
		_ = sub.Close()
	}
	for _, w := range queued {
		g.ended(w, closing)
	}
	var err error
	if g.mesh != nil {
		err = g.mesh.Close() // ends what runs
	}
	if c, ok := g.engine.(interface{ Close() error }); ok {
		if e := c.Close(); err == nil {
			err = e
		}
	}
	if g.checks != nil {
		_ = g.checks.wrapper.Close()
	}
	g.end(closing)
	g.mu.Lock()
	messages := g.messages
	g.messages = nil
	g.mu.Unlock()
	for _, w := range messages {
		g.settle(w, true)
	}
	g.wakePump()
	g.tasks.Wait()
	g.leaveStore()
	g.family.left(g)
	return err
}

// leaveLimit bounds how long Close waits for the store.
const leaveLimit = 500 * time.Millisecond

// leaveStore tidies up what the group has left in the store.
func (g *Group) leaveStore() {
	if g.place == nil {
		return
	}
	ranks := 0
	for _, m := range g.members {
		if m.Go {
			ranks++
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	g.place.Leave(ctx, ranks)
}

// takeQueueLocked empties the queue of collectives that have not started.
func (g *Group) takeQueueLocked() []*Work {
	var all []*Work
	for w := g.head; w != nil; w = w.next {
		all = append(all, w)
	}
	g.head, g.tail = nil, nil
	return all
}

// fail makes the group unusable: everything that is posted ends with err, and so does everything that is posted later.
func (g *Group) fail(err error) {
	err = g.verdict.judge(err)
	g.mu.Lock()
	if g.failure != nil {
		g.mu.Unlock()
		return
	}
	g.failure = err
	queued := g.takeQueueLocked()
	dump := g.config.dumps() && !g.dumped && !g.closed
	g.dumped = g.dumped || dump
	close(g.room)
	g.room = make(chan struct{})
	if dump {
		g.tasks.Add(1)
	}
	mesh := g.mesh
	g.mu.Unlock()
	if mesh != nil {
		mesh.Fail(err)
	}
	if g.checks != nil {
		g.checks.wrapper.Fail(err)
	}
	g.halt(err)
	for _, w := range queued {
		g.ended(w, err)
	}
	g.config.hook.Emit(observe.Event{Kind: "group.failed", Rank: dist.Rank(g.rank), Group: g.name, Err: err})
	if dump {
		go func() {
			defer g.tasks.Done()
			g.deliver("failure")
		}()
	}
}

// failedLocked returns the error of an operation that is posted to a group that does not work any more.
func (g *Group) failedLocked(op OpType) error {
	if g.failure == nil {
		return nil
	}
	if g.closed && dist.CodeOf(g.failure) == dist.Closed {
		return dist.New("group: "+op.String(), dist.Closed, "group "+g.name+" was closed")
	}
	e := &dist.Error{Op: "group: " + op.String(), Code: dist.CodeOf(g.failure), Rank: dist.NoRank, Err: g.failure, Detail: "group " + g.name + " has failed before: " + g.failure.Error() + "; close it and make a new one"}
	if cause := asError(g.failure); cause != nil {
		e.Rank, e.Peer = cause.Rank, cause.Peer
	}
	return e
}
