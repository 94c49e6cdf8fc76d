// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// dynamicSim is a dynamic world whose workers, Go and PyTorch, come, go, die and do not answer for a while. At its end one
// more worker joins, and everything has to be in order.
type dynamicSim struct {
	*sim
	members map[string]*member
	faults  bool
	again   bool // others come under the names of members, dead and alive
}

// member is a worker of it.
type member struct {
	*proc
	w     *dynamicSim
	tok   *token         // of its join or leave that is under way
	knows map[string]int // ids by name
	in    bool           // it has joined, and has not begun to leave
	out   bool           // it has left, or failed to join
	over  bool           // what it does has ended
	hung  time.Duration
	stays bool
	// replaces says that it comes in the place of a worker that has died. Nothing else is wrong in its world then.
	replaces bool
	busy     bool // a PyTorch worker joins or leaves
	id       int
}

func newDynamicSim(seed uint64, faults, again bool) *dynamicSim {
	w := &dynamicSim{sim: newSim(seed), members: map[string]*member{}, faults: faults, again: again}
	size := 2 + w.rng.IntN(5)
	for i := range size {
		m := w.member(fmt.Sprintf("w%d", i), w.rng.IntN(4) == 0)
		w.after(w.within(20*time.Second), func() { w.join(m, w.patience()) })
		if faults && w.rng.IntN(3) == 0 {
			w.after(w.within(40*time.Second), func() { w.death(m) })
		}
		if faults && w.rng.IntN(4) == 0 {
			w.after(w.within(30*time.Second), func() { m.hung = w.now + w.within(20*time.Second) })
		}
	}
	for range 4 {
		if again {
			w.after(w.within(40*time.Second), func() { w.double(w.members[w.names[w.rng.IntN(size)]]) })
		}
	}
	if faults && w.rng.IntN(3) == 0 {
		w.after(w.within(40*time.Second), func() { w.stalled = w.now + w.within(15*time.Second) })
	}
	if faults && w.rng.IntN(3) == 0 { // a worker that joins waits for this one, which sends nothing
		w.after(w.within(20*time.Second), func() {
			m := w.members[w.names[w.rng.IntN(size)]]
			m.hung = w.now + 30*time.Second
			w.after(w.within(10*time.Second), func() { w.stalled = w.now + 14*time.Second })
		})
	}
	return w
}

// patience is how long a caller waits.
func (w *dynamicSim) patience() time.Duration {
	if w.faults && w.rng.IntN(3) == 0 {
		return w.within(10 * time.Second)
	}
	return 3 * time.Minute
}

func (w *dynamicSim) member(name string, py bool) *member {
	if w.members[name] == nil {
		w.process(name, py)
	}
	w.procs[name] = &proc{name: name, py: py}
	m := &member{proc: w.procs[name], w: w, knows: map[string]int{}, id: -1}
	w.members[name] = m
	return m
}

// death ends a worker at any moment, but a PyTorch worker not while it may have the token: that stops everybody for good.
func (w *dynamicSim) death(m *member) {
	if m.py && m.busy {
		return
	}
	w.kill(m.proc)
	if w.again {
		w.after(w.within(5*time.Second), func() { w.replace(m) })
	}
}

// replace lets a Go worker come under the name of one that has died.
func (w *dynamicSim) replace(dead *member) {
	if w.members[dead.name] != dead || dead.tok != nil {
		return // another one has come, or it has died while it joined or left: its token has its name, too
	}
	m := w.member(dead.name, false)
	m.stays, m.replaces = true, true
	w.join(m, 3*time.Minute)
}

// double lets another process come under the name of a member that lives.
func (w *dynamicSim) double(m *member) {
	if m.dead || !m.in {
		return
	}
	d := &member{proc: &proc{name: m.name}, w: w, knows: map[string]int{}, id: -1}
	j := NewJoin(Self{Name: m.name, Rank: -1, Round: -1, Epoch: 8, Entry: "entry"})
	d.drive(j, &j.token, "join of a double", w.patience(), func() {
		if j.Err() == nil && !m.dead {
			w.fault("the name of %s is taken away", m.name)
		}
	})
}

func (w *dynamicSim) join(m *member, patience time.Duration) {
	if m.dead {
		return
	}
	joined := func(err error) {
		m.over = true
		w.note("%s has joined: %v", m.name, err)
		if err != nil {
			m.out = true
			if !w.faults || m.replaces && cohort.CodeOf(err) == cohort.AlreadyExists {
				w.fault("%s cannot join: %v", m.name, err)
			}
			if w.stalled == 0 && strings.Contains(","+w.store[at(0, KeyInfos)], fmt.Sprintf(",%s-%d,", m.name, m.id)) {
				w.fault("%s could not join, and is on the list", m.name)
			}
			if w.stalled == 0 && w.members[m.name] == m && strings.HasPrefix(w.store[at(0, keyToken)], "Token_for_"+m.name+"_") {
				w.fault("%s could not join, and keeps the token", m.name)
			}
			w.kill(m.proc)
			return
		}
		w.deadHolderRemoved(m)
		m.in = true
		if !m.stays && w.rng.IntN(3) == 0 {
			w.after(w.within(20*time.Second), func() { w.leave(m, w.patience()) })
		}
	}
	if m.py {
		m.torch("join", joined)
		return
	}
	j := NewJoin(Self{Name: m.name, Rank: -1, Round: -1, Epoch: 7, Entry: "entry"})
	m.drive(j, &j.token, "join", patience, func() { joined(j.Err()) })
}

