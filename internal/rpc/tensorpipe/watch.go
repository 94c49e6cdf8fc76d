// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"errors"
	"os"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A pipe has connections that are not read for most of its life. The listening side makes a pipe only when all of them
// have arrived, and cannot know which pipe a connection was for that ended before its hello: see [Endpoint.unread]. So the
// dialling side watches all connections that it opened, and closes the pipe when one of them ends; the listening side watches
// the first one, whose end makes it stop waiting. Watching reads nothing: see [watch].

// endGrace is how long before the others one connection may end. A peer that closes a pipe closes
// all of them, and what it sent before that is still received.
const endGrace = 400 * time.Millisecond

// endLimit bounds how often that is renewed, because the end of the main connection is behind data that still arrives or was
// not read.
const endLimit = 30 * time.Second

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
		failpoint.At("tensorpipe.watch.end")
		<-done
	}
}

// watchEnds ends the pipe when one of its connections has ended and the main one has not. The end of that one is found by
// the receiver, behind what was sent before it.
func (p *Pipe) watchEnds() {
	var deadline, limit time.Time
	var before uint64
	var waited bool // data was not read when the grace began: more may arrive when it is
	for {
		failpoint.At("tensorpipe.pipe.watch")
		ended, err := p.ends.wait(deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			came, unread := arrived(p.main.nc)
			if now := time.Now(); (unread || waited || came != before) && now.Before(limit) {
				before, waited, deadline = came, unread, now.Add(endGrace)
				continue
			}
			_ = p.broken("tensorpipe: pipe", errCut)
			return
		case err != nil || ended == p.main:
			return
		}
		if deadline.IsZero() {
			now := time.Now()
			deadline, limit = now.Add(endGrace), now.Add(endLimit)
			before, waited = arrived(p.main.nc)
		}
	}
}

var errCut = errors.New("a connection of the pipe was cut")
