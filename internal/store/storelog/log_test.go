// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/testing/faultdisk"
)

// TestLocked: a second opener is told who has the folder.
func TestLocked(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "a", "b")
	l, err := storelog.Open(folder, storelog.Options{Holder: "store\x1b on port 1"}, storelog.Replay{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = storelog.Open(folder, storelog.Options{}, storelog.Replay{})
	if !errors.Is(err, storelog.ErrLocked) || !errors.Is(err, cohort.AlreadyExists) ||
		!strings.Contains(err.Error(), `by store\x1b on port 1, process `) {
		t.Errorf("%v", err)
	}
	if _, err = storelog.Check(folder, storelog.Options{}); !errors.Is(err, storelog.ErrLocked) {
		t.Errorf("check: %v", err)
	}
	if err = l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = l.Write([]storelog.Record{{}}); !errors.Is(err, cohort.Closed) {
		t.Errorf("write after close: %v", err)
	}
	again, err := storelog.Open(folder, storelog.Options{}, storelog.Replay{})
	if err != nil || again.Identity() != l.Identity() || again.Identity() == (storelog.ID{}) {
		t.Fatalf("%v: %x, then %x", err, l.Identity(), again.Identity())
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestIdentity: those of a new folder are kept, and a member of another cluster does not open it.
func TestIdentity(t *testing.T) {
	t.Parallel()
	d := &faultdisk.Disk{}
	o := options(d)
	o.Identity, o.Cluster = storelog.ID{1}, storelog.ID{2}
	l, err := storelog.Open(dir, o, storelog.Replay{})
	if err != nil {
		t.Fatal(err)
	}
	if err = l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = storelog.Open(dir, options(d), storelog.Replay{}); err != nil || l.Identity() != o.Identity || l.Cluster() != o.Cluster {
		t.Fatalf("%v: %x of %x", err, l.Identity(), l.Cluster())
	}
	if err = l.Close(); err != nil {
		t.Fatal(err)
	}
	o.Cluster = storelog.ID{3}
	if _, err := storelog.Open(dir, o, storelog.Replay{}); !errors.Is(err, cohort.Mismatch) {
		t.Errorf("another cluster: %v", err)
	}
}

// TestMistakes are refused and change nothing.
func TestMistakes(t *testing.T) {
	t.Parallel()
	u := newUser(1)
	if err := u.open(&faultdisk.Disk{}); err != nil {
		t.Fatal(err)
	}
	nothing := func(io.Writer) error { return nil }
	for name, err := range map[string]error{
		"an empty batch":                u.write(nil),
		"a snapshot of what is not yet": u.log.Snapshot(1, nothing),
		"compact without a snapshot":    u.log.Compact(1),
	} {
		if !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken")
	if err := u.log.Snapshot(0, func(w io.Writer) error { _, _ = w.Write([]byte("a")); return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, _, err := u.log.OpenSnapshot(); !errors.Is(err, cohort.NotFound) {
		t.Error(err)
	}
	if err := u.write(batch(u.random, 10)); err != nil {
		t.Error(err)
	}
	if err := u.log.Close(); err != nil {
		t.Error(err)
	}
}

// TestTail: with Tail, records that the snapshot covers are replayed as long as Compact leaves them.
func TestTail(t *testing.T) {
	t.Parallel()
	d, want := filled(t)
	for _, tail := range []bool{false, true} {
		o := options(d)
		o.Tail = tail
		var through, first, last storelog.LSN
		l, err := storelog.Open(dir, o, storelog.Replay{
			Snapshot: func(lsn storelog.LSN, _ io.Reader) error { through = lsn; return nil },
			Record: func(r storelog.Record) error {
				if first == 0 {
					first = r.LSN
				}
				last = r.LSN
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if tail != (first == 1) || !tail && first != through+1 || last != want.last || l.Stats().First != 1 {
			t.Errorf("tail %v: %d to %d after a snapshot of %d", tail, first, last, through)
		}
		if err := errors.Join(l.Compact(through), l.Close()); err != nil {
			t.Fatal(err)
		}
		if kept := l.Stats().First; kept == 1 || kept > through+1 {
			t.Errorf("%d is the first record left", kept)
		}
		if !tail {
			d, want = filled(t)
		}
	}
}

// TestShouldSnapshot: by the bytes since the last one, by its size, by its age.
func TestShouldSnapshot(t *testing.T) {
	t.Parallel()
	o := options(&faultdisk.Disk{})
	now := time.Unix(1, 0)
	o.Now = func() time.Time { return now }
	l, err := storelog.Open(dir, o, storelog.Replay{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write := func(bytes int) bool {
		if _, err := l.Write([]storelog.Record{{Data: make([]byte, bytes)}}); err != nil {
			t.Fatal(err)
		}
		return l.ShouldSnapshot()
	}
	save := func(size int) {
		if err := l.Snapshot(l.Last(), func(w io.Writer) error { _, err := w.Write(make([]byte, size)); return err }); err != nil {
			t.Fatal(err)
		}
	}
	if write(8000) || !write(300) {
		t.Error("8192 bytes are not the limit")
	}
	save(6000)
	if l.ShouldSnapshot() || write(8192) || write(2000) || !write(2000) {
		t.Error("twice the snapshot is not the limit")
	}
	save(1)
	if now = now.Add(2 * time.Hour); l.ShouldSnapshot() {
		t.Error("a snapshot that covers everything is never too old")
	}
	if !write(1) {
		t.Error("an old snapshot is good enough")
	}
}

// TestOpenSnapshot: what was saved can be read while the log goes on.
func TestOpenSnapshot(t *testing.T) {
	t.Parallel()
	u := newUser(1)
	if err := u.open(&faultdisk.Disk{}); err != nil {
		t.Fatal(err)
	}
	defer u.log.Close()
	for _, size := range []int{0, 1, 65535, 65536, 65537, 200000} {
		want := bytes.Repeat([]byte("abc"), size)[:size]
		if err := u.log.Snapshot(u.acked.last, func(w io.Writer) error { _, err := w.Write(want); return err }); err != nil {
			t.Fatal(err)
		}
		through, r, err := u.log.OpenSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want) || through != u.acked.last {
			t.Errorf("%d bytes: %d through %d, %v", size, len(got), through, err)
		}
		if err := errors.Join(r.Close(), u.write(batch(u.random, 10))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckAndSalvage: what a damaged folder holds, and what can be saved of it.
func TestCheckAndSalvage(t *testing.T) {
	t.Parallel()
	d, want := filled(t)
	report, err := storelog.Check(dir, options(d))
	if err != nil || len(report.Problems) != 0 || report.Records != int64(want.last) || report.Snapshot == nil || len(report.Segments) < 3 {
		t.Fatalf("%v: %+v", err, report)
	}
	whole, err := storelog.Salvage(dir, "whole", options(d))
	if err != nil || whole.LeftOut != 0 || whole.Last != want.last || whole.Identity != report.Identity {
		t.Fatalf("%v: %+v", err, whole)
	}
	second := filepath.Join(dir, report.Segments[1].File)
	b := bytes.Clone(d.Bytes(second))
	b[1000] ^= 1
	broken := d.With(second, b)
	report, err = storelog.Check(dir, options(broken))
	if err != nil || len(report.Problems) != 1 || report.Problems[0].File != filepath.Base(second) || report.Problems[0].Offset > 1000 {
		t.Fatalf("%v: %+v", err, report)
	}
	o := options(broken)
	o.Rand = rand.NewChaCha8([32]byte{2})
	saved, err := storelog.Salvage(dir, "saved", o)
	if err != nil || saved.Last != report.Problems[0].LSN-1 || saved.LeftOut == 0 || saved.Identity == report.Identity {
		t.Fatalf("%v: %+v", err, saved)
	}
	if _, err = storelog.Salvage(dir, "saved", options(broken)); !errors.Is(err, cohort.AlreadyExists) {
		t.Errorf("into a folder that is not empty: %v", err)
	}
	if _, err = storelog.Check("nothing", options(d)); !errors.Is(err, cohort.NotFound) {
		t.Errorf("a folder without a log: %v", err)
	}
	if _, err = os.Stat("nothing"); err == nil {
		t.Error("Check has made a folder")
	}
	withoutIdentity := d.With(filepath.Join(dir, "identity"), nil)
	saved, err = storelog.Salvage(dir, "saved", options(withoutIdentity))
	if err != nil || saved.Last != want.last || saved.LeftOut != 0 || len(saved.Report.Problems) != 1 {
		t.Errorf("without identity: %v: %+v", err, saved)
	}
}

// TestAtOnce: everything but Write may be called while Write runs.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	d, u := &faultdisk.Disk{}, newUser(5)
	if err := u.open(d); err != nil {
		t.Fatal(err)
	}
	states := make(chan state, 300)
	var all sync.WaitGroup
	all.Go(func() {
		defer close(states)
		for range 300 {
			if err := u.write(batch(u.random, 200)); err != nil {
				t.Error(err)
				return
			}
			states <- u.acked
		}
	})
	all.Go(func() {
		for s := range states {
			if !u.log.ShouldSnapshot() {
				continue
			}
			if err := errors.Join(u.log.Snapshot(s.last, s.write(100)), u.log.Compact(s.last)); err != nil {
				t.Error(err)
			}
		}
	})
	all.Go(func() {
		for u.log.Last() < 200 {
			if u.log.WantsReserve() {
				if err := u.log.Prepare(); err != nil {
					t.Error(err)
				}
			}
			_ = u.log.Stats()
			if _, r, err := u.log.OpenSnapshot(); err == nil {
				if _, err := io.Copy(io.Discard, r); err != nil {
					t.Error(err)
				}
			}
			runtime.Gosched()
		}
	})
	all.Wait()
	if err := u.log.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := recovered(d); err != nil || s != u.acked {
		t.Errorf("%v, %v; acknowledged %v", s, err, u.acked)
	}
}
