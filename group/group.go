// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/util/background"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// Group is a process group: a fixed set of ranks that do collectives and exchange messages. It is safe for concurrent use;
// collectives run in the order in which they are posted, which must be the same on all ranks.
//
// It corresponds to torch.distributed.ProcessGroup with the gloo backend.
type Group struct {
	name, description string
	rank              cohort.Rank
	size              int
	globals           []int // world ranks of the members, by group rank
	config            config
	lineage           lineage
	life              lifetime

	formed *bootstrap.Formed // its connections, and what the ranks found out about each other
	mesh   transport.Mesh    // of formed
	engine collective.Engine // of formed
	args   collective.Group  // what the requests of collectives depend on
	checks *checks           // of operations before they run; nil unless PyTorch ranks make them
	proven atomic.Bool       // a collective with PyTorch ranks has succeeded
	// resumable tells that a waiter may run an operation in its own goroutine whatever its context is.
	resumable bool
	watched   background.Task // what the clock does for the group
	pumpWake  chan struct{}
	expiring  sync.WaitGroup // calls of expire that hold messages

	mu struct {
		sync.Mutex
		sched    opsched.Machine[Work]
		records  *flightrec.Ring
		failure  error
		dumped   bool
		changing bool          // Reconfigure runs, or has been successful
		followed bool          // it has been, and its group is in use
		torchSeq uint64        // PyTorch's count of operations
		timeout  time.Duration // of operations that have none of their own
		room     chan struct{} // closed when the queue has room again; nil when no goroutine waits for it
		gone     chan struct{} // closed when no goroutine runs collectives any more; nil until Close asks
		timer    *time.Timer
		timerAt  time.Time
	}
}

// lifetime is how long a group lives, and what must be over when it ends.
type lifetime struct {
	ctx, working context.Context //nolint:containedctx // ctx ends with Close, working with a failure too
	end, halt    context.CancelCauseFunc
	tasks        sync.WaitGroup
	over         chan struct{} // closed when Close is done
}

func (l *lifetime) begin() {
	l.ctx, l.end = context.WithCancelCause(context.Background())
	l.working, l.halt = context.WithCancelCause(l.ctx)
	l.over = make(chan struct{})
}

// Name returns the group's name. It corresponds to ProcessGroup.group_name.
func (g *Group) Name() string {
	if g == nil {
		return ""
	}
	return g.name
}

// Description returns the text given with [WithDescription].
func (g *Group) Description() string {
	if g == nil {
		return ""
	}
	return g.description
}

// Rank returns this process's rank in the group.
func (g *Group) Rank() cohort.Rank {
	if g == nil {
		return cohort.NoRank
	}
	return g.rank
}

// Size returns the number of ranks in the group.
func (g *Group) Size() int {
	if g == nil {
		return 0
	}
	return g.size
}

// Transport returns how the group exchanges data.
func (g *Group) Transport() Transport {
	if g == nil {
		return ""
	}
	if g.formed == nil { // a zero Group can be printed
		return ""
	}
	return Transport(g.formed.Transport)
}

// GlobalRank translates a group rank into the rank of the world, [cohort.NoRank] if there is none. Ranks in this package are
// group ranks; PyTorch's Python API takes global ranks. It corresponds to torch.distributed.get_global_rank.
func (g *Group) GlobalRank(groupRank cohort.Rank) cohort.Rank {
	if g == nil {
		return cohort.NoRank
	}
	if groupRank < 0 || int(groupRank) >= g.size {
		return cohort.NoRank
	}
	return cohort.Rank(g.globals[groupRank])
}

// GroupRank translates a rank of the world into the group's rank, [cohort.NoRank] for a rank that is not a member. It
// corresponds to torch.distributed.get_group_rank.
func (g *Group) GroupRank(globalRank cohort.Rank) cohort.Rank {
	if g == nil {
		return cohort.NoRank
	}
	return cohort.Rank(slices.Index(g.globals, int(globalRank)))
}

// GlobalRanks returns the world ranks of the members. It corresponds to torch.distributed.get_process_group_ranks.
func (g *Group) GlobalRanks() []cohort.Rank {
	if g == nil {
		return nil
	}
	return ranksOf(g.globals)
}

func ranksOf(numbers []int) []cohort.Rank {
	ranks := make([]cohort.Rank, len(numbers))
	for i, n := range numbers {
		ranks[i] = cohort.Rank(n)
	}
	return ranks
}

// Timeout returns the timeout of operations without their own.
func (g *Group) Timeout() time.Duration {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.timeout
}

// SetTimeout changes the timeout of operations that are posted later. It corresponds to
// torch.distributed.distributed_c10d._set_pg_timeout.
func (g *Group) SetTimeout(d time.Duration) {
	if g == nil {
		return
	}
	failpoint.At("group.set_timeout")
	g.mu.Lock()
	defer g.mu.Unlock()
	if d > 0 {
		g.mu.timeout = d
	}
}

