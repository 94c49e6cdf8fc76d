// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// lifetime is what ends with the engine.
type lifetime struct {
	once    sync.Once // of Close
	closing atomic.Bool
	stop    chan struct{} // closed by Close
	tasks   sync.WaitGroup
	release func() // closes the segment's file
}

// start begins to watch the others and to send heartbeats, and returns when all ranks have mapped the segment.
func (e *Engine) start(ctx context.Context, j *joining) error {
	e.others.conns = j.conns
	file := j.file
	e.arena.reserve = func(from, size int) error { return reserve(file, from, size) }
	e.life.release = func() { _ = file.Close() }
	for p, c := range e.others.conns {
		if c != nil {
			e.life.tasks.Go(func() { e.watch(p, c) })
		}
	}
	e.life.tasks.Go(e.beat)
	e.life.tasks.Go(e.mesh.keep)
	failpoint.At("shm.join.start")
	err := e.advance(ctx)
	if interrupted, ok := errors.AsType[*collective.Interrupted](err); ok {
		return e.giveUpJoining(interrupted.Cause)
	}
	for _, p := range e.peers {
		shared := e.seg.life(p).pid == e.seg.life(e.rank).pid
		e.wait.shared = e.wait.shared || shared
		e.mesh.wait.shared = e.mesh.wait.shared || shared
	}
	return err
}

// giveUpJoining notifies the ranks that did join that this one stopped waiting.
func (e *Engine) giveUpJoining(err error) error {
	why := cohort.Wrap("shm: join", cohort.Canceled, err)
	var late []int // those that have not mapped the segment: of several, one may delay the others
	for _, p := range e.peers {
		if atomic.LoadUint64(&e.seg.life(p).beats) == 0 {
			late = append(late, p)
		}
	}
	if cause, ok := errors.AsType[*cohort.Error](err); ok && cause.Rank != cohort.NoRank {
		why.Rank = cause.Rank
	} else if len(late) == 1 {
		why.Rank = cohort.Rank(late[0])
	}
	return e.giveUp(why)
}

// Close leaves the group. An operation that runs ends with [cohort.Closed]; the others see that this rank has left. Memory
// from [Engine.Alloc] stays valid until it is released. It is idempotent.
func (e *Engine) Close() error {
	e.life.once.Do(func() {
		e.life.closing.Store(true)
		failpoint.At("shm.close")
		close(e.life.stop)
		for _, c := range e.others.conns {
			if c != nil {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = c.Write([]byte{goodbye})
				_ = c.Close()
			}
		}
		failpoint.At("shm.close.tasks")
		e.life.tasks.Wait()
		e.arena.whileMapped(e.wakeAll)
		e.mesh.shut()
		failpoint.At("shm.close.lock")
		e.lock.Lock(nil, nil) // the operation that runs, if any, ends first; no other one starts
		e.releaseRequest()
		e.arena.close()
		if e.life.release != nil {
			e.life.release()
		}
	})
	return nil
}
