// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
)

// replica is this member's copy of a store: the state machine of the member, and the journal of the server.
//
// Before there is a server, and after a snapshot of the leader has replaced the copy, the machine stands alone: commands are applied to it
// at once. From the moment a server takes it until that server ends, only the server touches it.
type replica struct {
	member *Member
	// replaced says that the server has to be started anew.
	replaced chan struct{}
	number   uint64 // of this process among those that have ever served the store

	mu      sync.Mutex
	changed sync.Cond          // on mu: current or its sink
	formed  chan struct{}      // closed when the store has an identity, which the first leader draws
	ready   bool               // formed is closed
	machine *storecore.Machine // the one that stands alone or is served
	current *journal           // of the server that has it, or is about to
}

func newReplica() *replica {
	r := &replica{replaced: make(chan struct{}, 1), formed: make(chan struct{})}
	r.changed.L = &r.mu
	var b [8]byte
	_, _ = rand.Read(b[:]) // it does not fail
	r.number = binary.LittleEndian.Uint64(b[:])
	r.machine = r.empty()
	return r
}

func (r *replica) empty() *storecore.Machine {
	m := storecore.New(storecore.Config{Logged: true, Barrier: true, Server: r.number, Identity: drawn})
	m.Follow()
	return m
}

// drawn is a new identity of the store.
func drawn() (id storecore.Identity) {
	_, _ = rand.Read(id[:]) // it does not fail
	return id
}

// joined says who the member is.
func (r *replica) joined(m *Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.member = m
	r.machine.Rebase(m.cluster)
}

// open gives the machine to a server that is starting. Nothing is applied until the server has called Begin.
func (r *replica) open(config *storecore.Config) (storeserve.Journal, *storecore.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	config.Server = r.number
	r.current = &journal{replica: r, machine: r.machine}
	return r.current, r.machine
}

// handed waits until a server that is starting has begun, and returns its sink; nil: the machine stands alone. It is called with mu held.
func (r *replica) handed() storeserve.Sink {
	for r.current != nil && r.current.sink == nil {
		r.changed.Wait()
	}
	if r.current == nil {
		return nil
	}
	return r.current.sink
}

// with runs alone on the machine that stands alone, or served with the sink of the server that has it.
func (r *replica) with(alone func(*storecore.Machine), served func(storeserve.Sink)) {
	r.mu.Lock()
	if sink := r.handed(); sink != nil {
		r.mu.Unlock()
		served(sink)
		return
	}
	defer r.mu.Unlock()
	alone(r.machine)
}

// proposed is a command of a machine.
type proposed struct {
	by      *storecore.Machine
	command *storecore.Command
}

// propose passes on what a machine wants to be logged. It waits for nothing.
func (r *replica) propose(m *storecore.Machine, commands []*storecore.Command) {
	all := make([]Proposal, len(commands))
	for i, k := range commands {
		all[i] = Proposal{Data: k.Data, Local: proposed{m, k}}
	}
	r.member.Propose(all)
}

// commandsOf returns the commands of proposals, nil for those of a machine that was replaced.
func (r *replica) commandsOf(locals []any) []*storecore.Command {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*storecore.Command, len(locals))
	for i, local := range locals {
		if p, ok := local.(proposed); ok && p.by == r.machine {
			all[i] = p.command
		}
	}
	return all
}

// begun notes that the store has an identity. It is called with mu held.
func (r *replica) begun(index uint64) {
	if index > 1 && !r.ready {
		r.ready = true
		close(r.formed)
	}
}

// Apply implements StateMachine.
func (r *replica) Apply(entries []Entry) {
	all, locals := make([]storecore.Entry, len(entries)), make([]any, len(entries))
	for i, e := range entries {
		locals[i] = e.Local
	}
	for i, k := range r.commandsOf(locals) {
		all[i] = storecore.Entry{Index: entries[i].Index, Data: entries[i].Data, Local: k}
	}
	r.with(func(m *storecore.Machine) {
		for _, e := range all {
			if err := m.Replay(e); err != nil {
				r.member.fail(err)
				return
			}
			r.begun(e.Index)
		}
	}, func(sink storeserve.Sink) {
		if !sink.Do(func(c *storeserve.Core) { c.Machine.Commit(all) }) {
			r.member.fail(cohort.New("cluster: apply", cohort.Closed, "the server of the store was closed"))
		}
	})
}

// Aborted implements StateMachine.
func (r *replica) Aborted(which func() []any, reason error) {
	if reason = r.member.leaderHint(reason); errors.Is(reason, ErrBusy) {
		reason = cohort.Wrap("cluster", cohort.Unavailable, reason) // which clients with a session take for a reason to ask again
	}
	r.with(func(m *storecore.Machine) {
		var mine []*storecore.Command
		for _, local := range which() {
			if p, ok := local.(proposed); ok && p.by == m {
				mine = append(mine, p.command)
			}
		}
		m.Abort(mine, reason)
	}, func(sink storeserve.Sink) {
		sink.Aborted(func() []*storecore.Command {
			return slices.DeleteFunc(r.commandsOf(which()), func(k *storecore.Command) bool { return k == nil })
		}, reason)
	})
}

