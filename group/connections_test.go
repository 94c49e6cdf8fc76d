// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// lanesOf is how many connections a rank has to each other one.
func lanesOf(t *testing.T, g *Group) int {
	t.Helper()
	m, ok := g.mesh.(interface{ Lanes() int })
	if !ok {
		t.Fatalf("%T has no lanes", g.mesh)
	}
	return m.Lanes()
}

// TestConnections: a group has as many connections between two ranks as it was told, by option or by the environment;
// ranks of one process have one if no option sets it. Whatever it is, collectives of large tensors work.
func TestConnections(t *testing.T) {
	for _, c := range []struct {
		env  string
		opts []Option
		want int
	}{
		{"", nil, 1},
		{"", []Option{WithConnections(3)}, 3},
		{"2", nil, 2},
		{"2", []Option{WithConnections(1)}, 1},
		{"8", nil, 8},
	} {
		t.Run(fmt.Sprint(c.env, " ", c.want), func(t *testing.T) {
			t.Setenv("COHORT_CONNECTIONS", c.env)
			groups := newWorld(t, 3, append(c.opts, WithTransport(TCP))...)
			ctx := ctxOf(t)
			const n = 1 << 20
			must(t, each(3, func(r int) error {
				if got := lanesOf(t, groups[r]); got != c.want {
					t.Errorf("rank %d has %d connections to each other rank, want %d", r, got, c.want)
				}
				for range 3 {
					x := tensor.Must(tensor.New(tensor.Float32, n))
					values, _ := tensor.Data[float32](x)
					for i := range values {
						values[i] = float32(r + i%5)
					}
					if err := groups[r].AllReduce(ctx, x, Sum).Wait(ctx); err != nil {
						return err
					}
					for i, v := range values {
						if v != float32(3+3*(i%5)) {
							return fmt.Errorf("element %d is %v", i, v)
						}
					}
				}
				return nil
			}))
		})
	}
}

// TestImpossibleConnections: a number that cannot be is refused.
func TestImpossibleConnections(t *testing.T) {
	for _, c := range []struct {
		env  string
		opts []Option
	}{{"0", nil}, {"9", nil}, {"many", nil}, {"", []Option{WithConnections(-1)}}, {"", []Option{WithConnections(9)}}} {
		t.Setenv("COHORT_CONNECTIONS", c.env)
		if g, err := New(ctxOf(t), store.NewMemory(), 0, 1, c.opts...); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("environment %q: %v, %v", c.env, g, err)
		}
	}
}

// TestKilledAmongConnections: a process that is killed while large messages move is named by all others.
func TestKilledAmongConnections(t *testing.T) {
	t.Setenv("COHORT_CONNECTIONS", "3")
	for i := range 4 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			groups, _, kill := withMortal(t, TCP, 0)
			ctx := ctxOf(t)
			if got := lanesOf(t, groups[0]); got != 3 {
				t.Fatalf("%d connections", got)
			}
			works := make([]*Work, len(groups))
			for r, g := range groups {
				works[r] = g.AllReduce(ctx, tensor.Must(tensor.New(tensor.Float32, 1<<20)), Sum)
			}
			time.AfterFunc(time.Duration(i*i)*time.Millisecond, kill)
			must(t, each(2, func(r int) error {
				e, ok := errors.AsType[*cohort.Error](works[r].Wait(ctx))
				if !ok || e.Code != cohort.PeerLost || e.Rank != 2 {
					return fmt.Errorf("rank %d: %w", r, works[r].Err())
				}
				return nil
			}))
		})
	}
}

// TestSeveredConnections: when one rank's connections end all others name it, in operations of any size.
func TestSeveredConnections(t *testing.T) {
	for _, n := range []int{1, 1 << 20} {
		groups := newWorld(t, 3, WithTransport(TCP), WithConnections(2))
		ctx := ctxOf(t)
		vanish(t, groups[1])
		must(t, each(3, func(r int) error {
			if r == 1 {
				return nil
			}
			err := groups[r].AllReduce(ctx, tensor.Must(tensor.New(tensor.Float32, n)), Sum).Wait(ctx)
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Rank != 1 {
				return fmt.Errorf("rank %d: %w", r, err)
			}
			return nil
		}))
		closeAll(groups)
	}
}

// cutOne ends one connection between two ranks that both live.
func cutOne(t *testing.T, g *Group, lane, peer int) {
	t.Helper()
	switch m := g.mesh.(type) {
	case interface{ CutLane(lane, rank int) }:
		m.CutLane(lane, peer)
	case interface{ Cut(rank int) }:
		m.Cut(peer)
	default:
		t.Fatalf("connections of %T cannot be cut", g.mesh)
	}
}

// TestCutConnection: when one of the connections between two ranks ends and both live, all ranks name the same one of
// them, and say to whom it was connected. The one that is named says that it lives.
func TestCutConnection(t *testing.T) {
	for _, c := range []struct{ lanes, cut int }{{1, 0}, {3, 0}, {3, 1}, {3, 2}} {
		for _, n := range []int{1, 1 << 20} {
			groups := newWorld(t, 3, WithTransport(TCP), WithConnections(c.lanes))
			ctx := ctxOf(t)
			errs := make([]*cohort.Error, 3)
			cutOne(t, groups[0], c.cut, 1)
			must(t, each(3, func(r int) (err error) {
				for err == nil { // a small operation may be over before a rank notices
					err = groups[r].AllReduce(ctx, tensor.Must(tensor.New(tensor.Float32, n)), Sum).Wait(ctx)
				}
				errs[r], _ = errors.AsType[*cohort.Error](err)
				return nil
			}))
			lost := errs[2].Rank
			for r, e := range errs {
				want := fmt.Sprintf("its connection to rank %d ", 1-lost)
				if r == int(lost) {
					want = "another rank has lost its connection to this rank, which is alive: " + want
				}
				if e.Code != cohort.PeerLost || e.Rank != lost || lost > 1 || !strings.Contains(e.Detail, want) {
					t.Errorf("%d connections, %d elements, rank %d: %v", c.lanes, n, r, e)
				}
			}
			closeAll(groups)
		}
	}
}
