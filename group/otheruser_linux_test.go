// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestOtherUser: a rank that waits for others refuses the connections of another user of the host, says so, and the group forms.
func TestOtherUser(t *testing.T) {
	testkit.NeedOtherUser(t)
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	before := listening()
	var log lockedBuffer
	groups, errs := make([]*Group, 2), make([]error, 2)
	var joined sync.WaitGroup
	join := func(rank int) {
		joined.Go(func() {
			groups[rank], errs[rank] = New(t.Context(), s, cohort.Rank(rank), 2, WithTransport(TCP),
				WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		})
	}
	join(0)
	var ports []netip.AddrPort
	testkit.Until(t, "rank 0 listens", func() bool {
		ports = nil
		for addr := range listening() {
			if !before[addr] {
				ports = append(ports, addr)
			}
		}
		return len(ports) > 0
	})
	for _, addr := range ports { // accepted when the ranks connect to each other
		if _, err := testkit.DialAs(t, "tcp", addr.String()); err != nil {
			t.Error(err)
		}
	}
	join(1)
	joined.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for rank := range groups {
		joined.Go(func() {
			errs[rank] = errors.Join(groups[rank].Barrier(t.Context()).Wait(t.Context()), groups[rank].Close())
		})
	}
	joined.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "it belongs to user 65534") {
		t.Errorf("it is not said that another user came:\n%s", log.String())
	}
}

// listening returns what this process listens on.
func listening() map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, addr := range portowner.ReadSockets([]int{os.Getpid()}).Listening(os.Getpid()) {
		all[addr] = true
	}
	return all
}

// TestStoppedRankIsFound: the connections of a process that is stopped stay open, but it says nothing any more.
func TestStoppedRankIsFound(t *testing.T) {
	t.Parallel()
	groups, process, _ := withMortal(t, TCP, 2*time.Second)
	ctx := ctxOf(t)
	must(t, process.Signal(syscall.SIGSTOP))
	must(t, each(2, func(r int) error {
		err := groups[r].Barrier(ctx).Wait(ctx)
		if err == nil || !strings.Contains(err.Error(), "has sent nothing") {
			t.Errorf("%v", err)
		}
		return names2(err)
	}))
}
