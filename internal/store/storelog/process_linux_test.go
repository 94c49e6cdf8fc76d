// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

var killAll = flag.Bool("storelog.killall", false, "TestKilledAtSystemCall: kill at every system call of the log, not at some")

// writerFolder tells the test program to be a process that writes a log in a folder.
const writerFolder = "COHORT_STORELOG_TEST_FOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(writerFolder); folder != "" {
		runtime.LockOSThread() // strace counts the calls of each thread
		if err := writer(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// content is what a record holds, by its number.
func content(lsn storelog.LSN) []byte {
	return bytes.Repeat([]byte{byte(lsn), byte(lsn >> 8), 'x'}, 1+int(lsn)%60)
}

// writer writes a log, and says after each batch how far it has come.
func writer(folder string) error {
	l, err := storelog.Open(folder, storelog.Options{SegmentSize: 4096}, verify(new(storelog.LSN)))
	if err != nil {
		return err
	}
	for i := range 40 {
		var records []storelog.Record
		for n := l.Last() + 1; len(records) <= i%3; n++ {
			records = append(records, storelog.Record{Kind: byte(n), Data: content(n)})
		}
		last, err := l.Write(records)
		if err != nil {
			return err
		}
		if _, err := fmt.Println(last); err != nil {
			return err
		}
		if i%15 == 14 {
			save := func(w io.Writer) error { _, err := fmt.Fprint(w, last); return err }
			if err := errors.Join(l.Snapshot(last, save), l.Compact(last), l.Prepare()); err != nil {
				return err
			}
		}
	}
	return l.Close()
}

// verify checks what writer has written, and counts it.
func verify(last *storelog.LSN) storelog.Replay {
	return storelog.Replay{
		Snapshot: func(through storelog.LSN, r io.Reader) error {
			b, err := io.ReadAll(r)
			if *last = through; err == nil && string(b) != fmt.Sprint(through) {
				err = fmt.Errorf("the snapshot of %d is %q", through, b)
			}
			return err
		},
		Record: func(r storelog.Record) error {
			if *last++; r.LSN != *last || r.Kind != byte(r.LSN) || !bytes.Equal(r.Data, content(r.LSN)) {
				return fmt.Errorf("record %d: %v", *last, r)
			}
			return nil
		},
	}
}

// TestKilledAtSystemCall kills a process at a system call that changes the folder, starts it again, and so on, in the same
// folder. What it said that it had written is there each time.
func TestKilledAtSystemCall(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: no process is killed at a system call")
	}
	folder := filepath.Join(t.TempDir(), "log")
	for call, times := range map[string][]int{
		"pwrite64": {4, 50}, "fdatasync": {3, 30}, "fsync": {2}, "renameat": {3}, "unlinkat": {4}, "fallocate": {2},
	} {
		if *killAll {
			times = nil
			for n := range 1000 {
				times = append(times, n+1)
			}
		}
		for i, n := range times {
			killed := killedAt(t, strace, folder, call, n)
			if !killed && i == 0 {
				t.Errorf("the process ends before %s number %d", call, n)
			}
			if !killed {
				break
			}
		}
	}
}

// killedAt kills the writer at the n-th of its calls of one kind, and looks what it has left.
func killedAt(t *testing.T, strace, folder, call string, n int) (killed bool) {
	t.Helper()
	said, killed := runWriter(t, strace, folder, call, n)
	last := storelog.LSN(0)
	l, err := storelog.Open(folder, storelog.Options{SegmentSize: 4096}, verify(&last))
	if err != nil {
		t.Fatalf("after a kill at %s number %d: %v", call, n, err)
	}
	if last < said || last != l.Last() {
		t.Fatalf("after a kill at %s number %d: record %d was acknowledged, and the last is %d", call, n, said, last)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return killed
}

// runWriter runs the writer, kills it at the n-th of its calls of one kind, and returns the last number that it said.
func runWriter(t *testing.T, strace, folder, call string, n int) (said storelog.LSN, killed bool) {
	t.Helper()
	// Not with --seccomp-bpf: strace 6.1 then sends no signals.
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace="+call,
		"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n), os.Args[0])
	cmd.Env = append(os.Environ(), writerFolder+"="+folder)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if complaint.Len() > 0 {
		if strings.Contains(complaint.String(), "strace:") {
			t.Skipf("strace cannot trace here: %s", &complaint)
		}
		t.Fatalf("killed at %s number %d: %v, %s", call, n, err, &complaint)
	}
	for line := range strings.Lines(out.String()) {
		if !strings.HasSuffix(line, "\n") {
			break // killed while it said so
		}
		v, wrong := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if wrong != nil {
			t.Fatal(wrong)
		}
		said = storelog.LSN(v)
	}
	return said, err != nil
}

// TestSmallDisk fills a real disk, and makes room again.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	mount := testkit.SmallDisk(t)
	junk, folder := filepath.Join(mount, "junk"), filepath.Join(mount, "log")
	if err := os.WriteFile(junk, make([]byte, 20<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	o := storelog.Options{SegmentSize: 12 << 10, Vital: []byte{vital}}
	var s state
	l, err := storelog.Open(folder, o, replay(&s))
	if err != nil {
		t.Fatal(err)
	}
	u := newUser(3)
	u.log = l
	for err == nil && u.acked.last < 10000 {
		err = u.write(batch(u.random, 100))
	}
	if !errors.Is(err, cohort.Exhausted) || errors.Is(err, storelog.ErrFailed) || u.acked.last < 100 {
		t.Fatalf("after record %d: %v", u.acked.last, err)
	}
	if err = u.write([]storelog.Record{{Kind: vital, Data: []byte("a session has ended")}}); err != nil {
		t.Errorf("a vital record on the full disk: %v", err)
	}
	if err = os.Remove(junk); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err = u.write(batch(u.random, 100)); err != nil {
			t.Fatalf("with room: %v", err)
		}
	}
	if err = l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = storelog.Open(folder, o, replay(&s))
	if err != nil || s != u.acked {
		t.Fatalf("%v, %v; acknowledged %v", s, err, u.acked)
	}
	if err = l.Close(); err != nil {
		t.Fatal(err)
	}
}
