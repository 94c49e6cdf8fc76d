// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/collargs"
	"github.com/cohort-dist/cohort/internal/control"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/muster"
	"github.com/cohort-dist/cohort/internal/native"
	"github.com/cohort-dist/cohort/internal/native/tcp"
	"github.com/cohort-dist/cohort/internal/recorder"
	"github.com/cohort-dist/cohort/internal/sched"
	"github.com/cohort-dist/cohort/internal/shm"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// New joins the world's group as one of size ranks, which find each other through s. All ranks must call it; it returns
// when all are connected. Keep the store open until the group is closed; the group does not close it.
//
// It corresponds to torch.distributed.init_process_group(backend="gloo"). The other ranks may be Go processes, PyTorch
// processes or both; see [WithTransport] and [WithPeers].
func New(ctx context.Context, s store.Store, rank, size int, opts ...Option) (*Group, error) {
	const op = "group: new"
	switch {
	case s == nil:
		return nil, dist.New(op, dist.InvalidArgument, "no store")
	case size < 1:
		return nil, dist.Newf(op, dist.InvalidArgument, "world size %d", size)
	case rank < 0 || rank >= size:
		return nil, dist.Newf(op, dist.InvalidArgument, "rank %d of %d", rank, size)
	}
	c := newConfig(opts)
	if err := c.check(op); err != nil {
		return nil, err
	}
	globals := make([]int, size)
	for i := range globals {
		globals[i] = i
	}
	if c.name == "" {
		c.name = gloo.GroupName(0)
	}
	family := &family{store: s, world: globals, clock: newClock()}
	family.answer(c.logger)
	p := &plan{config: c, store: s, rank: rank, globals: globals, family: family, torchName: gloo.GroupName(0)}
	if c.reconfigure {
		return unconnected(p)
	}
	g, err := makeGroup(ctx, p)
	if err != nil {
		family.close()
		return nil, err
	}
	return g, nil
}

func (c *config) check(op string) error {
	switch c.transport {
	case Auto, TCP, SharedMemory, Gloo:
	default:
		return dist.Newf(op, dist.InvalidArgument, "transport %q: want auto, tcp, shm or gloo", c.transport)
	}
	if _, _, ok := levelOf(c.peers); !ok && c.peers != AnyPeers && c.peers != OnlyGo {
		return dist.Newf(op, dist.InvalidArgument, "peers %q: want go or a version of PyTorch from torch-1.13 on", c.peers)
	}
	if len(c.devices) == 0 {
		c.devices = gloo.DevicesFromEnv(os.Getenv)
	}
	if c.dumpDir == "" {
		c.dumpDir = os.Getenv(control.EnvDump)
	}
	switch level := os.Getenv(collargs.DebugVariable); strings.ToUpper(level) {
	case "", "OFF", "INFO":
	case "DETAIL":
		c.detail = true
	default:
		// PyTorch refuses it too. A typing mistake would leave this rank out of the checks that the others wait for.
		return dist.Newf(op, dist.InvalidArgument, "%s=%q: want OFF, INFO or DETAIL", collargs.DebugVariable, level)
	}
	if c.reconfigure {
		return c.checkReconfigure(op)
	}
	return nil
}

// plan is a group that is to be made.
type plan struct {
	config    config
	store     store.Store
	rank      int   // in the group
	globals   []int // world ranks of the members
	family    *family
	parent    *Group
	index     int    // number of the group in its world
	torchName string // PyTorch's name of the group
	origin    origin
	missing   []int // ranks that had not come when an attempt ended
	// membership is where the group stands in a series of reconfigurations; nil without them.
	membership *membership
}

// makeGroup connects the ranks of a group. When an attempt is given up by a rank, which may be another process by now, all
// others try again with it.
func makeGroup(ctx context.Context, p *plan) (*Group, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.connectTimeout)
	defer cancel()
	c := &p.config
	if c.storeAddr == "" {
		c.storeAddr = addrOf(p.store)
	}
	for {
		g, err := attempt(ctx, p)
		switch {
		case err == nil:
			return g, nil
		case ctx.Err() != nil && len(p.missing) > 0: // wherever in the last attempt it ended
			return nil, p.tooLate(ctx)
		case !errors.Is(err, muster.ErrOver):
			return nil, err
		}
		if p.origin.once() {
			return nil, dist.Wrap("group: new", dist.Unavailable, errGaveUp)
		}
		c.logger.Info("a rank gave up this attempt to make the group; trying again", slog.String("group", c.name))
		if ctx.Err() != nil {
			return nil, dist.FromContext("group: new", ctx)
		}
	}
}

