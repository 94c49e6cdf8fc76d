// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
)

// matched calls of a link in a test: what an agent does, in its simplest form.
type matcher struct {
	mu    sync.Mutex
	calls map[uint64]chan *Frame
}

var matchers sync.Map // *Link to *matcher

func matcherOf(l *Link) *matcher {
	m, _ := matchers.LoadOrStore(l, &matcher{calls: map[uint64]chan *Frame{}})
	return m.(*matcher) //nolint:errcheck,forcetypeassert // only matchers are stored
}

// matching passes answers to those who wait in call, and everything else to onFrame.
func matching(onFrame func(*Link, *Frame)) func(*Link, *Frame) {
	return func(l *Link, f *Frame) {
		if f.Type.IsResponse() {
			m := matcherOf(l)
			m.mu.Lock()
			ch := m.calls[f.ID]
			delete(m.calls, f.ID)
			m.mu.Unlock()
			if ch != nil {
				ch <- f
				return
			}
		}
		onFrame(l, f)
	}
}

var ids atomic.Uint64

// call sends a request and waits for its answer.
func call(ctx context.Context, l *Link, f *Frame) (*Frame, error) {
	f.ID = ids.Add(1)
	ch := make(chan *Frame, 1)
	m := matcherOf(l)
	m.mu.Lock()
	m.calls[f.ID] = ch
	m.mu.Unlock()
	if err := l.Send(ctx, f); err != nil {
		return nil, err
	}
	select {
	case answer := <-ch:
		return answer, nil
	case <-l.Done():
		return nil, l.Err()
	case <-ctx.Done():
		return nil, cohort.FromContext(ctx, "call")
	}
}

// opening is what a side says first: its hello, and a proof of nothing.
func (id Identity) opening() []byte {
	hello := id.frame(nonce{})
	b := append(hello.AppendHead(nil), hello.Payload...)
	return (&Frame{Type: proofFrame}).AppendHead(b)
}
