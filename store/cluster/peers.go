// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlink"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlog"
)

var errRemoved = cohort.New("cluster", cohort.Closed,
	"this member was removed from the cluster; to add it again, start it with an empty folder")

// peerHandler receives what the other members and administrators send to a member.
type peerHandler struct{ member *Member }

var _ memberlink.Handler = peerHandler{}

// Message passes a message of raft on.
func (h peerHandler) Message(ctx context.Context, msg *raftpb.Message) {
	_ = h.member.post(ctx, func(machine *membercore.Machine) { machine.Receive(msg) })
}

// Broken says that the connection to a member has ended.
func (h peerHandler) Broken(ctx context.Context, id uint64) {
	_ = h.member.post(ctx, func(machine *membercore.Machine) { machine.PeerBroken(id) })
}

// Level says what a member is capable of. There is one level so far.
func (h peerHandler) Level(uint64, int) {}

// Gone reports whether a member was removed.
func (h peerHandler) Gone(id uint64) bool { return slices.Contains(*h.member.gone.Load(), id) }

// Removed says that this member was removed. The leader sends it nothing any more: another member reports it.
func (h peerHandler) Removed() { h.member.fail(errRemoved) }

// Snapshot writes the state into a file, then the machine decides whether it wants it.
func (h peerHandler) Snapshot(ctx context.Context, msg *raftpb.Message, r io.Reader) error {
	m, index := h.member, msg.GetSnapshot().GetMetadata().GetIndex()
	if err := m.disk.receive(index, r); err != nil {
		return err
	}
	return m.post(ctx, func(machine *membercore.Machine) {
		if machine.Receive(msg); !machine.Installs(index) {
			m.disk.forget(index)
		}
	})
}

// sendSnapshot sends the newest snapshot, which may be newer than the one that raft asked for.
func (m *Member) sendSnapshot(msg *raftpb.Message) {
	err := m.trySnapshot(msg)
	if err != nil && m.ctx.Err() == nil {
		m.config.Log.Warn("a snapshot was not sent", slog.String("member", formatID(msg.GetTo())), slog.String("reason", err.Error()))
	}
	_ = m.post(m.ctx, func(machine *membercore.Machine) { machine.SnapshotSent(msg.GetTo(), err == nil) })
}

func (m *Member) trySnapshot(msg *raftpb.Message) error {
	snap, r, err := memberlog.Open(m.log)
	if err != nil {
		return err
	}
	msg.Snapshot = snap
	return errors.Join(m.links.SendSnapshot(msg, r), r.Close())
}

// ReadBarrier is Read for a goroutine that waits.
func (m *Member) ReadBarrier(ctx context.Context) error {
	return m.wait(ctx, "cluster: read", m.Read)
}

// wait waits for what is ended by a function.
func (m *Member) wait(ctx context.Context, op string, begin func(done func(error))) error {
	result := make(chan error, 1)
	begin(func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return cohort.FromContext(ctx, op)
	case <-m.ctx.Done():
		return context.Cause(m.ctx)
	}
}
