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

// A rank that dies when it has taken its place, and before it connects to the others, leaves no connection that could end. So every Go rank has
// a door, a listener that is open from before it takes its place until it has connected or given up. While the ranks connect, each of them
// knocks at the door of the next Go rank: the system refuses that once the process is gone, but not if it is stopped or busy otherwise. Who
// finds a rank gone records it, and the others read it there. One knock per rank is enough, however many ranks there are.

const (
	probeInterval = 250 * time.Millisecond // normally the ranks have connected before the first
	refusals      = 2                      // in a row, until a rank is taken for dead
)

// keepLivenessListener keeps the door open until the attempt is over: it is the listener of the native wire too, which closes that before.
func (a *attempt) keepLivenessListener() error {
	l, ok := a.listener.(*net.TCPListener)
	if !ok || !nativetcp.Supported { // nobody else closes it
		return nil
	}
	door, err := l.File()
	if err != nil {
		return &cohort.Error{Op: "group: listen", Code: cohort.Unavailable, Rank: cohort.Rank(a.p.Rank), Err: err}
	}
	a.livenessListener = door
	return nil
}

// doorAddr is where a rank's door is; "" if it has none.
func (c *capability) doorAddr() string { return cmp.Or(c.Addr, c.Door) }

// doors returns where the doors of the Go ranks are, as far as it is known; those of other ranks are "".
func (a *attempt) doors() []string {
	doors := make([]string, a.p.size())
	for r, m := range a.Members {
		doors[r] = m.livenessListener
	}
	return doors
}

// probeNextRank calls lost when the process of the next Go rank is gone. It returns when that was so, ctx has ended, or there is nobody to watch.
func (a *attempt) probeNextRank(ctx context.Context, doors []string, lost func(error)) {
	watch := func(r int, door string) {
		if err := a.probe(ctx, r, door); err != nil {
			lost(err)
		}
	}
	size := a.p.size()
	after := func(r int) int { return (r + 1) % size }
	known := after(a.p.Rank)
	for known != a.p.Rank && doors[known] == "" {
		known = after(known)
	}
	var tasks sync.WaitGroup
	if known != a.p.Rank {
		tasks.Go(func() { watch(known, doors[known]) })
	}
	tasks.Go(func() { a.watchBetween(ctx, known, watch) })
	failpoint.At("form.watch")
	tasks.Wait()
}

// watchBetween watches the first Go rank between this one and another that is known: the ranks between are PyTorch's, or Go ranks that were slower
// than a PyTorch rank.
func (a *attempt) watchBetween(ctx context.Context, known int, watch func(r int, door string)) {
	failpoint.At("form.watch.between")
	select {
	case <-time.After(probeInterval): // normally the ranks have connected by then
	case <-ctx.Done():
	}
	for step := 1; step < a.p.size() && ctx.Err() == nil; step++ {
		r := (a.p.Rank + step) % a.p.size()
		if r == known {
			return
		}
		if door := a.doorOf(ctx, r); door != "" {
			watch(r, door)
			return
		}
	}
}

// doorOf returns the door of a rank when it has come; "" if it is a PyTorch rank.
func (a *attempt) doorOf(ctx context.Context, r int) string {
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
	return caps[r].doorAddr()
}

// probe returns the loss of a rank when its process is gone, or nil when ctx ends or the rank has said before that its door would close.
func (a *attempt) probe(ctx context.Context, rank int, door string) error {
	// With PyTorch ranks the connecting can take long: then the connection is kept.
	stay := a.torch != torchNone
	t := time.NewTicker(probeInterval)
	defer t.Stop()
	for refused := 0; refused < refusals; {
		failpoint.At("form.knock.wait")
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		if refuses(ctx, door, stay) {
			refused++
		} else {
			refused = 0
		}
	}
	if excused, err := a.Place.LeftOnPurpose(ctx, rank); excused || err != nil {
		return nil // nobody is taken for dead without the store's word
	}
	return &cohort.Error{
		Op: "group: new", Code: cohort.PeerLost, Rank: cohort.Rank(rank), Peer: door,
		Detail: "its process ended before it had connected: nobody listens at its address",
	}
}

// refuses reports whether nobody listens at a door any more. With stay, a connection is kept until it ends: the system ends it with the process,
// so that one is enough.
func refuses(ctx context.Context, door string, stay bool) bool {
	failpoint.At("form.knock")
	limited, cancel := context.WithTimeout(ctx, probeInterval)
	conn, err := ctxdial.Dial(limited, &net.Dialer{}, "tcp", door)
	cancel()
	if err != nil {
		return ctxdial.Refused(err)
	}
	defer func() { _ = conn.Close() }()
	if stay {
		stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		failpoint.At("form.knock.stay")
		_, _ = conn.Read(make([]byte, 1))
	}
	return false
}
