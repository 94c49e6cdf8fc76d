// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlog"
)

// host is a machine with a member on it: what a driver does, in virtual time.
type host struct {
	w    *world
	id   uint64
	disk *disk
	// life counts starts. What was under way in an earlier life is lost.
	life    int
	up      bool
	removed bool
	slow    time.Duration

	machine *membercore.Machine
	writer  *memberlog.Writer
	kv      *keyValue
	queue   []membercore.Write
	writing bool
	number  uint64
	asked   map[uint64]ask    // what clients wait for, by number
	bodies  map[uint64][]byte // the snapshots that were received
	wakes   int
}

// ask is a request of a client that waits for its answer here.
type ask struct {
	client *client
	request
}

// start begins a life with what the disk has.
func (h *host) start() {
	h.life++
	h.up = true
	h.kv = newKeyValue(h.w.options.forgetful)
	h.queue, h.writing, h.asked, h.bodies = nil, false, map[uint64]ask{}, map[uint64][]byte{}
	h.disk.steps, h.disk.full = -1, false
	recovery := &memberlog.Recovery{Restore: func(_ *raftpb.Snapshot, r io.Reader) error { return h.kv.restore(r) }}
	if err := h.disk.replay(recovery.Replay()); err != nil {
		h.w.fail("member %x cannot start: %v", h.id, err)
		return
	}
	h.writer = memberlog.NewWriter(h.disk, recovery)
	config := membercore.Config{ID: h.id, Nonce: h.w.rand.Uint64(), SnapshotBytes: 6_000, TrailBytes: 2_000}
	var err error
	if h.machine, err = membercore.New(config, recovery.State()); err != nil {
		h.w.fail("member %x cannot start: %v", h.id, err)
		return
	}
	h.later(h.w.upTo(membercore.TickEvery), h.tick)
}

// later does something unless the machine has crashed by then.
func (h *host) later(after time.Duration, do func()) {
	life := h.life
	h.w.after(after, func() {
		if h.up && h.life == life {
			do()
		}
	})
}

func (h *host) tick() {
	h.later(membercore.TickEvery, h.tick)
	h.machine.Tick()
	h.effects()
}

// crash ends a life. The batch that is being written may be on the disk or not, or the first steps of it.
func (h *host) crash() {
	if !h.up {
		return
	}
	h.w.trace("crash", h.id)
	h.up = false
	if h.writing && h.w.rand.IntN(2) == 0 {
		h.disk.steps = h.w.rand.IntN(4)
		_ = h.writer.Write(h.queue[:1+h.w.rand.IntN(len(h.queue))], h.install)
	}
	h.disk.steps = -1
	h.w.broken(h.id)
}

// effects carries out what the machine wants. A crash may come between any two of them.
func (h *host) effects() {
	e := h.machine.Effects()
	if err := h.machine.Failed(); err != nil {
		h.w.fail("member %x: %v", h.id, err)
		return
	}
	if e.Restore != nil {
		h.restore(e.Restore)
	}
	for _, c := range e.Apply {
		h.apply(c)
	}
	for _, number := range e.Reads {
		h.read(number)
	}
	for _, r := range e.Refused {
		h.refused(r)
	}
	for _, number := range e.Done {
		h.w.changed(number)
	}
	if e.Capture != nil {
		h.capture(e.Capture)
	}
	if e.Wake > 0 {
		h.wakes++
		nth := h.wakes
		h.later(e.Wake, func() {
			if nth == h.wakes {
				h.machine.Wake()
				h.effects()
			}
		})
	}
	// What is sent and what is written is independent.
	steps := []func(){func() { h.send(e) }, func() { h.write(e) }}
	first := h.w.rand.IntN(2)
	steps[first]()
	if h.w.faults && h.w.rand.IntN(4_000) == 0 {
		h.crash()
		return
	}
	steps[1-first]()
	h.notice(e)
}

// notice checks what the cluster promises about leaders and members.
func (h *host) notice(e membercore.Effects) {
	if e.Led {
		if self, _ := h.machine.Leading(); self {
			h.w.leads(h.machine.Status().Term, h.id)
		}
	}
	if e.Changed && h.machine.Status().Removed {
		h.w.trace("removed", h.id)
		h.up, h.removed = false, true
		h.w.broken(h.id)
	}
}

