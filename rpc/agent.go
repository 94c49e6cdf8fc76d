// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/recycle"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcworld"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/internal/tensorpipe"
	"github.com/cohort-dist/cohort/store"
)

const maxWorkerID = rpcworld.MaxWorkerID

var validName = regexp.MustCompile(`^[A-Za-z0-9_:-]{1,127}$`)

// Agent is this process as a worker of an RPC world. All methods are safe for concurrent use. It corresponds to the
// agent that torch.distributed.rpc.init_rpc makes.
type Agent struct {
	name   string
	id     rrefcore.Worker
	epoch  uint64
	secret []byte // published under the name, and proved to whoever we speak with
	cfg    *config
	world  *rpcworld.World
	ep     *tensorpipe.Endpoint
	addr   string
	self   *peer // this worker as a destination

	ctx     context.Context //nolint:containedctx // the lifetime of the agent
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup
	limiter *rpcplace.Limiter
	idle    chan *request // taken by goroutines that have no request
	idlers  atomic.Int64
	refs    *refs
	gathers *rpcworld.Gathers

	extension *extension
	calls     activeCalls
	joined    atomic.Bool // Join has returned
	leaving   atomic.Bool // a shutdown has begun
	ending    ending
	counts    counters
	timeout   atomic.Int64 // of calls without a deadline, in nanoseconds

	mu     sync.Mutex
	closed bool
	byName map[string]*peer
	byID   map[rrefcore.Worker]*peer
	guests map[string]*peer
	memory *recycle.Pool // of received tensors, unless the user said otherwise
	links  map[*cohortwire.Link]*conn
	pipes  map[*conn]struct{} // opened by peers
	done   chan struct{}      // closed when every goroutine has ended
}

// counters are the agent's own metrics.
type counters struct {
	clientCalls, serverCalls, serverAsync atomic.Int64
}

// Join makes this process a worker of the RPC world that meets in st, under a unique name of letters, digits, "_", ":"
// and "-". It returns when the world is complete (static) or when all present workers know the new one (dynamic).
//
// It corresponds to torch.distributed.rpc.init_rpc, whose store keys it uses: st is what the rendezvous gave, without
// further prefix.
func Join(ctx context.Context, st store.Store, name string, opts ...Option) (*Agent, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if st == nil {
		return nil, dist.New("rpc: join", dist.InvalidArgument, "no store")
	}
	if !validName.MatchString(name) {
		return nil, dist.Newf("rpc: join", dist.InvalidArgument,
			"worker name %q: want 1 to 127 letters, digits, '_', ':' or '-'", name)
	}
	a := newAgent(st, name, cfg)
	if cfg.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = store.WaitContext(ctx, max(cfg.timeout, st.Timeout()))
		defer cancel()
	}
	switch {
	case cfg.guest:
		err = a.startGuest(ctx)
	case cfg.worldSize > 0:
		err = a.startStatic(ctx)
	default:
		err = a.world.Join(ctx, members{a})
	}
	if err != nil {
		_ = a.Close()
		e := dist.Wrap("rpc: join", dist.Unavailable, err)
		e.Key = name
		return nil, e
	}
	a.joined.Store(true)
	return a, nil
}

func newAgent(st store.Store, name string, cfg *config) *Agent {
	ctx, cancel := context.WithCancelCause(context.Background())
	a := &Agent{
		name: name, id: -1, epoch: newEpoch(), secret: newSecret(), cfg: cfg, ctx: ctx, cancel: cancel,
		byName: map[string]*peer{}, byID: map[rrefcore.Worker]*peer{}, guests: map[string]*peer{},
		links: map[*cohortwire.Link]*conn{}, pipes: map[*conn]struct{}{}, done: make(chan struct{}),
		idle: make(chan *request), ending: ending{done: make(chan struct{})},
	}
	a.limiter = rpcplace.New(cfg.concurrency, cfg.queue, func(t rpcplace.Task) { a.spawn(t.(*request)) }) //nolint:errcheck,forcetypeassert // only requests enter
	a.timeout.Store(int64(cfg.timeout))
	a.gathers = rpcworld.NewGathers()
	a.world = rpcworld.New(st, rpcworld.Config{
		Name: name, Rank: cfg.rank, Size: cfg.worldSize, Round: cfg.round, Logger: cfg.logger,
		Entry: rpcworld.Entry{Epoch: a.epoch, Secret: a.secret}, Cohort: slices.Contains(cfg.transports, TransportCohort),
	})
	if cfg.alloc == nil {
		a.memory = recycle.New()
		cfg.alloc = a.memory.Get
	}
	return a
}

func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// newSecret is what a worker proves with that it is the one that wrote its entry in the store.
func newSecret() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

