// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
)

// missingTime bounds how long a start that has failed looks for the ranks that did not come.
const missingTime = time.Second

// ErrRestart ends a start that cannot succeed in its round, and has to be made again: it may in another one.
var ErrRestart = errors.New("the start has to be made again, in another round")

// Start is a worker that comes together with the others of a static world: it finds the round, and waits until all ranks have
// shown what they are. A Go rank says so first of all. A world without PyTorch ranks needs no gloo group. Its states are:
//
//	finding the round → showing itself → waiting → come together
//	        ↑                               ↓
//	        └──── following the PyTorch ranks into their round
//
// All Go ranks take the first round that is not used up. They wait in the store, for each other's keys and for the report of
// the one among them that scans for PyTorch ranks.
type Start struct {
	course
	me    Self
	mixed bool
	torch int // the PyTorch rank that was found, if mixed
}

// NewStart returns the machine.
func NewStart(me Self) *Start {
	s := &Start{me: me}
	s.begin(func() {
		if me.Round >= 0 {
			s.enter(me.Round)
			return
		}
		s.unusedRound(0)
	})
	return s
}

// Mixed reports whether the world has PyTorch ranks, and gives one of them.
func (s *Start) Mixed() (torch int, mixed bool) { return s.torch, s.mixed }

// unusedRound finds the first round from k on that is not used up.
func (s *Start) unusedRound(k int) {
	usedUp(s.must, s.me, k, func(used bool) {
		if used {
			s.announceRestart(k, func() { s.unusedRound(k + 1) })
			return
		}
		s.enter(k)
	})
}

// announceRestart notifies those who wait in a used round for the address of this rank that it will not come there any
// more: its former start has ended between its name and its address. No rank can have started in that round, so all can
// start in another one.
func (s *Start) announceRestart(k int, then func()) {
	s.read(k, KeyNames+strconv.Itoa(s.me.Rank), func(name string) {
		if name == "" {
			then()
			return
		}
		s.must(Op{Kind: OpCheck, Round: k, Keys: []string{KeyAddrs + name}}, func(ev Event) {
			if ev.OK {
				then()
				return
			}
			s.must(Op{Kind: OpSet, Round: k, Key: keyRestart}, func(Event) { then() })
		})
	})
}

// enter is the state in which the round is known.
func (s *Start) enter(k int) {
	s.round = k
	s.must(Op{Kind: OpEnter, Round: k}, func(Event) { s.show() })
}

// show says that this is a Go rank. A name that is left over from a rank of another world goes first: no rank reads names before
// all Go ranks have shown themselves.
func (s *Start) show() {
	s.remove(KeyNames+strconv.Itoa(s.me.Rank), s.shown)
}

func (s *Start) shown() {
	s.set(keySize, strconv.Itoa(s.me.Size), func() {
		s.set(RankKey(s.me.Rank), strconv.FormatUint(s.me.Epoch, 16), func() {
			s.check(func(there bool) {
				if !there {
					s.waitForRanks()
					return
				}
				s.chooseMode("true", s.waitForRanks) // a dynamic world would let us wait for ranks that never come
			}, KeyStatic)
		})
	})
}

// waitForRanks is the state in which the ranks show what they are, in this round or in another one.
func (s *Start) waitForRanks() {
	keys := make([]string, s.me.Size)
	for r := range keys {
		keys[r] = RankKey(r)
	}
	l := &peerMonitor{s: s, pauses: scanFirst}
	l.wait = s.do(Op{Kind: OpWait, Round: s.round, Keys: keys}, func(ev Event) {
		s.waited(l, ev.Err, func() { s.together(false) })
	})
	l.word = s.do(Op{Kind: OpGet, Round: s.round, Key: keyMixed}, func(ev Event) {
		s.waited(l, ev.Err, func() { s.told(ev.Text) })
	})
	l.claim("")
}

// waited ends the wait. What else is under way is cancelled, and its answers do not count any more.
func (s *Start) waited(l *peerMonitor, err error, then func()) {
	if l.left != nil {
		return
	}
	s.cancel(l.wait)
	s.cancel(l.word)
	l.leave(func() {
		if err != nil {
			s.lost(err)
			return
		}
		then()
	})
}

// told takes the report of the monitor: a round in which a PyTorch rank has begun to start. If it is this one, it may be left over
// from a start that has failed: the PyTorch rank is in a later round then, if it tries again.
func (s *Start) told(word string) {
	round, rank, found := strings.Cut(word, " ")
	k, bad := strconv.Atoi(round)
	r, worse := strconv.Atoi(rank)
	switch {
	case !found || bad != nil || worse != nil || k < 0:
		s.failed(cohort.Newf("rpc: join", cohort.Protocol, "the key %s has the value %q", keyMixed, word))
	case k != s.round:
		s.unusedRound(k) // it was one that others have followed, perhaps long ago
	case s.me.Round >= 0:
		s.torch = r
		s.together(true)
	default:
		s.torch = r
		s.hint(func(latest int) {
			later(s.must, s.me, max(k+1, latest), nextRounds, r, func(next int) {
				if next >= 0 {
					s.enter(next)
					return
				}
				s.together(true)
			})
		})
	}
}