// Leads implements leadWatcher. What connections of other servers hold ends when this one begins to lead, and sessions wait for their
// clients; a new cluster draws the identity of its store.
func (r *replica) Leads(self bool) {
	then := (*storecore.Machine).Follow
	if self {
		then = beginLeading
	}
	r.with(func(m *storecore.Machine) {
		then(m)
		r.propose(m, m.Commands())
	}, func(sink storeserve.Sink) { sink.Do(func(c *storeserve.Core) { then(c.Machine) }) })
}

func beginLeading(m *storecore.Machine) {
	m.Lead()
	if index, _, _ := m.Applied(); index <= 1 {
		m.ProposeClear(func(int, error) {})
		return
	}
	m.ProposeRestart()
}

// Restore implements StateMachine: the machine is replaced, and the server started anew.
func (r *replica) Restore(index uint64, in io.Reader) error {
	m := r.empty()
	if err := m.Restore(index, in); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.member != nil {
		m.Rebase(r.member.cluster)
	}
	r.begun(index)
	served := r.handed() != nil
	if r.machine, r.current = m, nil; served {
		select {
		case r.replaced <- struct{}{}:
		default: // it is about to be started anew
		}
	}
	return nil
}

// captureSteps bounds how often a snapshot waits for the server to apply what is committed.
const captureSteps, captureStep = 10_000, time.Millisecond

// Capture implements StateMachine. A served machine applies in steps: the image begins when all are done, so that it ends with an entry of
// the cluster's log and not between two commands of it.
func (r *replica) Capture() (img Image, err error) {
	err = errors.New("the server does not apply what is committed")
	for range captureSteps {
		again := false
		r.with(func(m *storecore.Machine) { img, err = captureAlone(m) }, func(sink storeserve.Sink) {
			img, again, err = captureServed(sink)
		})
		if !again {
			break
		}
		pause(r.member.ctx, captureStep)
	}
	return img, err
}

// captureAlone makes the whole image at once.
func captureAlone(m *storecore.Machine) (Image, error) {
	image := m.BeginImage()
	if image == nil {
		return nil, errBeingMade
	}
	defer image.End()
	var b bytes.Buffer
	for more := true; more; {
		var part []byte
		part, more = image.Next()
		b.Write(part)
	}
	return wholeImage{bytes.NewReader(b.Bytes())}, nil
}

var errBeingMade = cohort.New("cluster: snapshot", cohort.Unavailable, "another snapshot is being made")

type wholeImage struct{ *bytes.Reader }

func (wholeImage) Close() error { return nil }

func captureServed(sink storeserve.Sink) (img Image, again bool, err error) {
	ran := sink.Do(func(c *storeserve.Core) {
		_, waiting, broken := c.Machine.Applied()
		switch {
		case broken != nil:
			err = broken
		case waiting > 0:
			again = true
		default:
			if image := c.Machine.BeginImage(); image != nil {
				img = &servedImage{sink, image}
			} else {
				err = errBeingMade
			}
		}
	})
	if !ran {
		return nil, true, nil // the server has ended; the machine stands alone soon
	}
	return img, again, err
}

// servedImage is made a part in each step of the server.
type servedImage struct {
	sink  storeserve.Sink
	image *storecore.Image
}

// WriteTo implements io.WriterTo.
func (i *servedImage) WriteTo(w io.Writer) (n int64, err error) {
	for more := true; more; {
		var part []byte
		if !i.sink.Do(func(*storeserve.Core) { part, more = i.image.Next() }) {
			return n, cohort.New("cluster: snapshot", cohort.Closed, "the server was closed meanwhile")
		}
		written, err := w.Write(part)
		if n += int64(written); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Close gives up what is left.
func (i *servedImage) Close() error {
	i.sink.Do(func(*storeserve.Core) { i.image.End() })
	return nil
}

// journal is the replica as one server sees it.
type journal struct {
	replica *replica
	machine *storecore.Machine
	sink    storeserve.Sink // guarded by the replica's mu
}

// Begin implements storeserve.Journal.
func (j *journal) Begin(sink storeserve.Sink) {
	j.replica.mu.Lock()
	defer j.replica.mu.Unlock()
	j.sink = sink
	j.replica.changed.Broadcast()
}

// Propose implements storeserve.Journal.
func (j *journal) Propose(commands []*storecore.Command) {
	j.replica.propose(j.machine, commands)
}

// Read implements storeserve.Journal.
func (j *journal) Read(round uint64) {
	j.replica.member.Read(func(err error) {
		if err != nil {
			err = j.replica.member.leaderHint(err)
		}
		if j.serves() {
			j.sink.Confirm(round, err)
		}
	})
}

// serves reports whether the server of this journal still has the machine.
func (j *journal) serves() bool {
	j.replica.mu.Lock()
	defer j.replica.mu.Unlock()
	return j.replica.current == j
}

// End implements storeserve.Journal: the machine stands alone again, unless it was replaced already.
func (j *journal) End() {
	j.replica.mu.Lock()
	defer j.replica.mu.Unlock()
	if j.replica.current == j {
		j.replica.current = nil
		j.replica.changed.Broadcast()
	}
}
