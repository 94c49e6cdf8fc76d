// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/testing/faultdisk"
)

const (
	dir = "data"

	ordinary = 'o'
	vital    = 'v'
)

// state is what a caller of the log makes of its records: their number, and a sum of all that they say, in order.
type state struct {
	last storelog.LSN
	sum  uint64
}

func (s state) apply(r storelog.Record) state {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %c ", s.sum, r.Kind)
	_, _ = h.Write(r.Data)
	return state{s.last + 1, h.Sum64()}
}

// write is a snapshot of the state, followed by bytes that fill it up to a size.
func (s state) write(size int) func(io.Writer) error {
	return func(w io.Writer) error {
		b := binary.BigEndian.AppendUint64(nil, uint64(s.last))
		b = binary.BigEndian.AppendUint64(b, s.sum)
		for len(b) < size {
			b = append(b, byte(len(b))|1)
		}
		_, err := io.Copy(w, bytes.NewReader(b))
		return err
	}
}

// replay returns functions that make the state of what a log holds.
func replay(s *state) storelog.Replay {
	return storelog.Replay{
		Snapshot: func(through storelog.LSN, r io.Reader) error {
			b, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			s.last, s.sum = storelog.LSN(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])
			if s.last != through {
				return fmt.Errorf("a snapshot of %d holds the state after %d", through, s.last)
			}
			return nil
		},
		Record: func(r storelog.Record) error {
			if r.LSN != s.last+1 {
				return fmt.Errorf("record %d follows %d", r.LSN, s.last)
			}
			*s = s.apply(r)
			return nil
		},
	}
}

// options of logs on a disk in memory. Segments are small, so that a test goes through many.
func options(d storelog.Disk) storelog.Options {
	clock := time.Unix(1_000_000_000, 0)
	return storelog.Options{
		Vital: []byte{vital}, SegmentSize: 4096, SnapshotSize: 8192, Disk: d, Rand: rand.NewChaCha8([32]byte{1}),
		Now: func() time.Time { clock = clock.Add(time.Millisecond); return clock },
	}
}

// recovered opens a log, closes it, and returns what it holds.
func recovered(d *faultdisk.Disk) (s state, err error) {
	l, err := storelog.Open(dir, options(d), replay(&s))
	if err != nil {
		return s, err
	}
	return s, l.Close()
}

// batch returns records whose content follows from a seed.
func batch(random *rand.Rand, most int) []storelog.Record {
	records := make([]storelog.Record, 1+random.IntN(4))
	for i := range records {
		data := make([]byte, random.IntN(most))
		for k := range data {
			data[k] = byte(random.Uint32())
		}
		records[i] = storelog.Record{Kind: ordinary, Data: data}
	}
	return records
}

// user is a caller of the log that knows what it was told.
type user struct {
	log    *storelog.Log
	random *rand.Rand

	acked state
	maybe state // what the log may hold instead: a batch whose outcome is unknown is in it
	full  int   // batches that were refused because there was no room
}

func newUser(seed uint64) *user { return &user{random: rand.New(rand.NewPCG(seed, 0))} }

func (u *user) open(d *faultdisk.Disk) error {
	var s state
	l, err := storelog.Open(dir, options(d), replay(&s))
	if err != nil {
		return err
	}
	if s != u.acked && s != u.maybe {
		return fmt.Errorf("the log holds %v; it should hold %v or %v", s, u.acked, u.maybe)
	}
	u.log, u.acked, u.maybe = l, s, s
	return nil
}

// write appends a batch, and notes what is known of it.
func (u *user) write(records []storelog.Record) error {
	after := u.acked
	for _, r := range records {
		after = after.apply(r)
	}
	last, err := u.log.Write(records)
	switch {
	case err == nil:
		u.acked, u.maybe = after, after
		if last != after.last {
			return fmt.Errorf("the last record is %d, not %d", last, after.last)
		}
	case errors.Is(err, storelog.ErrFailed):
		if u.maybe == u.acked {
			u.maybe = after
		}
	case errors.Is(err, cohort.Exhausted):
		u.full++
	}
	return err
}

// step does one of the things that a caller does.
func (u *user) step() error {
	switch n := u.random.IntN(20); {
	case n < 15:
		return u.write(batch(u.random, 200))
	case n < 16:
		return u.write(batch(u.random, 3000)) // often larger than a segment
	case n < 17:
		return u.log.Prepare()
	case n < 19:
		return u.log.Snapshot(u.acked.last, u.acked.write(16+u.random.IntN(2000)))
	default:
		return u.log.Compact(u.log.Stats().Snapshot)
	}
}

// filled returns a disk with a log of several segments, a snapshot that covers some, and what it holds.
func filled(t *testing.T) (*faultdisk.Disk, state) {
	t.Helper()
	d, u := &faultdisk.Disk{}, newUser(7)
	if err := u.open(d); err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		if err := u.write(batch(u.random, 150)); err != nil {
			t.Fatal(err)
		}
		if i == 12 {
			if err := u.log.Snapshot(u.acked.last, u.acked.write(600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := u.log.Close(); err != nil {
		t.Fatal(err)
	}
	if s := u.log.Stats(); s.Segments < 3 || s.Snapshot == 0 {
		t.Fatalf("%+v", s)
	}
	return d, u.acked
}
