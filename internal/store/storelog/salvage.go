// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"encoding/hex"
	"errors"
	"io"

	"github.com/cohort-dist/cohort"
)

// Salvaged is what Salvage did.
type Salvaged struct {
	Report   Report `json:"report"`   // of the damaged folder
	Last     LSN    `json:"last"`     // the last record that was taken over, by its number in the damaged folder
	LeftOut  int64  `json:"left_out"` // records that can be read, but follow one that cannot
	Identity string `json:"identity"` // of the new folder
}

// Salvage makes the folder to, which must be empty or not exist, of the newest snapshot of dir and the records after it up to
// the first that cannot be read. Its records are numbered anew. If anything was damaged, the new folder gets an identity of
// its own, since its store is perhaps not the one that clients know.
func Salvage(dir, to string, options Options) (Salvaged, error) {
	options = options.withDefaults()
	var done Salvaged
	var err error
	if done.Report, err = Check(dir, options); err != nil {
		return done, err
	}
	if names, _ := options.Disk.List(to); len(names) > 0 {
		return done, cohort.Newf(opSalvage, cohort.AlreadyExists, "%s is not empty", to)
	}
	if err = done.identify(&options); err != nil {
		return done, err
	}
	fresh, err := Open(to, options, Replay{})
	if err != nil {
		return done, err
	}
	done.Identity = hex.EncodeToString(fresh.identity[:])
	return done, errors.Join(done.copy(folder{options.Disk, dir}, fresh), fresh.Close())
}

// identify chooses the identity of the new folder. That of the cluster stays.
func (s *Salvaged) identify(options *Options) error {
	if len(s.Report.Problems) == 0 {
		if _, err := hex.Decode(options.Identity[:], []byte(s.Report.Identity)); err != nil {
			return cohort.Wrap(opSalvage, cohort.Internal, err)
		}
	}
	if options.Cluster == (ID{}) {
		_, _ = hex.Decode(options.Cluster[:], []byte(s.Report.Cluster)) // empty if the file identity cannot be read
	}
	return nil
}

// copy takes over the snapshot, then the records as long as none is missing.
func (s *Salvaged) copy(from folder, fresh *Log) error {
	b := batcher{log: fresh}
	restored := s.Report.Snapshot == nil
	var lost error // why the snapshot could not be taken over
	replay := Replay{
		Snapshot: func(through LSN, r io.Reader) error {
			lost = fresh.Snapshot(0, func(w io.Writer) error { _, err := io.Copy(w, r); return err })
			if restored = lost == nil; restored {
				s.Last = through
			}
			return lost
		},
		Record: func(r Record) error {
			switch {
			case r.LSN <= s.Last:
			case r.LSN > s.Last+1:
				s.LeftOut++
			default:
				s.Last++
				return b.add(r)
			}
			return nil
		},
	}
	again := Report{}
	if err := again.read(from, replay); err != nil {
		return err
	}
	if !restored && s.Last == 0 {
		return cohort.Newf(opSalvage, cohort.NotFound,
			"the snapshot cannot be read, and the records before it are gone: restore a backup: %w", lost)
	}
	return b.flush()
}

// batcher writes records in batches.
type batcher struct {
	log   *Log
	batch []Record
	bytes int
}

func (b *batcher) add(r Record) error {
	r.Data = append([]byte(nil), r.Data...)
	b.batch = append(b.batch, r)
	if b.bytes += len(r.Data); b.bytes < 1<<20 && len(b.batch) < 1<<14 {
		return nil
	}
	return b.flush()
}

func (b *batcher) flush() error {
	if len(b.batch) == 0 {
		return nil
	}
	_, err := b.log.Write(b.batch)
	b.batch, b.bytes = b.batch[:0], 0
	return err
}