// addrOf returns the address of a store's server, "" where it has none.
func addrOf(s store.Store) string {
	if a, ok := store.UnderlyingNonPrefix(s).(interface{ Addr() string }); ok {
		return a.Addr()
	}
	return ""
}

// attempt makes a group in the generation that is open.
func attempt(ctx context.Context, p *plan) (_ *Group, err error) {
	c := &p.config
	choice, err := choose(ctx, p)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			choice.abandon(ctx)
		}
		choice.closeListener()
	}()
	g := p.newGroup(choice)
	if err := g.connectAll(ctx, p, choice); err != nil {
		g.end(err)
		return nil, err
	}
	g.start(p)
	if g.torch == torch26 && !c.detail && p.origin == fromPython {
		g.tasks.Add(1)
		go g.watchHelper(p, choice.layout)
	}
	c.logger.Info("group made", slog.String("group", g.name), slog.Int("rank", g.rank), slog.Int("world", g.size),
		slog.String("transport", string(g.transport)), slog.String("reason", choice.reason))
	return g, nil
}

// newGroup returns a group that is not connected yet.
func (p *plan) newGroup(choice *choice) *Group {
	c := &p.config
	g := &Group{
		name: c.name, description: c.description, rank: p.rank, size: len(p.globals), globals: slices.Clone(p.globals), config: *c,
		transport: choice.transport, torch: choice.torch, peers: choice.peers, members: choice.members, store: p.store, family: p.family,
		index: p.index, base: p.base(choice.layout), torchName: p.torchName, origin: p.origin, membership: p.membership,
		args:     collargs.Group{Rank: p.rank, Size: len(p.globals), Peers: choice.peers, Detail: c.detail},
		pumpWake: make(chan struct{}, 1), over: make(chan struct{}), place: choice.place,
		verdict: verdict{store: p.store, place: choice.place, rank: p.rank},
	}
	g.mu.sched, g.mu.timeout = sched.New[Work](c.queue), c.timeout
	g.records = g.newRecorder()
	g.life, g.end = context.WithCancelCause(context.Background())
	g.working, g.halt = context.WithCancelCause(g.life)
	return g
}

// start takes a group into use that has its mesh and engine.
func (g *Group) start(p *plan) {
	_, g.resumable = g.engine.(coll.Resumable)
	g.tasks.Add(1)
	go g.pump()
	g.watchSignals()
	p.family.add(p.parent, g)
}

// overAfter is how long the ranks may take to connect before they look whether the attempt was given up: normally it takes
// milliseconds, and a rank that died in between is found at once by most others.
const overAfter = time.Second

// untilOver returns a context that also ends when the attempt is given up; stop ends it and reports whether it was.
func untilOver(ctx context.Context, place *muster.Place) (limited context.Context, stop func() (over bool)) {
	limited, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait := time.NewTimer(overAfter)
		defer wait.Stop()
		select {
		case <-wait.C:
			if place.UntilOver(limited) == nil {
				cancel(muster.ErrOver)
			}
		case <-limited.Done():
		}
	}()
	return limited, func() bool {
		cancel(nil)
		<-ended
		return errors.Is(context.Cause(limited), muster.ErrOver)
	}
}

// connectAll connects the ranks and returns when all Go ranks have, or none does.
func (g *Group) connectAll(ctx context.Context, p *plan, choice *choice) error {
	alone := choice.place == nil || choice.torch != torchNone // PyTorch's ranks know nothing of attempts
	connecting, stop := ctx, func() bool { return false }
	if !alone {
		connecting, stop = untilOver(ctx, choice.place)
	}
	err := g.connect(connecting, p, choice)
	if stop() {
		err = errors.Join(muster.ErrOver, err)
	}
	if err == nil && !alone {
		moment.At("group.connected")
		if err = choice.place.Connected(ctx); err != nil && !errors.Is(err, muster.ErrOver) {
			err = dist.Wrap("group: new", dist.Unavailable, err)
		}
	}
	if err == nil && p.origin == fromPython && p.parent != nil && p.parent.torch != torchNone && g.torch == torchNone {
		// PyTorch's ranks, though not members, wait in the store for everybody who makes this group.
		err = settle(ctx, p, p.family.layout, -1, nil)
	}
	if err != nil && g.mesh != nil {
		_ = g.mesh.Close()
		if c, ok := g.engine.(interface{ Close() error }); ok {
			_ = c.Close()
		}
	}
	return err
}

