// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

// unknownHost is how package net reports a name that does not exist.
func unknownHost(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "nowhere", IsNotFound: true}}
}

// TestDialUnknownHost: a name that does not exist fails at once and says so; one that is expected to come is waited for.
func TestDialUnknownHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := Dial(t.Context(), "nowhere:29500", WithDialer(unknownHost))
		if !errors.Is(err, cohort.NotFound) || !strings.Contains(err.Error(), `no host is named "nowhere"`) || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if _, err = Dial(t.Context(), "nowhere:29500", WithDialer(unknownHost), WithNameRetry(),
			WithTimeout(time.Minute)); !errors.Is(err, store.ErrTimeout) {
			t.Errorf("a name that may come: %v", err)
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("gave up after %v", took)
		}
	})
}

// TestDialTellsItsAttempts: a port without a listener is tried again, and the hook is called for each attempt.
func TestDialTellsItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network faultnet.Network
		var tries []uint64
		_, err := Dial(t.Context(), "store:1", WithDialer(network.Dial), WithTimeout(3*time.Second), WithHook(func(e observe.Event) {
			if e.Kind == EventRetry {
				if tries = append(tries, e.Seq); e.Peer != "store:1" || !strings.Contains(e.Detail, "refused") {
					t.Errorf("%+v", e)
				}
			}
		}))
		if !errors.Is(err, store.ErrTimeout) || len(tries) < 3 || tries[0] != 1 || tries[len(tries)-1] != uint64(len(tries)) {
			t.Errorf("%v, attempts %v", err, tries)
		}
	})
}

// TestClone: a clone is a further handle with connections and a timeout of its own.
func TestClone(t *testing.T) {
	s := startServer(t)
	c := dialTest(t, s)
	c.SetTimeout(7 * time.Second)
	if err := c.Set(t.Context(), "p/k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	clone, err := store.Clone(t.Context(), store.Prefix("p", c))
	if err != nil {
		t.Fatal(err)
	}
	defer clone.Close()
	_ = c.Close()
	if got, err := clone.Get(t.Context(), "k"); string(got) != "v" || err != nil || clone.Timeout() != 7*time.Second {
		t.Errorf("%q, %v, timeout %v", got, err, clone.Timeout())
	}
	if text := fmt.Sprint(clone); !strings.Contains(text, s.Addr().String()) || !strings.Contains(text, `"p`) {
		t.Errorf("it prints as %s", text)
	}
	if text := fmt.Sprint(Option{}); text == "" {
		t.Error("an empty option prints as nothing")
	}
	_ = newClientConfig([]ClientOption{Option{}, nil}) // neither panics
	_ = newServerConfig([]ServerOption{Option{}, nil})
}

// TestWatch: every change is told, in order; the end of the context or of the client ends it.
func TestWatch(t *testing.T) {
	s := startServer(t)
	c, other := dialTest(t, s), dialTest(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	ready, changes, over := make(chan struct{}), make(chan Change, 8), make(chan error, 1)
	go func() {
		over <- c.Watch(ctx, "k", func() { close(ready) }, func(ch Change) { changes <- ch })
	}()
	<-ready
	for _, v := range []string{"a", "b"} {
		if err := other.Set(t.Context(), "k", []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" a", "a b", "b "} {
		if got := <-changes; string(got.Old)+" "+string(got.New) != want {
			t.Errorf("%q to %q, want %q", got.Old, got.New, want)
		}
	}
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	go func() { over <- c.WatchWorkers(t.Context(), func() { changes <- Change{} }) }()
	<-changes
	if _, err := other.JoinWorker(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-changes
	_ = c.Close()
	if err := <-over; !errors.Is(err, cohort.Closed) {
		t.Errorf("closed: %v", err)
	}
	v, err := Dial(t.Context(), s.Addr().String(), WithDialect(DialectV))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := v.Watch(t.Context(), "k", nil, nil); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("on a server that cannot: %v", err)
	}
}
