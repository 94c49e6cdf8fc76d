// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlog

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

// model is what a member's log has to be after a restart.
type model struct {
	snapshot uint64   // the index of the newest snapshot
	term     uint64   // of that entry
	state    string   // the replicated state in it
	entries  []string // after it
	terms    []uint64
	hard     [3]uint64
}

func (m *model) last() uint64 { return m.snapshot + uint64(len(m.entries)) }

// TestRecovery: a folder gives back what was written, whatever was replaced, covered by snapshots or installed before, after every restart.
func TestRecovery(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(5) {
		r := rand.New(rand.NewPCG(seed, 3))
		dir := t.TempDir()
		want := &model{state: "begin", snapshot: 1, term: 1}
		log, _ := reopen(t, dir, nil)
		if err := Begin(log, snapshotOf(1, 1), bytes.NewBufferString("begin")); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			var w *Writer
			log, w = reopen(t, dir, want)
			for range 30 {
				step(t, r, w, want)
			}
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		log, _ = reopen(t, dir, want)
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func snapshotOf(index, term uint64) *raftpb.Snapshot {
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(index), Term: new(term), ConfState: &raftpb.ConfState{}}}
}

// step writes something.
func step(t *testing.T, r *rand.Rand, w *Writer, want *model) {
	t.Helper()
	var err error
	switch n := r.IntN(10); {
	case n < 7: // entries, which may replace some that no snapshot covers
		keep := r.IntN(len(want.entries) + 1)
		if r.IntN(3) > 0 {
			keep = len(want.entries)
		}
		want.entries, want.terms = want.entries[:keep], want.terms[:keep]
		term := max(want.hard[0], want.term) + uint64(r.IntN(2))
		one := membercore.Write{Hard: want.vote(term, uint64(r.IntN(3)), want.snapshot)}
		for range 1 + r.IntN(3) {
			data := string(rune('a' + r.IntN(26)))
			want.entries, want.terms = append(want.entries, data), append(want.terms, term)
			one.Entries = append(one.Entries, &raftpb.Entry{Index: new(want.last()), Term: new(term), Data: []byte(data)})
		}
		err = w.Write([]membercore.Write{one}, nil)
	case n < 9 && len(want.entries) > 0: // a snapshot of its own
		through := r.IntN(len(want.entries)) + 1
		want.term, want.state = want.terms[through-1], "captured"
		want.snapshot += uint64(through)
		want.entries, want.terms = want.entries[through:], want.terms[through:]
		_, err = w.Capture(snapshotOf(want.snapshot, want.term), bytes.NewBufferString(want.state))
	case n == 9: // one of the leader's
		term := max(want.hard[0], want.term) + 1
		index := want.last() + uint64(r.IntN(5)) + 1
		*want = model{snapshot: index, term: term, state: "installed"}
		err = w.Write([]membercore.Write{{Install: snapshotOf(index, term), Hard: want.vote(term, 0, index)}},
			func(_ *raftpb.Snapshot, out io.Writer) error {
				_, failed := io.WriteString(out, "installed")
				return failed
			})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m *model) vote(term, vote, commit uint64) *raftpb.HardState {
	m.hard = [3]uint64{term, vote, commit}
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

// reopen opens the folder and compares what it has.
func reopen(t *testing.T, dir string, want *model) (*storelog.Log, *Writer) {
	t.Helper()
	state := ""
	recovery := &Recovery{Restore: func(_ *raftpb.Snapshot, r io.Reader) error {
		all, err := io.ReadAll(r)
		state = string(all)
		return err
	}}
	log, err := storelog.Open(dir, storelog.Options{SegmentSize: 64 << 10}, recovery.Replay())
	if err != nil {
		t.Fatal(err)
	}
	s := recovery.State()
	if want != nil {
		at := s.Snapshot.GetMetadata()
		if state != want.state || at.GetIndex() != want.snapshot || at.GetTerm() != want.term || len(s.Entries) != len(want.entries) {
			t.Fatalf("recovered %q up to %d and %d entries, want %q up to %d and %d", state, at.GetIndex(), len(s.Entries),
				want.state, want.snapshot, len(want.entries))
		}
		for i, e := range s.Entries {
			if string(e.GetData()) != want.entries[i] || e.GetTerm() != want.terms[i] || e.GetIndex() != want.snapshot+uint64(i)+1 {
				t.Fatalf("entry %d is %v, want %q of term %d", i, e, want.entries[i], want.terms[i])
			}
		}
		if got := [3]uint64{s.Hard.GetTerm(), s.Hard.GetVote(), s.Hard.GetCommit()}; want.hard[0] != 0 && got != want.hard {
			t.Fatalf("the hard state is %v, want %v", got, want.hard)
		}
	}
	return log, NewWriter(log, recovery)
}

// TestStaleCapture: a snapshot that was begun before the leader sent a newer one does not replace that.
func TestStaleCapture(t *testing.T) {
	t.Parallel()
	log, w := reopen(t, t.TempDir(), nil)
	defer func() { _ = log.Close() }()
	install := func(_ *raftpb.Snapshot, out io.Writer) error { _, err := io.WriteString(out, "x"); return err }
	if err := w.Write([]membercore.Write{{Install: snapshotOf(10, 2)}}, install); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Capture(snapshotOf(9, 1), bytes.NewBufferString("old")); !errors.Is(err, ErrStale) {
		t.Errorf("%v", err)
	}
}

// FuzzRecords: what a folder holds is read, or refused, and what was read is written as it was.
func FuzzRecords(f *testing.F) {
	f.Add(encodeEntry(&raftpb.Entry{Index: new(uint64(3)), Term: new(uint64(2)), Data: []byte("x")}))
	f.Add(encodeHard(&raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(2)), Commit: new(uint64(300))}))
	var header bytes.Buffer
	if err := writeHeader(&header, snapshotOf(3, 2), &raftpb.HardState{}); err != nil {
		f.Fatal(err)
	}
	f.Add(header.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if e, err := decodeEntry(data); err == nil {
			again, err := decodeEntry(encodeEntry(e))
			if err != nil || again.GetIndex() != e.GetIndex() || !bytes.Equal(again.GetData(), e.GetData()) {
				t.Errorf("%v becomes %v, %v", e, again, err)
			}
		}
		if h, err := decodeHard(data); err == nil {
			if again, err := decodeHard(encodeHard(h)); err != nil || again.GetCommit() != h.GetCommit() {
				t.Errorf("%v becomes %v, %v", h, again, err)
			}
		}
		_, _, _ = readHeader(bytes.NewReader(data))
	})
}