// Err returns why the group has failed, or nil if it has not.
func (g *Group) Err() error {
	if g == nil {
		return errNil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.failure
}

// Seq returns the number of collectives that this rank has posted.
func (g *Group) Seq() uint64 {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return uint64(g.mu.sched.Sequence())
}

// Trace returns the flight recorder's dump: the last operations of this group with their state and times, as JSON for
// "cohort trace". It corresponds to torch._C._distributed_c10d._dump_nccl_trace_json.
func (g *Group) Trace() ([]byte, error) {
	if g == nil {
		return nil, errNil
	}
	return g.trace("asked")
}

func (g *Group) trace(reason string) ([]byte, error) {
	return json.MarshalIndent(flightrec.NewDump(time.Now(), reason, g.snapshot()), "", " ")
}

func (g *Group) snapshot() flightrec.Group {
	failpoint.At("group.snapshot")
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.mu.records.Snapshot()
	if g.mu.failure != nil {
		s.Failed = g.mu.failure.Error()
	}
	return s
}

// Close leaves the group: incomplete operations end with [cohort.Closed], connections are closed and goroutines joined.
// Other ranks that still need this one get [cohort.PeerLost], so a program should call Barrier before Close. Close also
// closes the sub-groups that were made from the group while it was intact; those that were made after it had failed or
// lost a rank stay open. It is idempotent.
//
// It corresponds to torch.distributed.destroy_process_group.
func (g *Group) Close() error {
	if g == nil {
		return errNil
	}
	failpoint.At("group.close")
	closing := cohort.New("group "+g.name, cohort.Closed, "the group was closed")
	g.mu.Lock()
	if g.mu.sched.State() == opsched.Closed {
		g.mu.Unlock()
		failpoint.At("group.close.again")
		<-g.life.over
		return nil
	}
	defer close(g.life.over)
	if g.mu.failure == nil {
		g.mu.failure = closing
	}
	queued, paused, held, e := g.mu.sched.Close()
	gone := make(chan struct{})
	g.mu.gone = gone
	g.performLocked(e)
	if g.mu.timer != nil {
		g.mu.timer.Stop()
	}
	g.mu.Unlock()
	for _, sub := range g.lineage.family.children(g) {
		_ = sub.Close()
	}
	g.endAll(queued, closing)
	err := g.formed.Close() // ends what runs
	g.life.end(closing)
	failpoint.At("group.close.runner")
	switch {
	case paused: // no other goroutine continues it
		g.mu.Lock()
		next := g.startLocked(time.Now())
		g.mu.Unlock()
		g.runNext(context.Background(), next)
	case held:
		failpoint.At("group.close.held")
		<-gone // the engine is closed: the goroutine that runs an operation is about to end it
	}
	failpoint.At("group.close.expiring")
	g.expiring.Wait()
	g.reapAll(true)
	failpoint.At("group.close.tasks")
	g.life.tasks.Wait()
	g.formed.Failure.StopRecording()
	g.leaveStore()
	g.lineage.family.left(g)
	return err
}

// endAll completes a list of collectives that did not run.
func (g *Group) endAll(list *opsched.Item[Work], err error) {
	for list != nil {
		w := list.Owner
		list = list.Next() // its owner may use it again once it is complete
		g.publish(g.ended(w, err))
	}
}

// leaveLimit bounds how long Close waits for the store, for each of two things.
const leaveLimit = 500 * time.Millisecond

// leaveStore tidies up what the group has left in the store.
func (g *Group) leaveStore() {
	if g.formed.Place == nil {
		return
	}
	failpoint.At("group.close.store")
	g.mu.Lock()
	quits := g.lineage.membership != nil && !g.mu.followed
	g.mu.Unlock()
	if quits {
		ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
		g.formed.Place.AnnounceQuit(ctx)
		cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	g.formed.Place.Leave(ctx, g.formed.GoRanks())
}

// fail makes the group unusable: everything that is posted ends with err, and so does everything that is posted later.
func (g *Group) fail(err error) {
	if g.Err() != nil {
		return // what is recorded is left alone, and a closed group does not touch the store
	}
	err = g.formed.Failure.Judge(err)
	failpoint.At("group.fail")
	g.mu.Lock()
	if g.mu.failure != nil {
		g.mu.Unlock()
		return
	}
	g.mu.failure = err
	queued, e := g.mu.sched.Fail()
	dump := g.config.dumps() && !g.mu.dumped
	g.mu.dumped = g.mu.dumped || dump
	g.performLocked(e)
	if dump {
		g.life.tasks.Add(1)
	}
	g.mu.Unlock()
	g.perform(e)
	g.formed.Fail(err)
	g.life.halt(err)
	g.endAll(queued, err)
	g.config.Hook.Emit(observe.Event{Kind: "group.failed", Rank: g.rank, Group: g.name, Err: err})
	if dump {
		go func() {
			defer g.life.tasks.Done()
			g.deliver("failure")
		}()
	}
}

// failedLocked returns the error of an operation that is posted to a group that does not work any more.
func (g *Group) failedLocked(op OpType) error {
	if g.mu.failure == nil {
		return nil
	}
	if g.mu.sched.State() == opsched.Closed && cohort.CodeOf(g.mu.failure) == cohort.Closed {
		return cohort.New("group: "+op.String(), cohort.Closed, "group "+g.name+" was closed")
	}
	e := &cohort.Error{Op: "group: " + op.String(), Code: cohort.CodeOf(g.mu.failure), Rank: cohort.NoRank, Err: g.mu.failure}
	switch {
	case g.lineage.membership != nil && g.lineage.membership.uuid < 0 && errors.Is(g.mu.failure, errUnconnected):
		e.Err, e.Detail = nil, errUnconnected.Detail
	case g.lineage.membership != nil:
		e.Detail = "group " + g.name + " has failed before: " + g.mu.failure.Error() + "; reconfigure it"
	default:
		e.Detail = "group " + g.name + " has failed before: " + g.mu.failure.Error() + "; close it and make a new one"
	}
	if cause := asError(g.mu.failure); cause != nil {
		e.Rank, e.Peer = cause.Rank, cause.Peer
	}
	return e
}