func (w *dynamicSim) leave(m *member, patience time.Duration) {
	if m.dead || !m.in {
		return
	}
	m.in, m.over = false, false
	left := func(err error) {
		m.over, m.out = true, true
		w.note("%s has left: %v", m.name, err)
		if err != nil && !w.faults {
			w.fault("%s cannot leave: %v", m.name, err)
		}
		if err == nil {
			w.deadHolderRemoved(m)
			for _, key := range []string{KeyGo, KeyCohort} {
				if _, there := w.store[at(0, key+m.name)]; there && !m.py {
					w.fault("%s has left, and a PyTorch worker of its name would be taken for it", m.name)
				}
			}
		}
		// a worker that could not take the token stays on the list, until others find that it has gone
		w.kill(m.proc)
	}
	if m.py {
		m.torch("leave", left)
		return
	}
	l := NewLeave(Self{Name: m.name, Rank: -1, Epoch: 7}, 0)
	m.drive(l, &l.token, "leave", patience, func() { left(l.Err()) })
}

func (m *member) drive(machine interface{ Step(Event) []Op }, tok *token, what string, patience time.Duration, then func()) {
	m.tok = tok
	t := &task{p: m.proc, what: what, m: machine, do: m.do, deadline: m.w.now + patience, then: func() {
		m.tok = nil
		then()
	}}
	m.w.start(t)
}

// deadHolderRemoved checks that a worker that has died with the token is off the list once another worker has had it.
func (w *dynamicSim) deadHolderRemoved(by *member) {
	for _, name := range w.names {
		x := w.members[name]
		if !by.py && x.dead && x.tok != nil && x.tok.holding && strings.Contains(","+w.store[at(0, KeyInfos)], ","+name+"-") {
			w.fault("%s has died with the token, %s has had it since, and %s is on the list", name, by.name, name)
		}
	}
}

// announces notifies a worker that m comes or goes.
func (m *member) announces(to string, comes bool, answer func(Event)) {
	x := m.w.members[to]
	m.ring(x, func() error {
		x.hears(m.name, m.id, comes)
		return nil
	}, answer)
}

// hears takes it that another worker comes or goes. A PyTorch worker keeps what it knows under a name.
func (m *member) hears(name string, id int, comes bool) {
	switch was, known := m.knows[name]; {
	case !comes && (m.py || was == id):
		delete(m.knows, name)
	case comes && (!m.py || !known):
		m.knows[name] = id
	}
}

// ring calls a worker, which may not answer for a while.
func (m *member) ring(x *member, handle func() error, answer func(Event)) {
	if x.hung > m.w.now && !x.dead {
		m.w.after(x.hung-m.w.now+m.w.within(time.Second), func() { m.ring(x, handle, answer) })
		return
	}
	m.w.call(m.proc, x.proc, false, handle, answer)
}

// do does what the machines ask for.
func (m *member) do(op Op, answer func(Event)) {
	ev := Event{}
	switch op.Kind {
	case OpEnter:
	case OpListen:
		m.id, ev.Text = op.N, "address of "+m.name
	case OpKnow:
		if !strings.Contains(op.Text, m.w.members[op.Worker].name) {
			m.w.fault("%s takes %q for the address of %s", m.name, op.Text, op.Worker)
		}
		m.knows[op.Worker] = op.N
	case OpDrop:
		delete(m.knows, op.Worker)
	case OpOthers:
		ev.Names = slices.Sorted(maps.Keys(m.knows))
	case OpProbe:
		m.probe(m.w.members[op.Worker], answer)
		return
	case OpAskDevices:
		m.ring(m.w.members[op.Worker], func() error { return nil }, answer)
		return
	case OpNotifyJoin, OpNotifyLeave:
		m.announces(op.Worker, op.Kind == OpNotifyJoin, answer)
		return
	default:
		panic(op.Kind)
	}
	answer(ev)
}

// probe finds out whether another worker lives. One that comes in the place of another is a member already, and lives.
func (m *member) probe(x *member, answer func(Event)) {
	ev := Event{}
	switch now := m.w.now; {
	case x == m, x.dead && now-x.died > 20*time.Millisecond:
		ev.Err, ev.Gone = errRefused, true
	case x.dead:
		ev.Err = errCutOff
	case x.hung > now:
		return
	}
	m.w.after(m.w.while(), func() { answer(ev) })
}

