// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/cohortwire"
)

// inlineLimit is how long a handler may hold up the goroutine that reads its link before another one takes over.
const inlineLimit = 100 * time.Microsecond

// inline lets handlers run in the goroutine that reads a link, which saves a hand-off. A handler that waits for a call of
// its own hands the reading over first; one that takes long for another reason is found by the timer.
type inline struct {
	link  *cohortwire.Link
	turn  atomic.Uint64
	timer *time.Timer
}

func newInline(l *cohortwire.Link) *inline {
	in := &inline{link: l}
	in.timer = time.AfterFunc(time.Hour, in.handover)
	in.timer.Stop()
	return in
}

func (in *inline) handover() { in.link.Handover(in.turn.Load()) }

// run runs a request in the reading goroutine.
func (in *inline) run(a *Agent, r *request) {
	r.place.inline = in
	in.do(func() { a.runCall(r) })
}

// do runs fn in the reading goroutine.
func (in *inline) do(fn func()) {
	in.turn.Store(in.link.Turn())
	in.timer.Reset(inlineLimit)
	fn()
	in.timer.Stop()
}
