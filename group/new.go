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

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// New joins the world's group as one of size ranks, which find each other through s. All ranks must call it; it returns
// when all are connected. Keep the store open until the group is closed; the group does not close it. After ctx has ended, New
// may need up to three more seconds to notify the others and to find out who was missing; 1.2 if the store answers at once.
//
// It corresponds to torch.distributed.init_process_group(backend="gloo"). The other ranks may be Go processes, PyTorch
// processes or both; see [WithTransport] and [WithPeers].
func New(ctx context.Context, s store.Store, rank cohort.Rank, size int, opts ...Option) (*Group, error) {
	const op = "group: new"
	switch {
	case s == nil:
		return nil, cohort.New(op, cohort.InvalidArgument, "no store")
	case size < 1:
		return nil, cohort.Newf(op, cohort.InvalidArgument, "world size %d", size)
	case rank < 0 || int(rank) >= size:
		return nil, cohort.Newf(op, cohort.InvalidArgument, "rank %d of %d", rank, size)
	}
	c := newConfig(opts)
	if err := c.check(op); err != nil {
		return nil, err
	}
	if c.Name == "" {
		c.Name = gloo.GroupName(0)
	}
	f := newFamily(s, size)
	f.answer(c.Logger)
	p := &plan{
		config: c, family: f, form: bootstrap.Plan{Store: s, Rank: int(rank), Globals: f.world, TorchName: gloo.GroupName(0)},
	}
	if c.reconfigure {
		return unconnected(p), nil
	}
	return p.makeFirst(ctx)
}

func (c *config) check(op string) error {
	if err := c.Check(op); err != nil {
		return err
	}
	if c.dumpDir == "" {
		c.dumpDir = os.Getenv(controlsock.EnvDump)
	}
	if c.reconfigure {
		return c.checkReconfigure(op)
	}
	return nil
}

// plan is a group that is to be made.
type plan struct {
	config config
	form   bootstrap.Plan
	family *family
	parent *Group
	// membership is where the group stands in a series of reconfigurations; nil without them.
	membership *membership
}

// complete adds what follows from the rest.
func (p *plan) complete() {
	p.form.Options, p.form.World = p.config.Options, len(p.family.world)
	if p.parent != nil {
		p.form.Parent = p.parent.formed
	}
}

// makeFirst makes the first group of a family.
func (p *plan) makeFirst(ctx context.Context) (*Group, error) {
	g, err := p.make(ctx)
	if err != nil {
		p.family.close()
	}
	return g, err
}

// make connects the ranks of the group and takes it into use.
func (p *plan) make(ctx context.Context) (*Group, error) {
	p.complete()
	formed, err := bootstrap.Make(ctx, &p.form)
	if err != nil {
		return nil, err
	}
	g := p.newGroup(formed)
	formed.OnFail(g.fail)
	g.life.tasks.Go(func() {
		if err := formed.WatchHelper(g.life.working, &p.form, g.proven.Load); err != nil {
			g.fail(err)
		}
	})
	if !g.start(p) {
		_ = g.Close()
		return nil, cohort.New("group: new group", cohort.Closed, "the group was closed while a subgroup was being created")
	}
	p.config.Logger.Info("group made", slog.String("group", g.name), slog.Int("rank", int(g.rank)), slog.Int("world", g.size),
		slog.String("transport", string(g.Transport())), slog.String("reason", formed.Reason))
	return g, nil
}

// newGroup returns a group that is not in use yet.
func (p *plan) newGroup(formed *bootstrap.Formed) *Group {
	c := &p.config
	rank, size := cohort.Rank(p.form.Rank), len(p.form.Globals)
	g := &Group{
		name: c.Name, description: c.description, rank: rank, size: size, globals: slices.Clone(p.form.Globals), config: *c,
		formed: formed, mesh: formed.Mesh, engine: formed.Engine,
		args: collective.Group{Rank: rank, Size: size, Peers: formed.Peers, Detail: c.Detail, Checked: formed.Wrapper != nil},
		lineage: lineage{
			store: p.form.Store, family: p.family, index: p.form.Index, torchName: p.form.TorchName, origin: p.form.Origin,
			membership: p.membership,
		},
		pumpWake: make(chan struct{}, 1),
	}
	if formed.Wrapper != nil {
		g.checks = &checks{wrapper: formed.Wrapper, turn: make(chan struct{}, 1)}
	}
	_, g.resumable = g.engine.(collective.Resumable)
	g.mu.sched, g.mu.timeout = opsched.New[Work](c.queue), c.timeout
	host, _ := os.Hostname()
	g.mu.records = flightrec.New(flightrec.About{
		Group: g.name, Description: g.description, Rank: int(g.rank), Size: g.size, GlobalRanks: g.globals,
		Transport: string(g.Transport()),
		Host:      host, PID: os.Getpid(),
	}, c.records)
	g.watched.Tick = g.tick
	g.life.begin()
	return g
}

// start takes a group into use. It reports false when the groups that it belongs to are closed.
func (g *Group) start(p *plan) bool {
	g.life.tasks.Go(g.pump)
	g.watchSignals()
	return p.family.add(p.parent, g)
}

// NewTensor returns a zeroed tensor with which collectives of the group are fastest: in the shared segment if the group
// has one with room for it, else on the heap. The garbage collector does not look after the segment: release the storage of
// a tensor that is not needed any more, or its room stays taken until the group is closed.
func (g *Group) NewTensor(dt tensor.DType, shape ...int) (*tensor.Tensor, error) {
	if g == nil {
		return nil, errNil
	}
	arena, ok := g.engine.(interface {
		Alloc(n int) (*tensor.Storage, error)
	})
	if !ok {
		return tensor.New(dt, shape...)
	}
	n := dt.Size()
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt/d {
			return nil, cohort.Newf("group: new tensor", cohort.InvalidArgument, "shape %v", shape)
		}
		n *= d
	}
	storage, err := arena.Alloc(n)
	if errors.Is(err, cohort.Exhausted) {
		return tensor.New(dt, shape...)
	}
	if err != nil {
		return nil, err
	}
	if data, err := storage.Bytes(); err == nil {
		clear(data)
	}
	return tensor.FromStorage(storage, dt, shape, nil, 0)
}