func (h *host) send(e membercore.Effects) {
	for _, m := range e.Send {
		h.w.send(h.id, m, nil)
	}
	for _, m := range e.SendSnapshot {
		snap, r, err := memberlog.Open(h.disk)
		if err != nil {
			h.w.fail("member %x has no snapshot to send: %v", h.id, err)
			return
		}
		body, _ := io.ReadAll(r)
		m.Snapshot = snap
		arrived := h.w.send(h.id, m, body)
		h.later(h.w.upTo(50*time.Millisecond), func() {
			h.machine.SnapshotSent(m.GetTo(), arrived)
			h.effects()
		})
	}
}

// receive is called for each message that arrives.
func (h *host) receive(m *raftpb.Message, body []byte) {
	if body != nil {
		h.bodies[m.GetSnapshot().GetMetadata().GetIndex()] = body
	}
	h.machine.Receive(m)
	h.effects()
}

// write queues writes; a disk writes all that has gathered while it wrote the last batch.
func (h *host) write(e membercore.Effects) {
	for _, w := range e.Write {
		if index := w.Install.GetMetadata().GetIndex(); w.Install != nil && h.bodies[index] == nil {
			h.w.fail("member %x is to install snapshot %d and does not have it", h.id, index)
			return
		}
	}
	h.queue = append(h.queue, e.Write...)
	h.startWriting()
}

func (h *host) startWriting() {
	if h.writing || len(h.queue) == 0 {
		return
	}
	h.writing = true
	n := len(h.queue)
	h.later(h.w.upTo(200*time.Microsecond)+h.w.upTo(h.slow), func() { h.written(n) })
}

func (h *host) written(n int) {
	batch := h.queue[:n]
	err := h.writer.Write(batch, h.install)
	h.writing = false
	if errors.Is(err, errFull) {
		h.machine.Full(true)
		h.later(20*time.Millisecond, h.startWriting)
		h.effects()
		return
	}
	if err != nil {
		h.w.fail("member %x cannot write: %v", h.id, err)
		return
	}
	h.queue = h.queue[n:]
	h.machine.Full(false)
	h.machine.Written(batch[n-1].Number)
	h.startWriting()
	h.effects()
}

func (h *host) install(snap *raftpb.Snapshot, w io.Writer) error {
	_, err := w.Write(h.bodies[snap.GetMetadata().GetIndex()])
	return err
}

func (h *host) restore(snap *raftpb.Snapshot) {
	found, r, err := memberlog.Open(h.disk)
	if err == nil && found.GetMetadata().GetIndex() != snap.GetMetadata().GetIndex() {
		err = fmt.Errorf("the disk has snapshot %d", found.GetMetadata().GetIndex())
	}
	if err == nil {
		err = h.kv.restore(r)
	}
	if err != nil {
		h.w.fail("member %x cannot restore snapshot %d: %v", h.id, snap.GetMetadata().GetIndex(), err)
	}
}

func (h *host) capture(snap *raftpb.Snapshot) {
	state := h.kv.snapshot()
	h.later(h.w.upTo(time.Millisecond)+h.w.upTo(h.slow), func() {
		size, err := h.writer.Capture(snap, bytes.NewReader(state))
		if err != nil && !errors.Is(err, errFull) && !errors.Is(err, memberlog.ErrStale) {
			h.w.fail("member %x cannot write a snapshot: %v", h.id, err)
			return
		}
		h.machine.SnapshotTaken(snap, size, err == nil)
		h.effects()
	})
}

func (h *host) apply(c membercore.Command) {
	h.w.applied(h.id, c)
	a, _ := h.kv.apply(c.Index, c.Payload)
	asked, mine := h.asked[c.Number]
	delete(h.asked, c.Number)
	if mine && (a.seq == asked.seq || h.kv.forgetful) {
		h.w.answer(h.id, asked.client, asked.seq, a.value)
	}
}

// ask is called when a request of a client arrives.
func (h *host) ask(c *client, r request) {
	if self, leader := h.machine.Leading(); !self {
		h.w.hint(h.id, c, leader)
		return
	}
	h.number++
	h.asked[h.number] = ask{c, r}
	if r.op == 'g' {
		h.machine.Read(h.number)
	} else {
		h.machine.Propose(h.number, r.encode())
	}
	h.effects()
}

func (h *host) read(number uint64) {
	asked := h.asked[number]
	delete(h.asked, number)
	h.w.answer(h.id, asked.client, asked.seq, h.kv.values[asked.key])
}

func (h *host) refused(r membercore.Refusal) {
	if asked, ok := h.asked[r.Number]; ok {
		delete(h.asked, r.Number)
		_, leader := h.machine.Leading()
		h.w.hint(h.id, asked.client, leader)
	}
}
