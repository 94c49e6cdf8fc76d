// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/store"
)

// stillLimit is the heartbeat limit of these tests.
const stillLimit = time.Second

// joiners are the ranks of a group that live, while a test plays one that is stopped on its way in.
type joiners struct {
	t     *testing.T
	ctx   context.Context //nolint:containedctx // of one test
	store store.Store
	tasks sync.WaitGroup
}

func newJoiners(t *testing.T) *joiners {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	j := &joiners{t: t, ctx: ctx, store: store.NewMemory()}
	t.Cleanup(func() {
		cancel()
		_ = j.store.Close()
	})
	return j
}

func (j *joiners) config(rank int) Config {
	return Config{Size: 3, Rank: rank, Exchange: j.store, HeartbeatLimit: stillLimit}
}

// stopped returns a rank on its way in that nobody moves on.
func (j *joiners) stopped(rank int) *joining {
	c := j.config(rank)
	if err := c.validate(); err != nil {
		j.t.Fatal(err)
	}
	s := &joining{config: c, conns: make([]*net.UnixConn, c.Size), beaten: make(chan struct{})}
	j.t.Cleanup(s.cleanUp)
	return s
}

// join lets a rank join that must find out that another one is stopped, and take no other for it.
func (j *joiners) join(rank, stopped int) {
	j.tasks.Go(func() {
		c := j.config(rank)
		c.OnLost = func(l link.Loss) {
			if l.How == link.Died && l.Rank != stopped {
				j.t.Errorf("rank %d says that rank %d is lost, not rank %d: %v", rank, l.Rank, stopped, l.Err)
			}
		}
		e, err := Join(j.ctx, c)
		if err == nil {
			_ = e.Close()
		}
		if e, ok := errors.AsType[*dist.Error](err); !ok || e.Rank != dist.Rank(stopped) || j.ctx.Err() != nil {
			j.t.Errorf("rank %d: %v", rank, err)
		}
	})
}

// TestStoppedBeforeItReachesAll: rank 2 is stopped when it has reached rank 0 only. Rank 0 has all its connections and counts
// heartbeats; rank 1 still waits for rank 2, and must not be taken for stopped.
func TestStoppedBeforeItReachesAll(t *testing.T) {
	t.Parallel()
	j := newJoiners(t)
	j.join(0, 2)
	j.join(1, 2)
	two := j.stopped(2)
	if err := two.dial(j.ctx, 0); err != nil {
		t.Fatal(err)
	}
	two.endBeat()
	j.tasks.Wait()
}

// TestStoppedBeforeItWelcomesAll: rank 0 is stopped when it has given the segment to one of the others only. The one that waits for it
// must not let the other wait: who has all its connections counts heartbeats, and both name rank 0.
func TestStoppedBeforeItWelcomesAll(t *testing.T) {
	t.Parallel()
	for welcomed := 1; welcomed <= 2; welcomed++ {
		t.Run(strconv.Itoa(welcomed), func(t *testing.T) {
			t.Parallel()
			j := newJoiners(t)
			zero := j.stopped(0)
			var err error
			if zero.file, zero.seg, err = createSegment(&zero.config); err != nil {
				t.Fatal(err)
			}
			zero.beat()
			zero.endBeat()
			if zero.listener, err = zero.listen(j.ctx); err != nil {
				t.Fatal(err)
			}
			j.join(welcomed, 0)
			u, err := zero.listener.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			if _, err = zero.greet(j.ctx, u); err != nil {
				t.Fatal(err)
			}
			zero.conns[welcomed] = u
			j.join(3-welcomed, 0)
			j.tasks.Wait()
		})
	}
}