// listen opens the worker's port once its id is known.
func (a *Agent) listen(id int) error {
	a.id = rrefcore.Worker(id) //nolint:gosec // checked by WithRank
	a.self = &peer{agent: a, name: a.name, worker: a.id}
	a.refs = newRefs(a)
	if err := a.attach(); err != nil {
		return err
	}
	if a.cfg.advertise != "" {
		var err error
		if a.cfg.advertise, err = numeric(a.ctx, a.cfg.advertise); err != nil {
			return err
		}
	}
	opts := a.cfg.endpointOptions()
	if slices.Contains(a.cfg.transports, TransportCohort) {
		opts = append(opts, tensorpipe.WithCohort(cohortwire.Config{
			Identity:  cohortwire.Identity{Name: a.name, ID: int16(a.id), Incarnation: a.epoch},
			Secret:    a.secret,
			Published: a.publishedSecret,
			OnFrame:   a.onFrame,
			Aside:     aside,
			OnClose:   a.onLinkClosed,
			Heartbeat: a.cfg.core.Heartbeat, Limit: linkLimit(a.cfg.core.Lease),
		}))
	}
	listen := a.cfg.listen
	if listen == "" {
		listen = net.JoinHostPort(defaultHost(), "0")
	}
	ep, err := tensorpipe.Listen(a.name, listen, opts...)
	if err != nil {
		return err
	}
	a.ep = ep
	a.addr = a.cfg.advertise
	if a.addr == "" {
		a.addr = dialable(ep.Addr())
	}
	a.own(a.accept)
	a.own(a.refs.run)
	return nil
}

// proofTime bounds the question to the store that a new link waits for.
const proofTime = 10 * time.Second

// publishedSecret is what the other side of a link must know if it calls itself by the name of a worker. A name that has
// published none is a guest's, or that of a worker that does not speak this transport.
func (a *Agent) publishedSecret(id cohortwire.Identity) ([]byte, error) {
	ctx, cancel := context.WithTimeout(a.ctx, proofTime)
	defer cancel()
	moment.At("rpc.agent.proof")
	e, err := a.world.Entry(ctx, id.Name)
	if err == nil && e.Epoch != 0 && e.Epoch != id.Incarnation {
		err = dist.Newf("rpc: connection", dist.Protocol, "it is another start of worker %q than the one in the store", id.Name)
	}
	return e.Secret, err
}

// linkLimit is when a silent link is given up: well before a lease ends on it. The time that is left is for a new link, on
// which leases are renewed; with the same limit live workers could lose references to a link that swallows everything.
func linkLimit(lease time.Duration) time.Duration { return lease * 3 / 4 }

// defaultHost is where PyTorch would listen.
func defaultHost() string {
	if name := os.Getenv("TP_SOCKET_IFNAME"); name != "" {
		if i, err := net.InterfaceByName(name); err == nil {
			addrs, _ := i.Addrs()
			for _, addr := range addrs {
				if n, ok := addr.(*net.IPNet); ok && n.IP.To4() != nil {
					return n.IP.String()
				}
			}
			for _, addr := range addrs {
				if n, ok := addr.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
					return n.IP.String()
				}
			}
		}
	}
	if host, err := os.Hostname(); err == nil {
		if ips, err := net.LookupHost(host); err == nil { //nolint:noctx // the host's own name
			for _, ip := range ips {
				l, err := net.Listen("tcp", net.JoinHostPort(ip, "0")) //nolint:noctx // closed at once
				if err == nil {
					_ = l.Close()
					return ip
				}
			}
		}
	}
	return "127.0.0.1"
}

// own runs fn in a goroutine that Close joins. It reports false when the agent is closed.
func (a *Agent) own(fn func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.work.Go(fn)
	return true
}

// background is own for work that may be skipped when the agent is closed.
func (a *Agent) background(fn func()) { a.own(fn) }

// Name returns the worker's name.
func (a *Agent) Name() string { return a.name }

// ID returns the worker's id, its rank.
func (a *Agent) ID() int { return int(a.id) }

// Self returns name and id. It corresponds to torch.distributed.rpc.get_worker_info().
func (a *Agent) Self() WorkerInfo { return WorkerInfo{Name: a.name, ID: int(a.id)} }

// Addr returns the host:port that others dial.
func (a *Agent) Addr() string { return a.addr }

// Workers returns all workers that are known now, this one included, by id.
func (a *Agent) Workers() []WorkerInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := []WorkerInfo{}
	if a.id >= 0 {
		all = append(all, a.Self())
	}
	for _, p := range a.byName {
		all = append(all, p.info())
	}
	slices.SortFunc(all, func(x, y WorkerInfo) int { return x.ID - y.ID })
	return all
}

// Worker returns the worker with a name. It corresponds to torch.distributed.rpc.get_worker_info(name).
func (a *Agent) Worker(name string) (WorkerInfo, error) {
	if name == a.name {
		return a.Self(), nil
	}
	p, err := a.peer(name)
	if err != nil {
		return WorkerInfo{}, err
	}
	return p.info(), nil
}

// WorkerByID returns the worker with an id.
func (a *Agent) WorkerByID(id int) (WorkerInfo, error) {
	if id == int(a.id) {
		return a.Self(), nil
	}
	if id >= 0 && id <= maxWorkerID {
		if p := a.peerByID(rrefcore.Worker(id)); p != nil {
			return p.info(), nil
		}
	}
	return WorkerInfo{}, dist.Newf("rpc: worker", dist.NotFound, "no worker has id %d", id)
}

