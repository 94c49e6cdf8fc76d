// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

const (
	// spinTurns are the turns of the spin loop, a pause instruction of 10 to 60 ns each, between readings of the clock.
	spinTurns = 64
	// sleepSlice is how often a sleeper polls for what no futex reports: a dead rank, the end of a context.
	sleepSlice = 40 * time.Millisecond
)

// waiter is the state of waiting; only the goroutine that runs the operation uses it.
type waiter struct {
	spinwait.Waiter
	engine *Engine
	shared bool // another rank is a goroutine of this process
	placer spinwait.Placer
}

// spinBriefly polls word for a moment, unless others need this core.
func (w *waiter) spinBriefly(word *uint32, target uint32) bool {
	return !w.Contended() && spinUntil(word, target, spinTurns)
}

// spinOrYield waits without sleeping, as long as [spinwait.Waiter] allows, and reports whether word reached target.
func (w *waiter) spinOrYield(word *uint32, target uint32) bool {
	now := spinwait.Now()
	for w.Begin(now); ; now = spinwait.Now() {
		switch w.Next(now) {
		case spinwait.Spin:
			if spinUntil(word, target, spinTurns) {
				return true
			}
		case spinwait.Yield:
			if w.shared { // only the Go scheduler can let it run
				runtime.Gosched()
			} else {
				spinwait.YieldCore()
			}
			now = spinwait.Now()
			w.Yielded(now)
			w.place(now)
			if reached(atomic.LoadUint32(word), target) {
				return true
			}
		case spinwait.Sleep:
			w.place(now)
			return false
		}
	}
}

// place publishes now and then on which core this rank runs, and moves to another one where ranks of the group share this one.
func (w *waiter) place(now time.Duration) {
	if w.shared {
		w.SetSharing(1) // the Go scheduler may want this thread for it
		return
	}
	if e := w.engine; w.placer.Due(now) {
		e.seg.life(e.rank).setCore(w.placer.Place(now, e.rank, e.size, func(rank int) int { return e.seg.life(rank).atCore() }))
		w.SetSharing(w.placer.Others())
	}
}

// advance publishes everything written so far as this rank's next step and returns when all ranks have taken it. When it
// was interrupted it only continues waiting.
func (e *Engine) advance(ctx context.Context) error {
	e.publish()
	if err := e.awaitAll(ctx, e.steps.last); err != nil {
		return err
	}
	e.steps.compared, e.op.waiting = e.steps.last, false // this step describes no request
	return nil
}

// publish shows everything written so far as this rank's next step, unless it has done so.
func (e *Engine) publish() {
	if !e.op.waiting {
		e.op.waiting = true
		e.steps.take()
	}
}

// awaitAll returns when all ranks have taken a step.
func (e *Engine) awaitAll(ctx context.Context, step uint32) error {
	for _, p := range e.peers {
		if err := e.await(ctx, p, step); err != nil {
			return err
		}
	}
	e.steps.all = step
	return nil
}

// await returns when rank p has taken a step.
func (e *Engine) await(ctx context.Context, p int, step uint32) error {
	line := e.steps.line(p, step)
	if word := &line.step; reached(atomic.LoadUint32(word), step) || e.wait.spinBriefly(word, step) {
		return nil
	}
	e.steps.awaited = step
	return e.waitLong(ctx, line)
}

// waitLong spins and yields, then sleeps, until a rank has taken the step that is awaited.
func (e *Engine) waitLong(ctx context.Context, line *stepLine) error {
	word := &line.step
	if e.wait.spinOrYield(word, e.steps.awaited) {
		return nil
	}
	for raw := !e.wait.shared; ; {
		now := time.Now()
		if r := e.op.request; r != nil && r.Timeout > 0 && e.op.deadline.IsZero() { // most operations need no clock
			e.op.deadline = now.Add(r.Timeout)
		}
		err := e.reasonToStop(ctx, now)
		if reached(atomic.LoadUint32(word), e.steps.awaited) {
			return nil // what was awaited happened, whatever else did
		}
		if err != nil {
			return err
		}
		slice := sleepSlice
		if d := e.op.deadline; !d.IsZero() {
			slice = min(slice, d.Sub(now))
		}
		if d, ok := ctx.Deadline(); ok {
			slice = min(slice, d.Sub(now))
		}
		failpoint.At("shm.wait.sleep")
		if sleepBelow(word, &line.sleepers, e.steps.awaited, slice, raw) {
			raw = false // the wait is long: another raw sleep would keep one of the GOMAXPROCS for nothing
		}
	}
}

// sleepBelow sleeps while word has not reached target, at most for a time, and reports whether the time was over. A
// rank that moves word reads sleepers after it.
func sleepBelow(word, sleepers *uint32, target uint32, limit time.Duration, raw bool) (over bool) {
	atomic.AddUint32(sleepers, 1)
	if v := atomic.LoadUint32(word); !reached(v, target) {
		failpoint.At("shm.sleep")
		over = futexWait(word, v, limit, raw)
	}
	atomic.AddUint32(sleepers, ^uint32(0))
	return over
}

// The words are shared between processes, so the futex operations are not the private ones.
const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// futexWait sleeps while *word is value, at most for the given time, and reports whether that was over. It may return early for no reason.
// With raw, the scheduler does not know of the sleep at first.
func futexWait(word *uint32, value uint32, limit time.Duration, raw bool) (over bool) {
	spinwait.Calls.Futex.Add(1)
	limit = max(limit, time.Microsecond)
	if raw && spinwait.BeginRawSleep() {
		ts := unix.NsecToTimespec(int64(min(limit, spinwait.RawSleep)))
		//nolint:gosec // the kernel wants addresses
		_, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(value),
			uintptr(unsafe.Pointer(&ts)), 0, 0) //nolint:gosec // the kernel wants addresses
		spinwait.EndRawSleep()
		if limit -= spinwait.RawSleep; errno != unix.ETIMEDOUT || limit <= 0 {
			return errno == unix.ETIMEDOUT
		}
	}
	ts := unix.NsecToTimespec(int64(limit))
	//nolint:gosec // the kernel wants addresses
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(value),
		uintptr(unsafe.Pointer(&ts)), 0, 0) //nolint:gosec // the kernel wants addresses
	return errno == unix.ETIMEDOUT
}

// futexWake wakes everyone who sleeps on word.
func futexWake(word *uint32) {
	spinwait.Calls.Futex.Add(1)
	//nolint:gosec // the system call takes addresses
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, math.MaxInt32, 0, 0, 0)
}
