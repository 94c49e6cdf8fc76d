// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"errors"
	"os"
	"time"

	"github.com/cohort-dist/cohort/internal/moment"
)

// A pipe has connections that nobody reads for most of its life. The listening side makes a pipe only when all of them
// have come, and cannot know which pipe a connection was for that ended before its hello. So the dialling side watches all
// connections that it opened, and closes the pipe when one of them ends; the listening side watches the first one, whose
// end tells it to wait no longer. Watching reads nothing: see [watch].

// endGrace is how long the end of one connection may come before that of the others. A peer that closes a pipe closes
// all of them, and what it sent before that is still received.
const endGrace = 400 * time.Millisecond

// whenEnded calls fn when one of the connections ends. The returned function ends the watch; fn is not called afterwards.
func whenEnded(fn func(), all ...*stream) (stop func()) {
	w := newWatch(all...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := w.wait(time.Time{}); err == nil {
			fn()
		}
	}()
	return func() {
		w.close()
		<-done
	}
}

// watchEnds ends the pipe when one of its connections has ended and the main one has not. The end of that one is found by
// whoever receives, behind what was sent before it.
func (p *Pipe) watchEnds() {
	var deadline time.Time
	for {
		moment.At("tensorpipe.pipe.watch")
		ended, err := p.ends.wait(deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = p.broken("tensorpipe: pipe", errCut)
			return
		case err != nil || ended == p.main:
			return
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(endGrace)
		}
	}
}

var errCut = errors.New("a connection of the pipe was cut")
