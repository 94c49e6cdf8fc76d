// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
)

// start begins to watch the others and to show life, and returns when all ranks have mapped the segment.
func (e *Engine) start(ctx context.Context, j *joining) error {
	e.conns = j.conns
	file := j.file
	e.arena.fd = func(from, size int) error { return reserve(file, from, size) }
	e.release = func() { _ = file.Close() }
	e.seg.life(e.rank).pid = uint32(os.Getpid()) //nolint:gosec // a process id
	for p, c := range e.conns {
		if c != nil {
			e.tasks.Go(func() { e.watch(p, c) })
		}
	}
	e.tasks.Go(e.beat)
	e.tasks.Go(e.mesh.keep)
	err := e.advance(ctx)
	if interrupted, ok := errors.AsType[*coll.Interrupted](err); ok {
		return e.giveUpJoining(interrupted.Cause)
	}
	for _, p := range e.peers {
		shared := e.seg.life(p).pid == e.seg.life(e.rank).pid
		e.wait.shared = e.wait.shared || shared
		e.mesh.wait.shared = e.mesh.wait.shared || shared
	}
	return err
}

// giveUpJoining tells the ranks that did come that this one did not wait longer.
func (e *Engine) giveUpJoining(err error) error {
	return e.giveUp(dist.Wrap("shm: join", dist.Canceled, err))
}

// watch waits for the end of the connection to rank p: with a farewell when the rank leaves, without one when it dies.
func (e *Engine) watch(p int, c *net.UnixConn) {
	var b [1]byte
	n, _ := c.Read(b[:])
	if n == 1 && b[0] == farewell {
		e.gone[p].Store(goneLeft)
	} else {
		e.gone[p].Store(goneDied)
	}
	if !e.closing.Load() {
		// Under the lock of the mapping: Close may be about to drop it.
		e.arena.whileMapped(func() {
			futexWake(&e.lines[p].step)
			futexWake(&e.seg.bell(e.rank).rings)
		})
	}
}

// beat counts up while this process gets to run, so that the others can tell a stopped one.
func (e *Engine) beat() {
	period := 100 * time.Millisecond
	if limit := e.config.HeartbeatLimit; limit > 0 {
		period = max(min(period, limit/5), time.Millisecond)
	}
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			e.arena.whileMapped(func() { atomic.AddUint64(&e.seg.life(e.rank).beats, 1) })
		case <-e.stop:
			return
		}
	}
}

// Close leaves the group. An operation that runs ends with [dist.Closed]; the others see that this rank has left. Memory
// from [Engine.Alloc] stays valid until it is released. It is idempotent.
func (e *Engine) Close() error {
	e.closed.Do(func() {
		e.closing.Store(true)
		close(e.stop)
		for _, c := range e.conns {
			if c != nil {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = c.Write([]byte{farewell})
				_ = c.Close()
			}
		}
		e.tasks.Wait()
		e.arena.whileMapped(e.wakeAll)
		e.mesh.shut()
		e.turn <- struct{}{} // the operation that runs, if any, ends first; nobody runs another
		e.arena.close()
		if e.release != nil {
			e.release()
		}
	})
	return nil
}
