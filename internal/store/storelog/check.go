// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-dist/cohort"
)

// Report is what a folder holds.
type Report struct {
	Dir      string          `json:"dir"`
	Format   uint32          `json:"format"`
	Identity string          `json:"identity"` // in hexadecimal
	Cluster  string          `json:"cluster"`
	Snapshot *SnapshotReport `json:"snapshot,omitempty"` // the newest
	Segments []SegmentReport `json:"segments"`
	Records  int64           `json:"records"` // that can be read
	Bytes    int64           `json:"bytes"`   // of them
	Problems []CorruptError  `json:"problems,omitempty"`
	Notes    []string        `json:"notes,omitempty"` // what is unusual and harmless, such as an unfinished batch
}

// SnapshotReport describes a snapshot.
type SnapshotReport struct {
	File    string `json:"file"`
	Through LSN    `json:"through"`
	Bytes   int64  `json:"bytes"` // of the state
}

// SegmentReport describes a segment.
type SegmentReport struct {
	File    string `json:"file"`
	First   LSN    `json:"first"`
	Records int64  `json:"records"` // that can be read
	Bytes   int64  `json:"bytes"`   // of the file
}

// Check reads a folder that no process has open, and changes nothing. Damage is in the report; the error is about reading.
func Check(dir string, options Options) (Report, error) {
	options = options.withDefaults()
	report := Report{Dir: dir, Segments: []SegmentReport{}}
	f := folder{options.Disk, dir}
	if err := f.exists(); err != nil {
		return report, err
	}
	lock, holder, err := f.disk.Lock(dir, options.Holder)
	if err != nil {
		return report, cohort.Newf(opCheck, cohort.Unavailable, "lock %s, which %s uses: %w", dir, orElse(holder, "another process"), err)
	}
	err = report.read(f, Replay{})
	return report, errors.Join(err, lock.Close())
}

// exists refuses a folder that is not a log's: to lock it would leave a file there.
func (f folder) exists() error {
	names, err := f.list()
	if err != nil {
		return cohort.Wrap(opCheck, cohort.NotFound, err)
	}
	if !slices.Contains(names, identityName) && len(numbered(names, segmentSuffix)) == 0 {
		return cohort.Newf(opCheck, cohort.NotFound, "%s is not the data folder of a store: it has neither an identity nor segments", f.dir)
	}
	return nil
}

// read fills in the report, and passes on what can be read.
func (p *Report) read(f folder, replay Replay) error {
	count := func(r Record) error {
		p.Records++
		p.Bytes += int64(len(r.Data))
		if replay.Record != nil {
			return replay.Record(r)
		}
		return nil
	}
	r := reading{
		folder: f, tail: true, replay: Replay{Snapshot: replay.Snapshot, Record: count},
		problem: func(e *CorruptError) error { p.Problems = append(p.Problems, *e); return nil },
		segment: p.segment,
	}
	err := r.run()
	p.Format, p.Identity, p.Cluster = format, hex.EncodeToString(r.header.identity[:]), hex.EncodeToString(r.header.cluster[:])
	if s := r.snapshot; s.found {
		p.Snapshot = &SnapshotReport{snapshotName(s.through), s.through, s.bytes}
	}
	return err
}

func (p *Report) segment(s span, w *walk) {
	name := segmentName(s.first)
	p.Segments = append(p.Segments, SegmentReport{name, s.first, w.records, s.size})
	from := w.end
	if w.marked {
		from += frameSize
	}
	if rest := lastByte(w.b) - from; rest > 0 && !w.sealed {
		note := fmt.Sprintf("%s: %d bytes after record %d are left of a batch that was not finished", name, rest, w.next-1)
		p.Notes = append(p.Notes, note)
	}
}
