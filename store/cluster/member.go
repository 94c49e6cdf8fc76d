// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlink"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlog"
)

// Member is one of the machines that keep the state. Its methods may be called by any goroutine, except by its StateMachine's.
type Member struct {
	config  Config
	log     *storelog.Log
	machine *membercore.Machine // of the loop
	disk    *disk
	links   *memberlink.Links
	id      uint64
	cluster [16]byte
	others  []membercore.Member // at the start

	ctx    context.Context //nolint:containedctx // it ends with Close, or when the member cannot go on
	stop   context.CancelCauseFunc
	tasks  sync.WaitGroup
	loop   sync.WaitGroup
	inbox  chan func(*membercore.Machine)
	closed sync.Once
	over   chan struct{} // closed by Close: nothing is asked any more

	gathered gathered
	waiting  map[uint64]func(error) // of the loop: reads and changes, by number
	batches  map[uint64][]any       // of the loop: Local of the proposals under way, by number
	number   uint64                 // of the loop
	leading  bool                   // of the loop: what the state machine knows
	wake     *time.Timer

	status atomic.Pointer[Status]
	known  atomic.Pointer[[]membercore.Member]
	gone   atomic.Pointer[[]uint64]
}

// maxInbox is how many messages of other members may wait for the loop; their connections wait then.
const maxInbox = 1024

// open reads the folder.
func open(ctx context.Context, c Config, self identity) (m *Member, err error) {
	m = &Member{
		config: c, inbox: make(chan func(*membercore.Machine), maxInbox),
		waiting: map[uint64]func(error){}, batches: map[uint64][]any{},
		wake: time.NewTimer(time.Hour), over: make(chan struct{}), gathered: gathered{wakeup: make(chan struct{}, 1)},
	}
	recovery := &memberlog.Recovery{Restore: func(snap *raftpb.Snapshot, r io.Reader) error {
		return c.State.Restore(snap.GetMetadata().GetIndex(), r)
	}}
	m.log, err = storelog.Open(c.Dir, storelog.Options{
		Identity: self.folderIdentity(random()), Cluster: self.cluster, Holder: "member " + c.Name, Vital: []byte{memberlog.KindHard},
	}, recovery.Replay())
	if err != nil {
		return nil, err
	}
	if err = m.openMachine(self, recovery); err == nil {
		err = m.findOthers(ctx, &self)
	}
	if err == nil {
		err = m.listen(self)
	}
	if err != nil {
		_ = m.log.Close()
		return nil, cohort.Wrap("cluster: start", cohort.Unavailable, err)
	}
	return m, nil
}

// findOthers asks for the members of a cluster of which this one has nothing yet.
func (m *Member) findOthers(ctx context.Context, self *identity) (err error) {
	m.others = m.machine.Members()
	if len(m.others) == 0 && len(self.others) == 0 {
		*self, err = join(ctx, m.config)
	}
	if len(m.others) == 0 {
		m.others = self.others
	}
	if err == nil && self.id != 0 && self.id != m.id {
		err = cohort.Newf("cluster: start", cohort.Mismatch,
			"the folder is of member %x, and the cluster has %x as %q: use an empty folder", m.id, self.id, m.config.Name)
	}
	return err
}

func (m *Member) openMachine(self identity, recovery *memberlog.Recovery) (err error) {
	m.id, m.cluster = idOf(m.log.Identity()), m.log.Cluster()
	if r, ok := m.config.State.(*replica); ok {
		r.joined(m)
	}
	state := recovery.State()
	if state.Snapshot == nil && len(self.members) > 0 {
		if state, err = m.bootstrap(self.members); err != nil {
			return err
		}
	}
	m.machine, err = membercore.New(membercore.Config{
		ID: m.id, Nonce: random(), SnapshotBytes: m.config.SnapshotBytes, TrailBytes: trailBytes,
	}, state)
	m.disk = &disk{log: m.log, writer: memberlog.NewWriter(m.log, recovery), dir: m.config.Dir, wakeup: make(chan struct{}, 1)}
	return err
}

// trailBytes is what stays in memory of the log before a snapshot, for members that are a little behind.
const trailBytes = 8 << 20

