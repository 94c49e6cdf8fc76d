// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// Connect joins a group: it publishes this rank's addresses and connects to all other ranks. It corresponds to the
// constructor of PyTorch's ProcessGroupGloo. What PyTorch does around it in the store (barrier, sequence number) is the
// caller's; keys.go has the names.
//
// With Config.Lazy, Connect returns as soon as the addresses are published.
func Connect(ctx context.Context, cfg Config) (*Mesh, error) {
	if err := cfg.prepare(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	m := &Mesh{rank: cfg.Rank, size: cfg.Size, generation: cfg.Generation, judge: cfg.Judge, closed: make(chan struct{})}
	m.watch = newWatch(m, cfg.OnLost)
	devices := cfg.Devices
	if len(devices) == 0 {
		devices = []string{""}
	}
	started := time.Now()
	for i, name := range devices {
		addr, err := ChooseAddress(ctx, name, cfg.StoreAddr)
		if err != nil {
			_ = m.Close()
			return nil, err
		}
		cfg.Logger.Info("gloo address chosen", slog.Int("device", i), slog.String("ip", addr.IP.String()),
			slog.String("reason", addr.Reason))
		cfg.Hook.Emit(observe.Event{
			Kind: "gloo.address", Rank: cohort.Rank(cfg.Rank), Group: cfg.Group, Peer: addr.IP.String(), Detail: addr.Reason,
		})
		host := hostName()
		if !cfg.plain {
			host += gloowire.GoMark
		}
		d := newDevice(&cfg, i, host)
		d.watch = m.watch
		m.devices = append(m.devices, d)
		if cfg.Size == 1 {
			continue
		}
		if err := d.join(ctx, addr.IP); err != nil {
			m.Fail(err)
			_ = m.Close()
			cfg.Hook.Emit(observe.Event{
				Kind: "gloo.connect", Phase: observe.End, Rank: cohort.Rank(cfg.Rank), Group: cfg.Group,
				Dur: time.Since(started), Err: err,
			})
			return nil, err
		}
	}
	m.generation = cfg.Generation
	cfg.Hook.Emit(observe.Event{
		Kind: "gloo.connect", Phase: observe.End, Rank: cohort.Rank(cfg.Rank), Group: cfg.Group,
		Dur: time.Since(started),
	})
	return m, nil
}

// join publishes the device's record and connects its pairs.
func (d *device) join(ctx context.Context, ip netip.Addr) error {
	if d.cfg.Generation == auto {
		g, err := d.detect(ctx)
		if err != nil {
			return err
		}
		d.cfg.Generation = g
		d.cfg.Logger.Info("gloo generation detected", slog.String("generation", g.String()))
	}
	own, err := d.listen(ctx, ip)
	if err != nil {
		return err
	}
	defer own.closeAll()
	if d.cfg.Generation <= B {
		if err := d.announceHost(ctx); err != nil {
			return err
		}
	}
	failpoint.At("gloo.publish")
	if err := d.cfg.Store.Set(ctx, recordKey(d.cfg.Prefix, d.index, d.cfg.Rank), own.record.Append(nil)); err != nil {
		return cohort.Wrap("gloo: publish address", cohort.Unavailable, err)
	}
	if d.cfg.Lazy {
		return nil
	}
	return d.connectAll(ctx, own)
}

// endpoints are the listeners of a device before its pairs are connected, and the record that names them.
type endpoints struct {
	record  gloowire.Record
	perPair []net.Listener // generation A, by rank
}

func (e *endpoints) closeAll() {
	for _, ln := range e.perPair {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// take returns the listener of one pair, which the caller then closes.
func (e *endpoints) take(rank int) net.Listener {
	ln := e.perPair[rank]
	e.perPair[rank] = nil
	return ln
}

func addrOf(ln net.Listener) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(ln.Addr().String())
	if err != nil {
		return a, cohort.Wrap("gloo: listen", cohort.Internal, err)
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
}

func (d *device) listen(ctx context.Context, ip netip.Addr) (*endpoints, error) {
	e := &endpoints{record: gloowire.Record{Generation: d.cfg.Generation}, perPair: make([]net.Listener, d.cfg.Size)}
	if d.cfg.Generation == A {
		for r, p := range d.pairs {
			if p == nil {
				continue
			}
			ln, err := listenOn(ctx, ip)
			if err != nil {
				e.closeAll()
				return nil, err
			}
			e.perPair[r] = d.users.Listener(ln) // nothing that a dialler writes tells who it is
			addr, err := addrOf(ln)
			if err != nil {
				e.closeAll()
				return nil, err
			}
			e.record.Addrs = append(e.record.Addrs, gloowire.Address{Addr: addr, Sequence: gloowire.NoSequence})
		}
		return e, nil
	}
	ln, err := listenOn(ctx, ip)
	if err != nil {
		return nil, err
	}
	addr, err := addrOf(ln)
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	d.ids = d.newIdentifiers()
	if d.cfg.Generation == B {
		for r, p := range d.pairs {
			if p != nil {
				e.record.Addrs = append(e.record.Addrs, gloowire.Address{Addr: addr, Sequence: d.ids[r]})
			}
		}
	} else {
		e.record.Host = d.host
		e.record.Addrs = []gloowire.Address{{Addr: addr, Sequence: gloowire.NoSequence}}
		if !d.cfg.Lazy { // that is how peers know that this rank may connect at first use only
			e.record.IDs = d.ids
		}
	}
	for _, p := range d.pairs {
		if p != nil && d.cfg.Lazy {
			p.setLazy(e.record) // before the first peer can dial
		}
	}
	d.startListener(ln)
	return e, nil
}

// announceHost does the part of generations A and B that others wait for: each rank sets its host name and reads those of
// the ranks below.
func (d *device) announceHost(ctx context.Context) error {
	if err := d.cfg.Store.Set(ctx, hostKey(d.cfg.Prefix, d.index, d.cfg.Rank), []byte(d.host)); err != nil {
		return cohort.Wrap("gloo: publish host name", cohort.Unavailable, err)
	}
	return nil
}

// fetch reads and checks the record of a peer.
func (d *device) fetch(ctx context.Context, p *pair) (gloowire.Record, error) {
	key := recordKey(d.cfg.Prefix, d.index, p.peer)
	failpoint.At("gloo.fetch")
	raw, err := d.cfg.Store.Get(ctx, key)
	if err != nil {
		e := cohort.Wrap("gloo: wait for address", cohort.Unavailable, err)
		e.Rank, e.Key = cohort.Rank(p.peer), key
		return gloowire.Record{}, e
	}
	record, err := gloowire.ParseRecord(raw, d.cfg.Size)
	want := min(d.cfg.Generation, C) // a record of D has the form of one of C
	if err == nil && record.Generation != want {
		err = cohort.Newf("gloo: read record", cohort.Mismatch,
			"the peer has %s, but the group is one of %s, by what another rank published or by option: "+
				"gloo cannot connect these versions, in a group or in a static RPC world", record.Generation.Versions(),
			d.cfg.Generation.Versions())
	}
	if err != nil {
		e := cohort.Wrap("gloo: read record", cohort.Protocol, err)
		e.Rank, e.Key = cohort.Rank(p.peer), key
		return gloowire.Record{}, e
	}
	if record.Generation <= B {
		// The host name is only for messages; it is published before the record.
		if name, err := d.cfg.Store.Get(ctx, hostKey(d.cfg.Prefix, d.index, p.peer)); err == nil && len(name) <= gloowire.MaxHost {
			p.setHost(string(name))
		}
	} else {
		p.setHost(record.Host)
	}
	return record, nil
}

// connectAll connects every pair, all at once as records appear.
func (d *device) connectAll(ctx context.Context, own *endpoints) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer func() {
		failpoint.At("gloo.connect.end")
		wg.Wait()
	}()
	defer cancel(nil)
	start := func(p *pair, connect func() error) {
		wg.Go(func() {
			if err := connect(); err != nil {
				e := cohort.Wrap("gloo: connect", cohort.PeerLost, err)
				e.Rank, e.Peer = cohort.Rank(p.peer), p.address()
				cancel(pairError{e})
			}
		})
	}
	var awaited []*pair
	for _, p := range d.pairs {
		if p == nil {
			continue
		}
		peer, err := d.fetch(ctx, p)
		if err != nil {
			return d.connectError(ctx, err)
		}
		waits, err := d.connect(ctx, own, p, peer, start)
		if err != nil {
			return err
		}
		if waits {
			awaited = append(awaited, p)
		}
	}
	for i, p := range awaited {
		failpoint.At("gloo.connect.wait")
		select {
		case <-p.ready:
		case <-ctx.Done():
			return d.connectError(ctx, d.missing(ctx, awaited[i:]))
		}
	}
	if len(awaited) == d.cfg.Size-1 && d.listener != nil {
		d.listener.stop() // all ranks are connected
	}
	return nil
}

// connect decides who dials whom and starts this rank's part. waits: the pair must be connected before the group is ready.
func (d *device) connect(ctx context.Context, own *endpoints, p *pair, peer gloowire.Record,
	start func(*pair, func() error),
) (waits bool, err error) {
	theirs, id, hello, err := peer.For(d.cfg.Rank, p.peer)
	if err != nil {
		return false, err
	}
	ours, _, _, err := own.record.For(p.peer, d.cfg.Rank)
	if err != nil {
		return false, err
	}
	dials, err := gloowire.Dials(ours.Addr, theirs.Addr)
	if err != nil {
		e := cohort.Wrap("gloo: connect", cohort.Mismatch, err)
		e.Rank = cohort.Rank(p.peer)
		return false, e
	}
	switch {
	case dials:
		p.setRole(roleDial, false)
		if ln := own.perPair[p.peer]; ln != nil {
			_ = own.take(p.peer).Close()
		}
		start(p, func() error { return p.dialAndAttach(ctx, ours.Addr.Addr(), theirs.Addr, id, hello) })
	case d.cfg.Generation == A:
		p.setRole(roleListen, false)
		ln := own.take(p.peer)
		start(p, func() error { return p.acceptFrom(ctx, ln, theirs.Addr.Addr()) })
	default:
		p.setRole(roleListen, d.writesRank(peer))
		// Generation D without identifiers may connect at first use only.
		return peer.Generation != C || peer.IDs != nil, nil
	}
	return true, nil
}

func (p *pair) dialAndAttach(ctx context.Context, from netip.Addr, to netip.AddrPort, id int64, hello bool) error {
	conn, err := dial(ctx, from, to, id, hello)
	if err != nil {
		return err
	}
	p.attach(conn)
	return nil
}

// pairError is why a pair could not be connected. It ends the connecting of the others; a cause that the caller's context ended with
// is something else.
type pairError struct{ error }

// connectError returns the first failure of a pair instead of what followed from it.
func (d *device) connectError(ctx context.Context, err error) error {
	if first, ok := errors.AsType[pairError](context.Cause(ctx)); ok {
		return first.error
	}
	return err
}

// missing reports which ranks did not connect.
func (d *device) missing(ctx context.Context, pairs []*pair) error {
	var names []string
	first := cohort.NoRank
	for _, p := range pairs {
		select {
		case <-p.ready:
			continue
		default:
		}
		if first == cohort.NoRank {
			first = cohort.Rank(p.peer)
		}
		names = append(names, fmt.Sprintf("%d (%s)", p.peer, p.address()))
	}
	e := cohort.New("gloo: connect", cohort.Internal, "")
	if ctx.Err() != nil {
		e = cohort.Ended(ctx, "gloo: connect")
	}
	e.Rank = first
	e.Detail = "no connection from rank " + strings.Join(names, ", ") + d.listener.acceptProblem()
	return e
}
