// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Handler uses the sessions: it serves requests and keeps references.
type Handler interface {
	// NewPeer returns what is kept with a peer. See [Peer.State].
	NewPeer() any
	// Request gets every request that arrives, in the goroutine that reads: it must not block.
	Request(in Incoming)
	// Connected gets the session on which requests to its peer will be sent, before anything else is sent on it.
	Connected(c *Conn)
	// Control gets the frames of a Go worker's control stream, in the goroutine that reads.
	Control(c *Conn, payload []byte)
	// Discard releases the references of a frame that will not be decoded.
	Discard(c *Conn, f *cohortwire.Frame)
	// DiscardAnswer does the same for an answer of a PyTorch worker that arrived too late. It is called in the goroutine that reads.
	DiscardAnswer(p *Peer, m *rpcwire.Message)
	// Undelivered gets the references in an answer that may not have arrived.
	Undelivered(p *Peer, wires []rrefcore.Wire)
	// HoldsReferences reports whether references connect us to a worker, so that a lost link is worth reconnecting.
	HoldsReferences(p *Peer) bool
	// Died gets a worker whose process has certainly ended.
	Died(p *Peer)
}

// Incoming is a request as it has arrived.
type Incoming struct {
	Conn     *Conn // nil for a call of this worker to itself
	Peer     *Peer
	ID       uint64
	Kind     rpcwire.Type
	Payload  []byte
	Tensors  []any
	Frame    *cohortwire.Frame // of a link
	Flags    uint8
	Deadline time.Time
	Trace    string // see observe.WithTrace
	Inline   bool   // it may run in the goroutine that reads
	Err      error  // why it cannot be understood; then only the payload may be set
}

// Config is what sessions need to know of their worker.
type Config struct {
	Name    string
	Logger  *slog.Logger
	Types   uint32 // later element types that every PyTorch worker knows
	Handler Handler
	// Published reads from the store what a worker has published.
	Published func(ctx context.Context, name string) (addr string, e rpcworld.Entry, err error)
}

// Links are the sessions of a worker with the others, the known peers, and the goroutines that maintain them.
type Links struct {
	cfg Config

	Context          context.Context //nolint:containedctx // their lifetime
	cancel           context.CancelCauseFunc
	work             sync.WaitGroup
	Done             chan struct{} // closed when every goroutine has ended
	Leaving          atomic.Bool   // this worker is about to leave
	ep               *tensorpipe.Endpoint
	unreachableLimit time.Duration // see unreachableLimit

	listeners listeners

	mu struct {
		sync.Mutex
		closed  bool
		byName  map[string]*Peer
		byID    map[rrefcore.Worker]*Peer
		clients map[string]*Peer
		links   map[*cohortwire.Link]*Conn
		pipes   map[*Conn]struct{} // opened by peers
	}
}

// New returns the sessions of a worker that has none yet.
func New(cfg Config) *Links {
	n := &Links{cfg: cfg, Done: make(chan struct{}), unreachableLimit: unreachableLimit}
	n.Context, n.cancel = context.WithCancelCause(context.Background())
	n.mu.byName, n.mu.byID, n.mu.clients = map[string]*Peer{}, map[rrefcore.Worker]*Peer{}, map[string]*Peer{}
	n.mu.links, n.mu.pipes = map[*cohortwire.Link]*Conn{}, map[*Conn]struct{}{}
	return n
}

// Listen opens the worker's port and takes the sessions that others open. With hello not nil it also speaks the cohort
// transport, with this worker's identity there.
func (n *Links) Listen(ctx context.Context, addr string, hello *cohortwire.Config, opts ...tensorpipe.Option) error {
	if hello != nil {
		cfg := *hello
		cfg.OnFrame, cfg.MayPassOn, cfg.OnClose = n.onFrame, mayPassOn, n.onLinkClosed
		opts = append(opts, tensorpipe.WithCohort(cfg))
	}
	if addr == "" {
		host, err := defaultHost(ctx)
		if err != nil {
			return err
		}
		addr = net.JoinHostPort(host, "0")
	}
	ep, err := tensorpipe.Listen(n.cfg.Name, addr, opts...)
	if err != nil {
		return err
	}
	n.ep = ep
	n.Go(n.accept)
	return nil
}

// Addr is where this worker listens.
func (n *Links) Addr() net.Addr { return n.ep.Addr() }

// BeginClose makes the links closed: no goroutine starts after it. It reports whether this call did. What it does cannot be
// waited for by a callback that closes the agent, too.
func (n *Links) BeginClose() bool {
	failpoint.At("rpc.link.close")
	n.mu.Lock()
	first := !n.mu.closed
	n.mu.closed = true
	n.mu.Unlock()
	if first {
		n.Leaving.Store(true)
		n.cancel(ErrClosed("agent"))
	}
	return first
}

