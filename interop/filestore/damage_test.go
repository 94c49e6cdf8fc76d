// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
)

// TestKilledPython kills a Python in the middle of its writes, at any moment, and expects Go, and then a new Python, to
// continue. PyTorch writes a record in four pieces, and a large one is copied page by page, so some kills leave a torn one.
func TestKilledPython(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		host, inside := shared(t, tr)
		s := open(t, host)
		torn := 0
		for round := range 12 {
			py := start(t, tr, inside, noWorld)
			py.send("sets", fmt.Sprint("round", round, "/"), 1000, 2<<20)
			if _, err := s.Get(t.Context(), fmt.Sprint("round", round, "/", 1)); err != nil {
				t.Fatal(err)
			}
			py.proc.Kill()
			<-py.proc.Done()
			if f, err := filestore.Open(t.Context(), host); err != nil {
				torn++
			} else {
				_ = f.Close()
			}
			if n, err := s.Add(t.Context(), "rounds", 1); n != int64(round+1) || err != nil {
				t.Fatalf("round %d: %d, %v", round, n, err)
			}
		}
		t.Logf("%d of 12 kills left an unfinished record", torn)
		py := start(t, tr, inside, noWorld)
		py.want(12, "add", "rounds", 0)
		py.want(nil, "set", "end", "x")
		wantGet(t, s, "end", "x")
	})
}

// TestTornTail puts an unfinished record at the end, as a killed Python leaves it, and checks that a Python that uses the
// file already continues once Go has seen it.
func TestTornTail(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		host, inside := shared(t, tr)
		s := open(t, host)
		py := start(t, tr, inside, noWorld)
		py.want(nil, "set", "before", "1")
		wantGet(t, s, "before", "1")
		appendFile(t, host, torn)
		if ok, err := s.Check(t.Context(), "torn"); ok || err != nil {
			t.Fatalf("check: %v, %v", ok, err)
		}
		py.want("1", "get", "before")
		py.want(nil, "set", "after", "2")
		wantGet(t, s, "after", "2")
		py.want(1, "add", "n", 1)
	})
}

// TestSpinningPython shows what PyTorch makes of an unfinished record: it reads for ever with the lock held. Go's calls end
// by their deadlines, and when that process is gone they continue.
func TestSpinningPython(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		host, inside := shared(t, tr)
		s := open(t, host)
		py := start(t, tr, inside, noWorld)
		appendFile(t, host, torn)
		py.send("get", "anything")
		deadline := time.Now().Add(10 * time.Second)
		for { // until it has the lock
			short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err := exclusive(short, host)
			cancel()
			if err != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("python does not spin")
			}
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := s.Set(short, "k", nil); !errors.Is(err, store.ErrTimeout) {
			t.Fatalf("set while python holds the lock: %v", err)
		}
		py.proc.Kill()
		<-py.proc.Done()
		if err := s.Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		start(t, tr, inside, noWorld).want("v", "get", "k")
	})
}

// torn is the beginning of a record.
const torn = "\x05\x00\x00\x00/torn\x10\x00\x00\x00half"

func appendFile(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// exclusive takes the file's lock for a moment.
func exclusive(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// TestHeldLock has a stopped Python sit on the lock: Go's calls end by their deadlines and work when it continues.
func TestHeldLock(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		host, inside := shared(t, tr)
		s := open(t, host)
		p := tr.Start(t,
			torchtest.Script{
				Source: "import fcntl, sys\nf = open(sys.argv[1], 'r+b')\nfcntl.flock(f, " +
					"fcntl.LOCK_EX)\nprint('held')\ninput()\nf.close()\nprint('free')", Args: []string{inside},
			})
		p.Expect(t, "held")
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := s.Set(short, "k", nil); !errors.Is(err, store.ErrTimeout) {
			t.Fatal(err)
		}
		p.Send(t, "")
		p.Expect(t, "free")
		if err := s.Set(t.Context(), "k", nil); err != nil {
			t.Fatal(err)
		}
	})
}
