// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
)

// undoNotify bounds how long a member is told that a worker does not join after all.
const undoNotify = time.Second

// probes and probePause are how often, and how long apart, a worker whose name is wanted is probed: the sockets of a process that was
// killed are closed one after the other. probeTime bounds one probe.
const (
	probes, probePause = 6, 200 * time.Millisecond
	probeTime          = 5 * time.Second
)

// Join is a worker that joins a world whose workers come and go. When it fails, also because the time of the caller is over,
// the world is as it was before. Its states are:
//
//	finding the round → taking the token → reading the list → (probing the worker of its name) → claiming an id → announcing →
//	listed → knowing the members → asking them for their devices → notifying them → releasing the token → joined
//
// A worker that was killed stays on the list. Its replacement comes under its name, finds that nothing listens at its address, and
// takes its place. The probe does not name this worker: a hello under the name of its holder would look to it like its replacement.
//
// From listed on a failure leads to undoing, and from holding the token on to releasing it. A member whose process has ended is
// taken off the list: no other worker does it, and none could join any more.
type Join struct {
	token
	id     int
	listed bool
	all    []Worker // the members before
	told   []string
	dead   []string
	again  bool // another worker had its name before
}

// NewJoin returns the machine.
func NewJoin(me Self) *Join {
	j := &Join{token: token{me: me}}
	j.begin(func() {
		if me.Round >= 0 {
			j.enter(me.Round)
			return
		}
		j.dynamicRound(j.enter)
	})
	return j
}

// enter is the state in which the round is known.
func (j *Join) enter(k int) {
	j.round = k
	j.must(Op{Kind: OpEnter, Round: k}, func(Event) {
		if strings.Contains(j.me.Name, "-") {
			j.end(cohort.Newf("rpc: join", cohort.InvalidArgument,
				"worker name %q: PyTorch workers cannot read a '-' in the list of a dynamic world", j.me.Name))
			return
		}
		j.take("join", func() {
			j.failed = j.undo
			j.chooseMode("false", func() { j.members(k, j.claimName) })
		})
	})
}

// claimName makes sure that no worker has its name that lives.
func (j *Join) claimName(all []Worker) {
	j.read(j.round, KeyAddrs+j.me.Name, func(addr string) {
		j.again = addr != ""
		at := slices.IndexFunc(all, func(m Worker) bool { return m.Name == j.me.Name })
		if at < 0 {
			j.claimID(all)
			return
		}
		j.probe(all[at], addr, probes, func() { j.claimID(without(all, j.me.Name)) })
	})
}

// probe finds out whether the process of the worker that has its name has ended. Only a connection that is refused says so.
func (j *Join) probe(holder Worker, addr string, left int, ended func()) {
	j.do(Op{Kind: OpProbe, Worker: holder.Name, Text: addr, For: probeTime}, func(ev Event) {
		switch {
		case ev.Gone:
			ended()
		case ev.Err != nil && !ev.Silent && !timeOver(ev.Err) && left > 1:
			j.pause(probePause, func() { j.probe(holder, addr, left-1, ended) })
		default:
			e := cohort.Newf("rpc: join", cohort.AlreadyExists, "worker name %q is taken by the worker with id %d, which listens at %s",
				holder.Name, holder.ID, addr)
			if ev.Err != nil {
				e.Detail = fmt.Sprintf("worker name %q is taken by the worker with id %d, and whether it still runs at %q is not known",
					holder.Name, holder.ID, addr)
				e.Err = ev.Err
			}
			j.failed(e)
		}
	})
}

// claimID takes the id that was asked for, or one that no worker has or had.
func (j *Join) claimID(all []Worker) {
	j.all = all
	if j.me.Rank >= 0 {
		j.claimThis(j.me.Rank)
		return
	}
	next := 0
	for _, m := range all {
		next = max(next, m.ID+1)
	}
	j.free(next, j.claimThis)
}

// free looks for an id that no worker had.
func (j *Join) free(id int, then func(int)) {
	if id > MaxWorkerID {
		j.failed(cohort.New("rpc: join", cohort.Exhausted, "no worker id is left"))
		return
	}
	j.check(func(taken bool) {
		if taken {
			j.free(id+1, then)
			return
		}
		then(id)
	}, KeyNames+strconv.Itoa(id))
}

func (j *Join) claimThis(id int) {
	for _, m := range j.all {
		if m.ID == id {
			j.failed(cohort.Newf("rpc: join", cohort.AlreadyExists, "id %d is worker %q's", id, m.Name))
			return
		}
	}
	key := KeyNames + strconv.Itoa(id)
	j.swap(key, "", j.me.Name, func(got string) {
		if got != j.me.Name {
			j.failed(cohort.Newf("rpc: join", cohort.AlreadyExists,
				"id %d was worker %q's: PyTorch workers never reconnect to an id, take a fresh one", id, got))
			return
		}
		j.id = id
		j.set(key, j.me.Name, j.listen)
	})
}

// listen is the state in which this worker has an id.
func (j *Join) listen() {
	j.must(Op{Kind: OpListen, N: j.id}, func(ev Event) {
		announce := func() { j.announce(j.me, ev.Text, j.list) }
		if j.again { // it may have spoken another protocol
			j.withdraw([]string{j.me.Name}, announce)
			return
		}
		announce()
	})
}

