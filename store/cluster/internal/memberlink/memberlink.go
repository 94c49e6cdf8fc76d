// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package memberlink carries messages between the members of a cluster: one connection from each member to each other for raft's
// messages, and one of its own for each snapshot and each request.
//
// Nothing that sends ever waits: what a member does not take in time is dropped, as raft permits. A connection that was made and then
// breaks is reported at once, because the process at its other end has probably died. A host that falls silent is noticed in less than a
// second: each side sends something all the time, and the kernel gives up on what is not acknowledged.
//
// A connection begins with a greeting in each direction: a length and a JSON document, which later versions may extend. Then come frames,
// a length, a type and a payload. See docs/wire/member.md.
package memberlink

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

// Handler is the member whose connections these are. Its methods are called by several goroutines, and may wait until ctx ends.
type Handler interface {
	// Message takes a message.
	Message(ctx context.Context, m *raftpb.Message)
	// Broken says that a connection with a member that had been made was lost.
	Broken(ctx context.Context, id uint64)
	// Snapshot takes a message with a snapshot; the replicated state follows in r.
	Snapshot(ctx context.Context, m *raftpb.Message, r io.Reader) error
	// Request answers a request that a person or a new member has made.
	Request(ctx context.Context, request []byte) (answer []byte)
	// Gone reports whether a member was removed from the cluster.
	Gone(id uint64) bool
	// Removed says that another member knows that this one was removed.
	Removed()
	// Level learns which level of features a member has.
	Level(id uint64, level int)
}

// Config of the connections of a member.
type Config struct {
	Cluster [16]byte // a connection with another cluster is refused
	Self    uint64
	// Level is the level of features of this program, for upgrades member by member.
	Level   int
	Handler Handler
	TLS     *tls.Config // nil: without
	// Users says which users of this host may connect.
	Users *peeruid.Policy
	Log   *slog.Logger
	// SnapshotRate bounds the bytes per second of a snapshot that is sent, SnapshotSize the bytes of one that is received.
	SnapshotRate, SnapshotSize int64
}

// Links are the connections of a member.
type Links struct {
	config Config
	ctx    context.Context //nolint:containedctx // it ends with Close
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.Mutex
	peers map[uint64]*peer
	// receiving: a snapshot is being received; a second one has to wait.
	receiving bool
}

// Limits of time. The timeout of acknowledgements and the pings together find a silent host in less than a second.
const (
	pingEvery    = 150 * time.Millisecond
	ackTimeout   = 500 * time.Millisecond
	greetTimeout = 3 * time.Second
	// answerTimeout is for the answer to a greeting: a process that is stopped gives none, and there are others to ask.
	answerTimeout = time.Second
	dialTimeout   = time.Second
	redialFirst   = 20 * time.Millisecond
	redialMost    = 500 * time.Millisecond
	readTimeout   = 15 * time.Second // without any frame; pings come all the time
)

// New returns the connections of a member. Serve and SetMembers begin to use them.
func New(c Config) *Links {
	ctx, stop := context.WithCancel(context.Background())
	return &Links{config: c, ctx: ctx, stop: stop, peers: map[uint64]*peer{}}
}

// Close ends all connections and joins all goroutines.
func (l *Links) Close() {
	l.stop()
	l.tasks.Wait()
}

// SetMembers says with whom connections are to be held.
func (l *Links) SetMembers(members []membercore.Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := map[uint64]string{}
	for _, m := range members {
		if m.ID != l.config.Self {
			wanted[m.ID] = m.Addr
		}
	}
	for id, p := range l.peers {
		if addr, ok := wanted[id]; !ok || addr != p.addr {
			p.stop()
			delete(l.peers, id)
		}
	}
	if l.ctx.Err() != nil {
		return
	}
	for id, addr := range wanted {
		if l.peers[id] == nil {
			p := newPeer(l, id, addr)
			l.peers[id] = p
			l.tasks.Go(p.run)
		}
	}
}

// Send queues a message, or drops it.
func (l *Links) Send(m *raftpb.Message) {
	l.mu.Lock()
	p := l.peers[m.GetTo()]
	l.mu.Unlock()
	if p != nil {
		p.queue.put(m)
	}
}

// Addr is where a member is, if it is one.
func (l *Links) addr(id uint64) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[id]
	if p == nil {
		return "", false
	}
	return p.addr, true
}

// Serve accepts connections until Close. It closes the listener.
func (l *Links) Serve(listener net.Listener) {
	context.AfterFunc(l.ctx, func() { _ = listener.Close() })
	l.tasks.Go(func() {
		slots := make(chan struct{}, maxAccepted)
		for {
			c, err := listener.Accept()
			if l.ctx.Err() != nil {
				return
			}
			if err != nil {
				l.pause(redialFirst) // out of descriptors, perhaps
				continue
			}
			select {
			case slots <- struct{}{}:
			default:
				_ = c.Close()
				continue
			}
			l.tasks.Go(func() {
				defer func() { <-slots }()
				l.accepted(c)
			})
		}
	})
}

// maxAccepted bounds the connections that others make.
const maxAccepted = 256

func (l *Links) pause(d time.Duration) {
	select {
	case <-l.ctx.Done():
	case <-time.After(d):
	}
}

// accepted serves one connection to its end.
func (l *Links) accepted(c net.Conn) {
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(l.ctx, func() { _ = c.Close() })()
	if l.config.Users != nil && !l.config.Users.AcceptsConn(c) {
		return
	}
	tune(c)
	if l.config.TLS != nil {
		c = tls.Server(c, l.config.TLS)
	}
	h, err := l.welcome(c)
	if err == nil {
		err = l.serve(c, h)
	}
	if err != nil && !errors.Is(err, io.EOF) && l.ctx.Err() == nil {
		l.config.Log.Debug("connection of a member ended", slog.String("peer", c.RemoteAddr().String()), slog.String("reason", err.Error()))
	}
}

// serve does what a connection was made for.
func (l *Links) serve(c net.Conn, h hello) error {
	switch h.Kind {
	case kindMessages:
		err := l.receive(c, h.From)
		l.config.Handler.Broken(l.ctx, h.From)
		return err
	case kindSnapshot:
		return l.receiveSnapshot(c, h.From)
	default:
		return l.answer(c)
	}
}

// dial connects to a member and greets it.
func (l *Links) dial(ctx context.Context, addr string, h hello) (net.Conn, error) {
	h.Format, h.Level, h.Cluster, h.From = format, l.config.Level, l.config.Cluster[:], l.config.Self
	return Dial(ctx, addr, l.config.TLS, h)
}