func (a *Agent) peer(name string) (*peer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.byName[name]; p != nil {
		return p, nil
	}
	if a.closed {
		return nil, errClosed("call")
	}
	known := append(sortedNames(a.byName), a.name)
	slices.Sort(known)
	e := dist.Newf("rpc: worker", dist.NotFound, "no such worker; known are %s", strings.Join(known, ", "))
	e.Key = name
	return nil, e
}

func (a *Agent) peerByID(id rrefcore.Worker) *peer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[id]
}

// addPeer enters a worker, or what is new about it.
func (a *Agent) addPeer(name string, id rrefcore.Worker, addr string, e rpcworld.Entry) *peer {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.byName[name]
	if p == nil || p.worker != id {
		p = &peer{agent: a, name: name, worker: id}
		a.byName[name] = p
		a.byID[id] = p
	}
	p.learn(addr, e)
	return p
}

// removePeer forgets a worker that left.
func (a *Agent) removePeer(name string) {
	a.mu.Lock()
	p := a.byName[name]
	delete(a.byName, name)
	if p != nil && a.byID[p.worker] == p {
		delete(a.byID, p.worker)
	}
	a.mu.Unlock()
	if p != nil {
		p.mu.Lock()
		p.left = true
		p.mu.Unlock()
	}
}

// sender returns the peer that presented itself under a name on a pipe: a member, or a guest who may call but holds nothing.
// Whoever speaks the cohort transport would not come on a pipe, on which nothing is proved: it is somebody else.
func (a *Agent) sender(name string) *peer {
	a.mu.Lock()
	p := a.byName[name]
	a.mu.Unlock()
	if p != nil && !p.speaksCohort() {
		return p
	}
	return a.guest(name)
}

// linked returns the peer at the other side of a link: a member that has proved it, or a guest.
func (a *Agent) linked(l *cohortwire.Link) *peer {
	id := l.Peer()
	a.mu.Lock()
	p := a.byName[id.Name]
	a.mu.Unlock()
	if p != nil && p.worker == rrefcore.Worker(id.ID) && l.Proven() {
		return p
	}
	return a.guest(id.Name)
}

// maxGuests bounds the guests that are remembered.
const maxGuests = 4096

// guest returns a peer that is no member.
func (a *Agent) guest(name string) *peer {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.guests[name]
	if g == nil {
		if len(a.guests) >= maxGuests {
			clear(a.guests)
		}
		g = &peer{agent: a, name: name, worker: -1}
		a.guests[name] = g
	}
	return g
}

// peerDied reports a worker whose process has certainly ended.
func (a *Agent) peerDied(p *peer) {
	if p.worker >= 0 && a.refs != nil {
		a.refs.died(p)
		if a.extension != nil {
			a.extension.Died(p.seamWorker())
		}
	}
}

func errClosed(op string) error {
	return dist.New("rpc: "+op, dist.Closed, "the agent is closed")
}

// closeGrace is how long Close waits for code of the program that runs in goroutines of the agent: handlers, hooks. One of
// them may be what called Close.
const closeGrace = time.Second

// Close leaves the world at once: calls under way fail, nobody is told, references held by others break. It is
// idempotent. The contexts of all handlers end, and Close returns when the agent's goroutines have ended, or a second later
// if a handler is still running: it may be the one that called Close. [Agent.Done] tells when the last one has ended. It
// corresponds to shutdown(graceful=False).
func (a *Agent) Close() error {
	moment.At("rpc.agent.close")
	if a.beginClose() {
		a.endSessions()
	}
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-a.done:
	case <-grace.C:
	}
	return nil
}

// Done is closed when the agent is closed and all its goroutines have ended, those of its handlers too.
func (a *Agent) Done() <-chan struct{} { return a.done }

// beginClose makes the agent closed: no goroutine starts after it. It reports whether this call did. What it does cannot be
// waited for by a callback that closes the agent, too.
func (a *Agent) beginClose() bool {
	a.mu.Lock()
	first := !a.closed
	a.closed = true
	a.mu.Unlock()
	if first {
		a.leaving.Store(true)
		a.cancel(errClosed("agent"))
	}
	return first
}

// endSessions ends every session and everything that waits, and joins the goroutines in the background.
func (a *Agent) endSessions() {
	a.mu.Lock()
	conns := make([]*conn, 0, len(a.byName)+len(a.pipes))
	for _, p := range a.byName {
		if c := p.current(); c != nil {
			conns = append(conns, c)
		}
	}
	for c := range a.pipes {
		conns = append(conns, c)
	}
	for _, c := range a.links {
		conns = append(conns, c)
	}
	a.mu.Unlock()
	go func() { // whoever waits for done joins it
		if a.ep != nil {
			_ = a.ep.Close()
		}
		for _, c := range conns {
			if c.pipe != nil {
				_ = c.pipe.Close()
			}
		}
		a.work.Wait()
		if a.memory != nil {
			a.memory.Close()
		}
		close(a.done)
	}()
	if a.refs != nil {
		a.refs.close()
	}
	for _, c := range conns {
		c.fail(errClosed("call"))
	}
}
