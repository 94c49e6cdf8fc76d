// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// scanFirst and scanEvery are the pauses between two looks for PyTorch ranks of this round, from the first to the longest.
	scanFirst, scanEvery = time.Millisecond, 100 * time.Millisecond
	// scanPeers is how often the monitor looks for PyTorch ranks of other rounds: of the first ones, and of farRounds others. Every
	// other time these are the next ones, else ones that are farther away, up to manyRounds: a look takes long if the store is slow.
	scanPeers, farRounds, manyRounds = 500 * time.Millisecond, 48, 1024
	// monitorBeat is how often the monitor says that it lives, monitorTimeout when another rank takes over.
	monitorBeat, monitorTimeout = time.Second, 3 * time.Second
	// cleanupPeers bounds how long the monitor takes its word back.
	cleanupPeers = time.Second
	// nextRounds is how many rounds from the latest known one on a PyTorch rank may be in, if its sign in another round is old.
	nextRounds = 4
)

// peerMonitor looks for PyTorch ranks during a start, if no other Go rank does, and says in the store what it has found. PyTorch
// ranks wait for nothing that could be waited for with them, so one has to look again and again; but only one. Its states are:
//
//	claiming ⇄ watching the monitor → looking at this round ⇄ looking around ⇄ saying that it lives → found or left
type peerMonitor struct {
	s       *Start
	wait    int    // the operation that waits for Go ranks
	word    int    // the operation that waits for the word of a monitor
	current int    // the operation of this monitor that is under way
	value   string // what it has said last about itself
	claims  bool   // it may have said something
	beats   int
	unknown []int // the ranks that have shown nothing yet
	looks   int
	looked  time.Duration // around, last
	said    time.Duration // that it lives, last
	pauses  time.Duration
	left    func() // the state after it was left
}

// me is how this monitor begins what it says about itself.
func (l *peerMonitor) me() string { return fmt.Sprintf("%d.%x.", l.s.me.Rank, l.s.me.Epoch) }

// ask does an operation, unless the monitor is not needed any more.
func (l *peerMonitor) ask(op Op, then func(Event)) {
	l.current = l.s.do(op, func(ev Event) {
		l.current = 0
		switch {
		case l.left != nil:
			l.drop(l.value)
		case ev.Err != nil:
			l.s.waited(l, ev.Err, nil)
		default:
			then(ev)
		}
	})
}

// say says that this monitor lives, instead of what was said before.
func (l *peerMonitor) say(old string, then func(got string, mine bool)) {
	text := l.me() + strconv.Itoa(l.beats)
	l.beats++
	l.claims = true
	l.ask(Op{Kind: OpSwap, Round: l.s.round, Key: keyMonitor, Old: old, Text: text}, func(ev Event) {
		if l.claims = ev.Text == text; l.claims {
			l.value, l.said = text, l.s.now
		}
		then(ev.Text, l.claims)
	})
}

// claim is the state in which another rank may be the monitor. held is what that one has said when we looked last: if it says
// the same now, it is gone.
func (l *peerMonitor) claim(held string) {
	l.say(held, func(got string, mine bool) {
		switch {
		case mine:
			for r := range l.s.me.Size {
				if r != l.s.me.Rank {
					l.unknown = append(l.unknown, r)
				}
			}
			l.looked = l.s.now
			l.look()
		default:
			l.ask(Op{Kind: OpPause, For: monitorTimeout}, func(Event) { l.claim(got) })
		}
	})
}

// look is the state in which the ranks that have shown nothing yet are looked at.
func (l *peerMonitor) look() {
	left := []int{}
	inOrder(l.unknown, func(r int, next func()) {
		l.ask(Op{Kind: OpCheck, Round: l.s.round, Keys: []string{RankKey(r)}}, func(ev Event) {
			if ev.OK {
				next()
				return
			}
			left = append(left, r)
			signOf(l.ask, l.s.round, r, func(there bool) {
				if there {
					l.announce(l.s.round, r)
					return
				}
				next()
			})
		})
	}, func() {
		if l.unknown = left; len(left) > 0 {
			l.around()
		}
	})
}

// announce reports to all Go ranks where PyTorch rank r is.
func (l *peerMonitor) announce(round, r int) {
	word := strconv.Itoa(round) + " " + strconv.Itoa(r)
	l.ask(Op{Kind: OpSet, Round: l.s.round, Key: keyMixed, Text: word}, func(Event) {})
}

// around is the state in which no new rank was seen in this round.
func (l *peerMonitor) around() {
	s := l.s
	if s.me.Round >= 0 || s.now-l.looked < scanPeers {
		l.rest()
		return
	}
	// Once all ranks have come, those that are unknown are PyTorch's and in one round: one of them is enough for a look.
	turn, far := l.looks/2, 0
	if l.looks%2 > 0 {
		far = (1 + turn) * farRounds % (manyRounds - fewRounds)
	}
	r := l.unknown[turn%len(l.unknown)]
	l.looks++
	inOrder([][2]int{{0, fewRounds}, {fewRounds + far, farRounds}}, func(x [2]int, next func()) {
		later(l.ask, s.me, x[0], x[1], r, func(k int) {
			if k >= 0 && k != s.round {
				l.announce(k, r)
				return
			}
			next()
		})
	}, func() {
		l.looked = s.now
		l.rest()
	})
}

// rest is the state before the next look.
func (l *peerMonitor) rest() {
	again := func() {
		l.ask(Op{Kind: OpPause, For: l.pauses}, func(Event) { l.look() })
		l.pauses = min(2*l.pauses, scanEvery)
	}
	if l.s.now-l.said < monitorBeat {
		again()
		return
	}
	l.say(l.value, func(_ string, mine bool) {
		if mine { // otherwise another rank has taken over
			again()
		}
	})
}

// leave is the state in which the monitor is not needed any more.
func (l *peerMonitor) leave(then func()) {
	l.left = then
	if l.current != 0 {
		l.s.cancel(l.current)
		return
	}
	l.drop(l.value)
}

// drop takes back what this monitor has said about itself, for a start that is tried again.
func (l *peerMonitor) drop(value string) {
	if !l.claims {
		l.left()
		return
	}
	l.s.do(Op{Kind: OpSwap, Round: l.s.round, Key: keyMonitor, Old: value, For: cleanupPeers, Tidy: true}, func(ev Event) {
		if ev.Err == nil && ev.Text != value && strings.HasPrefix(ev.Text, l.me()) { // it did not learn that it has said so
			l.drop(ev.Text)
			return
		}
		l.left()
	})
}

// signOf finds out whether a PyTorch rank has begun to start in a round: it publishes the address of its gloo group first.
func signOf(ask asker, k, rank int, then func(there bool)) {
	n := strconv.Itoa(rank)
	inOrder([]string{"0/rank_" + n, "0/" + n}, func(key string, next func()) {
		ask(Op{Kind: OpCheck, Round: k, Keys: []string{key}}, func(ev Event) {
			if ev.OK {
				then(true)
				return
			}
			next()
		})
	}, func() { then(false) })
}

// later finds the last round from first on, of n, in which a PyTorch rank has begun to start that is not used up for a worker, or -1.
func later(ask asker, me Self, first, n, rank int, then func(k int)) {
	found := -1
	var look func(k int)
	look = func(k int) {
		if k == first+n {
			then(found)
			return
		}
		signOf(ask, k, rank, func(there bool) {
			if !there {
				look(k + 1)
				return
			}
			usedUp(ask, me, k, func(used bool) {
				if !used {
					found = k
				}
				look(k + 1)
			})
		})
	}
	look(first)
}
