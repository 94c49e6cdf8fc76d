// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestClientFindsOutWhyAnAddFailed has PyTorch's server close the connection on a value that is not a number.
func TestClientFindsOutWhyAnAddFailed(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		c := dial(t, m.fresh(t))
		if err := c.Set(t.Context(), "text", []byte("abc")); err != nil {
			t.Fatal(err)
		}
		_, err := c.Add(t.Context(), "text", 1)
		if !errors.Is(err, store.ErrNotANumber) || !strings.Contains(err.Error(), "abc") {
			t.Fatalf("add: %v", err)
		}
		if n, err := c.Add(t.Context(), "n", 1); n != 1 || err != nil {
			t.Fatalf("add after it: %d, %v", n, err)
		}
	})
}

// TestClientSupportsOnPyTorch asks the servers what they can do, and that the question harms no other client.
func TestClientSupportsOnPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		c := dial(t, m.fresh(t))
		got := map[string]bool{}
		for _, f := range store.Features() {
			got[f.String()] = store.Supports(c, f)
		}
		v, lists := torch.Name != "1.13", torch.About(t).Since(2, 10)
		want := map[string]bool{"append": v, "multi-get": v, "multi-set": v, "queue": false, "list-keys": lists}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		if _, err := c.ListKeys(t.Context()); lists && err != nil || !lists && !errors.Is(err, store.ErrNotSupported) {
			t.Fatalf("list keys: %v", err)
		}
		if err := c.QueuePush(t.Context(), "q", []byte("item")); err != nil { // the fallback
			t.Fatal(err)
		}
		if got, err := c.QueuePop(t.Context(), "q", false); string(got) != "item" || err != nil {
			t.Fatalf("pop: %q, %v", got, err)
		}
		if has, err := c.HasBarrier(t.Context()); has != torch.About(t).Since(2, 12) || err != nil {
			t.Fatalf("a barrier: %v, %v", has, err)
		}
		if got := m.ask(t, `eval s.num_keys()`); got != "1" {
			t.Fatalf("the server has %s keys", got)
		}
	})
}

// TestClientBarrierOnPyTorch: Go and PyTorch clients meet at a barrier of PyTorch's server. One that has none is recognised.
func TestClientBarrierOnPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		c := dial(t, m.fresh(t))
		if !torch.About(t).Since(2, 12) {
			if err := c.Barrier(t.Context(), "b", 1); !errors.Is(err, cohort.NotSupported) {
				t.Fatalf("on a server without barriers: %v", err)
			}
			return
		}
		early, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Barrier(early, "b", 4); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("alone: %v", err)
		}
		all := make(chan error, 2)
		for range cap(all) {
			go func() { all <- c.Barrier(t.Context(), "b", 4) }() // the one that gave up stays counted
		}
		if got := m.ask(t, `eval s.barrier("b", 4)`); got != "None" {
			t.Fatalf("PyTorch's client: %s", got)
		}
		for range cap(all) {
			if err := <-all; err != nil {
				t.Error(err)
			}
		}
		if v, err := c.Get(t.Context(), "b"); string(v) != "4" || err != nil {
			t.Errorf("the server has counted %q, %v", v, err)
		}
	})
}

// TestClientGreetingCostsTheServerNothing: to PyTorch 1.13 our greeting looks like a SET with a key of impossible length.
// It must give up at once instead of taking memory.
func TestClientGreetingCostsTheServerNothing(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		addr := m.fresh(t)
		dial(t, addr)
		before := memoryOf(t, m.proc.PID())
		for range 50 {
			c, err := tcpstore.Dial(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
		after := memoryOf(t, m.proc.PID())
		for _, field := range []string{"VmPeak", "VmHWM"} {
			if grown := after[field] - before[field]; grown > 64<<10 {
				t.Errorf("%s grew by %d kB with 50 greetings", field, grown)
			}
		}
		t.Logf("VmPeak %d -> %d kB, VmHWM %d -> %d kB", before["VmPeak"], after["VmPeak"], before["VmHWM"], after["VmHWM"])
	})
}

// memoryOf returns the sizes in a process's status, in kB.
func memoryOf(t *testing.T, pid int) map[string]int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "kB" {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			sizes[strings.TrimSuffix(fields[0], ":")] = n
		}
	}
	return sizes
}