// bootstrap writes the first snapshot of a new cluster.
func (m *Member) bootstrap(members []membercore.Member) (state membercore.State, err error) {
	if state.Snapshot, err = membercore.Bootstrap(members); err != nil {
		return state, err
	}
	image, err := m.config.State.Capture()
	if err != nil {
		return state, err
	}
	defer func() { _ = image.Close() }()
	return state, memberlog.Begin(m.log, state.Snapshot, image)
}

// listen opens the port for the other members.
func (m *Member) listen(self identity) (err error) {
	listener := m.config.Listener
	if listener == nil {
		addr := self.addr
		for _, other := range m.machine.Members() {
			if other.ID == m.id {
				addr = other.Addr
			}
		}
		if listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr); err != nil {
			return err
		}
	}
	m.ctx, m.stop = context.WithCancelCause(context.Background())
	m.links = memberlink.New(memberlink.Config{
		Cluster: m.cluster, Self: m.id, Level: featureLevel, Handler: peerHandler{m}, TLS: m.config.TLS,
		Users: peeruid.Default(m.config.AllowUIDs, peeruid.ToLog(m.config.Log)), Log: m.config.Log,
		SnapshotRate: m.config.SnapshotRate, SnapshotSize: m.config.SnapshotLimit,
	})
	m.publish()
	m.links.Serve(listener)
	return nil
}

// featureLevel counts what members have to know to understand each other's entries. A new level is used when all members have it.
const featureLevel = 1

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return binary.LittleEndian.Uint64(b[:])
}

// begin starts the goroutines.
func (m *Member) begin() {
	m.links.SetMembers(m.others)
	m.loop.Go(m.run)
	m.tasks.Go(func() { m.disk.run(m.ctx, m) })
}

// Done is closed when the member has ended; Err says why.
func (m *Member) Done() <-chan struct{} { return m.ctx.Done() }

// Err is why the member has ended, nil while it has not or if it was closed.
func (m *Member) Err() error {
	if err := context.Cause(m.ctx); err != nil && err != errClosed { //nolint:errorlint // the very one
		return err
	}
	return nil
}

var errClosed = cohort.New("cluster", cohort.Closed, "the member was closed")

// Close ends the member. A leader hands over first, for which it takes until ctx ends, and at most a second.
func (m *Member) Close(ctx context.Context) error {
	m.closed.Do(func() {
		m.handOver(ctx)
		m.stop(errClosed)
		close(m.over)
		m.loop.Wait()
		m.links.Close()
		m.tasks.Wait()
		_ = m.log.Close() // what was acknowledged is on the disk
	})
	return m.Err()
}

// handOver gives the lead to another member.
func (m *Member) handOver(ctx context.Context) {
	if s := m.Status(); !s.Leading || len(s.Members) < 2 {
		return
	}
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	for m.Status().Leading && ctx.Err() == nil && m.ctx.Err() == nil {
		_ = m.post(ctx, func(machine *membercore.Machine) { machine.Transfer(0) })
		select {
		case <-ctx.Done():
		case <-m.ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// fail ends the member because it cannot go on. What waits is told by the loop.
func (m *Member) fail(err error) {
	m.config.Log.Error("the member has ended", slog.String("reason", err.Error()))
	m.stop(err)
}

// String returns the member's name and role.
func (m *Member) String() string {
	if m == nil || m.status.Load() == nil {
		return "no member"
	}
	s := m.Status()
	if s.Leading {
		return "member " + s.Name + ", the leader"
	}
	return "member " + s.Name
}

// Status is what the member knows.
func (m *Member) Status() Status { return *m.status.Load() }

// publish makes the status what the machine says.
func (m *Member) publish() {
	s := m.machine.Status()
	out := Status{
		Name: m.config.Name, Leading: s.Leading, Term: s.Term, Applied: s.Applied, Committed: s.Committed, Snapshot: s.Snapshot,
		Full: m.disk.full.Load(),
	}
	for _, member := range s.Members {
		if member.ID == s.Leader {
			out.Leader = member.Name
		}
		out.Members = append(out.Members, MemberStatus{
			Name: member.Name, Addr: member.Addr, ID: formatID(member.ID), Learner: member.Learner, Matched: s.Matched[member.ID],
		})
	}
	m.status.Store(&out)
	m.known.Store(&s.Members)
	m.gone.Store(&s.Gone)
}
