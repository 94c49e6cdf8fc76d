// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcserver"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/tensor/tensorpool"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/waitctx"
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
	secret []byte // published under the name, and proved to every peer
	cfg    *config
	world  *rpcworld.World
	addr   string
	net    *rpcsession.Links // to the other workers
	self   *rpcsession.Peer  // this worker as a destination

	refs        *rpcref.Refs
	server      *rpcserver.Server
	extension   *rpcserver.Extension
	caller      *rpcclient.Caller
	joined      atomic.Bool // Join has returned
	ending      ending
	timeout     atomic.Int64     // of calls without a deadline, in nanoseconds
	memory      *tensorpool.Pool // of received tensors, unless the user set WithAlloc
	debugServer *debugServer
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
		return nil, cohort.New("rpc: join", cohort.InvalidArgument, "no store")
	}
	if !validName.MatchString(name) {
		return nil, cohort.Newf("rpc: join", cohort.InvalidArgument,
			"worker name %q: want 1 to 127 letters, digits, '_', ':' or '-'", name)
	}
	a := newAgent(st, name, cfg)
	if cfg.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = waitctx.WithTimeout(ctx, max(cfg.timeout, st.Timeout()))
		defer cancel()
	}
	switch {
	case cfg.client:
		err = a.startClient(ctx)
	case cfg.worldSize > 0:
		err = a.startStatic(ctx)
	default:
		err = a.world.Join(ctx, members{a})
	}
	if err != nil {
		_ = a.Close()
		e := cohort.Wrap("rpc: join", cohort.Unavailable, err)
		e.Key = name
		return nil, e
	}
	a.joined.Store(true)
	return a, nil
}

func newAgent(st store.Store, name string, cfg *config) *Agent {
	a := &Agent{
		name: name, id: -1, epoch: newEpoch(), secret: newSecret(), cfg: cfg,
		ending: ending{done: make(chan struct{})}, debugServer: serveDebug(name, cfg.logger),
	}
	a.timeout.Store(int64(cfg.timeout))
	a.world = rpcworld.New(st, rpcworld.Config{
		Name: name, Rank: int(cfg.rank), Size: cfg.worldSize, Round: cfg.round, Logger: cfg.logger,
		Entry: rpcworld.Entry{Epoch: a.epoch, Secret: a.secret}, Cohort: slices.Contains(cfg.transports, TransportCohort),
	})
	a.net = rpcsession.New(rpcsession.Config{
		Name: name, Logger: cfg.logger, Types: cfg.types, Handler: sessionHandler{a},
		Published: a.world.Published,
	})
	if cfg.alloc == nil {
		a.memory = tensorpool.New()
		cfg.alloc = a.memory.Get
	}
	return a
}

func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// newSecret returns the secret with which a worker proves that it wrote its entry in the store.
func newSecret() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

// listen opens the worker's port once its id is known.
func (a *Agent) listen(ctx context.Context, id int) error {
	a.id = rrefcore.Worker(id) //nolint:gosec // checked by WithRank
	a.self = a.net.NewPeer(a.name, a.id)
	a.refs = rpcref.New(rpcref.Config{
		Name: a.name, ID: a.id, Epoch: rrefcore.Epoch(a.epoch), Core: a.cfg.core, Logger: a.cfg.logger, Net: a.net, Self: a.self,
		Limit:   a.Timeout,
		IsGo:    a.world.AskIsGo,
		Wrap:    func(core *rpcref.Hold) any { return wrapRef[any](a, core) },
		Unwrap:  coreOf,
		Opaque:  func(v any) bool { _, ok := v.(Holder); return ok },
		Failure: refFailure,
	})
	if err := a.attach(); err != nil {
		return err
	}
	a.caller = rpcclient.New(rpcclient.Config{
		Rank: cohort.Rank(a.id), Net: a.net, Refs: a.refs, Self: a.self, Hook: a.cfg.hook, Calls: a.debugServer.Calls, Timeout: a.Timeout,
		Outgoing: a.outgoing(), Exception: exceptionError,
	})
	a.server = rpcserver.New(rpcserver.Config{
		Name: a.name, ID: id, Program: program{a}, Owner: owner{a}, Net: a.net, Self: a.self, Refs: a.refs, Caller: a.caller,
		Extension: a.extension,
		Static:    a.cfg.worldSize > 0, Concurrency: a.cfg.concurrency, Queue: a.cfg.queue, Logger: a.cfg.logger, Hook: a.cfg.hook,
	})
	if a.cfg.advertise != "" {
		var err error
		if a.cfg.advertise, err = rpcsession.Numeric(ctx, a.cfg.advertise); err != nil {
			return err
		}
	}
	var hello *cohortwire.Config
	if slices.Contains(a.cfg.transports, TransportCohort) {
		hello = &cohortwire.Config{
			Identity:  cohortwire.Identity{Name: a.name, ID: int16(a.id), Incarnation: a.epoch},
			Secret:    a.secret,
			Published: a.publishedSecret,
			Heartbeat: a.cfg.core.Heartbeat, Limit: linkLimit(a.cfg.core.Heartbeat, a.cfg.core.Lease),
		}
	}
	if err := a.net.Listen(ctx, a.cfg.listen, hello, a.cfg.endpointOptions()...); err != nil {
		return err
	}
	var err error
	if a.addr = a.cfg.advertise; a.addr == "" {
		a.addr, err = rpcsession.Dialable(ctx, a.net.Addr())
	}
	a.net.Go(a.refs.Run)
	return err
}

