// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
)

const (
	// countEvery is how long a PyTorch worker is left alone between two questions about its all-gathers. It is asked mostAsks
	// times when a question is lost with its connection.
	countEvery, mostAsks = 50 * time.Millisecond, 5
	// reportTime bounds how long a leader notifies others of a death.
	reportTime = time.Second
)

// waiting is a wait in which others are looked after.
type waiting struct {
	course
	current int  // the operation that waits
	watch   int  // the operation that looks after them
	lost    bool // a worker has died: the wait is over
}

// guard looks after workers from now on.
func (w *waiting) guard(names, among []string, how Wait) {
	w.lost = false
	var id int
	id = w.do(Op{Kind: OpWatch, Names: names, Among: among, How: how}, func(ev Event) {
		if ev.OK && w.watch == id { // otherwise the time of the caller is over, which what it waits for finds
			w.lost = true
			w.cancel(w.current)
		}
	})
	w.watch = id
}

// stopWatch stops that. dead is who has died meanwhile.
func (w *waiting) stopWatch(then func(dead *cohort.Error)) {
	id := w.watch
	if id == 0 {
		then(nil)
		return
	}
	w.watch = 0
	w.do(Op{Kind: OpUnwatch, N: id}, func(ev Event) {
		dead, _ := errors.AsType[*cohort.Error](ev.Err)
		then(dead)
	})
}

// recordDeath records in a static world whose death has ended the wait, for those who will find that this worker has gone. first
// is that death, or what was recorded before and is its cause. The store is asked even if the time of the caller is over: a
// worker that had the same deadline and gave up a moment before is gone too, and has said why.
func (w *waiting) recordDeath(me Self, dead *cohort.Error, among []string, then func(first *cohort.Error)) {
	if !me.Static() {
		then(dead)
		return
	}
	w.do(Op{Kind: OpSwap, Round: w.round, Key: KeyLost, Text: dead.Peer, For: recordTime, Tidy: true}, func(ev Event) {
		first := parseLoss(ev.Text)
		if ev.Err != nil || ev.Text == dead.Peer || !first.among(among) {
			then(dead)
			return
		}
		w.do(Op{Kind: OpStates, Names: []string{first.Worker}}, func(ev Event) { then(first.err(ev.States[0].rank())) })
	})
}

// ended is the error for a worker whose process has ended.
func (w *waiting) ended(name, how string, cause error, then func(*cohort.Error)) {
	w.do(Op{Kind: OpStates, Names: []string{name}}, func(ev Event) { then(deathOf(name, ev.States[0].rank(), how, cause)) })
}

// counting finds out which all-gather of some names is next. Go workers begin with 0, and so do the first worlds of
// PyTorch's processes. In later ones a PyTorch worker is asked. Its states are:
//
//	counting → looking for a PyTorch worker → asking it, until it says the same twice → known
//
// A PyTorch worker that is about to enter the all-gather does so once its leader answers, so all are looked after.
type counting struct {
	waiting
	me      Self
	names   []string
	entered bool
	who     string
	said    int
	asks    int // in vain
	then    func()
}

// NewCounting returns the machine. entered says that the PyTorch worker is about to enter the all-gather, if it has not, and
// waits for us there. Otherwise it may enter it at any time.
func NewCounting(me Self, round int, names []string, entered bool) *counting {
	c := &counting{me: me, names: slices.Sorted(slices.Values(names)), entered: entered, said: -1}
	c.round = round
	c.begin(func() { c.count(func() { c.end(nil) }) })
	return c
}

// others are the names of all workers but this one.
func (c *counting) others() []string {
	return slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { return name == c.me.Name })
}

// count is the state in which it is not known whether the number is known.
func (c *counting) count(then func()) {
	c.then = then
	c.must(Op{Kind: OpGatherCount, Names: c.names}, func(ev Event) {
		switch {
		case ev.OK:
			then()
		case c.round == 0:
			c.first(0)
		default:
			inOrder(c.others(), c.isPyTorch, func() { c.first(0) })
		}
	})
}

// isPyTorch asks the first PyTorch worker, or goes on to the next worker.
func (c *counting) isPyTorch(name string, next func()) {
	c.do(Op{Kind: OpIsGo, Worker: name}, func(ev Event) {
		if ev.OK {
			next()
			return
		}
		c.who = name
		if c.entered {
			c.guard(c.others(), c.others(), ClosedWait)
		}
		c.ask()
	})
}

// ask is the state in which the PyTorch worker is asked.
func (c *counting) ask() {
	name := gatherName(c.names)
	c.question(Op{Kind: OpAskCount, Worker: c.who, Text: name}, func(ev Event) {
		n := ev.N
		if n == 0 {
			c.told(0, false)
			return
		}
		c.question(Op{Kind: OpAskInside, Worker: c.who, Text: name + strconv.Itoa(n-1)}, func(ev Event) {
			if ev.OK {
				n--
			}
			c.told(n, ev.OK)
		})
	})
}

