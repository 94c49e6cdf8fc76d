// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// events collects what a hook is told.
type events struct {
	mu  sync.Mutex
	all []observe.Event
}

func (e *events) hook(event observe.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

func (e *events) details(kind observe.Kind) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []string
	for _, event := range e.all {
		if event.Kind == kind {
			found = append(found, event.Detail)
		}
	}
	return found
}

// expiring is a context whose deadline passes when the test says so.
type expiring struct {
	context.Context //nolint:containedctx // it is a context itself
	once            sync.Once
	over            chan struct{}
}

func (c *expiring) expire()               { c.once.Do(func() { close(c.over) }) }
func (c *expiring) Done() <-chan struct{} { return c.over }
func (c *expiring) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestRendezvousTimeout(t *testing.T) {
	_, err := rendezvous.Join(t.Context(), fmt.Sprintf("tcp://127.0.0.1:%d?world_size=2&rank=0", testkit.FreePort(t)), noEnv(),
		rendezvous.WithTimeout(time.Second))
	if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if words := " seconds waiting for clients. 1/2 clients joined. missing: rank 1"; !strings.Contains(err.Error(), words) {
		t.Errorf("the error lacks %q: %v", words, err)
	}
}

// TCPStoreTest.test_store_timeout_on_missing_clients, with the names.
func TestRendezvousTellsWhoIsMissing(t *testing.T) {
	port := testkit.FreePort(t)
	url := fmt.Sprintf("tcp://127.0.0.1:%d?world_size=4&rank=", port)
	others := make(chan error, 1)
	go func() {
		m, err := rendezvous.Join(t.Context(), url+"2", noEnv())
		if err == nil {
			defer func() { _ = m.Close() }()
			// A client that joins as PyTorch does, without telling its rank.
			var stranger *tcpstore.Client
			if stranger, err = tcpstore.Dial(t.Context(), "127.0.0.1:"+strconv.Itoa(port),
				tcpstore.WithDialect(tcpstore.DialectV)); err == nil {
				defer func() { _ = stranger.Close() }()
				_, err = stranger.JoinWorker(t.Context())
			}
			<-t.Context().Done()
		}
		others <- err
	}()
	// The time is over as soon as the host has told what it should, however slow the machine is.
	var seen events
	ctx := &expiring{Context: t.Context(), over: make(chan struct{})}
	const who = "1 of ranks 1 and 3 is missing (1 client joined without giving a rank, as PyTorch clients do)"
	_, err := rendezvous.Join(ctx, url+"0", noEnv(), rendezvous.WithTimeout(2*time.Minute), rendezvous.WithHook(func(e observe.Event) {
		seen.hook(e)
		if e.Kind == rendezvous.EventWait && strings.Contains(e.Detail, who) {
			ctx.expire()
		}
	}))
	if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	host, _ := os.Hostname()
	for _, words := range []string{
		" seconds waiting for clients. 3/4 clients joined. " + who,
		fmt.Sprintf("here: rank 0 on %s pid %d, rank 2 on %s pid %d", host, os.Getpid(), host, os.Getpid()),
	} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("the error lacks %q: %v", words, err)
		}
	}
	told := seen.details(rendezvous.EventWait)
	if len(told) == 0 || !strings.Contains(told[len(told)-1], "3/4 clients joined") {
		t.Errorf("told while waiting: %q", told)
	}
	if n := len(seen.details(rendezvous.EventHost)); n != 1 {
		t.Errorf("%d host events", n)
	}
	if n := len(seen.details(rendezvous.EventJoin)); n != 2 {
		t.Errorf("%d join events, want begin and end", n)
	}
	// The port is free again.
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Errorf("a failed join leaves its server behind: %v", err)
	} else {
		_ = l.Close()
	}
}

func TestRendezvousCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	_, err := rendezvous.Join(ctx, fmt.Sprintf("tcp://127.0.0.1:%d?rank=1&world_size=2", testkit.FreePort(t)), noEnv())
	if !errors.Is(err, context.Canceled) || time.Since(start) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	if _, err := rendezvous.Join(ctx, "file:///x?rank=0&world_size=1", noEnv()); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}