// EndSessions ends every session, calls between, and ends every call on the sessions. It joins the goroutines in the
// background, calls last and closes done.
func (n *Links) EndSessions(between, last func()) {
	failpoint.At("rpc.link.end")
	n.mu.Lock()
	conns := make([]*Conn, 0, len(n.mu.byName)+len(n.mu.pipes)+len(n.mu.links))
	for _, p := range n.mu.byName {
		if c := p.Current(); c != nil {
			conns = append(conns, c)
		}
	}
	for c := range n.mu.pipes {
		conns = append(conns, c)
	}
	for _, c := range n.mu.links {
		conns = append(conns, c)
	}
	n.mu.Unlock()
	go func() { // a caller that waits for done joins it
		if n.ep != nil {
			_ = n.ep.Close()
		}
		for _, c := range conns {
			if c.Pipe != nil {
				_ = c.Pipe.Close()
			}
		}
		failpoint.At("rpc.link.join")
		n.work.Wait()
		last()
		close(n.Done)
	}()
	between()
	for _, c := range conns {
		c.fail(ErrClosed("call"))
	}
}

// NewPeer returns a worker, or a client if its id is -1.
func (n *Links) NewPeer(name string, id rrefcore.Worker) *Peer {
	return &Peer{net: n, Name: name, ID: id, State: n.cfg.Handler.NewPeer()}
}

// Members are all known workers but this one.
func (n *Links) Members() []*Peer {
	failpoint.At("rpc.link.members")
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.mu.byName))
}

// Go runs fn in a goroutine that Close joins. It reports false when the agent is closed.
func (n *Links) Go(fn func()) bool {
	failpoint.At("rpc.link.own")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return false
	}
	n.work.Go(fn)
	return true
}

// Background is own for work that may be skipped when the agent is closed.
func (n *Links) Background(fn func()) { n.Go(fn) }

// Peer returns the worker with a name.
func (n *Links) Peer(name string) (*Peer, error) {
	failpoint.At("rpc.link.peer")
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.mu.byName[name]; p != nil {
		return p, nil
	}
	if n.mu.closed {
		return nil, ErrClosed("call")
	}
	known := append(slices.Collect(maps.Keys(n.mu.byName)), n.cfg.Name)
	slices.Sort(known)
	e := cohort.Newf("rpc: worker", cohort.NotFound, "no such worker; known are %s", strings.Join(known, ", "))
	e.Key = name
	return nil, e
}

// PeerByID returns the worker with an id, or nil.
func (n *Links) PeerByID(id rrefcore.Worker) *Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.byID[id]
}

// AddPeer enters a worker, or what is new about it.
func (n *Links) AddPeer(name string, id rrefcore.Worker, addr string, e rpcworld.Entry) *Peer {
	failpoint.At("rpc.link.add")
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.mu.byName[name]
	if p == nil || p.ID != id {
		p = n.NewPeer(name, id)
		n.mu.byName[name] = p
		n.mu.byID[id] = p
	}
	p.learn(addr, e)
	return p
}

// RemovePeer forgets a worker that left.
func (n *Links) RemovePeer(name string) {
	failpoint.At("rpc.link.remove")
	n.mu.Lock()
	p := n.mu.byName[name]
	delete(n.mu.byName, name)
	if p != nil && n.mu.byID[p.ID] == p {
		delete(n.mu.byID, p.ID)
	}
	n.mu.Unlock()
	if p != nil {
		p.markLeft()
	}
}

// sender returns the peer that gave a name on a pipe: a member, or a client, which may call but holds nothing.
// A worker that speaks the cohort transport would not open a pipe, on which nothing is proved: it is another process.
func (n *Links) sender(name string) *Peer {
	failpoint.At("rpc.link.sender")
	n.mu.Lock()
	p := n.mu.byName[name]
	n.mu.Unlock()
	if p != nil && !p.SpeaksCohort() {
		return p
	}
	return n.client(name)
}

// linked returns the peer at the other side of a link: a member that has proved it, or a client.
func (n *Links) linked(l *cohortwire.Link) *Peer {
	id := l.Peer()
	n.mu.Lock()
	p := n.mu.byName[id.Name]
	n.mu.Unlock()
	if p != nil && p.ID == rrefcore.Worker(id.ID) && l.Proven() {
		if goPeer, _ := p.Epoch(); goPeer { // else it replaces a PyTorch worker, and will announce that
			return p
		}
	}
	return n.client(id.Name)
}

// maxClients bounds the clients that are remembered.
const maxClients = 4096

// client returns a peer that is not a member.
func (n *Links) client(name string) *Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.mu.clients[name]
	if g == nil {
		if len(n.mu.clients) >= maxClients {
			clear(n.mu.clients)
		}
		g = n.NewPeer(name, -1)
		n.mu.clients[name] = g
	}
	return g
}

// ErrClosed is the error of an operation on a closed agent.
func ErrClosed(op string) error {
	return cohort.New("rpc: "+op, cohort.Closed, "the agent is closed")
}

// address returns where a worker listens.
func (n *Links) address(ctx context.Context, p *Peer) (string, error) {
	failpoint.At("rpc.link.address")
	p.mu.Lock()
	addr := p.mu.addr
	p.mu.Unlock()
	if addr != "" {
		return addr, nil
	}
	addr, entry, err := n.cfg.Published(ctx, p.Name)
	if err != nil {
		return "", err
	}
	p.learn(addr, entry)
	return addr, nil
}
