// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore_test

import (
	"bytes"
	"container/heap"
	cryptorand "crypto/rand"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlog"
)

// options of a world.
type options struct {
	members   int
	clients   int
	forgetful bool // the replicated state keeps no record of answered requests
	changes   bool // members are added and removed
}

// world is a cluster with its network, disks and clients in virtual time. What happens is decided by the seed alone.
type world struct {
	options options
	rand    *rand.Rand
	clock   time.Duration
	events  events
	nth     uint64
	failed  string
	hash    uint64
	steps   int

	hosts   []*host
	clients []*client
	faults  bool
	lastAsk time.Duration
	blocked map[[2]uint64]bool
	loss    float64 // how many messages are lost
	jitter  time.Duration

	log      map[uint64]string // what was applied, by index
	leaders  map[uint64]uint64 // by term
	history  []porcupine.Operation
	admin    uint64
	newest   uint64 // the highest id of a member
	happened int    // changes of members
}

// seeded is the random source of raft itself, which decides when members campaign.
type seeded struct{ *rand.Rand }

func (s seeded) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.Uint32())
	}
	return len(b), nil
}

func newWorld(seed uint64, o options) *world {
	w := &world{
		options: o, rand: rand.New(rand.NewPCG(seed, 1)), admin: 1 << 32,
		blocked: map[[2]uint64]bool{}, log: map[uint64]string{}, leaders: map[uint64]uint64{},
	}
	cryptorand.Reader = seeded{rand.New(rand.NewPCG(seed, 2))}
	w.jitter = []time.Duration{time.Millisecond, 5 * time.Millisecond, 30 * time.Millisecond}[w.rand.IntN(3)]
	var members []membercore.Member
	for i := range o.members {
		w.newest = uint64(i + 1)
		members = append(members, member(w.newest))
	}
	first, err := membercore.Bootstrap(members)
	if err != nil {
		panic(err)
	}
	for _, m := range members {
		h := w.addHost(m.ID)
		if err := memberlog.Begin(h.disk, first, bytes.NewReader(newKeyValue(false).snapshot())); err != nil {
			panic(err)
		}
		h.start()
	}
	for i := range o.clients {
		c := &client{w: w, session: uint64(i + 1), at: i}
		w.clients = append(w.clients, c)
		w.after(w.upTo(time.Second), c.next)
	}
	return w
}

func member(id uint64) membercore.Member {
	return membercore.Member{ID: id, Name: fmt.Sprintf("m%d", id), Addr: fmt.Sprintf("m%d:1", id)}
}

func (w *world) addHost(id uint64) *host {
	h := &host{w: w, id: id, disk: newDisk()}
	if w.rand.IntN(4) == 0 {
		h.slow = 100 * time.Millisecond
	}
	w.hosts = append(w.hosts, h)
	return h
}

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf("after %v: ", w.clock) + fmt.Sprintf(format, args...)
	}
}

// trace makes two runs of a seed comparable.
func (w *world) trace(what string, id uint64) {
	f := fnv.New64a()
	fmt.Fprintf(f, "%d %s %d %d", w.hash, what, id, w.clock)
	w.hash = f.Sum64()
}

func (w *world) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(w.rand.Int64N(int64(d)))
}

func (w *world) after(d time.Duration, do func()) {
	w.nth++
	heap.Push(&w.events, event{w.clock + d, w.nth, do})
}

// run lets time pass until a moment, or until something is wrong.
func (w *world) run(until time.Duration, enough func() bool) {
	for w.failed == "" && len(w.events) > 0 && w.events[0].at <= until && !enough() {
		e := heap.Pop(&w.events).(event) //nolint:errcheck,forcetypeassert // it holds nothing else
		w.clock = e.at
		w.steps++
		e.do()
	}
	if w.failed == "" && !enough() {
		w.clock = until
	}
}

