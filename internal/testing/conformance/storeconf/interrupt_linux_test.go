// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeconf

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestInterruptDoesNotBreakWait: a signal to the thread of a waiting client does not end the wait. A goroutine has no thread of
// its own, so every thread of the process gets one, ten times, while clients of every dialect wait.
func TestInterruptDoesNotBreakWait(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	server := listen(t)
	setter := dial(t, server)
	dialects := []tcpstore.Dialect{tcpstore.DialectV, tcpstore.DialectLegacy, tcpstore.DialectNative}
	var wg sync.WaitGroup
	for _, dialect := range dialects {
		c := dial(t, server, tcpstore.WithDialect(dialect), tcpstore.WithTimeout(30*time.Second))
		wg.Go(func() {
			err := c.Wait(t.Context(), "foo")
			if got, failed := c.Get(t.Context(), "foo"); err != nil || failed != nil || string(got) != "bar" {
				t.Errorf("%v: wait %v, then %q, %v", dialect, err, got, failed)
			}
		})
	}
	defer wg.Wait()
	for end := time.Now().Add(20 * time.Second); server.Stats().Waiting < len(dialects); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d clients wait", server.Stats().Waiting)
		}
	}
	for range 10 {
		interruptThreads(t)
		<-signals
	}
	if n := server.Stats().Waiting; n != len(dialects) {
		t.Errorf("%d clients wait after the signals", n)
	}
	if err := setter.Set(t.Context(), "foo", []byte("bar")); err != nil {
		t.Error(err)
	}
}

// interruptThreads sends a signal to every thread of the process.
func interruptThreads(t *testing.T) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Tgkill(os.Getpid(), id, unix.SIGUSR1); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
}
