// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// TestBetweenTheLanes: a rank that is on the first lane and goes no further ends the connecting of all others: they
// name it if it is gone, and stop with their context if it only does nothing.
func TestBetweenTheLanes(t *testing.T) {
	t.Parallel()
	ports := func(m *nativetcp.Mesh, n int) {
		var wg sync.WaitGroup
		for r := range m.Size() {
			if r != m.Rank() {
				op := &transport.Op{Peer: r, Slot: nativewire.LaneSlot, Buf: make([]byte, n)}
				for i := range op.Buf {
					op.Buf[i] = 1 // no process listens there
				}
				m.Send(op)
				wg.Go(func() { _ = m.Wait(context.Background(), op) })
			}
		}
		wg.Wait()
	}
	for name, c := range map[string]struct {
		act   func(m *nativetcp.Mesh)
		codes []cohort.Code
	}{
		"dies":   {func(m *nativetcp.Mesh) { m.Sever() }, []cohort.Code{cohort.PeerLost}},
		"leaves": {func(m *nativetcp.Mesh) { _ = m.Close() }, []cohort.Code{cohort.PeerLost}},
		"fails": {func(m *nativetcp.Mesh) {
			m.Fail(&cohort.Error{Op: "test", Code: cohort.Aborted, Rank: cohort.NoRank})
		}, []cohort.Code{cohort.Aborted}},
		"tells ports and dies":   {func(m *nativetcp.Mesh) { ports(m, 4); m.Sever() }, []cohort.Code{cohort.PeerLost}},
		"tells ports and leaves": {func(m *nativetcp.Mesh) { ports(m, 4); _ = m.Close() }, []cohort.Code{cohort.PeerLost}},
		"tells too few ports":    {func(m *nativetcp.Mesh) { ports(m, 2) }, []cohort.Code{cohort.Protocol}},
		"tells too many ports":   {func(m *nativetcp.Mesh) { ports(m, 400) }, []cohort.Code{cohort.Mismatch}},
		"tells ports and waits":  {func(m *nativetcp.Mesh) { ports(m, 4) }, []cohort.Code{cohort.DeadlineExceeded, cohort.PeerLost}},
		"says nothing":           {func(*nativetcp.Mesh) {}, []cohort.Code{cohort.DeadlineExceeded}},
		"listens, is not greeted": {
			func(m *nativetcp.Mesh) { listenAndTell(t, m) },
			[]cohort.Code{cohort.DeadlineExceeded, cohort.Unavailable},
		},
	} {
		for _, rank := range []int{0, 1, 2} { // the odd one: it dials, is dialled, or both
			t.Run(fmt.Sprintf("%s/rank=%d", name, rank), func(t *testing.T) {
				t.Parallel() // most of them wait
				odd(t, rank, c.act, func(r int, err error) {
					e, ok := errors.AsType[*cohort.Error](err)
					if !ok {
						t.Errorf("rank %d: %v", r, err)
						return
					}
					right := false
					for _, code := range c.codes {
						right = right || e.Code == code
					}
					// A rank that fails for the reason that another one gave up names that one.
					if others := cohort.CodeOf(err) == cohort.PeerLost || cohort.CodeOf(err) == cohort.Unavailable; !right && !others {
						t.Errorf("rank %d: %v", r, err)
					}
					if e.Rank == cohort.Rank(r) || e.Rank == cohort.NoRank {
						t.Errorf("rank %d names rank %d: %v", r, e.Rank, err)
					}
				})
			})
		}
	}
}

// listenAndTell returns the ports of listeners that accept no connection.
func listenAndTell(t *testing.T, m *nativetcp.Mesh) {
	t.Helper()
	l, _ := listeners(t, 1)
	b := &bond{cfg: nativetcp.Config{Rank: m.Rank(), Listener: l[0]}}
	list, own, err := b.listen(t.Context(), m.Lanes()-1)
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() {
		for _, l := range append(list, l...) {
			_ = l.Close()
		}
	})
	_, _ = exchange(t.Context(), m, own)
}

// odd connects three ranks, one of which only makes the first lane and then does something else, and checks what the
// others got. The one that ends first gives the others a reason to end too.
func odd(t *testing.T, rank int, act func(*nativetcp.Mesh), check func(r int, err error)) {
	t.Helper()
	const n = 3
	list, peers := listeners(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	errs := make([]error, n)
	var wg sync.WaitGroup
	release := make(chan struct{})
	var others sync.WaitGroup
	for r := range n {
		cfg := nativetcp.Config{Rank: r, Size: n, Group: [16]byte{5}, Listener: list[r], Peers: peers, Shared: true, Lanes: 3}
		if r == rank {
			wg.Go(func() {
				m, err := nativetcp.Connect(ctx, cfg)
				if err != nil {
					t.Error(err)
					return
				}
				act(m)
				<-release
				_ = m.Close()
			})
			continue
		}
		others.Go(func() {
			var m transport.Mesh
			if m, errs[r] = Connect(ctx, cfg); errs[r] == nil {
				t.Errorf("rank %d is connected", r)
				_ = m.Close()
			}
		})
	}
	began := time.Now()
	others.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	close(release)
	wg.Wait()
	for r, err := range errs {
		if r != rank {
			check(r, err)
		}
	}
}

// TestIdentities: a connection that is meant for one lane is refused by all others, and by those of another group.
func TestIdentities(t *testing.T) {
	group := [16]byte{7}
	if a, b := lane(group, 1), lane(group, 2); a == b || a == group || lane([16]byte{8}, 1) == a {
		t.Error("lanes have the identities of others")
	}
}

// TestConnectEndsWithItsContext: whenever the context ends, Connect returns, with a world or without, and leaves nothing behind.
func TestConnectEndsWithItsContext(t *testing.T) {
	const n = 3
	for i := range 40 {
		list, peers := listeners(t, n)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		own, stop := context.WithTimeout(ctx, time.Duration(i*i)*5*time.Microsecond)
		meshes := make([]transport.Mesh, n)
		var wg sync.WaitGroup
		for r := range n {
			wg.Go(func() {
				c := ctx
				if r == i%n {
					c = own
				}
				m, err := Connect(c, nativetcp.Config{
					Rank: r, Size: n, Group: [16]byte{7}, Listener: list[r], Peers: peers,
					Shared: true, Lanes: 3,
				})
				if err != nil {
					if r == i%n && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("the rank whose context ended: %v", err)
					}
					cancel() // as a rank that gives up has all others do
					return
				}
				meshes[r] = m
			})
		}
		wg.Wait()
		for _, m := range meshes {
			if m != nil {
				wg.Go(func() { _ = m.Close() })
			}
		}
		wg.Wait()
		stop()
		cancel()
	}
}
