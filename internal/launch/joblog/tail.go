// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"slices"
	"sync"
	"time"
)

// Tail keeps the last bytes of a stream.
type Tail struct {
	mu struct {
		sync.Mutex
		buf []byte // at most twice size
		cut bool
		at  time.Time // of the last piece
	}
	size int
}

// NewTail returns a Tail that keeps size bytes.
func NewTail(size int) *Tail { return &Tail{size: size} }

func (t *Tail) add(piece []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.at = time.Now()
	if len(piece) > t.size {
		piece = piece[len(piece)-t.size:]
		t.mu.cut = true
	}
	if over := len(t.mu.buf) + len(piece) - 2*t.size; over > 0 {
		t.mu.buf = slices.Delete(t.mu.buf, 0, len(t.mu.buf)-t.size+len(piece)/2)
		t.mu.cut = true
	}
	t.mu.buf = append(t.mu.buf, piece...)
}

// Bytes returns the last bytes, beginning with a whole line if it can.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, cut := t.mu.buf, t.mu.cut
	if len(b) > t.size {
		b, cut = b[len(b)-t.size:], true
	}
	if cut {
		if i := bytes.IndexByte(b, '\n'); i >= 0 && i+1 < len(b) {
			b = b[i+1:]
		}
	}
	return bytes.Clone(b)
}

// liveEnd is how much of the end is looked at for a line that is not finished.
const liveEnd = 4096

// Live returns the line that is not finished, as a terminal would show it, and when something last came; zero: never.
func (t *Tail) Live() (line string, at time.Time) {
	t.mu.Lock()
	end := bytes.Clone(t.mu.buf[max(0, len(t.mu.buf)-liveEnd):])
	at = t.mu.at
	t.mu.Unlock()
	if bytes.HasSuffix(end, []byte{'\n'}) {
		return "", at
	}
	var r rows
	r.feed(end, time.Time{}, func([]byte) {})
	return string(r.live()), at
}
