// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore_test

import (
	"bytes"
	"errors"
	"io"
	"slices"

	"github.com/cohort-dist/cohort/internal/store/storelog"
)

var (
	errFull  = errors.New("the disk has no room")
	errCrash = errors.New("the machine has crashed")
)

// disk is a log that keeps what storelog promises: a batch is there as a whole or not at all, a snapshot too.
type disk struct {
	records  []storelog.Record
	last     storelog.LSN
	snapshot []byte
	through  storelog.LSN
	full     bool
	// steps is how many more calls succeed before the machine crashes, -1: all.
	steps int
}

func newDisk() *disk { return &disk{steps: -1} }

func (d *disk) step() error {
	if d.steps == 0 {
		return errCrash
	}
	d.steps = max(d.steps-1, -1)
	return nil
}

func (d *disk) Write(batch []storelog.Record) (storelog.LSN, error) {
	if err := d.step(); err != nil {
		return 0, err
	}
	if d.full {
		return 0, errFull
	}
	for _, r := range batch {
		d.last++
		r.LSN = d.last
		d.records = append(d.records, r)
	}
	return d.last, nil
}

func (d *disk) Snapshot(through storelog.LSN, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if err := d.step(); err != nil {
		return err
	}
	if d.full {
		return errFull
	}
	if through < d.through || through > d.last {
		return errors.New("a snapshot goes back, or beyond the log")
	}
	d.snapshot, d.through = b.Bytes(), through
	return nil
}

func (d *disk) OpenSnapshot() (storelog.LSN, io.ReadCloser, error) {
	if d.snapshot == nil {
		return 0, nil, errors.New("the disk has no snapshot")
	}
	return d.through, io.NopCloser(bytes.NewReader(d.snapshot)), nil
}

func (d *disk) Compact(through storelog.LSN) error {
	if err := d.step(); err != nil {
		return err
	}
	if through > d.through {
		return errors.New("more is compacted than the snapshot covers")
	}
	d.records = slices.DeleteFunc(slices.Clone(d.records), func(r storelog.Record) bool { return r.LSN <= through })
	return nil
}

func (d *disk) Last() storelog.LSN { return d.last }

// replay is what storelog.Open does.
func (d *disk) replay(r storelog.Replay) error {
	if d.snapshot != nil {
		if err := r.Snapshot(d.through, bytes.NewReader(d.snapshot)); err != nil {
			return err
		}
	}
	for _, record := range d.records {
		if record.LSN <= d.through {
			continue
		}
		if err := r.Record(record); err != nil {
			return err
		}
	}
	return nil
}
