// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// oneAddress is a store in which a worker always has the same address: that of a proxy, which leads to the worker that
// published one last. PyTorch cannot be told where to listen.
type oneAddress struct {
	store.Store
	worker string
	proxy  *faultnet.Proxy
	target atomic.Value
}

func newOneAddress(t *testing.T, st store.Store, worker string) *oneAddress {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &oneAddress{Store: st, worker: worker}
	o.proxy = faultnet.NewProxy(front, "", func(ctx context.Context, _, _ string) (net.Conn, error) {
		addr, _ := o.target.Load().(string)
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	})
	t.Cleanup(func() { _ = o.proxy.Close() })
	return o
}

// Get makes the published address that of the proxy.
func (o *oneAddress) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := o.Store.Get(ctx, key)
	if err == nil && strings.HasSuffix(key, "addrs/"+o.worker) {
		o.target.Store(strings.TrimPrefix(string(v), "uv://"))
		v = []byte("uv://" + o.proxy.Addr())
	}
	return v, err
}

// TestRankIsTakenAfterACrash kills one worker after the other of a dynamic world, in both languages, and another comes under its name and
// rank, perhaps at its address too. The Go worker that stays takes none for the one before.
func TestRankIsTakenAfterACrash(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		t.Run("elsewhere", func(t *testing.T) { takeAfterCrash(t, tr, false) })
		t.Run("same address", func(t *testing.T) { takeAfterCrash(t, tr, true) })
	})
}

func takeAfterCrash(t *testing.T, tr *torchtest.Torch, sameAddress bool) {
	t.Helper()
	port, ctx := testkit.FreePort(t), testContext(t)
	hostStore(t, port)
	join := func(name string, rank cohort.Rank, wrap func(store.Store) store.Store) *rpc.Agent {
		t.Helper()
		dialled, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dialled.Close() })
		opts := []rpc.Option{
			rpc.WithHandlers(refHandlers()), rpc.WithAddr("127.0.0.1:0"), rpc.WithTimeout(30 * time.Second),
			rpc.WithLease(200*time.Millisecond, 2*time.Second, 200*time.Millisecond),
		}
		if rank != cohort.NoRank {
			opts = append(opts, rpc.WithRank(rank))
		}
		a, err := rpc.Join(ctx, wrap(dialled), name, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	plain := func(st store.Store) store.Store { return st }
	kept := plain
	if sameAddress {
		kept = func(st store.Store) store.Store { return newOneAddress(t, st, "w1") }
	}
	stays := join("go0", 0, kept)
	var former []*rpc.Ref[*tensor.Tensor]
	works := func(life int, fn string) {
		t.Helper()
		for i, r := range former {
			limited, cancel := context.WithTimeout(ctx, 20*time.Second)
			if x, err := r.Fetch(limited); err == nil || limited.Err() != nil {
				t.Errorf("the reference to life %d during life %d: %v, %v", i, life, x, err)
			}
			cancel()
		}
		ref, err := rpc.Remote[*tensor.Tensor](ctx, stays, "w1", fn, 3)
		if err != nil {
			t.Fatalf("creation at life %d: %v", life, err)
		}
		if x, err := ref.Fetch(ctx); err != nil || x.Numel() != 3 {
			t.Fatalf("fetch from life %d: %v, %v", life, x, err)
		}
		former = append(former, ref)
	}
	byTorch := func() *torchtest.Proc {
		t.Helper()
		p := tr.Start(t, torchtest.Script{
			Name: "w1.py", Modules: refSettings(settings{}).modules,
			Source: fmt.Sprintf(prelude, "tcp://127.0.0.1:"+strconv.Itoa(port), "", "w1", 1, "None") + `
import refstub
kept = rpc.remote("go0", refstub.counter, args=(5,))
eq(kept.rpc_sync().add(3), 8)
mine = rpc.RRef(7)
eq(rpc.rpc_sync("go0", refstub.fetch, args=(mine,)), 7)
` + fmt.Sprintf(epilogue, ""),
		})
		p.Expect(t, "joined")
		p.Send(t, "go")
		p.Expect(t, "finished")
		return p
	}
	for life, torch := range []bool{true, true, false, true, true} {
		if torch {
			p := byTorch()
			works(life, "pyrefs.make")
			p.Kill()
			<-p.Done()
		} else {
			w := join("w1", 1, plain)
			r, err := rpc.Remote[*tensor.Tensor](ctx, w, "go0", "refstub.tensor", 3)
			if err == nil {
				_, err = r.Fetch(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
			works(life, "refstub.tensor")
			_ = w.Close()
		}
		c := join(fmt.Sprintf("c%d", life), cohort.NoRank, plain) // finds the dead one, and takes it off the list
		if err := c.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
	}
	last := byTorch()
	works(-1, "pyrefs.make")
	for _, r := range former {
		_ = r.Close()
	}
	eventually(t, stays, "num_owner_rrefs", 1) // what the last one keeps; what the dead kept is gone
	last.Send(t, "stop")
	last.Expect(t, "left")
	last.MustExit(t, 30*time.Second)
	eventually(t, stays, "num_owner_rrefs", 0)
	if err := stays.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
