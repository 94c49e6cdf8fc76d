// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"io"
	"time"
)

// LSN is the number of a record: 1, 2, 3 and so on, without a gap. 0 is before the first.
type LSN uint64

// ID is an identity: of a store, or of a cluster of them.
type ID [16]byte

// Record is what the log keeps. Its meaning is the caller's.
type Record struct {
	LSN  LSN // set by the log when it replays; Write numbers records itself
	Kind byte
	Data []byte
}

// Replay receives what a folder holds, in order, while Open runs. An error of either function ends Open with that error.
type Replay struct {
	// Snapshot gets the newest snapshot, if there is one: the state after the record through. It must read r to its end:
	// a damage is reported by r, and only the end proves that all of it is right.
	Snapshot func(through LSN, r io.Reader) error
	// Record gets a record. Its Data is valid until the function returns.
	Record func(r Record) error
}

// Options of a log. The zero value is usable.
type Options struct {
	Identity ID // of a new folder; zero: random. An existing folder keeps its own: see Log.Identity
	Cluster  ID // of a new folder; if not zero, that of an existing one has to be the same

	Holder string // who opens the folder, for the error of those who try it meanwhile; "process PID" follows
	Vital  []byte // kinds of small records that are accepted when the disk is full, until the room that is kept for them is used up
	Tail   bool   // replay also the records that the snapshot covers and Compact has left

	SegmentSize  int64         // 0: 16 MiB
	SnapshotSize int64         // ShouldSnapshot: least bytes of records after a snapshot; 0: 64 MiB
	SnapshotAge  time.Duration // ShouldSnapshot: greatest age of a snapshot that does not cover all; 0: one hour

	Disk Disk             // nil: the disks of this machine
	Now  func() time.Time // nil: time.Now
	Rand io.Reader        // nil: crypto/rand
}

// Log is an open folder. Write must not be called by two goroutines at once; all other methods are safe at any time.
type Log struct{}

// Stats describes a log, for metrics.
type Stats struct {
	First, Last   LSN       // of the records that the segments hold
	Segments      int       // files, without the reserve
	Bytes         int64     // of the segments on the disk, without the reserve
	Since         int64     // bytes of records after the snapshot
	Snapshot      LSN       // what the snapshot covers
	SnapshotBytes int64     // its size; 0: there is none
	SnapshotTime  time.Time // when it was made; if there is none, when the folder was made
	Full          bool      // there is no reserve and none could be made: only little room is left
	Cut           int64     // bytes of an unfinished batch that Open removed
	Failed        error     // why all writes fail, or nil
}

// Open locks the folder, makes it if it does not exist, and replays what it holds. The caller closes the log.
func Open(dir string, options Options, replay Replay) (*Log, error) { return nil, errors.ErrUnsupported }

// Identity is that of the store, which was drawn when the folder was made.
func (l *Log) Identity() ID { return ID{} }

// Cluster is that of the cluster that the store is part of.
func (l *Log) Cluster() ID { return ID{} }

// Last is the number of the last record; 0 in a new folder.
func (l *Log) Last() LSN { return 0 }

// Write appends records as one batch and returns the number of the last when they are on the disk. It takes no context,
// because a sync cannot be cancelled: run it on a goroutine that nothing urgent waits for.
func (l *Log) Write(batch []Record) (LSN, error) { return 0, errors.ErrUnsupported }

// WantsReserve reports whether Prepare has something to do.
func (l *Log) WantsReserve() bool { return false }

// Prepare makes the reserve: the file that the log goes on in when the present one is full. Write makes it itself if it
// has to, which takes some ten milliseconds; Prepare does it beside.
func (l *Log) Prepare() error { return nil }

// Snapshot stores the caller's state after the record through, and forgets the snapshot before it. Records may be written
// meanwhile. A failed snapshot changes nothing.
func (l *Log) Snapshot(through LSN, write func(w io.Writer) error) error {
	return errors.ErrUnsupported
}

// OpenSnapshot returns the newest snapshot, to send it elsewhere; cohort.NotFound if there is none.
func (l *Log) OpenSnapshot() (through LSN, r io.ReadCloser, err error) {
	return 0, nil, errors.ErrUnsupported
}

// Compact removes the segments that hold only records up to through. They have to be covered by the snapshot.
func (l *Log) Compact(through LSN) error { return errors.ErrUnsupported }

// ShouldSnapshot reports whether the records after the snapshot are so many, or the snapshot so old, that it is time for a
// new one: more bytes than SnapshotSize and than twice the snapshot, or older than SnapshotAge.
func (l *Log) ShouldSnapshot() bool { return false }

// Stats returns the present numbers.
func (l *Log) Stats() Stats { return Stats{} }

// Close ends the log and unlocks the folder. What was acknowledged is on the disk already.
func (l *Log) Close() error { return nil }
