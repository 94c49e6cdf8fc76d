// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package memberlog keeps on a [storelog.Log] what a member of a cluster must not forget: its entries, its votes, and snapshots of the
// replicated state.
//
// Each entry is a record, and so is each change of the hard state. An entry takes the place of all written before it with its number or
// a later one. A snapshot begins with a header: who the members are, up to which entry it goes, and the hard state at that time; the
// replicated state follows. A snapshot that the leader has sent takes the place of everything before it.
package memberlog

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

// Log is what is needed of a storelog.Log.
type Log interface {
	Write(batch []storelog.Record) (storelog.LSN, error)
	Snapshot(through storelog.LSN, write func(w io.Writer) error) error
	OpenSnapshot() (through storelog.LSN, r io.ReadCloser, err error)
	Compact(through storelog.LSN) error
	Last() storelog.LSN
}

// Recovery collects what a folder holds.
type Recovery struct {
	// Restore makes the replicated state that of a snapshot.
	Restore func(snap *raftpb.Snapshot, r io.Reader) error

	state     membercore.State
	positions positions
}

// Replay is for storelog.Open.
func (r *Recovery) Replay() storelog.Replay {
	return storelog.Replay{Snapshot: r.snapshot, Record: r.record}
}

// State is what the member continues from. It is empty if the folder is new.
func (r *Recovery) State() membercore.State { return r.state }

func (r *Recovery) snapshot(through storelog.LSN, in io.Reader) error {
	snap, hard, err := readHeader(in)
	if err != nil {
		return err
	}
	r.state.Snapshot, r.state.Hard = snap, hard
	r.positions.through = through
	return r.Restore(snap, in)
}

func (r *Recovery) record(record storelog.Record) error {
	switch record.Kind {
	case KindEntry:
		e, err := decodeEntry(record.Data)
		if err != nil {
			return fmt.Errorf("record %d: %w", record.LSN, err)
		}
		return r.entry(record.LSN, e)
	case KindHard:
		hard, err := decodeHard(record.Data)
		if err != nil {
			return fmt.Errorf("record %d: %w", record.LSN, err)
		}
		r.state.Hard = hard
		return nil
	}
	return fmt.Errorf("record %d has the unknown kind %d: it was written by a newer version of this program", record.LSN, record.Kind)
}

// entry puts an entry in its place; what is written later is valid.
func (r *Recovery) entry(at storelog.LSN, e *raftpb.Entry) error {
	base := r.state.Snapshot.GetMetadata().GetIndex()
	if e.GetIndex() <= base {
		return nil // the snapshot has it
	}
	place := e.GetIndex() - base - 1
	if place > uint64(len(r.state.Entries)) {
		return fmt.Errorf("record %d has entry %d, but entry %d is missing", at, e.GetIndex(), base+1+uint64(len(r.state.Entries)))
	}
	r.state.Entries = append(r.state.Entries[:place], e)
	r.positions.add(e.GetIndex(), at)
	return nil
}

// Writer writes what a membercore.Machine asks for. Write must not be called by two goroutines at once; Capture may run meanwhile.
type Writer struct {
	log       Log
	positions positions
	snapshots sync.Mutex // held while one is written
}

// NewWriter returns a writer that continues after what was recovered.
func NewWriter(log Log, r *Recovery) *Writer {
	w := &Writer{log: log}
	w.positions.take(&r.positions, r.state)
	return w
}

// Install is the replicated state of a snapshot that was received.
type Install func(snap *raftpb.Snapshot, w io.Writer) error

// Write puts writes on the disk, as one batch if none installs a snapshot. If it fails nothing of the batch is on the disk, or the log
// has failed for good.
func (w *Writer) Write(batch []membercore.Write, install Install) error {
	for i, one := range batch {
		if one.Install == nil {
			continue
		}
		if err := w.append(batch[:i]); err != nil {
			return err
		}
		if err := w.install(one, install); err != nil {
			return err
		}
		one.Install = nil
		return w.Write(append([]membercore.Write{one}, batch[i+1:]...), install)
	}
	return w.append(batch)
}

// append writes records. Of several hard states the last one is enough.
func (w *Writer) append(batch []membercore.Write) error {
	var records []storelog.Record
	var indexes []uint64 // of the entries, 0 for others
	var hard *raftpb.HardState
	for _, one := range batch {
		for _, e := range one.Entries {
			records = append(records, storelog.Record{Kind: KindEntry, Data: encodeEntry(e)})
			indexes = append(indexes, e.GetIndex())
		}
		if one.Hard != nil {
			hard = one.Hard
		}
	}
	if hard != nil {
		records = append(records, storelog.Record{Kind: KindHard, Data: encodeHard(hard)})
		indexes = append(indexes, 0)
	}
	if len(records) == 0 {
		return nil
	}
	last, err := w.log.Write(records)
	if err != nil {
		return err
	}
	w.positions.written(indexes, last, hard)
	return nil
}

// install puts a received snapshot in the place of everything.
func (w *Writer) install(one membercore.Write, install Install) error {
	w.snapshots.Lock()
	defer w.snapshots.Unlock()
	through := w.log.Last()
	hard := one.Hard
	if hard == nil {
		hard = w.positions.state()
	}
	err := w.log.Snapshot(through, func(out io.Writer) error {
		if err := writeHeader(out, one.Install, hard); err != nil {
			return err
		}
		return install(one.Install, out)
	})
	if err != nil {
		return fmt.Errorf("install the snapshot of the leader: %w", err)
	}
	w.positions.reset(one.Install.GetMetadata().GetIndex(), through, hard)
	return w.log.Compact(through)
}

// ErrStale says that a snapshot was not written because the leader has sent a newer one meanwhile.
var ErrStale = errors.New("there is a newer snapshot already")

// Capture writes a snapshot of the replicated state, and drops what it covers from the log. It returns its size.
func (w *Writer) Capture(snap *raftpb.Snapshot, state io.WriterTo) (size int64, err error) {
	w.snapshots.Lock()
	defer w.snapshots.Unlock()
	index := snap.GetMetadata().GetIndex()
	through, hard, ok := w.positions.covered(index)
	if !ok {
		return 0, ErrStale
	}
	err = w.log.Snapshot(through, func(out io.Writer) (err error) {
		if err = writeHeader(out, snap, hard); err == nil {
			size, err = state.WriteTo(out)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	w.positions.taken(index, through)
	return size, w.log.Compact(through)
}

// Open returns the newest snapshot, to send it to another member.
func Open(from Log) (*raftpb.Snapshot, io.ReadCloser, error) {
	_, r, err := from.OpenSnapshot()
	if err != nil {
		return nil, nil, err
	}
	snap, _, err := readHeader(r)
	if err != nil {
		_ = r.Close()
		return nil, nil, err
	}
	return snap, r, nil
}

// Begin writes the snapshot that a new member of a new cluster begins with.
func Begin(in Log, snap *raftpb.Snapshot, state io.WriterTo) error {
	return in.Snapshot(in.Last(), func(out io.Writer) error {
		at := snap.GetMetadata()
		hard := &raftpb.HardState{Term: at.Term, Vote: new(raft.None), Commit: at.Index}
		if err := writeHeader(out, snap, hard); err != nil {
			return err
		}
		_, err := state.WriteTo(out)
		return err
	})
}