// torch is the join or leave of a PyTorch worker.
func (m *member) torch(what string, then func(error)) {
	w, value := m.w, "Token_for_"+m.name+"_"+what
	m.busy = true
	ask := func(op Op, next func(Event)) {
		w.ask(m.proc, op, func(ev Event) {
			if !m.dead {
				next(ev)
			}
		})
	}
	set := func(key, text string, next func()) {
		ask(Op{Kind: OpSet, Key: key, Text: text}, func(Event) { next() })
	}
	release := func() { set(keyToken, "", func() { set(value, "Done", func() { m.busy = false; then(nil) }) }) }
	held := func(ev Event) {
		all, _ := ParseInfos(ev.Text)
		others := without(all, m.name)
		list := others
		if what == "join" {
			m.id = 0
			for _, x := range all {
				m.id = max(m.id, x.ID+1)
				m.knows[x.Name] = x.ID
			}
			for ; w.there([]string{at(0, fmt.Sprintf("%s%d", KeyNames, m.id))}); m.id++ {
			}
			w.put(at(0, fmt.Sprintf("%s%d", KeyNames, m.id)), m.name)
			list = append(slices.Clone(others), Worker{m.name, m.id})
		}
		set(KeyAddrs+m.name, "address of "+m.name, func() {
			set(KeyInfos, formatInfos(list), func() {
				inOrder(others, func(x Worker, next func()) {
					m.announces(x.Name, what == "join", func(Event) { next() })
				}, release)
			})
		})
	}
	var claim func()
	claim = func() {
		ask(Op{Kind: OpSwap, Key: keyToken, Text: value}, func(ev Event) {
			if ev.Text != value {
				waits := true
				ask(Op{Kind: OpWait, Keys: []string{ev.Text}}, func(Event) {
					if waits {
						waits = false
						claim()
					}
				})
				w.after(3*time.Minute, func() { // the time of the store
					if waits && !m.dead {
						waits, m.busy = false, false
						then(errDeadline)
					}
				})
				return
			}
			ask(Op{Kind: OpSwap, Key: KeyStatic, Text: "false"}, func(Event) { ask(Op{Kind: OpRead, Key: KeyInfos}, held) })
		})
	}
	claim()
}

// alone checks that one worker at a time has the token.
func (w *dynamicSim) alone() {
	holders := []string{}
	for _, name := range w.names {
		if m := w.members[name]; m.tok != nil && m.tok.holding && !m.dead {
			holders = append(holders, name)
		}
	}
	if len(holders) > 1 {
		w.fault("%v have the token", holders)
	}
}

func (w *dynamicSim) simulate() error {
	for w.now < 7*time.Minute && w.wrong == nil {
		w.run(w.now + 100*time.Millisecond)
		w.alone()
	}
	for _, name := range w.names {
		if m := w.members[name]; !m.dead && !m.over && w.wrong == nil {
			w.fault("%s waits for ever", name)
		}
	}
	last := w.member("z", false)
	last.stays = true
	w.join(last, 3*time.Minute)
	w.run(w.now + 5*time.Minute)
	if w.wrong != nil {
		return w.wrong
	}
	if !last.in {
		return errors.New("no worker can join any more")
	}
	all, err := ParseInfos(w.store[at(0, KeyInfos)])
	if err != nil {
		return err
	}
	ids := map[int]bool{}
	listed := []string{}
	for _, x := range all {
		listed = append(listed, x.Name)
		if ids[x.ID] || w.members[x.Name].id != x.ID {
			return fmt.Errorf("the ids are wrong: %v", all)
		}
		ids[x.ID] = true
	}
	in := []string{}
	for _, name := range w.names {
		if m := w.members[name]; m.in && !m.dead {
			in = append(in, name)
		}
	}
	slices.Sort(listed)
	slices.Sort(in)
	if !slices.Equal(listed, in) {
		return fmt.Errorf("%v are members, the list has %v", in, listed)
	}
	for _, name := range in {
		for _, x := range w.names {
			if m := w.members[x]; m.dead || x == name {
				continue
			}
			if id, known := w.members[name].knows[x]; known != slices.Contains(in, x) || known && id != w.members[x].id {
				return fmt.Errorf("%v are members, %s has the id %d, and %s knows %v", in, x, w.members[x].id, name, w.members[name].knows)
			}
		}
	}
	return nil
}

func TestDynamicSimulation(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(200, 350, 1799) {
		for _, x := range []struct{ faults, again bool }{{}, {faults: true}, {true, true}} {
			holds(t, fmt.Sprintf("seed %d, %+v", seed, x), func() *dynamicSim { return newDynamicSim(seed, x.faults, x.again) })
		}
	}
}
