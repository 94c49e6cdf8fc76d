// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlog"
)

// turnEvents is how many events one turn of the loop takes before their effects are carried out.
const turnEvents = 128

// run is the loop: it alone uses the machine and the state.
func (m *Member) run() {
	m.serve()
	for reason := context.Cause(m.ctx); ; {
		m.refuseAll(reason)
		select {
		case <-m.over:
			m.refuseAll(reason)
			return
		case <-m.gathered.wakeup:
		}
	}
}

// serve drives the machine until the member ends.
func (m *Member) serve() {
	tick := time.NewTicker(membercore.TickEvery)
	defer tick.Stop()
	m.effects()
	for m.ctx.Err() == nil {
		select {
		case <-m.ctx.Done():
			return
		case event := <-m.inbox:
			event(m.machine)
			m.more()
		case <-tick.C:
			m.machine.Tick()
			m.disk.flush()
			m.publish()
		case <-m.wake.C:
			m.machine.Wake()
		case <-m.gathered.wakeup:
		}
		m.propose()
		m.effects()
		if err := m.machine.Failed(); err != nil {
			m.fail(err)
		}
	}
}

// more takes the events that have come meanwhile.
func (m *Member) more() {
	for range turnEvents {
		select {
		case event := <-m.inbox:
			event(m.machine)
		default:
			return
		}
	}
}

// post gives the loop something to do.
func (m *Member) post(ctx context.Context, event func(*membercore.Machine)) error {
	select {
	case m.inbox <- event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.ctx.Done():
		return context.Cause(m.ctx)
	}
}

// propose passes on what has gathered.
func (m *Member) propose() {
	refused, reads := m.gathered.others()
	if refused {
		m.abort(nil, ErrBusy)
	}
	for _, done := range reads {
		m.number++
		m.waiting[m.number] = done
		m.machine.Read(m.number)
	}
	for batch := m.gathered.batch(); batch != nil; batch = m.gathered.batch() {
		m.number++
		m.batches[m.number] = locals(batch)
		m.machine.Propose(m.number, encodeBatch(batch))
	}
}

func locals(all []Proposal) []any {
	out := make([]any, len(all))
	for i, p := range all {
		out[i] = p.Local
	}
	return out
}

// effects carries out what the machine wants.
func (m *Member) effects() {
	e := m.machine.Effects()
	m.disk.put(e.Write)
	for _, msg := range e.Send {
		m.links.Send(msg)
	}
	if e.Restore != nil {
		m.restore(e.Restore)
	}
	m.apply(e.Apply)
	for _, number := range e.Done {
		m.done(number, nil)
	}
	for _, number := range e.Reads {
		m.done(number, nil)
	}
	for _, r := range e.Refused {
		m.refused(r)
	}
	if e.Capture != nil {
		m.capture(e.Capture)
	}
	for _, msg := range e.SendSnapshot {
		m.tasks.Go(func() { m.sendSnapshot(msg) })
	}
	if e.Wake > 0 {
		m.wake.Reset(e.Wake)
	}
	m.notice(e)
}

// apply gives the state machine all commands of a turn at once.
func (m *Member) apply(commands []membercore.Command) {
	var entries []Entry
	var err error
	for _, c := range commands {
		if entries, err = decodeBatch(entries, c.Index, c.Payload, m.batches[c.Number]); err != nil {
			m.fail(err)
			return
		}
		m.landed(c.Number)
	}
	if len(entries) > 0 {
		m.config.State.Apply(entries)
	}
}

// landed forgets a batch of this member.
func (m *Member) landed(number uint64) (locals []any, ok bool) {
	if locals, ok = m.batches[number]; ok {
		delete(m.batches, number)
		m.gathered.landed()
	}
	return locals, ok
}

func (m *Member) refused(r membercore.Refusal) {
	if batch, ok := m.landed(r.Number); ok {
		m.abort(batch, reasonOf(r))
		return
	}
	m.done(r.Number, reasonOf(r))
}

// abort gives back proposals, and all that wait behind them.
func (m *Member) abort(batch []any, reason error) {
	m.config.State.Aborted(func() []any { return append(batch, locals(m.gathered.drain())...) }, reason)
}

// done ends a read or a change.
func (m *Member) done(number uint64, err error) {
	if f, ok := m.waiting[number]; ok {
		delete(m.waiting, number)
		f(err)
	}
}

// refuseAll tells all that waits that the member has ended.
func (m *Member) refuseAll(reason error) {
	var under []any
	for _, number := range slices.Sorted(maps.Keys(m.batches)) {
		under = append(under, m.batches[number]...)
	}
	clear(m.batches)
	m.abort(under, reason)
	_, reads := m.gathered.others()
	for _, done := range reads {
		done(reason)
	}
	for number := range m.waiting {
		m.done(number, reason)
	}
}

// notice says what has changed.
func (m *Member) notice(e membercore.Effects) {
	if !e.Led && !e.Changed {
		return
	}
	m.publish()
	s := m.status.Load()
	if watcher, ok := m.config.State.(leadWatcher); ok && s.Leading != m.leading {
		watcher.Leads(s.Leading)
	}
	m.leading = s.Leading
	if e.Led {
		m.config.Log.Info("leader", slog.String("leader", s.Leader), slog.Uint64("term", s.Term), slog.Bool("leading", s.Leading))
	}
	if !e.Changed {
		return
	}
	m.links.SetMembers(m.machine.Members())
	m.config.Log.Info("members", slog.Any("members", s.Members))
	if m.machine.Status().Removed {
		m.fail(errRemoved)
	}
}

// restore takes over a snapshot that has been installed.
func (m *Member) restore(snap *raftpb.Snapshot) {
	_, r, err := memberlog.Open(m.log)
	if err == nil {
		err = m.config.State.Restore(snap.GetMetadata().GetIndex(), r)
		_ = r.Close()
	}
	if err != nil {
		m.fail(fmt.Errorf("take over the snapshot of the leader: %w", err))
		return
	}
	m.config.Log.Info("took over a snapshot of the leader", slog.Uint64("index", snap.GetMetadata().GetIndex()))
}

// capture writes a snapshot beside.
func (m *Member) capture(snap *raftpb.Snapshot) {
	image, err := m.config.State.Capture()
	if err != nil {
		m.fail(fmt.Errorf("take a snapshot: %w", err))
		return
	}
	m.tasks.Go(func() {
		size, err := m.disk.writer.Capture(snap, image)
		_ = image.Close()
		if err != nil && m.ctx.Err() == nil {
			m.config.Log.Warn("a snapshot was not written", slog.String("reason", err.Error()))
		}
		_ = m.post(m.ctx, func(machine *membercore.Machine) { machine.SnapshotTaken(snap, size, err == nil) })
	})
}
