// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// others is which of the other ranks are lost.
type others struct {
	states []atomic.Uint32 // by rank; the first state other than present stays
	loss   atomic.Bool     // a rank is lost
	conns  []*net.UnixConn // by rank; they end with the process
}

// What others.states says about a rank.
const (
	present      = iota
	stateDied    // its socket ended without a notice
	stateLeft    // it closed its engine
	stateStalled // its heartbeat stopped
)

// state is whether a rank is present, or how it was lost.
func (o *others) state(rank int) uint32 { return o.states[rank].Load() }

// anyHungUp reports whether the socket of a rank that counts as present has ended. A rank that closes the group because of
// a death may be seen before the death itself, which is the one to name: its watcher is about to mark it.
func (o *others) anyHungUp() bool {
	for p, c := range o.conns {
		if o.state(p) == present && hungUp(c) {
			return true
		}
	}
	return false
}

// watch waits for the end of the connection to rank p: with a goodbye when the rank leaves, without one when it dies.
func (e *Engine) watch(p int, c *net.UnixConn) {
	var b [1]byte
	failpoint.At("shm.watch.read")
	n, _ := c.Read(b[:])
	failpoint.At("shm.watch.ended")
	if n == 1 && b[0] == goodbye {
		e.mark(p, stateLeft)
	} else {
		e.mark(p, stateDied)
	}
}

// mark records that rank p is lost, wakes the waiters here and notifies the group.
func (e *Engine) mark(p int, how uint32) {
	if !e.others.states[p].CompareAndSwap(present, how) || e.life.closing.Load() {
		return
	}
	e.others.loss.Store(true)
	// Under the lock of the mapping: Close may be about to drop it.
	e.arena.whileMapped(func() {
		e.steps.wakeSleepers()
		futexWake(&e.seg.bell(e.rank).rings)
	})
	if e.config.OnLost == nil {
		return
	}
	loss := transport.Loss{Rank: p, How: transport.Died}
	if how == stateLeft {
		loss.How = transport.Left
	}
	e.arena.whileMapped(func() { loss.Err = e.lost("shm: group", p) })
	if loss.Err != nil { // else closed meanwhile
		failpoint.At("shm.lost.report")
		e.config.OnLost(loss)
	}
}

// pulse is what this rank remembers of another's heartbeats.
type pulse struct {
	beats   uint64
	still   time.Duration // for how long they have not changed, as far as this rank was running
	checked time.Time
}

// stopped compares a count of heartbeats with the one before and reports whether they have stopped for longer than limit. If
// this process was stopped too, the time it slept proves nothing about the other: no check counts more than twice the period.
func (p *pulse) stopped(now time.Time, beats uint64, period, limit time.Duration) bool {
	if beats != p.beats || p.checked.IsZero() {
		p.beats, p.still = beats, 0
	} else {
		p.still += min(now.Sub(p.checked), 2*period)
	}
	p.checked = now
	return limit > 0 && p.still > limit
}

// beatPeriod is how often a rank beats.
func beatPeriod(limit time.Duration) time.Duration {
	const period = 100 * time.Millisecond
	if limit <= 0 {
		return period
	}
	return max(min(period, limit/5), time.Millisecond)
}

// beat sends heartbeats to the ranks that have all their connections, until endBeat: this rank may wait for one that is stopped, and
// would count as stopped itself.
func (j *joining) beat() {
	life := j.seg.life(j.config.Rank)
	life.pid = uint32(os.Getpid()) //nolint:gosec // a process id
	atomic.AddUint64(&life.beats, 1)
	j.beating.Go(func() {
		t := time.NewTicker(beatPeriod(j.config.HeartbeatLimit))
		defer t.Stop()
		for {
			failpoint.At("shm.join.beat")
			select {
			case <-t.C:
				atomic.AddUint64(&life.beats, 1)
			case <-j.beaten:
				return
			}
		}
	})
}

// endBeat returns when the segment may be unmapped.
func (j *joining) endBeat() {
	close(j.beaten)
	failpoint.At("shm.join.beaten")
	j.beating.Wait()
}

// beat counts up while this process runs, so that the others detect a stopped one, and checks the others' counts.
func (e *Engine) beat() {
	limit := e.config.HeartbeatLimit
	period := beatPeriod(limit)
	t := time.NewTicker(period)
	defer t.Stop()
	pulses := make([]pulse, e.size)
	still := make([]int, 0, e.size)
	for {
		failpoint.At("shm.beat")
		select {
		case <-t.C:
		case <-e.life.stop:
			return
		}
		still = still[:0]
		now := time.Now()
		e.arena.whileMapped(func() {
			atomic.AddUint64(&e.seg.life(e.rank).beats, 1)
			for _, p := range e.peers {
				beats, allowed := atomic.LoadUint64(&e.seg.life(p).beats), limit
				if beats == 0 { // it has no segment yet, perhaps because of a stopped rank, which is found first
					allowed = 2 * limit
				}
				if e.others.state(p) == present && pulses[p].stopped(now, beats, period, allowed) {
					still = append(still, p)
				}
			}
		})
		for _, p := range still {
			e.mark(p, stateStalled)
		}
	}
}

// lost is the error for a lost rank p, or nil. It needs the mapping.
func (e *Engine) lost(op string, p int) error {
	text := ""
	switch e.others.state(p) {
	case present:
		return nil
	case stateDied:
		text = "its process ended"
	case stateLeft:
		text = "it closed the group"
	case stateStalled:
		text = fmt.Sprintf("no heartbeat for %v: its process is stopped or gets no processor time", e.config.HeartbeatLimit)
	}
	return &cohort.Error{
		Op: op, Code: cohort.PeerLost, Rank: cohort.Rank(p), Detail: text, Peer: fmt.Sprintf("pid %d", e.seg.life(p).pid),
	}
}

// whoIsLost returns why the awaited step will not be complete, or nil.
//
// A rank that died after all had taken the step does not count: this rank is about to see that they have. Nor is one that had done
// its part before: the next operation fails because of it. Any other one that died is a reason even if it has taken the step,
// since the group cannot continue, however late another rank is. One that left is a reason if it has not taken the step.
func (e *Engine) whoIsLost() *cohort.Error {
	left := -1
	for _, p := range e.peers {
		switch e.others.state(p) {
		case stateDied, stateStalled:
			if e.missing() && !e.didItsPart(p) {
				return e.lostError(p)
			}
		case stateLeft:
			if left < 0 && !e.steps.took(p, e.steps.awaited) {
				left = p
			}
		}
	}
	if left < 0 || e.others.anyHungUp() {
		return nil
	}
	return e.lostError(left)
}

func (e *Engine) lostError(p int) *cohort.Error {
	err, _ := e.lost(e.op.name, p).(*cohort.Error) //nolint:errorlint // made above
	return err
}

// missing reports whether a rank has not taken the step that is awaited.
func (e *Engine) missing() bool {
	return slices.ContainsFunc(e.peers, func(p int) bool { return !e.steps.took(p, e.steps.awaited) })
}

func hungUp(c *net.UnixConn) bool {
	if c == nil {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	ended := false
	_ = raw.Control(func(fd uintptr) {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // a descriptor
		n, err := unix.Poll(set, 0)
		ended = err == nil && n == 1 && set[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
	})
	return ended
}
