// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Connect makes the connections of one rank: as many to each other rank as all ranks wish for, of which cfg.Lanes is
// the wish of this one. It closes the listener. If that is one, the mesh is that of package tcp.
func Connect(ctx context.Context, cfg nativetcp.Config) (transport.Mesh, error) {
	if cfg.Lanes <= 1 {
		return nativetcp.Connect(ctx, cfg)
	}
	b := &bond{cfg: cfg}
	first := cfg
	first.OnFail, first.OnLost = b.failed, b.lost
	m, err := nativetcp.Connect(ctx, first)
	if err != nil {
		return nil, err
	}
	if m.Lanes() == 1 {
		return m, nil
	}
	others, err := b.widen(ctx, m)
	if err != nil {
		_ = m.Close()
		return nil, err
	}
	all := append([]*nativetcp.Mesh{m}, others...)
	b.tie(all)
	return newMesh(all, cfg.Shared), nil
}

// widen makes the other lanes when the first one is there. It ends when that one has lost a rank.
func (b *bond) widen(ctx context.Context, first *nativetcp.Mesh) ([]*nativetcp.Mesh, error) {
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	giveUp := func(err error) { // first says why: the lanes that are not complete end at once then, which other ranks take for a death
		if limited.Err() == nil && b.cfg.OnGiveUp != nil {
			b.cfg.OnGiveUp(err)
		}
		cancel(err)
	}
	b.watch(giveUp)
	others, err := b.connect(limited, first, giveUp)
	b.watch(nil)
	lost, ok := errors.AsType[*cohort.Error](context.Cause(limited))
	switch {
	case err == nil && limited.Err() == nil:
		return others, nil
	case ctx.Err() != nil:
		late := cohort.Ended(ctx, "native: connect")
		if e, named := errors.AsType[*cohort.Error](err); named {
			late.Rank = e.Rank
		}
		err = late
	case ok:
		err = lost
	}
	if b.cfg.OnGiveUp != nil && ctx.Err() == nil {
		b.cfg.OnGiveUp(err) // before other ranks see the end of a lane
	}
	closeAll(others)
	return nil, err
}

// connect tells all ranks over the first lane where the other lanes of this one are, and connects them.
func (b *bond) connect(ctx context.Context, first *nativetcp.Mesh, giveUp func(error)) ([]*nativetcp.Mesh, error) {
	listeners, ports, err := b.listen(ctx, first.Lanes()-1)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, l := range listeners { // those that no lane has closed
			_ = l.Close()
		}
	}()
	theirs, err := exchange(ctx, first, ports)
	if err != nil {
		return nil, err
	}
	others, errs := make([]*nativetcp.Mesh, len(listeners)), make([]error, len(listeners))
	var tasks sync.WaitGroup
	for i, l := range listeners {
		cfg := b.cfg
		cfg.Group, cfg.Listener, cfg.Peers = lane(cfg.Group, i+1), l, b.peers(theirs, i)
		// The rank is placed by the first lane. Who drives another one goes where the kernel finds a core.
		cfg.Local, cfg.Lanes = nil, 1
		cfg.OnFail, cfg.OnLost = b.failed, b.lostBeside
		tasks.Go(func() {
			if others[i], errs[i] = nativetcp.Connect(ctx, cfg); errs[i] != nil {
				giveUp(errs[i])
			}
		})
	}
	failpoint.At("lanes.connect")
	tasks.Wait()
	return others, cmp.Or(errs...)
}

func closeAll(lanes []*nativetcp.Mesh) {
	var tasks sync.WaitGroup
	for _, m := range lanes {
		if m != nil {
			tasks.Go(func() { _ = m.Close() })
		}
	}
	failpoint.At("lanes.connect.close")
	tasks.Wait()
}

// lane is the identity of a lane of a group.
func lane(group [16]byte, i int) [16]byte {
	sum := sha256.Sum256(append(group[:], byte(i))) //nolint:gosec // less than Max
	return [16]byte(sum[:])
}

// listen opens the listeners of the other lanes beside that of the first one.
func (b *bond) listen(ctx context.Context, n int) (listeners []net.Listener, ports []byte, err error) {
	own := b.cfg.Listener.Addr()
	addr, ok := own.(*net.TCPAddr)
	if !ok {
		return nil, nil, cohort.Newf("native: connect", cohort.InvalidArgument, "%v is not a TCP address", own)
	}
	var lc net.ListenConfig
	users := peeruid.Default(nil, peeruid.ToLog(b.cfg.Logger))
	for range n {
		var l net.Listener
		if l, err = lc.Listen(ctx, "tcp", (&net.TCPAddr{IP: addr.IP, Zone: addr.Zone}).String()); err != nil {
			break
		}
		l = users.Listener(l)
		listeners = append(listeners, l)
		at, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			err = errors.New("not a TCP listener")
			break
		}
		ports = binary.BigEndian.AppendUint16(ports, uint16(at.Port)) //nolint:gosec // a port
	}
	if err != nil {
		for _, l := range listeners {
			_ = l.Close()
		}
		e := cohort.Wrap("native: connect", cohort.Unavailable, err)
		e.Rank = cohort.Rank(b.cfg.Rank)
		return nil, nil, e
	}
	return listeners, ports, nil
}

// peers returns where a lane of each rank is.
func (b *bond) peers(ports [][]byte, i int) []string {
	peers := make([]string, len(b.cfg.Peers))
	for rank, addr := range b.cfg.Peers {
		if rank == b.cfg.Rank {
			continue
		}
		host, _, _ := net.SplitHostPort(addr)
		peers[rank] = net.JoinHostPort(host, strconv.Itoa(int(binary.BigEndian.Uint16(ports[rank][2*i:]))))
	}
	return peers
}

// exchange sends all ranks the ports of this one and returns theirs.
func exchange(ctx context.Context, m *nativetcp.Mesh, own []byte) ([][]byte, error) {
	theirs := make([][]byte, m.Size())
	ops := make([]transport.Op, 0, 2*m.Size())
	for rank := range theirs {
		if rank == m.Rank() {
			continue
		}
		theirs[rank] = make([]byte, len(own))
		ops = append(ops, transport.Op{Peer: rank, Slot: nativewire.LaneSlot, Buf: theirs[rank]},
			transport.Op{Peer: rank, Slot: nativewire.LaneSlot, Buf: own})
		m.Recv(&ops[len(ops)-2])
		m.Send(&ops[len(ops)-1])
	}
	for i := range ops {
		if err := m.Wait(ctx, &ops[i]); err != nil {
			if e, ok := errors.AsType[*cohort.Error](err); ok && e.Rank != cohort.NoRank {
				return nil, err
			}
			e := cohort.Wrap("native: connect", cohort.Unavailable, err)
			e.Rank = cohort.Rank(ops[i].Peer)
			return nil, e
		}
		if i%2 == 0 && ops[i].N != len(own) {
			e := cohort.Newf("native: connect", cohort.Protocol, "rank %d sent %d bytes of ports, want %d", ops[i].Peer, ops[i].N, len(own))
			e.Rank = cohort.Rank(ops[i].Peer)
			return nil, e
		}
	}
	return theirs, nil
}
