// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// endingStore ends a context when this rank reads, for the first time, what the ranks publish to connect to each other.
type endingStore struct {
	store.Store
	once *sync.Once
	end  func()
}

func (s endingStore) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.Contains(key, "/shm/") || strings.Contains(key, "/gloo/") {
		s.once.Do(s.end)
	}
	return s.Store.Get(ctx, key)
}

// TestGivenUpWhileConnecting: a rank whose context ends while the ranks connect to each other does not fail the others: the others try
// again, with the next call of that rank.
func TestGivenUpWhileConnecting(t *testing.T) {
	for _, transport := range []Transport{SharedMemory, Gloo} { // which connect through the store
		t.Run(string(transport), func(t *testing.T) {
			s := store.NewMemory()
			defer func() { _ = s.Close() }()
			const size = 3
			ctx := ctxOf(t)
			short, end := context.WithCancel(ctx)
			groups := make([]*Group, size)
			t.Cleanup(func() { closeAll(groups) })
			must(t, each(size, func(r int) (err error) {
				if r == 1 {
					_, err = New(short, endingStore{s, new(sync.Once), end}, cohort.Rank(r), size, WithTransport(transport))
					if !errors.Is(err, context.Canceled) {
						t.Errorf("the rank that gave up: %v", err)
					}
				}
				groups[r], err = New(ctx, s, cohort.Rank(r), size, WithTransport(transport))
				return err
			}))
			must(t, each(size, func(r int) error { return sumOf(ctx, groups[r]) }))
		})
	}
}

// TestNoGroupFromAClosedOne: the groups of a world end with the last of them, and no other can be made from it.
func TestNoGroupFromAClosedOne(t *testing.T) {
	ctx := ctxOf(t)
	groups := newWorld(t, 2)
	closeAll(groups)
	_ = each(2, func(r int) error {
		g, err := groups[r].NewGroup(ctx, nil, WithLocalSync())
		if g != nil || !errors.Is(err, cohort.Closed) {
			t.Errorf("rank %d: %v", r, err)
		}
		if g != nil {
			_ = g.Close()
		}
		return nil
	})
}

// standingStore keeps this rank from saying that it has connected, and all later, as a process that is stopped there.
type standingStore struct{ store.Store }

func (s standingStore) Set(ctx context.Context, key string, value []byte) error {
	if strings.Contains(key, "/waits/") {
		<-ctx.Done()
	}
	return s.Store.Set(ctx, key, value)
}

func (s standingStore) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if strings.HasSuffix(key, "/came") {
		<-ctx.Done()
	}
	return s.Store.Add(ctx, key, delta)
}

// TestStoppedWhileConnecting: a rank that stands still when it has connected is named by all others when their time is over,
// whichever of them gives up first.
func TestStoppedWhileConnecting(t *testing.T) {
	t.Parallel()
	for stopped := range 3 {
		for _, transport := range []Transport{SharedMemory, TCP, Gloo} {
			t.Run(fmt.Sprintf("rank %d, %s", stopped, transport), func(t *testing.T) {
				t.Parallel()
				s := store.NewMemory()
				defer func() { _ = s.Close() }()
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
				defer cancel()
				own, end := context.WithCancel(ctx)
				defer end()
				var rest sync.WaitGroup
				rest.Go(func() { _, _ = New(own, standingStore{s}, cohort.Rank(stopped), 3, WithTransport(transport)) })
				_ = each(2, func(i int) error {
					r := (stopped + 1 + i) % 3
					_, err := New(ctx, s, cohort.Rank(r), 3, WithTransport(transport),
						WithConnectTimeout(3*time.Second+time.Duration(i)*100*time.Millisecond))
					if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.DeadlineExceeded ||
						e.Rank != cohort.Rank(stopped) {
						t.Errorf("rank %d: %v", r, err)
					}
					return nil
				})
				end()
				rest.Wait()
			})
		}
	}
}

// TestEarlyMessageCompletesUnwaitedReceive: a receive of a message that was sent before it completes, also if no goroutine waits for it.
func TestEarlyMessageCompletesUnwaitedReceive(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		for _, size := range []int{1, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", transport, size), func(t *testing.T) {
				t.Parallel()
				groups := newWorld(t, 2, WithTransport(transport))
				ctx := ctxOf(t)
				sent := groups[0].Send(ctx, from(make([]int8, size)...), 1, 1)
				last := groups[0].Send(ctx, from(int8(1)), 1, 2)
				must(t, groups[1].Recv(ctx, from(int8(0)), 0, 2).Wait(ctx)) // behind the first
				must(t, last.Wait(ctx))
				time.Sleep(100 * time.Millisecond) // no goroutine polls for messages any more, probably
				received := groups[1].Recv(ctx, from(make([]int8, size)...), 0, 1)
				must(t, sent.Wait(ctx))
				select {
				case <-received.Done():
					must(t, received.Err())
				case <-ctx.Done():
					t.Error("the message is not there")
				}
			})
		}
	}
}

// flood sends a rank more than it takes without receiving: rings and windows are full.
func flood(ctx context.Context, g *Group, to cohort.Rank) (works []*Work) {
	for range floodMessages {
		works = append(works, g.Send(ctx, from(make([]byte, floodSize)...), to, 5))
	}
	return works
}

const floodMessages, floodSize = 3000, 8 << 10

// TestSlowReceiverIsNotBlamed: a rank that receives nothing for two heartbeats, while all buffers towards it are full, is alive. No rank is
// blamed, and nothing is lost when it goes on.
func TestSlowReceiverIsNotBlamed(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			const beat = 2 * time.Second
			groups := newWorld(t, 2, WithTransport(transport), WithHeartbeat(beat), WithQueue(2*floodMessages))
			ctx := ctxOf(t)
			sends := flood(ctx, groups[0], 1)
			last := sends[len(sends)-1]
			short, cancel := context.WithTimeout(ctx, 2*beat)
			defer cancel()
			if err := last.Wait(short); !errors.Is(err, context.DeadlineExceeded) || last.Completed() {
				t.Fatalf("the last message: %v", err)
			}
			for r, g := range groups {
				if g.Err() != nil || g.formed.Failure.Lossy() {
					t.Fatalf("rank %d: %v", r, g.Err())
				}
			}
			room := from(make([]byte, floodSize)...)
			for range sends {
				must(t, groups[1].Recv(ctx, room, 0, 5).Wait(ctx))
			}
			must(t, WaitAll(ctx, sends...))
		})
	}
}