// proofTime bounds the read from the store that a new link waits for.
const proofTime = 10 * time.Second

// publishedSecret is what the other side of a link must know to use the name of a worker. A name that has
// published none belongs to a client, or to a worker that does not speak this transport.
func (a *Agent) publishedSecret(id cohortwire.Identity) ([]byte, error) {
	ctx, cancel := context.WithTimeout(a.net.Context, proofTime)
	defer cancel()
	failpoint.At("rpc.agent.proof")
	e, err := a.world.Entry(ctx, id.Name)
	if err == nil && e.Epoch != 0 && e.Epoch != id.Incarnation {
		err = cohort.Newf("rpc: connection", cohort.Protocol, "the peer is another start of worker %q than the one in the store", id.Name)
	}
	return e.Secret, err
}

// linkLimit is when a silent link is given up: well before a lease ends on it. The time that is left is for a new link,
// on which leases are renewed; with the same limit live workers could lose references to a link that swallows
// everything. The silence is noticed up to two heartbeats late. A single late heartbeat does not count as silence.
func linkLimit(heartbeat, lease time.Duration) time.Duration {
	return max(lease/2, min(2*heartbeat, lease*3/4))
}

// WorkerInfo names a worker. Its id is its rank, as in PyTorch; a client's is [cohort.NoRank]. It corresponds to
// torch.distributed.rpc.WorkerInfo.
type WorkerInfo struct {
	Name string
	ID   cohort.Rank
}

func infoOf(p *rpcsession.Peer) WorkerInfo { return WorkerInfo{Name: p.Name, ID: cohort.Rank(p.ID)} }

// Name returns the worker's name.
func (a *Agent) Name() string { return a.name }

// ID returns the worker's id, its rank.
func (a *Agent) ID() cohort.Rank { return cohort.Rank(a.id) }

// Self returns name and id. It corresponds to torch.distributed.rpc.get_worker_info().
func (a *Agent) Self() WorkerInfo { return WorkerInfo{Name: a.name, ID: a.ID()} }

// Addr returns the host:port that others dial.
func (a *Agent) Addr() string { return a.addr }

// Workers returns all workers that are known now, this one included, by id.
func (a *Agent) Workers() []WorkerInfo {
	all := []WorkerInfo{}
	if a.id >= 0 {
		all = append(all, a.Self())
	}
	for _, p := range a.net.Members() {
		all = append(all, infoOf(p))
	}
	slices.SortFunc(all, func(x, y WorkerInfo) int { return cmp.Compare(x.ID, y.ID) })
	return all
}

// Worker returns the worker with a name. It corresponds to torch.distributed.rpc.get_worker_info(name).
func (a *Agent) Worker(name string) (WorkerInfo, error) {
	if name == a.name {
		return a.Self(), nil
	}
	p, err := a.net.Peer(name)
	if err != nil {
		return WorkerInfo{}, err
	}
	return infoOf(p), nil
}

// WorkerByID returns the worker with an id.
func (a *Agent) WorkerByID(id cohort.Rank) (WorkerInfo, error) {
	p, err := a.memberByID(int(id))
	if err != nil {
		return WorkerInfo{}, err
	}
	return infoOf(p), nil
}

// closeGrace is how long Close waits for code of the program that runs in goroutines of the agent: handlers, hooks. One of
// them may be what called Close.
const closeGrace = time.Second

// Close leaves the world at once: calls under way fail, other workers are not notified, references held by others break. It is
// idempotent. The contexts of all handlers end, and Close returns when the agent's goroutines have ended, or a second later
// if a handler is still running: it may be the one that called Close. [Agent.Done] is closed when the last one has ended. It
// corresponds to shutdown(graceful=False).
func (a *Agent) Close() error {
	failpoint.At("rpc.agent.close")
	if a.net.BeginClose() {
		a.endSessions()
	}
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-a.net.Done:
	case <-grace.C:
	}
	return nil
}

// Done returns a channel that is closed when the agent is closed and all its goroutines have ended, those of its handlers too.
func (a *Agent) Done() <-chan struct{} { return a.net.Done }

// endSessions ends every session and everything that waits, and joins the goroutines in the background.
func (a *Agent) endSessions() {
	a.net.EndSessions(func() {
		a.debugServer.Close()
		if a.refs != nil {
			a.refs.Close()
		}
	}, func() {
		if a.memory != nil {
			a.memory.Close()
		}
	})
}

// String names the worker and its address.
func (a *Agent) String() string {
	return fmt.Sprintf("rpc worker %s (id %d, %s)", strconv.Quote(a.name), a.id, a.addr)
}
