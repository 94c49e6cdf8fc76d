// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storejournal"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
)

// WithDataDir keeps the store in a folder, which is made if it does not exist: what was acknowledged is on the disk, and a server that
// is started again with the folder goes on with it, under the same [Identity], so that Go clients go on too. PyTorch's TCPStore has
// nothing like it: its store is lost with its process.
//
// Each change is synced before it is answered; those that come while a sync runs share the next one. A set of a PyTorch client, which
// has no answer, is synced before the client's next answer. Reads see only what is synced. Claims of connections that ended with the
// process are free afterwards, but remembered.
//
// A folder has one server at a time: [cohort.AlreadyExists]. If it is damaged, or a newer version has written it, the server does not
// start: the error names the file and the place, and nothing is changed. When the disk is full, changes are refused with
// [cohort.Exhausted], and clients of PyTorch, whose wire has no errors, are disconnected; reads go on, and changes too once there is
// room. When the disk fails, changes are refused with [cohort.Unavailable] until the process is started again. Whether the change that
// failed is then there, is not known.
func WithDataDir(dir string) ServerOption {
	return serverOption(func(c *serverConfig) { c.dataDir = dir })
}

// WithJournal has what changes the store go through a journal, and the store begin with a machine. It is for package store/cluster, which
// replicates a store over several machines; the types are not for others.
func WithJournal(open func(*storecore.Config) (storeserve.Journal, *storecore.Machine)) ServerOption {
	return serverOption(func(c *serverConfig) { c.journal = open })
}

// DataStats describes the folder of a store, see [WithDataDir].
type DataStats struct {
	// Dir is the folder.
	Dir string `json:"dir"`
	// LogBytes is the size of the files of the log, in as many Segments; SinceBytes is what was logged after the snapshot, which has
	// SnapshotBytes and was made at SnapshotTime.
	LogBytes      int64     `json:"log_bytes"`
	Segments      int       `json:"segments"`
	SinceBytes    int64     `json:"since_snapshot_bytes"`
	SnapshotBytes int64     `json:"snapshot_bytes"`
	SnapshotTime  time.Time `json:"snapshot_time,omitzero"`
	// Changes were synced, with Syncs syncs; Refused were not, because the disk was full or failed.
	Changes uint64 `json:"changes"`
	Syncs   uint64 `json:"syncs"`
	Refused uint64 `json:"refused"`
	// Full says that the disk has hardly any room, Error why changes are refused for good, and SnapshotError why the last snapshot failed.
	Full          bool   `json:"full,omitempty"`
	Error         string `json:"error,omitempty"`
	SnapshotError string `json:"snapshot_error,omitempty"`
	// RecoveredKeys and RecoveredChanges, those behind the snapshot, were read in RecoverySeconds when the server started.
	RecoveredKeys    int     `json:"recovered_keys"`
	RecoveredChanges int     `json:"recovered_changes"`
	RecoverySeconds  float64 `json:"recovery_s"`
}

// openData restores what the folder holds.
func (c serverConfig) openData(serving *storeserve.Config) error {
	machine := serving.Machine
	machine.Server = newServerNumber()
	options := storejournal.Options(newIdentity())
	options.SegmentSize, options.SnapshotSize = c.segment, c.snapshot
	journal, restored, err := storejournal.Open(c.dataDir, machine, options)
	if err != nil {
		return err
	}
	serving.Machine, serving.Journal, serving.Restored = machine, journal, restored
	return nil
}

// newServerNumber draws the name of this process among those that have ever had a folder.
func newServerNumber() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// dataStats describes the folder, nil if there is none.
func dataStats(dir string, journal storeserve.Journal) *DataStats {
	j, is := journal.(*storejournal.Journal)
	if !is {
		return nil
	}
	s := j.Stats()
	d := &DataStats{
		Dir: dir, LogBytes: s.Bytes, Segments: s.Segments, SinceBytes: s.Since, SnapshotBytes: s.SnapshotBytes,
		SnapshotTime: s.SnapshotTime, Changes: s.Commands, Syncs: s.Batches, Refused: s.Refused, Full: s.Full,
		RecoveredKeys: s.Recovery.Keys, RecoveredChanges: s.Recovery.Commands, RecoverySeconds: s.Recovery.Took.Seconds(),
	}
	if s.Failed != nil {
		d.Error = s.Failed.Error()
	}
	if s.Snapshot != nil {
		d.SnapshotError = s.Snapshot.Error()
	}
	return d
}