// question asks, unless a worker has died. A connection that has ended says nothing about the process behind it: so the worker is
// asked again, and does not listen any more if it is dead. One whose connections end every time is as good as dead: the others are told.
func (c *counting) question(op Op, then func(Event)) {
	c.current = c.do(op, func(ev Event) {
		switch {
		case ev.Err == nil && !c.lost:
			if op.Kind != OpPause {
				c.asks = 0
			}
			then(ev)
			return
		case !ev.Gone && !c.lost && cutOff(ev.Err) && c.asks < mostAsks:
			c.asks++
			c.question(Op{Kind: OpPause, For: countEvery}, func(Event) { c.question(op, then) })
			return
		}
		c.stopWatch(func(dead *cohort.Error) {
			why := func(dead *cohort.Error) { c.recordDeath(c.me, dead, c.others(), c.unreportedDeaths) }
			switch {
			case dead != nil:
				why(dead)
			case ev.Gone:
				c.ended(c.who, processEnded, ev.Err, why)
			case cutOff(ev.Err) && cohort.CodeOf(ev.Err) != cohort.Closed: // not if this worker itself is closed
				c.ended(c.who, alwaysCutOff, ev.Err, why)
			default:
				c.failed(ev.Err)
			}
		})
	})
}

// unreportedDeaths is the state in which no worker knows the number any more. The leader notifies those that wait for
// it, and records it for those that come later. The others find out by themselves.
func (c *counting) unreportedDeaths(dead *cohort.Error) {
	why := gatherError(dead)
	if c.names[0] != c.me.Name {
		c.failed(why)
		return
	}
	c.must(Op{Kind: OpGiveUpNext, Names: c.names, Worker: dead.Peer}, func(ev Event) {
		c.notify(ev.Reports, dead.Peer, func() { c.failed(why) })
	})
}

// notify is the state in which a leader notifies the Go workers that wait why an all-gather fails. A PyTorch worker waits until its
// time is over, as for a leader of its own kind.
func (c *counting) notify(waits []Report, dead string, then func()) {
	until := c.now + reportTime
	left := 1
	told := func(Event) {
		if left--; left == 0 {
			then()
		}
	}
	for _, x := range waits {
		left++
		c.do(Op{Kind: OpIsGo, Worker: x.From, For: reportTime}, func(ev Event) {
			if !ev.OK || c.now >= until { // a PyTorch worker does not know the function
				told(ev)
				return
			}
			c.do(Op{Kind: OpNotifyLost, Text: x.ID, Worker: x.From, Names: []string{dead}, For: until - c.now}, told)
		})
	}
	told(Event{})
}

// told takes the answer if it was the same before: a worker that enters an all-gather counts it a moment earlier.
func (c *counting) told(next int, inside bool) {
	if next == c.said && (inside || !c.entered) {
		c.stopWatch(func(*cohort.Error) { c.first(next) })
		return
	}
	c.said = next
	c.question(Op{Kind: OpPause, For: countEvery}, func(Event) { c.ask() })
}

func (c *counting) first(n int) {
	c.must(Op{Kind: OpGatherFirst, Names: c.names, N: n}, func(Event) { c.then() })
}

// Gather is the course of one all-gather at one worker. Its states are:
//
//	counting → entered → reporting → waiting → settling → sharing or notifying → left
//
// From entering to settling the others are looked after. It does not wait for a worker that has died: a Go leader looks
// after all others, since none of them can have left, and notifies them. They look after the leader. A PyTorch leader watches
// no one, so all watch all, although others may be further than they are.
type Gather struct {
	counting
	leader   string
	together bool
	id       string
	gone     bool // the process of the leader has ended
}

// NewGather returns the machine. together says that no worker can leave before this one.
func NewGather(me Self, round int, names []string, together bool) *Gather {
	g := &Gather{counting: counting{me: me, names: slices.Sorted(slices.Values(names)), said: -1}, together: together}
	g.leader, g.round = g.names[0], round
	g.begin(func() { g.count(g.enter) })
	return g
}

// ID is the id of the all-gather, once it is entered.
func (g *Gather) ID() string { return g.id }

func (g *Gather) leads() bool { return g.leader == g.me.Name }

// enter is the state in which the number is known.
func (g *Gather) enter() {
	g.must(Op{Kind: OpGatherEnter, Names: g.names}, func(ev Event) {
		g.id = ev.Text
		g.failed = g.leave
		g.chooseWatched()
	})
}

// chooseWatched chooses whom to look after while this worker waits.
func (g *Gather) chooseWatched() {
	all := g.others()
	if g.leads() {
		g.report(all)
		return
	}
	g.do(Op{Kind: OpIsGo, Worker: g.leader}, func(ev Event) {
		if !ev.OK {
			g.report(all)
			return
		}
		g.must(Op{Kind: OpStates, Names: all}, func(ev Event) {
			waited := []string{}
			for i, name := range all {
				if name == g.leader || g.together && ev.States[i].Met {
					waited = append(waited, name)
				}
			}
			g.report(waited)
		})
	})
}

