// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/native/lanes"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/shm"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// attempt is one attempt to form a group: what is known so far, and what is needed to connect.
type attempt struct {
	p *Plan
	*Formed

	id               [16]byte
	addresses        []string
	local            []bool // by rank: it runs on this host
	shared           bool   // another rank is a goroutine of this process
	listener         net.Listener
	livenessListener *os.File // the same listener, for probes
	endQuits         func()   // ends the look for ranks that have left

	otherSizes atomic.Pointer[string]       // what was said about other sizes of the world, see watchSizes
	refused    atomic.Pointer[cohort.Error] // why this rank has ended the attempt of all, see refuse
}

// try makes a group in the generation that is open. A rank that fails here has told the others not to wait for it.
func try(ctx context.Context, p *Plan) (*Formed, error) {
	a := &attempt{p: p, Formed: &Formed{globals: p.Globals, Members: make([]member, p.size())}, endQuits: func() {}}
	defer a.closeListener()
	defer func() { a.endQuits() }()
	err := a.choose(ctx)
	if err == nil {
		a.Base = p.base(a.Layout)
		a.Failure = newFailure(p, a.Place, !a.alone())
		err = a.connectAll(ctx)
	} else if a.Place != nil && a.torch != torchNone && ctx.Err() == nil {
		newFailure(p, a.Place, false).giveUp(err) // others may be connecting already
	}
	if err != nil {
		a.abandon(ctx)
		return nil, err
	}
	a.Failure.forming.Store(false)
	return a.Formed, nil
}

// abandon ends an attempt that failed, so that no other rank waits for this rank in it.
func (a *attempt) abandon(ctx context.Context) {
	if a.Place != nil {
		_ = a.Place.GiveUp(ctx)
		a.p.last = a.Place
	} else {
		a.p.decline(ctx)
	}
	a.closeListener()
}

func (a *attempt) closeListener() {
	if a.listener != nil {
		_ = a.listener.Close()
	}
	if a.livenessListener != nil {
		_ = a.livenessListener.Close()
	}
}

// takeListener hands the listener over.
func (a *attempt) takeListener() net.Listener {
	l := a.listener
	a.listener = nil
	return l
}

// overAfter is how long the ranks may take to connect before they look whether the attempt was given up: normally it takes milliseconds.
// It is shorter than those who give up wait for the others to do so, so that no rank is suspected that has not had the time to look.
const overAfter = 50 * time.Millisecond

// lagging is a context that ends after another, and as that one.
type lagging struct {
	context.Context //nolint:containedctx // it is one
	done            chan struct{}
}

func (c *lagging) Done() <-chan struct{} { return c.done }

func (c *lagging) Err() error {
	select {
	case <-c.done:
		return c.Context.Err()
	default:
		return nil
	}
}

// storeLost reports whether the store itself is gone. Ranks that had all they need from it would wait in vain for those
// that had not, and could not agree afterwards.
func storeLost(err error) bool {
	return errors.Is(err, cohort.PeerLost) || errors.Is(err, cohort.Unavailable)
}

// connecting returns the context of the connecting, which also ends when the attempt is given up by another rank, and,
// with its loss for the cause, when a rank or the store is gone. It ends with ctx only when the others know that: else
// they would take connections that end for a failure. stop ends it and reports whether the attempt was given up.
func (a *attempt) connecting(ctx context.Context) (limited context.Context, stop func() (over bool)) {
	lag := &lagging{ctx, make(chan struct{})}
	limited, cancel := context.WithCancelCause(lag)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		failpoint.At("bootstrap.connecting")
		select {
		case <-ctx.Done():
			_ = a.Place.GiveUp(ctx)
			close(lag.done)
		case <-limited.Done():
		}
	})
	tasks.Go(func() {
		wait := time.NewTimer(overAfter)
		defer wait.Stop()
		failpoint.At("bootstrap.connecting.over")
		select {
		case <-wait.C:
			if err := a.Place.UntilOver(limited); err == nil {
				cancel(assemble.ErrAttemptAbandoned)
			} else if storeLost(err) {
				cancel(cohort.Wrap("group: new", cohort.Unavailable, err))
			}
		case <-limited.Done():
		}
	})
	livenessAddrs := a.livenessAddrs()
	tasks.Go(func() {
		a.probeNextRank(limited, livenessAddrs, func(err error) {
			a.Failure.giveUp(err)
			cancel(err)
		})
	})
	return limited, func() bool {
		cancel(nil)
		failpoint.At("bootstrap.connecting.end")
		tasks.Wait()
		return errors.Is(context.Cause(limited), assemble.ErrAttemptAbandoned)
	}
}

// alone reports whether this rank does not form the group in attempts with others: PyTorch's ranks know nothing of them.
func (a *attempt) alone() bool { return a.Place == nil || a.torch != torchNone }

