// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// doomed is a client of a store whose server dies at a call of any of its clients.
type doomed struct {
	*tcpstore.Client
	left *atomic.Int64 // calls until then
	kill func()
}

func (d *doomed) count() {
	if d.left.Add(-1) == 0 {
		d.kill()
	}
}

func (d *doomed) Set(ctx context.Context, key string, value []byte) error {
	d.count()
	return d.Client.Set(ctx, key, value)
}

func (d *doomed) Get(ctx context.Context, key string) ([]byte, error) {
	d.count()
	return d.Client.Get(ctx, key)
}

func (d *doomed) Add(ctx context.Context, key string, delta int64) (int64, error) {
	d.count()
	return d.Client.Add(ctx, key, delta)
}

func (d *doomed) Wait(ctx context.Context, keys ...string) error {
	d.count()
	return d.Client.Wait(ctx, keys...)
}

// TestStoreDiesWhileForming: whichever call the store dies at, no rank waits until its time to connect is over: it
// fails with the loss of the store or of a rank that failed for it.
func TestStoreDiesWhileForming(t *testing.T) {
	t.Parallel()
	const size = 3
	for _, transport := range transports {
		for calls := int64(1); calls <= 60; calls++ {
			t.Run(fmt.Sprintf("%v, call %d", transport, calls), func(t *testing.T) {
				t.Parallel()
				server, err := tcpstore.Listen("127.0.0.1:0")
				must(t, err)
				t.Cleanup(func() { _ = server.Close() })
				var left atomic.Int64
				clients := make([]*doomed, size)
				for r := range clients {
					c, err := tcpstore.Dial(t.Context(), server.Addr().String())
					must(t, err)
					t.Cleanup(func() { _ = c.Close() })
					clients[r] = &doomed{Client: c, left: &left, kill: func() { _ = server.Close() }}
				}
				left.Store(calls)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				groups := make([]*Group, size)
				failed := make([]error, size)
				started := time.Now()
				_ = each(size, func(r int) error {
					groups[r], failed[r] = New(ctx, clients[r], cohort.Rank(r), size, WithTransport(transport),
						WithConnectTimeout(time.Minute))
					return nil
				})
				took := time.Since(started)
				closeAll(groups)
				for r, err := range failed {
					if err != nil && !errors.Is(err, cohort.PeerLost) && !errors.Is(err, cohort.Unavailable) &&
						!errors.Is(err, cohort.Aborted) {
						t.Errorf("rank %d: %v", r, err)
					}
				}
				if took > 40*time.Second {
					t.Errorf("the ranks ended after %v: %v", took, failed)
				}
			})
		}
	}
}

// TestStoreDiesBesidePyTorch: the same where a PyTorch rank is in the group, which waits for the store itself.
func TestStoreDiesBesidePyTorch(t *testing.T) {
	t.Parallel()
	const size, torch = 3, 1
	for _, layout := range []gloo.Layout{gloo.Torch113, gloo.Torch26} {
		t.Run(fmt.Sprintf("layout %d", layout), func(t *testing.T) {
			t.Parallel()
			ctx := ctxOf(t)
			server, s := listenStore(t)
			publishAsTorch(t, s, layout, torch, size)
			started := time.Now()
			ended := make(chan error, 1)
			go func() {
				ended <- each(size, func(r int) error {
					if r == torch {
						return nil
					}
					c, err := tcpstore.Dial(ctx, server.Addr().String())
					if err != nil {
						return err
					}
					defer func() { _ = c.Close() }()
					g, err := New(ctx, c, cohort.Rank(r), size, WithConnectTimeout(time.Minute))
					if g != nil {
						_ = g.Close()
					}
					if !errors.Is(err, cohort.PeerLost) && !errors.Is(err, cohort.Unavailable) {
						return fmt.Errorf("rank %d: %w", r, err)
					}
					return nil
				})
			}()
			for _, r := range []int{0, 2} {
				must(t, s.Wait(ctx, layout.FirstKey(meshPrefixOf(layout), r)))
			}
			must(t, server.Close())
			must(t, <-ended)
			if took := time.Since(started); took > 40*time.Second {
				t.Errorf("the ranks ended after %v", took)
			}
		})
	}
}