// report is the state in which the leader gets the object of this worker.
func (g *Gather) report(waited []string) {
	how := ClosedWait
	switch {
	case g.leads():
		how = leaderWait
	case !g.together:
		how = OpenWait
	}
	g.guard(waited, g.others(), how)
	g.do(Op{Kind: OpGatherSeen, Text: g.id}, func(ev Event) {
		if ev.OK || g.lost { // the leader has given up before we came
			g.settle(nil)
			return
		}
		g.current = g.do(Op{Kind: OpReport, Text: g.id, Worker: g.leader}, func(ev Event) {
			if ev.Err != nil || g.lost {
				g.gone = ev.Gone
				g.settle(ev.Err)
				return
			}
			g.current = g.do(Op{Kind: OpAwait, Text: g.id, Names: g.names}, g.waited)
		})
	})
}

// waited takes the end of the wait for all objects.
func (g *Gather) waited(ev Event) {
	if e, ok := errors.AsType[*cohort.Error](ev.Err); ok && e.Detail == "" {
		if g.leads() {
			e.Detail = "workers that did not report: " + strings.Join(ev.Names, ", ")
		} else {
			e.Detail = "no answer of the leader " + g.leader
		}
	}
	g.settle(ev.Err)
}

// settle is the state in which it is decided what the end of the wait means: what has arrived counts, then a death, then
// what has failed here.
func (g *Gather) settle(err error) {
	g.stopWatch(func(dead *cohort.Error) {
		g.do(Op{Kind: OpGatherSeen, Text: g.id}, func(ev Event) {
			switch {
			case ev.OK && ev.Err != nil:
				g.told(ev.Err)
			case ev.OK && g.leads():
				g.share()
			case ev.OK:
				g.leave(nil)
			case dead != nil:
				g.recordDeath(g.me, dead, g.others(), g.give)
			case g.gone:
				g.ended(g.leader, processEnded, err, func(dead *cohort.Error) { g.recordDeath(g.me, dead, g.others(), g.give) })
			default:
				g.leave(err)
			}
		})
	})
}

// told is the state in which the leader has said that a worker is lost. What is recorded says why.
func (g *Gather) told(err error) {
	lost, ok := errors.AsType[*cohort.Error](err)
	if !ok {
		g.leave(err)
		return
	}
	g.recordDeath(g.me, lost, g.others(), func(first *cohort.Error) { g.leave(gatherError(first)) })
}

// share is the state in which a leader gives everything to everybody.
func (g *Gather) share() {
	others := g.names[1:]
	left, answers := len(others), make([]Event, len(others))
	if left == 0 {
		g.leave(nil)
	}
	for i, name := range others {
		g.do(Op{Kind: OpShare, Text: g.id, Worker: name}, func(ev Event) {
			answers[i] = ev
			if left--; left == 0 {
				g.shared(others, answers)
			}
		})
	}
}

// shared takes the answers of the followers.
func (g *Gather) shared(others []string, answers []Event) {
	at := slices.IndexFunc(answers, func(ev Event) bool { return ev.Err != nil })
	if at < 0 {
		g.leave(nil)
		return
	}
	e := cohort.Wrap("rpc: all_gather", cohort.Unavailable, answers[at].Err)
	e.Key, e.Peer = "broadcast", others[at]
	if !answers[at].Gone {
		g.leave(e)
		return
	}
	g.recordDeath(g.me, e, g.others(), func(*cohort.Error) { g.leave(e) })
}

// give is the state in which a worker gives up because of a death. A leader notifies those who are waiting, and notes it for
// those who come.
func (g *Gather) give(dead *cohort.Error) {
	report := func(Event) {
		if !g.leads() {
			g.leave(gatherError(dead))
			return
		}
		others := slices.DeleteFunc(slices.Clone(g.names[1:]), func(name string) bool { return name == dead.Peer })
		g.must(Op{Kind: OpStates, Names: others}, func(ev Event) {
			waits := []Report{}
			for i, name := range others {
				if ev.States[i].Connected {
					waits = append(waits, Report{g.id, name})
				}
			}
			g.notify(waits, dead.Peer, func() { g.leave(gatherError(dead)) })
		})
	}
	if !g.leads() {
		report(Event{})
		return
	}
	g.do(Op{Kind: OpGiveUp, Text: g.id, Names: g.names, Worker: dead.Peer}, report)
}

// leave is the state in which the all-gather is over for this worker.
func (g *Gather) leave(err error) {
	g.failed = g.end
	g.do(Op{Kind: OpGatherLeave, Text: g.id}, func(Event) { g.end(err) })
}

// gatherError says of a loss what was waited for.
func gatherError(err error) error {
	dead, ok := err.(*cohort.Error) //nolint:errorlint // only what a watcher or a leader says
	if !ok || dead.Op != "rpc: worker" {
		return err
	}
	e := cohort.Wrap("rpc: all_gather", dead.Code, err)
	e.Peer, e.Rank, e.Detail = dead.Peer, dead.Rank, dead.Detail
	return e
}
