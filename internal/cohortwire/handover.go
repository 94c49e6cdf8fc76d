// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

// A goroutine hand-off costs more than a short handler. So OnFrame may run the handler itself, in the goroutine that
// reads, as long as somebody calls Handover when it turns out to take longer: then another goroutine goes on reading, and
// this one ends when OnFrame returns.

// Turn returns the number of this OnFrame, inside it, for [Link.Handover]. It is odd inside one and even between two.
func (l *Link) Turn() uint64 { return l.turn.Load() }

// Handover lets another goroutine read on while the OnFrame of that turn runs. It may be called from anywhere and at any
// time; it does nothing when that OnFrame has returned or handed over already.
func (l *Link) Handover(turn uint64) {
	if turn%2 == 0 || l.turn.Load() != turn {
		return
	}
	l.handing.Lock() // the goroutine of that turn ends only when the next one is counted
	handed := l.turn.CompareAndSwap(turn, turn+1)
	if handed {
		l.work.Add(1)
	}
	l.handing.Unlock()
	if !handed {
		return
	}
	l.wmu.Lock() // after this nothing is kept for this turn
	l.corked.Store(false)
	l.release()
	go func() {
		defer l.work.Done()
		l.read(turn + 1)
	}()
}

// While further frames wait in the buffer the link is corked: answers are collected, and leave in one write when all that
// was read has been looked at, or when the reading is handed over.

// cork collects what is posted from now on.
func (l *Link) cork() {
	if !l.corked.Load() {
		l.corked.Store(true)
	}
}

// uncork writes what was collected.
func (l *Link) uncork() {
	if !l.corked.Load() {
		return
	}
	l.wmu.Lock()
	l.corked.Store(false)
	l.release()
}

// idle writes what nobody waits for: the reader is about to wait.
func (l *Link) idle() {
	if l.kept.Load() {
		l.wmu.Lock()
		l.release()
	}
}

// release writes what is queued, unless somebody does. It is called with wmu held and releases it.
func (l *Link) release() {
	l.kept.Store(false)
	if l.wq.writing || l.wq.empty() {
		l.wmu.Unlock()
		return
	}
	l.wq.writing = true
	l.drive(true)
}
