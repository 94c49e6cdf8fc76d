// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package keytable

import "slices"

// Walk visits the keys that a table has at one moment, a few at a time: those that come later say so, and the table tells it of those
// that go meanwhile.
type Walk struct {
	table *Table
	gone  func(key []byte)
	at    int    // entries below are done with
	end   int    // those from here on are newer
	turn  uint64 // among all walks of the table: in between, those that came in it or later are newer, too
}

// Walk begins a walk over the keys that the table has now. A key that is deleted before Next comes to it is passed to gone instead.
// The caller ends a walk that it has begun.
func (t *Table) Walk(gone func(key []byte)) *Walk {
	t.begun++
	w := &Walk{table: t, gone: gone, end: t.fresh, turn: t.begun}
	t.walks = append(t.walks, w)
	return w
}

// Walks returns how many walks have not ended.
func (t *Table) Walks() int { return len(t.walks) }

// Done reports whether all keys have been visited.
func (w *Walk) Done() bool { return w.at >= w.end }

// Next goes on to the next key. There may be none, or it may be newer than the walk: then ok is false. looked says what it took to find
// it.
func (w *Walk) Next() (key []byte, looked int, ok bool) {
	n, looked := w.table.used.Next(w.at)
	if w.at = min(n, w.end); w.at == w.end {
		return nil, looked, false
	}
	w.at++
	e := w.table.at(uint32(n)) //nolint:gosec // the number of an entry
	return e.Key(), looked, e.born < w.turn
}

// went is called before entry n is not used any more.
func (w *Walk) went(n uint32, e *Entry) {
	if int(n) >= w.at && int(n) < w.end && e.born < w.turn {
		w.gone(e.Key())
	}
}

// End ends the walk, done or not.
func (w *Walk) End() {
	w.table.walks = slices.DeleteFunc(w.table.walks, func(o *Walk) bool { return o == w })
}