// together is the state in which all ranks have shown what they are.
func (s *Start) together(mixed bool) {
	s.mixed = mixed
	s.noteRound(func() { s.end(nil) })
}

// lost is the state after the wait has failed. When the time of the caller is over, it says which ranks did not come.
func (s *Start) lost(err error) {
	if !timeOver(err) {
		s.end(err)
		return
	}
	e := cohort.Wrap("rpc: join", cohort.DeadlineExceeded, err)
	s.tidy = s.now + missingTime
	s.failed = func(error) { s.end(e) }
	missing := []string{}
	ranks := make([]int, s.me.Size)
	for r := range ranks {
		ranks[r] = r
	}
	inOrder(ranks, func(r int, next func()) {
		s.check(func(there bool) {
			if !there {
				missing = append(missing, strconv.Itoa(r))
			}
			next()
		}, RankKey(r))
	}, func() {
		e.Detail = "these ranks did not join: " + strings.Join(missing, ", ")
		s.end(e)
	})
}

// naming is how the workers of a static world learn each other's names and addresses. Its states are:
//
//	agreeing on the mode → named → knowing all names → announced → knowing all addresses
//
// In a world of Go ranks it ends with [ErrRestart] if one of them comes again that has not announced itself.
type naming struct {
	course
	me   Self
	addr string
	all  []Worker
}

// NewNaming returns the machine for a worker at an address.
func NewNaming(me Self, round int, addr string, mixed bool) *naming {
	n := &naming{me: me, addr: addr}
	n.round = round
	n.begin(func() {
		if !mixed && me.Round < 0 {
			n.do(Op{Kind: OpWait, Round: round, Keys: []string{keyRestart}}, func(ev Event) {
				if ev.Err == nil {
					n.end(ErrRestart)
				}
			})
		}
		n.chooseMode("true", func() { n.set(KeyNames+strconv.Itoa(me.Rank), me.Name, n.names) })
	})
	return n
}

// Workers are all workers, in the order of their ranks.
func (n *naming) Workers() []Worker { return n.all }

// names waits for the names of all ranks.
func (n *naming) names() {
	n.all = make([]Worker, n.me.Size)
	for r := range n.all {
		n.all[r].ID = r
	}
	n.all[n.me.Rank].Name = n.me.Name
	seen := map[string]int{n.me.Name: n.me.Rank}
	others := without(n.all, n.me.Name)
	inOrder(others, func(x Worker, next func()) {
		n.do(Op{Kind: OpGet, Round: n.round, Key: KeyNames + strconv.Itoa(x.ID)}, func(ev Event) {
			if ev.Err != nil {
				n.failed(fmt.Errorf("wait for the name of rank %d: %w", x.ID, ev.Err))
				return
			}
			if other, twice := seen[ev.Text]; twice {
				n.failed(cohort.Newf("rpc: join", cohort.AlreadyExists, "ranks %d and %d are both called %q", other, x.ID, ev.Text))
				return
			}
			seen[ev.Text] = x.ID
			n.all[x.ID].Name = ev.Text
			next()
		})
	}, func() {
		n.announce(n.me, n.addr, func() {
			n.know(n.me, slices.Concat(n.all[:n.me.Rank], n.all[n.me.Rank+1:]), func() { n.end(nil) })
		})
	})
}

const (
	// pollMoved is how often a rank that waits for PyTorch ranks looks whether they have gone on; with many ranks each of them
	// looks less often, so that there is one look in moveShare.
	pollMoved, moveShare = time.Second, 10 * time.Millisecond
)

// Moved looks whether a PyTorch rank has begun to start in a later round, while a Go rank waits for it in this one. What it had left here
// may be of a start that has failed: it counts its starts, and never comes back. Nothing in the store shows that before it tries again,
// and it may still be waiting; so the Go rank waits, and looks. The machine ends with [ErrRestart] when the PyTorch rank has gone on.
type Moved struct {
	course
	me    Self
	torch int
}

// NewMoved returns the machine for a PyTorch rank that has begun to start in a round.
func NewMoved(me Self, round, torch int) *Moved {
	m := &Moved{me: me, torch: torch}
	m.round = round
	m.begin(func() {
		if me.Round >= 0 {
			m.end(nil)
			return
		}
		m.look()
	})
	return m
}

func (m *Moved) look() {
	m.pause(max(pollMoved, time.Duration(m.me.Size)*moveShare), func() {
		m.hint(func(latest int) {
			later(m.must, m.me, max(m.round+1, latest), nextRounds, m.torch, func(next int) {
				if next >= 0 {
					m.end(ErrRestart)
					return
				}
				m.look()
			})
		})
	})
}