// list is the state in which others can see this worker, perhaps.
func (j *Join) list() {
	j.listed = true
	me := Worker{j.me.Name, j.id}
	j.edit(func(all []Worker) []Worker {
		j.all = without(all, me.Name)
		return append(slices.Clone(j.all), me)
	}, func() { j.know(j.me, j.all, j.ask) })
}

// ask asks the members for their devices, as PyTorch does.
func (j *Join) ask() {
	inOrder(j.all, func(m Worker, next func()) {
		j.do(Op{Kind: OpAskDevices, Worker: m.Name}, j.answered("ask worker %q for its devices: %w", m.Name, next))
	}, j.notify)
}

// notify notifies the members that this worker comes.
func (j *Join) notify() {
	inOrder(j.all, func(m Worker, next func()) {
		j.notifyLeft(m.Name, func() {
			if slices.Contains(j.dead, m.Name) {
				next()
				return
			}
			j.told = append(j.told, m.Name)
			j.do(Op{Kind: OpNotifyJoin, Worker: m.Name}, j.answered("notify worker %q: %w", m.Name, next))
		})
	}, j.removeDeadMembers)
}

// notifyLeft notifies a PyTorch worker that the one which had this name before has gone: it keeps what it knows under a name until then.
func (j *Join) notifyLeft(member string, then func()) {
	if !j.again || slices.Contains(j.dead, member) {
		then()
		return
	}
	j.do(Op{Kind: OpIsGo, Worker: member}, func(ev Event) {
		if ev.OK {
			then()
			return
		}
		j.do(Op{Kind: OpNotifyLeave, Worker: member}, j.answered("notify worker %q: %w", member, then))
	})
}

// answered is the state after a member was called.
func (j *Join) answered(what, name string, next func()) func(Event) {
	return func(ev Event) {
		switch {
		case ev.Err == nil:
			next()
		case ev.Gone:
			j.dead = append(j.dead, name)
			next()
		default:
			j.failed(fmt.Errorf(what, name, ev.Err))
		}
	}
}

// removeDeadMembers takes those off the list whose process has ended.
func (j *Join) removeDeadMembers() {
	inOrder(j.dead, func(name string, next func()) {
		j.must(Op{Kind: OpDrop, Worker: name}, func(Event) { next() })
	}, func() {
		if len(j.dead) == 0 {
			j.joined()
			return
		}
		j.edit(func(all []Worker) []Worker { return without(all, j.dead...) }, func() { j.withdraw(j.dead, j.joined) })
	})
}

// joined is the state in which everybody knows this worker.
func (j *Join) joined() {
	j.noteRound(func() { j.release(j.end) })
}

// undo takes back what others can see of a join that has failed.
func (j *Join) undo(why error) {
	over := func(error) {
		j.release(func(error) { j.end(why) })
	}
	if !j.listed {
		over(nil)
		return
	}
	j.tidy = j.now + tidyTime
	left := len(j.told) + 1
	done := func() {
		if left--; left == 0 {
			over(nil)
		}
	}
	for _, name := range j.told {
		j.do(Op{Kind: OpNotifyLeave, Worker: name, For: undoNotify, Tidy: true}, func(Event) { done() })
	}
	j.failed = func(error) { done() }
	j.edit(func(all []Worker) []Worker { return without(all, j.me.Name) }, func() { j.withdraw([]string{j.me.Name}, done) })
}

// Leave is a worker of a dynamic world that goes. It does as much as it can in any case, and ends with the first error. Its
// states are:
//
//	taking the token → notifying the others → off the list → releasing the token → left
type Leave struct {
	token
	dead  []string
	first error
}

// NewLeave returns the machine.
func NewLeave(me Self, round int) *Leave {
	l := &Leave{token: token{me: me}}
	l.round = round
	l.begin(func() { l.take("leave", l.notify) })
	return l
}

// fails notes the first error.
func (l *Leave) fails(err error) {
	if l.first == nil {
		l.first = err
	}
}

// notify notifies the others that this worker goes: those of now, since another one may have left before.
func (l *Leave) notify() {
	l.failed = l.off
	l.must(Op{Kind: OpOthers}, func(ev Event) {
		inOrder(ev.Names, func(name string, next func()) {
			l.do(Op{Kind: OpNotifyLeave, Worker: name}, func(ev Event) {
				if ev.Err != nil && ev.Gone {
					l.dead = append(l.dead, name) // no other worker takes it off the list
				}
				if ev.Err != nil {
					l.fails(fmt.Errorf("notify worker %q: %w", name, ev.Err))
				}
				next()
			})
		}, func() { l.off(nil) })
	})
}

// off takes this worker and those that have died off the list.
func (l *Leave) off(err error) {
	if err != nil {
		l.fails(err)
	}
	l.tidy = l.now + tidyTime
	released := func(err error) {
		if err != nil {
			l.fails(err)
		}
		l.release(func(err error) {
			if err != nil {
				l.fails(err)
			}
			l.end(l.first)
		})
	}
	l.failed = released
	gone := slices.Concat(l.dead, []string{l.me.Name})
	l.edit(func(all []Worker) []Worker { return without(all, gone...) }, func() {
		l.withdraw(gone, func() { released(nil) })
	})
}
