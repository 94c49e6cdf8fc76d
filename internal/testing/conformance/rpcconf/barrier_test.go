// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// hooked is a store that lets a test into the barriers of a shutdown.
type hooked struct {
	store.Store
	add  atomic.Pointer[func(key string) error]
	wait atomic.Pointer[func(ctx context.Context, key string) error]
}

// onAdd and onWait set the hooks, also while the worker uses the store.
func (h *hooked) onAdd(f func(key string) error)                       { h.add.Store(&f) }
func (h *hooked) onWait(f func(ctx context.Context, key string) error) { h.wait.Store(&f) }

func (h *hooked) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if hook := h.add.Load(); hook != nil {
		if err := (*hook)(key); err != nil {
			return 0, err
		}
	}
	return h.Store.Add(ctx, key, delta)
}

func (h *hooked) Wait(ctx context.Context, keys ...string) error {
	if hook := h.wait.Load(); hook != nil {
		if err := (*hook)(ctx, keys[0]); err != nil {
			return err
		}
	}
	return h.Store.Wait(ctx, keys...)
}

// startHooked starts a world of three, in which one worker has a hooked store.
func startHooked(t *testing.T, rank int, opts ...rpc.Option) (*world, *hooked) {
	t.Helper()
	w := &world{T: t, ctx: bounded(t), st: store.NewMemory()}
	t.Cleanup(func() { _ = w.st.Close() })
	t.Cleanup(w.close)
	h := &hooked{Store: w.st}
	for i := range 3 {
		w.nodes = append(w.nodes, newNode(i))
	}
	must(t, parallel(3, func(i int) error {
		var st store.Store = w.st
		if i == rank {
			st = h
		}
		return w.nodes[i].join(w.ctx, st, append([]rpc.Option{rpc.WithRank(cohort.Rank(i)), rpc.WithWorldSize(3)}, opts...)...)
	}))
	return w, h
}

// A worker dies in one of the barriers in the store, when all have met already. Over uv the others have not met it.
func TestDeathInBarrier(t *testing.T) {
	t.Parallel()
	const dead = 1
	for barrier := 1; barrier <= 3; barrier++ {
		for _, transport := range []string{rpc.TransportCohort, rpc.TransportUV} {
			t.Run(fmt.Sprintf("%d/%s", barrier, transport), func(t *testing.T) {
				t.Parallel()
				w, h := startHooked(t, dead, rpc.WithTransports(transport))
				h.onAdd(func(key string) error {
					if !strings.HasSuffix(key, fmt.Sprintf("PROCESS_COUNT_ID_%d", barrier)) {
						return nil
					}
					_ = w.nodes[dead].Close()
					return errors.New("dead")
				})
				within(t, 2*soon, "the shutdown", func() {
					w.every(func(n *node) error {
						err := n.Shutdown(w.ctx)
						if n.rank == dead {
							return nil
						}
						return checkErr(err, cohort.PeerLost, "peer "+name(dead))
					})
				})
			})
		}
	}
}

// The last worker hears of the end of the last barrier when all others have left.
func TestLastBarrierIsSeenLate(t *testing.T) {
	for _, transport := range []string{rpc.TransportCohort, rpc.TransportUV} {
		t.Run(transport, func(t *testing.T) {
			w, h := startHooked(t, 1, rpc.WithTransports(transport))
			left := make(chan struct{}, 2)
			h.onWait(func(ctx context.Context, key string) error {
				if !strings.HasSuffix(key, "READY_ID_3") {
					return nil
				}
				<-left
				<-left
				<-ctx.Done() // the others are found to be gone
				return cohort.FromContext(ctx, "store: wait")
			})
			w.every(func(n *node) error {
				if n.rank != 1 {
					defer func() { left <- struct{}{} }()
				} else {
					time.Sleep(100 * time.Millisecond)
				}
				return n.Shutdown(w.ctx)
			})
		})
	}
}