// connectAll connects the ranks and returns when all Go ranks have, or none does.
func (a *attempt) connectAll(ctx context.Context) error {
	p := a.p
	alone := a.alone()
	connecting, stop := ctx, func() bool { return false }
	switch {
	case !alone:
		connecting, stop = a.connecting(ctx)
	case a.Place != nil:
		connecting, stop = a.amongTorch(ctx)
	}
	err := a.connect(connecting)
	over := stop()
	if err != nil {
		err = endReason(ctx, connecting, err)
	}
	if err == nil && !alone {
		failpoint.At("group.connected")
		err = a.agree(ctx)
	}
	if err != nil && !alone {
		err = a.explain(ctx, err, over)
	}
	if err == nil && p.Origin == FromPython && p.Parent != nil && p.Parent.torch != torchNone && a.torch == torchNone {
		// PyTorch's ranks, though not members, wait in the store for everybody who makes this group.
		err = settle(ctx, p, p.Parent.Layout, -1, nil)
	}
	if alone && a.Place != nil {
		err = a.recordReason(ctx, err)
	}
	if err != nil && a.Mesh != nil {
		_ = a.Close()
	}
	return err
}

// endReason is the error to report of a connecting that failed with err: the reason for which it was ended, or that ctx
// ended, whichever came first, also if the other has followed since.
func endReason(ctx, connecting context.Context, err error) error {
	lost, _ := errors.AsType[*cohort.Error](context.Cause(connecting))
	if above, _ := errors.AsType[*cohort.Error](context.Cause(ctx)); lost != nil && lost != above {
		return lost
	}
	if ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	e := cohort.Ended(ctx, "group: new") // err is what a connection says that was cut off
	e.Rank, e.Detail = rankOf(err), err.Error()
	return e
}

// connect makes the mesh and the engine of the chosen transport.
func (a *attempt) connect(ctx context.Context) error {
	p := a.p
	if p.size() == 1 && a.torch == torchNone {
		a.single()
		return nil
	}
	switch a.Transport {
	case Gloo:
		mesh, err := a.connectGloo(ctx)
		if err != nil {
			return err
		}
		// Where it is not known whether the ranks compute halves as torch does, they are refused; it can only turn out that they do.
		halves := a.Peers.AtLeast(torchcaps.V2_8).TorchHalves()
		a.Mesh, a.Engine = mesh, gloo.NewEngine(mesh, gloo.WithTorchHalves(halves), gloo.WithEmptyGathers(a.Peers.EmptyGathers()))
	case tcp:
		return a.connectTCP(ctx)
	case SharedMemory:
		cfg := shm.Config{
			Rank: p.Rank, Size: p.size(), Name: a.Place.Prefix(), Exchange: p.Store, HeartbeatLimit: p.Heartbeat,
			OnLost: a.Failure.Lost, OnGiveUp: a.Failure.giveUp,
		}
		var held heldLosses
		if p.Transport == Auto { // a rank that cannot share memory does not end the group
			held.to, cfg.OnLost, cfg.OnGiveUp = a.Failure.Lost, held.lost, nil
		}
		engine, err := shm.Join(ctx, cfg)
		if err != nil && p.Transport == Auto && ctx.Err() == nil {
			// All ranks join or none does, so all of them come here.
			p.Logger.Warn("shared memory does not work here, so the ranks use tcp", slog.String("group", p.Name),
				slog.String("err", err.Error()))
			a.Transport = tcp
			return a.connectTCP(ctx)
		}
		if err != nil {
			return err
		}
		held.release()
		a.Mesh, a.Engine = engine.Mesh(), engine
	case Auto:
		return cohort.New("group: new", cohort.Internal, "no transport was chosen")
	}
	return nil
}

// lanes is how many connections to each other rank this one requests. How ranks of one process share its cores is not known.
func (a *attempt) lanes() int {
	switch {
	case a.p.Connections > 0:
		return a.p.Connections
	case a.shared:
		return 1
	}
	here := 0
	for _, local := range a.local {
		if local {
			here++
		}
	}
	return lanes.RequestedLanes(here, a.p.size())
}

func (a *attempt) connectTCP(ctx context.Context) error {
	p := a.p
	mesh, err := lanes.Connect(ctx, nativetcp.Config{
		Rank: p.Rank, Size: p.size(), Group: a.id, Listener: a.takeListener(), Peers: a.addresses, Shared: a.shared,
		Local: a.local, Lanes: a.lanes(),
		Heartbeat: p.Heartbeat, Logger: p.Logger, OnFail: a.failure.report, OnLost: a.Failure.Lost, OnGiveUp: a.Failure.giveUp,
	})
	if err != nil {
		return err
	}
	if wide, ok := mesh.(interface{ Lanes() int }); ok && wide.Lanes() > 1 {
		p.Logger.Info("large messages move over several connections between two ranks", slog.String("group", p.Name),
			slog.Int("connections", wide.Lanes()))
	}
	a.Mesh, a.Engine = mesh, native.NewEngine(mesh, native.Tuning{})
	return nil
}
