// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// A goroutine hand-off costs more than a short handler. So OnFrame may run the handler itself, in the goroutine that
// reads, as long as Handover is called when it turns out to take longer: then another goroutine goes on reading, and
// this one ends when OnFrame returns.

// turns counts the turns of reading. The number is odd inside an OnFrame and even between two. The goroutine whose turn it is
// owns the reader and the unlocked part of borrowing.
type turns struct {
	now     atomic.Uint64
	offered atomic.Uint64 // the last turn in which the reader was offered
	handing sync.Mutex    // held while the reading is handed over
}

func (t *turns) begin(turn uint64) { t.now.Store(turn) }

// end ends the OnFrame before that turn. It reports false when the reading was handed over meanwhile.
func (t *turns) end(turn uint64) bool {
	if t.now.CompareAndSwap(turn-1, turn) {
		return true
	}
	failpoint.At("cohortwire.link.handed")
	t.handing.Lock() // Close must find one of the two goroutines
	defer t.handing.Unlock()
	return false
}

// Turn returns the number of this OnFrame, inside it, for [Link.Handover]. It is odd inside one and even between two.
func (l *Link) Turn() uint64 { return l.turns.now.Load() }

// Handover lets another goroutine read on while the OnFrame of that turn runs. It may be called from anywhere and at any
// time; it does nothing when that OnFrame has returned or handed over already, and nothing in a turn that has offered the
// reader: then no goroutine may read on behalf of that turn.
func (l *Link) Handover(turn uint64) {
	if turn%2 == 0 || l.turns.now.Load() != turn {
		return
	}
	if lent := l.turns.offered.Load() == turn; lent {
		invariants.Check(false, "cohortwire: a turn that has offered the reader is handed over")
		return
	}
	failpoint.At("cohortwire.link.handover")
	l.turns.handing.Lock() // the goroutine of that turn ends only when the next one is counted
	handed := l.turns.now.CompareAndSwap(turn, turn+1)
	if handed {
		l.work.Add(1)
	}
	l.turns.handing.Unlock()
	if !handed {
		return
	}
	l.uncork()
	failpoint.At("cohortwire.link.spare")
	select {
	case l.spare <- turn + 1: // one that waits is counted
		l.work.Done()
	default:
		go l.reading(turn + 1)
	}
}

// spareReaders is how many goroutines that have read wait for their next turn, and spareTime how long: one that has run
// handlers has the stack for it.
const (
	spareReaders = 16
	spareTime    = 5 * time.Second
)

// reading is a goroutine that reads when it has the turn.
func (l *Link) reading(turn uint64) {
	defer l.work.Done()
	if !l.read(turn) {
		return
	}
	if l.spares.Add(1) > spareReaders {
		l.spares.Add(-1)
		return
	}
	defer l.spares.Add(-1)
	timer := time.NewTimer(spareTime)
	defer timer.Stop()
	for {
		failpoint.At("cohortwire.link.spare.wait")
		select {
		case turn := <-l.spare:
			if !l.read(turn) {
				return
			}
		case <-l.closed:
			return
		case <-timer.C:
			return
		}
	}
}

// While further frames wait in the buffer the link is corked: answers are collected, and leave in one write when all that
// was read has been looked at, or when the reading is handed over.

// cork collects what is posted from now on.
func (l *Link) cork() {
	if !l.corked.Load() {
		l.corked.Store(true)
	}
}

// uncork writes what was collected, unless another goroutine is writing.
func (l *Link) uncork() {
	if !l.corked.Load() {
		return
	}
	failpoint.At("cohortwire.link.uncork")
	l.out.Lock()
	l.corked.Store(false)
	if l.out.writing || l.out.empty() {
		l.out.Unlock()
		return
	}
	l.out.writing = true
	l.writeOrWake(true)
}