// send passes a message between members on, perhaps twice, perhaps late, perhaps not at all. It reports whether it will arrive.
func (w *world) send(from uint64, m *raftpb.Message, body []byte) bool {
	to := w.host(m.GetTo())
	if to == nil || w.blocked[[2]uint64{from, m.GetTo()}] || w.rand.Float64() < w.loss {
		return false
	}
	copies := 1
	if w.faults && w.rand.IntN(50) == 0 {
		copies = 2
	}
	for range copies {
		w.after(w.delay(), func() {
			if to.up && !w.blocked[[2]uint64{from, to.id}] {
				w.trace(m.GetType().String(), to.id)
				to.receive(m, body)
			}
		})
	}
	return true
}

func (w *world) delay() time.Duration {
	d := 100*time.Microsecond + w.upTo(w.jitter)
	if w.faults && w.rand.IntN(100) == 0 {
		d += w.upTo(2 * time.Second)
	}
	return d
}

// clientMessage carries a request or an answer.
func (w *world) clientMessage(arrive func()) {
	if w.rand.Float64() < w.loss {
		return
	}
	w.after(w.delay(), arrive)
	if w.faults && w.rand.IntN(20) == 0 {
		w.after(w.delay(), arrive)
	}
}

func (w *world) answer(_ uint64, c *client, seq uint64, value int64) {
	w.clientMessage(func() { c.answered(seq, value) })
}

func (w *world) hint(_ uint64, c *client, leader uint64) {
	seq := c.seq
	w.clientMessage(func() { c.told(seq, leader) })
}

func (w *world) host(id uint64) *host {
	for _, h := range w.hosts {
		if h.id == id {
			return h
		}
	}
	return nil
}

// broken tells the others that a connection has ended, those that notice it.
func (w *world) broken(id uint64) {
	for _, h := range w.hosts {
		if h.id != id && h.up && w.rand.IntN(5) > 0 {
			h.later(w.upTo(20*time.Millisecond), func() {
				h.machine.PeerBroken(id)
				h.effects()
			})
		}
	}
}

// applied checks that all members apply the same commands.
func (w *world) applied(id uint64, c membercore.Command) {
	before, known := w.log[c.Index]
	if known && before != string(c.Payload) {
		w.fail("member %x applies another command as entry %d than others did", id, c.Index)
	}
	w.log[c.Index] = string(c.Payload)
}

// leads checks that a term has one leader.
func (w *world) leads(term, id uint64) {
	w.trace("leads", id)
	if other, known := w.leaders[term]; known && other != id {
		w.fail("members %x and %x both lead in term %d", other, id, term)
	}
	w.leaders[term] = id
}

func (w *world) changed(number uint64) {
	if number >= 1<<32 {
		w.happened++
	}
}

// leader is the member that leads in the highest term.
func (w *world) leader() (best *host) {
	for _, h := range w.hosts {
		if !h.up {
			continue
		}
		if self, _ := h.machine.Leading(); self && (best == nil || h.machine.Status().Term > best.machine.Status().Term) {
			best = h
		}
	}
	return best
}

// converged checks that the members of the cluster have the same state, and that all vote.
func (w *world) converged() bool {
	l := w.leader()
	if l == nil {
		return false
	}
	status := l.machine.Status()
	for _, m := range status.Members {
		h := w.host(m.ID)
		if m.Learner || !h.up || h.machine.Status().Applied != status.Committed || !bytes.Equal(h.kv.snapshot(), l.kv.snapshot()) {
			return false
		}
	}
	return true
}

func (w *world) idle() bool {
	return !slices.ContainsFunc(w.clients, func(c *client) bool { return c.waiting })
}

// event is something that happens at a time; of those at one time, in the order in which they were planned.
type event struct {
	at  time.Duration
	nth uint64
	do  func()
}

type events []event

func (e *events) Len() int { return len(*e) }
func (e *events) Less(i, j int) bool {
	a, b := (*e)[i], (*e)[j]
	return a.at < b.at || a.at == b.at && a.nth < b.nth
}
func (e *events) Swap(i, j int) { (*e)[i], (*e)[j] = (*e)[j], (*e)[i] }
func (e *events) Push(x any)    { *e = append(*e, x.(event)) } //nolint:errcheck,forcetypeassert // as above
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
