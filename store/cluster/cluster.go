// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster keeps a state machine on several machines, so that it survives the loss of any minority of them. It is what `cohort
// store serve --cluster` runs a store on. PyTorch has no counterpart: its TCPStore dies with its host.
//
// A [Member] writes what it is given into a log in a folder, and to the others; when a majority has it on disk, all members apply it in
// the same order. One member leads, and takes proposals and reads; the others say who it is. Consensus is go.etcd.io/raft; what stands
// here is the log, the connections, snapshots, reads and the change of members around it.
//
// It is a separate module, so that programs that use stores do not depend on raft.
package cluster

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"

	"github.com/cohort-dist/cohort"
)

// StateMachine is what the members keep. Its methods are called by one goroutine.
type StateMachine interface {
	// Apply carries out commands, the same ones in the same order on all members.
	Apply(entries []Entry)
	// Aborted says why proposals were not carried out, or that this member cannot know it: the lead was lost. It calls which once,
	// which returns their Local, in the order in which they were proposed, and takes all others that wait to be proposed: a later
	// one is not carried out when an earlier one was not.
	Aborted(which func() []any, reason error)
	// Capture returns the state as it is now. It is written while further commands are applied, and then closed.
	Capture() (Image, error)
	// Restore replaces the state by one that an Image has written, on this member or another.
	Restore(index uint64, r io.Reader) error
}

// A StateMachine may also be told who leads.
type leadWatcher interface {
	// Leads is called when this member begins to lead and when it does not lead any more, by the goroutine of the others.
	Leads(self bool)
}

// Image is the state of a StateMachine at one moment.
type Image interface {
	io.WriterTo
	io.Closer
}

// Entry is a command to be applied. Several commands that were proposed together have the same Index.
type Entry struct {
	Index uint64
	Data  []byte
	Local any // of the Proposal, if this member has proposed it since it was started
}

// Proposal is a command that is to be applied by all members. Local comes back with it.
type Proposal struct {
	Data  []byte
	Local any
}

// Peer is a member, as users name it.
type Peer struct {
	Name, Addr string
}

// Config of a member.
type Config struct {
	// Dir is the folder for the log. It belongs to this member alone.
	Dir string
	// Name is this member's.
	Name string
	// Members are all members of a cluster that begins. Each member has to be given the same list.
	Members []Peer
	// Join are addresses of members of a cluster that exists already. It has been told of this member before, see [Add].
	Join []string
	// Listener accepts the connections of the other members; nil: the member listens at its address.
	Listener net.Listener
	// State is what is kept.
	State StateMachine
	// TLS encrypts the connections with the other members; nil: they are not encrypted.
	TLS *tls.Config
	// AllowUIDs are users of this host whose connections are accepted, beside this process's own and root.
	AllowUIDs []uint32
	// Log gets what changes; nil: nothing is logged.
	Log *slog.Logger
	// SnapshotBytes is how many bytes of commands are in the log between two snapshots; 0: 64 MiB. A state that is larger is
	// written less often.
	SnapshotBytes int64
	// SnapshotRate is how many bytes of a snapshot are sent in a second; 0: 256 MiB.
	SnapshotRate int64
	// SnapshotLimit bounds a snapshot that is received; 0: 64 GiB.
	SnapshotLimit int64
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		value    *int64
		standard int64
	}{{&c.SnapshotBytes, 64 << 20}, {&c.SnapshotRate, 256 << 20}, {&c.SnapshotLimit, 64 << 30}} {
		if *d.value <= 0 {
			*d.value = d.standard
		}
	}
	return c
}

// The errors of a member, for errors.Is. All of them are cohort.Unavailable or cohort.Exhausted too.
var (
	// ErrNotLeader: another member leads, or none does at the moment. Nothing was done.
	ErrNotLeader = cohort.New("cluster", cohort.Unavailable, "this member does not lead the cluster")
	// ErrDeposed: this member has lost the lead. A proposal may have been carried out, or may still be.
	ErrDeposed = cohort.New("cluster", cohort.Unavailable,
		"this member has lost the lead of the cluster; whether the change is made is not known")
	// ErrBusy: too much waits, or the lead is being handed over. Nothing was done.
	ErrBusy = cohort.New("cluster", cohort.Exhausted, "too many changes wait, or the lead is being handed over; try again")
	// ErrDiskFull: nothing can be written here. Nothing was done.
	ErrDiskFull = cohort.New("cluster", cohort.Exhausted,
		"the disk of the leader's data folder has no room; make room, and writes work again")
)

// Status is what a member knows.
type Status struct {
	Name      string         `json:"name"`
	Leader    string         `json:"leader,omitempty"` // its name; empty if it is not known
	Leading   bool           `json:"leading"`          // this member is the leader
	Term      uint64         `json:"term"`
	Applied   uint64         `json:"applied"`
	Committed uint64         `json:"committed"`
	Snapshot  uint64         `json:"snapshot"` // what the newest snapshot covers
	Full      bool           `json:"full"`     // its disk is full
	Members   []MemberStatus `json:"members"`
}

// MemberStatus is what a member knows of another.
type MemberStatus struct {
	Name    string `json:"name"`
	Addr    string `json:"addr"`
	ID      string `json:"id"`
	Learner bool   `json:"learner,omitempty"` // it receives everything, but has no vote yet
	Matched uint64 `json:"matched,omitempty"` // up to which entry it has everything; only the leader knows
}

// Start begins or continues a member. The caller closes it.
func Start(ctx context.Context, c Config) (*Member, error) {
	c = c.withDefaults()
	self, err := identify(ctx, c)
	if err != nil {
		return nil, cohort.Wrap("cluster: start", cohort.CodeOf(err), err)
	}
	m, err := open(ctx, c, self)
	if err != nil {
		return nil, err
	}
	m.begin()
	return m, nil
}
