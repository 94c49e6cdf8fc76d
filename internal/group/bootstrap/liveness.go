// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"context"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A rank that dies when it has taken its place, and before it connects to the others, leaves no connection that could
// end. So every Go rank has a liveness listener, which is open from before it takes its place until it has connected or
// given up. While the ranks connect, each of them probes the listener of the next Go rank: the system refuses that once
// the process is gone, but not if it is stopped or busy otherwise. Who finds a rank's process gone records it, and the
// others read it there. One probe per rank is enough, however many ranks there are.

const (
	probeInterval = 250 * time.Millisecond // normally the ranks have connected before the first
	refusals      = 2                      // in a row, until a rank is declared dead
)

// keepLivenessListener keeps the listener open until the attempt is over: it is the listener of the native wire too,
// which closes that before.
func (a *attempt) keepLivenessListener() error {
	l, ok := a.listener.(*net.TCPListener)
	if !ok || !nativetcp.Supported { // no other owner closes it
		return nil
	}
	addr, err := l.File()
	if err != nil {
		return &cohort.Error{Op: "group: listen", Code: cohort.Unavailable, Rank: cohort.Rank(a.p.Rank), Err: err}
	}
	a.livenessListener = addr
	return nil
}

// livenessAddr is where a rank's liveness listener is; "" if it has none.
func (c *capability) livenessAddr() string { return cmp.Or(c.Addr, c.Door) }

// livenessAddrs returns where the livenessAddrs of the Go ranks are, as far as it is known; those of other ranks are "".
func (a *attempt) livenessAddrs() []string {
	livenessAddrs := make([]string, a.p.size())
	for r, m := range a.Members {
		livenessAddrs[r] = m.livenessListener
	}
	return livenessAddrs
}

// probeNextRank calls lost when the process of the next Go rank is gone. It returns when that was so, ctx has ended, or
// no rank is left to watch.
func (a *attempt) probeNextRank(ctx context.Context, livenessAddrs []string, lost func(error)) {
	watch := func(r int, addr string) {
		if err := a.probe(ctx, r, addr); err != nil {
			lost(err)
		}
	}
	size := a.p.size()
	after := func(r int) int { return (r + 1) % size }
	known := after(a.p.Rank)
	for known != a.p.Rank && livenessAddrs[known] == "" {
		known = after(known)
	}
	var tasks sync.WaitGroup
	if known != a.p.Rank {
		tasks.Go(func() { watch(known, livenessAddrs[known]) })
	}
	tasks.Go(func() { a.watchBetween(ctx, known, watch) })
	failpoint.At("bootstrap.watch")
	tasks.Wait()
}

// watchBetween watches the first Go rank between this one and another that is known: the ranks between are PyTorch's,
// or Go ranks that were slower than a PyTorch rank.
func (a *attempt) watchBetween(ctx context.Context, known int, watch func(r int, addr string)) {
	failpoint.At("bootstrap.watch.between")
	select {
	case <-time.After(probeInterval): // normally the ranks have connected by then
	case <-ctx.Done():
	}
	for step := 1; step < a.p.size() && ctx.Err() == nil; step++ {
		r := (a.p.Rank + step) % a.p.size()
		if r == known {
			return
		}
		if addr := a.livenessAddrOf(ctx, r); addr != "" {
			watch(r, addr)
			return
		}
	}
}

// livenessAddrOf returns the listener's address of a rank when it has joined; "" if it is a PyTorch rank.
func (a *attempt) livenessAddrOf(ctx context.Context, r int) string {
	if _, err := a.Place.Await(ctx, r, a.Layout.FirstKey(a.p.meshPrefix(a.Layout), r)); err != nil {
		return ""
	}
	// A Go rank takes its place before it publishes what PyTorch's ranks read.
	if has, err := a.p.Store.Check(ctx, a.Place.Key(r)); !has || err != nil {
		return ""
	}
	caps, err := a.read(ctx, []int{r})
	if err != nil {
		return ""
	}
	return caps[r].livenessAddr()
}

// probe returns the loss of a rank when its process is gone, or nil when ctx ends or the rank has recorded before that
// its listener would close.
func (a *attempt) probe(ctx context.Context, rank int, addr string) error {
	// With PyTorch ranks the connecting can take long: then the connection is kept.
	stay := a.torch != torchNone
	t := time.NewTicker(probeInterval)
	defer t.Stop()
	for refused := 0; refused < refusals; {
		failpoint.At("bootstrap.probe.wait")
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		if refuses(ctx, addr, stay) {
			refused++
		} else {
			refused = 0
		}
	}
	if departed, err := a.Place.LeftOnPurpose(ctx, rank); departed || err != nil {
		return nil // no rank is declared dead without the store
	}
	return &cohort.Error{
		Op: "group: new", Code: cohort.PeerLost, Rank: cohort.Rank(rank), Peer: addr,
		Detail: "connection refused: its process exited before connecting",
	}
}

// refuses reports whether a listener no longer accepts connections. With stay, a connection is kept until it ends: the
// system ends it with the process, so that one is enough.
func refuses(ctx context.Context, addr string, stay bool) bool {
	failpoint.At("bootstrap.probe")
	limited, cancel := context.WithTimeout(ctx, probeInterval)
	conn, err := ctxdial.Dial(limited, &net.Dialer{}, "tcp", addr)
	cancel()
	if err != nil {
		return ctxdial.Refused(err)
	}
	defer func() { _ = conn.Close() }()
	if stay {
		stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		failpoint.At("bootstrap.probe.stay")
		_, _ = conn.Read(make([]byte, 1))
	}
	return false
}
