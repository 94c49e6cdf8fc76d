// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storejournal

import (
	"io"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
)

// snapshot writes what the store holds, a part in each step of the server, and drops the commands that led to it.
func (j *Journal) snapshot() error {
	var image *storecore.Image
	j.sink.Do(func(c *storeserve.Core) { image = c.Machine.BeginImage() })
	if image == nil {
		return nil // another one is being made, or the server has ended
	}
	defer j.sink.Do(func(*storeserve.Core) { image.End() })
	err := j.log.Snapshot(storelog.LSN(image.Index), func(w io.Writer) error {
		return save(w, func() (part []byte, more bool, err error) { return j.next(image) })
	})
	if err != nil {
		return err
	}
	return j.log.Compact(storelog.LSN(image.Index))
}

// next returns the next part of an image.
func (j *Journal) next(image *storecore.Image) (part []byte, more bool, err error) {
	select {
	case <-j.stop:
		return nil, false, closed()
	default:
	}
	if !j.sink.Do(func(*storeserve.Core) { part, more = image.Next() }) {
		return nil, false, closed()
	}
	return part, more, nil
}

func closed() error {
	return cohort.New("tcpstore: snapshot", cohort.Closed, "the server was closed meanwhile")
}

// save writes the parts of an image.
func save(w io.Writer, next func() (part []byte, more bool, err error)) error {
	for more := true; more; {
		var part []byte
		var err error
		if part, more, err = next(); err != nil {
			return err
		}
		if _, err = w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// Stats describes a journal.
type Stats struct {
	storelog.Stats

	Recovery Recovery
	Batches  uint64 // that were logged, each with one sync
	Commands uint64 // in them
	Refused  uint64 // commands that were not logged
	Snapshot error  // why the last one failed
}

// Stats returns the present numbers.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := j.mu.stats
	return Stats{
		Stats: j.log.Stats(), Recovery: j.recovery, Batches: c.batches, Commands: c.commands, Refused: c.refused, Snapshot: c.snapshotError,
	}
}
