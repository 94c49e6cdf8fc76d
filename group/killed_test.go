// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// mortalEnv tells a process of this test binary that it is a rank of a group: which one of how many, over which transport, with which
// heartbeat, where the store is, and how far it gets.
const mortalEnv = "COHORT_GROUP_MORTAL"

// mortal is a rank that waits for its death.
func mortal(spec string) int {
	var transport, addr, until string
	var rank cohort.Rank
	var size int
	var heartbeat time.Duration
	if _, err := fmt.Sscan(spec, &rank, &size, &transport, (*int64)(&heartbeat), &addr, &until); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := tcpstore.Dial(ctx, addr)
	if err == nil {
		var s store.Store = client
		if until == untilPlaced {
			s = placedStore{s}
		}
		_, err = New(ctx, s, rank, size, WithTransport(Transport(transport)), WithHeartbeat(heartbeat))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	<-ctx.Done()
	return 0
}

// How far a mortal gets.
const (
	untilMade   = "made"
	untilPlaced = "placed" // it does not publish where PyTorch ranks can connect to it
)

// placedStore stands still when this rank publishes an address of gloo's wire.
type placedStore struct{ store.Store }

func (s placedStore) Set(ctx context.Context, key string, value []byte) error {
	if strings.HasPrefix(key, gloo.DefaultPrefix) {
		<-ctx.Done()
	}
	return s.Store.Set(ctx, key, value)
}

// startMortal starts one rank of three in a process that kill ends without a word.
func startMortal(t *testing.T, transport Transport, heartbeat time.Duration, addr net.Addr, rank int) (process *os.Process, kill func()) {
	t.Helper()
	return startMortalOf(t, 3, transport, heartbeat, addr, rank, untilMade)
}

func startMortalOf(t *testing.T, size int, transport Transport, heartbeat time.Duration, addr net.Addr, rank int,
	until string,
) (process *os.Process, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s %d %s %s", mortalEnv, rank, size, transport, heartbeat, addr, until))
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return cmd.Process, kill
}

// withMortal makes a group of two ranks here and one in a process, which is killed at the end of the test.
func withMortal(t *testing.T, transport Transport, heartbeat time.Duration) (groups []*Group, process *os.Process, kill func()) {
	t.Helper()
	ctx := ctxOf(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	process, kill = startMortal(t, transport, heartbeat, server.Addr(), 2)
	groups = make([]*Group, 2)
	must(t, each(2, func(r int) error {
		s, err := tcpstore.Dial(ctx, server.Addr().String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = s.Close() })
		groups[r], err = New(ctx, s, cohort.Rank(r), 3, WithTransport(transport), WithHeartbeat(heartbeat), WithQueue(2*floodMessages))
		return err
	}))
	t.Cleanup(func() { closeAll(groups) })
	return groups, process, kill
}

// noticed returns when all groups know that a rank is gone, without an operation.
func noticed(ctx context.Context, groups []*Group) error {
	for _, g := range groups {
		for !g.formed.Failure.Lossy() {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// names2 returns nil if err says that rank 2 is lost.
func names2(err error) error {
	if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Rank != 2 {
		return fmt.Errorf("rank 2 is dead: %w", err)
	}
	return nil
}

// TestKilledRankIsNoticedWithinASecond: a process is killed while the others do nothing, while they wait for it in an operation, and
// while one waits for a message of the other. A busy machine can be late, so one in five tries has to be in time.
func TestKilledRankIsNoticedWithinASecond(t *testing.T) {
	t.Parallel()
	reduce := func(ctx context.Context, groups []*Group) error {
		return each(2, func(r int) error { return names2(groups[r].AllReduce(ctx, from(int64(1)), Sum).Wait(ctx)) })
	}
	// Each returns a function that returns when the death was noticed, and whether it was noticed as it should be.
	situations := map[string]func(ctx context.Context, groups []*Group) func() error{
		"idle": func(ctx context.Context, groups []*Group) func() error {
			return func() error { return noticed(ctx, groups) }
		},
		"in an operation": func(ctx context.Context, groups []*Group) func() error {
			works := make([]*Work, len(groups))
			for r, g := range groups {
				works[r] = g.AllReduce(ctx, from(int64(1)), Sum)
			}
			for _, w := range works { // until they are in it
				for !w.runs() && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
			}
			return func() error { return each(2, func(r int) error { return names2(works[r].Wait(ctx)) }) }
		},
		"in an operation with another rank": func(ctx context.Context, groups []*Group) func() error {
			message := groups[0].Recv(ctx, from(int64(0)), 1, 0)
			return func() error {
				if err := noticed(ctx, groups); err != nil {
					return err
				}
				if err := groups[1].Send(ctx, from(int64(7)), 0, 0).Wait(ctx); err != nil { // it needs nothing of the dead
					return err
				}
				return message.Wait(ctx)
			}
		},
		"with messages that it does not take": func(ctx context.Context, groups []*Group) func() error {
			sends := flood(ctx, groups[0], 2)
			message := groups[0].Recv(ctx, from(int64(0)), 2, 0)
			return func() error {
				for i, w := range sends {
					if err := w.Wait(ctx); err != nil {
						if err = names2(err); err != nil {
							return err
						}
					} else if i == len(sends)-1 {
						return errors.New("the rank that receives nothing has taken everything")
					}
				}
				return names2(message.Wait(ctx))
			}
		},
	}
	for _, transport := range transports {
		for name, begin := range situations {
			t.Run(fmt.Sprintf("%s, %s", transport, name), func(t *testing.T) {
				t.Parallel()
				var took time.Duration
				for range 5 {
					ctx := ctxOf(t)
					groups, _, kill := withMortal(t, transport, 10*time.Second)
					wait := begin(ctx, groups)
					killed := time.Now()
					kill()
					must(t, wait())
					took = time.Since(killed)
					must(t, reduce(ctx, groups)) // whatever was going on, this needs the dead
					if took <= time.Second {
						t.Logf("noticed after %v", took)
						return
					}
				}
				t.Errorf("noticed after %v, and not sooner in other tries", took)
			})
		}
	}
}

// TestDeathBeforeConnecting: a rank dies when it has taken its place, before it connects to another one. The others do not
// wait for it until their time is over, and all name it.
func TestDeathBeforeConnecting(t *testing.T) {
	t.Parallel()
	for _, transport := range []Transport{Auto, SharedMemory, TCP, Gloo} {
		for dead := range 3 {
			t.Run(fmt.Sprintf("%s, rank %d", transport, dead), func(t *testing.T) {
				t.Parallel()
				ctx := ctxOf(t)
				server, err := tcpstore.Listen("127.0.0.1:0")
				must(t, err)
				t.Cleanup(func() { _ = server.Close() })
				_, kill := startMortal(t, transport, 10*time.Second, server.Addr(), dead)
				s, err := tcpstore.Dial(ctx, server.Addr().String())
				must(t, err)
				t.Cleanup(func() { _ = s.Close() })
				must(t, s.Wait(ctx, fmt.Sprintf("cohort/group/0/3/0/rank/%d", dead)))
				kill()
				_ = each(2, func(i int) error {
					r := (dead + 1 + i) % 3
					g, err := New(ctx, s, cohort.Rank(r), 3, WithTransport(transport))
					if g != nil {
						_ = g.Close()
					}
					if e := asError(err); e == nil || e.Code != cohort.PeerLost || e.Rank != cohort.Rank(dead) {
						t.Errorf("rank %d: %v", r, err)
					}
					return nil
				})
			})
		}
	}
}