func (g *Group) newRecorder() *recorder.Ring {
	host, _ := os.Hostname()
	return recorder.New(recorder.About{
		Group: g.config.name, Description: g.config.description, Rank: g.rank, Size: g.size, GlobalRanks: g.globals, Transport: string(g.transport),
		Host: host, PID: os.Getpid(),
	}, g.config.records)
}

// connect makes the mesh and the engine of the chosen transport.
func (g *Group) connect(ctx context.Context, p *plan, choice *choice) error {
	if g.size == 1 && choice.torch == torchNone {
		g.install(lonely{}, native.NewEngine(lonely{}, native.Tuning{}))
		return nil
	}
	switch choice.transport {
	case Gloo:
		mesh, err := choice.connectGloo(ctx, g, p)
		if err != nil {
			return err
		}
		g.install(mesh, gloo.NewEngine(mesh, gloo.WithTorchHalves(g.peers.TorchHalves())))
	case TCP:
		return g.connectTCP(ctx, choice)
	case SharedMemory:
		engine, err := shm.Join(ctx, shm.Config{
			Rank: g.rank, Size: g.size, Name: choice.place.Prefix(), Exchange: p.store, HeartbeatLimit: g.config.heartbeat,
			OnLost: g.peerLost,
		})
		if err != nil && g.config.transport == Auto && ctx.Err() == nil {
			// All ranks join or none does, so all of them come here.
			g.config.logger.Warn("shared memory does not work here, so the ranks use tcp", slog.String("group", g.name), slog.String("err", err.Error()))
			g.transport = TCP
			g.records = g.newRecorder()
			return g.connectTCP(ctx, choice)
		}
		if err != nil {
			return err
		}
		g.install(engine.Mesh(), engine)
	case Auto:
		return dist.New("group: new", dist.Internal, "no transport was chosen")
	}
	return nil
}

func (g *Group) connectTCP(ctx context.Context, choice *choice) error {
	mesh, err := tcp.Connect(ctx, tcp.Config{
		Rank: g.rank, Size: g.size, Group: choice.id, Listener: choice.takeListener(), Peers: choice.addresses, Shared: choice.shared, Local: choice.local,
		Heartbeat: g.config.heartbeat, Logger: g.config.logger, OnFail: g.meshFailed, OnLost: g.peerLost,
	})
	if err != nil {
		return err
	}
	g.install(mesh, native.NewEngine(mesh, native.Tuning{}))
	return nil
}

// install takes a mesh into use. It may have failed already, and said so.
func (g *Group) install(mesh link.Mesh, engine coll.Engine) {
	g.mu.Lock()
	g.mesh, g.engine = mesh, engine
	failure := g.mu.failure
	g.mu.Unlock()
	if failure != nil {
		mesh.Fail(failure)
	}
}

// meshFailed is called by a mesh that has failed. Operations that do not go through it must end too.
func (g *Group) meshFailed(err error) { g.fail(err) }

// NewTensor returns a zeroed tensor with which collectives of the group are fastest: in the shared segment if the group
// has one, else on the heap. Release of its storage returns the memory.
func (g *Group) NewTensor(dt tensor.DType, shape ...int) (*tensor.Tensor, error) {
	arena, ok := g.engine.(interface {
		Alloc(n int) (*tensor.Storage, error)
	})
	if !ok {
		return tensor.New(dt, shape...)
	}
	n := dt.Size()
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt/d {
			return nil, dist.Newf("group: new tensor", dist.InvalidArgument, "shape %v", shape)
		}
		n *= d
	}
	storage, err := arena.Alloc(n)
	if err != nil {
		return nil, err
	}
	if data, err := storage.Bytes(); err == nil {
		clear(data)
	}
	return tensor.FromStorage(storage, dt, shape, nil, 0)
}

// lonely is the mesh of a group with one rank: it has nobody to talk to.
type lonely struct{}

func (lonely) Rank() int                                 { return 0 }
func (lonely) Size() int                                 { return 1 }
func (lonely) Send(op *link.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (lonely) Recv(op *link.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (lonely) Wait(_ context.Context, op *link.Op) error { return op.State.Err }
func (lonely) Cancel(*link.Op) bool                      { return false }
func (lonely) Fail(error)                                {}
func (lonely) Close() error                              { return nil }

func errAlone() error {
	return dist.New("group", dist.InvalidArgument, "the group has no other rank")
}
