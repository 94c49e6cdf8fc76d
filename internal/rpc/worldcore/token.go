// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
)

const (
	// tokenBeat is how often a Go worker with the token says that it lives. After tokenBeatsMissed looks in a row at which it has
	// not said so it is declared dead. Looks count, not time: a store that does not answer proves nothing.
	tokenBeat, tokenBeatsMissed = time.Second, 10
	// tokenFirst and tokenMost are the pauses after the word of a holder, from the first to the longest.
	tokenFirst, tokenMost = 5 * time.Millisecond, 200 * time.Millisecond
	// tidyTime bounds what has to be done after a join or leave that has failed, perhaps because its time was over.
	tidyTime = 5 * time.Second
)

// token is PyTorch's mutual exclusion of joining and leaving: the name of its holder is the value of one key, and it says
// "Done" under another when it has given it back. A PyTorch worker that dies with it stops all others for good. A Go worker
// says that it lives as long as it has it, so that other Go workers can take it over. Its states are:
//
//	claiming ⇄ waiting for the holder → held → (removing a dead holder) → … → released
type token struct {
	course
	me    Self
	what  string // join or leave
	value string
	then  func() // the state after it was taken

	pauses time.Duration // after the word of a holder

	beats    int
	beat     int // the operation that says that this worker lives
	holding  bool
	released func()
}

// take is the state before the token is claimed.
func (t *token) take(what string, then func()) {
	t.what, t.value, t.then, t.pauses = what, "Token_for_"+t.me.Name+"_"+what, then, tokenFirst
	t.set(keyBeat+t.value, strconv.FormatUint(t.me.Epoch, 16), func() { t.claim("") })
}

// claim takes the token if it is free, or from a holder that is dead.
func (t *token) claim(dead string) {
	t.do(Op{Kind: OpSwap, Round: t.round, Key: keyToken, Old: dead, Text: t.value}, func(ev Event) {
		switch got := ev.Text; {
		case ev.Err != nil: // perhaps it has the token all the same
			failed := t.failed
			t.release(func(error) { failed(ev.Err) })
		case got != t.value:
			t.waitFor(got)
		case dead != "":
			t.hold(func() { t.removeDeadHolder(dead) })
		default:
			t.hold(t.then)
		}
	})
}

// tokenWait is a wait for the holder of the token.
type tokenWait struct {
	holder     string
	over       bool
	wait, look int    // its operations
	last       string // what the holder has said
	same       int    // at how many looks
}

// waitFor is the state in which another worker has the token.
func (t *token) waitFor(holder string) {
	w := &tokenWait{holder: holder}
	w.wait = t.do(Op{Kind: OpWait, Round: t.round, Keys: []string{holder}}, func(ev Event) {
		if w.over { // it was declared dead
			return
		}
		w.over = true
		t.cancel(w.look)
		if ev.Err != nil {
			e := cohort.Wrap("rpc: "+t.what, cohort.DeadlineExceeded, ev.Err)
			e.Detail = fmt.Sprintf("waiting for the worker that holds %q; if it died, no worker can join or leave any more", holder)
			t.failed(e)
			return
		}
		// The holder says "Done" after it has given the token back, so another look soon succeeds. A worker that comes
		// again under its old name finds its old word, hence the pause.
		t.pause(t.pauses, func() { t.claim("") })
		t.pauses = min(2*t.pauses, tokenMost)
	})
	t.pollHolder(w)
}

// pollHolder looks after a while whether the holder lives.
func (t *token) pollHolder(w *tokenWait) {
	w.look = t.do(Op{Kind: OpPause, For: tokenBeat}, func(ev Event) {
		if w.over || ev.Err != nil {
			return
		}
		w.look = t.do(Op{Kind: OpRead, Round: t.round, Key: keyBeat + w.holder}, func(ev Event) { t.looked(w, ev) })
	})
}

// looked takes what the holder has said last.
func (t *token) looked(w *tokenWait, ev Event) {
	switch {
	case w.over:
		return
	case ev.Err != nil:
	case ev.Text != w.last:
		w.last, w.same = ev.Text, 0
	case ev.Text != "":
		w.same++
	}
	if w.same < tokenBeatsMissed {
		t.pollHolder(w)
		return
	}
	w.over = true
	t.cancel(w.wait)
	t.claim(w.holder)
}

// hold is the state in which this worker has the token. It says so from now on, whatever else it does.
func (t *token) hold(then func()) {
	t.holding = true
	t.say()
	then()
}

func (t *token) say() {
	t.beat = t.do(Op{Kind: OpPause, For: tokenBeat, Tidy: true}, func(Event) {
		if !t.holding {
			t.beatsEnded()
			return
		}
		t.beats++
		text := strconv.FormatUint(t.me.Epoch, 16) + "." + strconv.Itoa(t.beats)
		t.beat = t.do(Op{Kind: OpSet, Round: t.round, Key: keyBeat + t.value, Text: text, Tidy: true}, func(Event) {
			if !t.holding {
				t.beatsEnded()
				return
			}
			t.say()
		})
	})
}

// beatsEnded is the state in which this worker says no more that it lives.
func (t *token) beatsEnded() {
	t.beat = 0
	t.released()
}

// removeDeadHolder takes a worker off the list that died while it had the token.
func (t *token) removeDeadHolder(held string) {
	name := strings.TrimPrefix(held, "Token_for_")
	name = name[:max(strings.LastIndexByte(name, '_'), 0)]
	t.edit(func(all []Worker) []Worker { return without(all, name) }, t.then)
}

// edit changes the list of members. The holder of the token is alone, but a worker that was declared dead because the store was
// late for it does not know that it has lost the token: so no worker writes over what it has not seen.
func (t *token) edit(change func([]Worker) []Worker, then func()) {
	t.read(t.round, KeyInfos, func(raw string) {
		all, err := ParseInfos(raw)
		if err != nil {
			t.failed(err)
			return
		}
		text := formatInfos(change(all))
		t.swap(KeyInfos, raw, text, func(got string) {
			if got == text {
				then()
				return
			}
			t.edit(change, then)
		})
	})
}

// release gives the token back, also when the time of the caller is over: others wait for it.
func (t *token) release(then func(error)) {
	t.holding = false
	t.failed = then
	t.released = func() {
		t.tidy = t.now + tidyTime
		t.swap(keyToken, t.value, "", func(string) { t.set(t.value, "Done", func() { then(nil) }) })
	}
	if t.beat == 0 {
		t.released()
		return
	}
	t.cancel(t.beat)
}
