// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/store"
)

// serveOn starts an empty store, always at the same address.
func serveOn(t *testing.T, network *faultnet.Network) *Server {
	t.Helper()
	l, err := network.Listen("store:1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRestartedServerIsAnotherStore: a client does not go on counting in an empty store as if it were its own.
func TestRestartedServerIsAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, ctx := &faultnet.Network{}, t.Context()
		s := serveOn(t, network)
		c, err := Dial(ctx, "store:1", WithDialer(network.Dial))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 5 {
			if _, err = c.Add(ctx, "n", 1); err != nil {
				t.Fatal(err)
			}
		}
		network.CutAll() // the same store is still there
		_, _ = c.Add(ctx, "n", 0)
		var n int64
		if n, err = c.Add(ctx, "n", 0); n != 5 || err != nil {
			t.Errorf("after a cut: %d, %v", n, err)
		}
		_ = s.Close()
		s = serveOn(t, network)
		defer func() { _ = s.Close() }()
		_, _ = c.Add(ctx, "n", 1) // may find the old connection lost
		for range 3 {
			if n, err = c.Add(ctx, "n", 1); !errors.Is(err, cohort.Replaced) || !strings.Contains(err.Error(), "another store") {
				t.Errorf("another store counts %d, %v", n, err)
			}
		}
		if _, err = c.Get(ctx, "n"); !errors.Is(err, cohort.Replaced) {
			t.Errorf("get of a key that is gone: %v", err)
		}
		network.CutAll()
		_, _ = c.Check(ctx)
		if err = c.Set(ctx, "k", nil); !errors.Is(err, cohort.Replaced) {
			t.Errorf("over a further connection: %v", err)
		}
		id, _, err := c.Hello(ctx)
		if err != nil || id != s.Identity() {
			t.Fatalf("hello: %v, %v", id, err)
		}
		if n, err := c.Add(ctx, "n", 1); n != 1 || err != nil {
			t.Errorf("in the accepted store: %d, %v", n, err)
		}
		network.CutAll()
		_, _ = c.Check(ctx)
		if n, err := c.Add(ctx, "n", 1); n != 2 || err != nil {
			t.Errorf("in the accepted store over a further connection: %d, %v", n, err)
		}
	})
}

// TestFurtherConnectionsOfAReplacedStore: a clone and a watch of a client whose server was restarted do not reach the empty store either.
func TestFurtherConnectionsOfAReplacedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, ctx := &faultnet.Network{}, t.Context()
		s := serveOn(t, network)
		c, err := Dial(ctx, "store:1", WithDialer(network.Dial))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err = c.Set(ctx, "k", nil); err != nil {
			t.Fatal(err)
		}
		network.CutAll() // the same store is still there, but the client's own connection is not
		watched, unwatch := context.WithCancel(ctx)
		if err = c.Watch(watched, "k", unwatch, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a watch in the same store: %v", err)
		}
		_ = s.Close()
		s = serveOn(t, network)
		defer func() { _ = s.Close() }()
		clone, err := c.Clone(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer clone.Close()
		second, err := store.Clone(ctx, clone)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		for name, handle := range map[string]store.Store{"clone": clone, "clone of the clone": second} {
			if n, failed := handle.Add(ctx, "n", 1); !errors.Is(failed, cohort.Replaced) {
				t.Errorf("%s: another store counts %d, %v", name, n, failed)
			}
		}
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err = c.Watch(bounded, "k", func() { t.Error("another store is watched") }, nil); !errors.Is(err, cohort.Replaced) {
			t.Errorf("watch: %v", err)
		}
		_, _ = c.Check(ctx) // finds that its own connection is lost
		if _, _, err = c.Hello(ctx); err != nil {
			t.Fatal(err)
		}
		accepted, err := c.Clone(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if n, err := accepted.Add(ctx, "n", 1); n != 1 || err != nil {
			t.Errorf("a clone in the accepted store: %d, %v", n, err)
		}
	})
}

// TestWatchReachesAnotherStore: the address of a store leads to another server now, while the client's own connection still leads to the
// first one. A watch, which has a connection of its own, is not begun in the other store.
func TestWatchReachesAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, ctx := &faultnet.Network{}, t.Context()
		serve := func(addr string) *Server {
			l, err := network.Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			s, err := Serve(l)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
		serve("store:1")
		serve("store:2")
		leads := "store:1"
		c, err := Dial(ctx, "store:1", WithDialer(func(ctx context.Context, kind, _ string) (net.Conn, error) {
			return network.Dial(ctx, kind, leads)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		watched, unwatch := context.WithCancel(ctx)
		if err = c.Watch(watched, "k", unwatch, nil); !errors.Is(err, context.Canceled) { // nothing has been asked before
			t.Errorf("a watch in the same store: %v", err)
		}
		if err = c.Set(ctx, "k", nil); err != nil {
			t.Fatal(err)
		}
		leads = "store:2"
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err = c.Watch(bounded, "k", func() { t.Error("another store is watched") }, nil); !errors.Is(err, cohort.Replaced) {
			t.Errorf("watch: %v", err)
		}
		if there, err := c.Check(ctx, "k"); err != nil || !there { // it goes on with the first one as long as that is there
			t.Errorf("check: %v, %v", there, err)
		}
	})
}

// writing calls before with everything that is about to be written.
type writing struct {
	net.Conn
	before func(b []byte)
}

func (w *writing) Write(b []byte) (int, error) {
	w.before(b)
	return w.Conn.Write(b)
}

// TestWatchOfAClearedStore: a store that is cleared between the question which store it is and the beginning of the watch, or later, is not
// watched, and the error says that it is another store.
func TestWatchOfAClearedStore(t *testing.T) {
	for _, begun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			network := &faultnet.Network{}
			s := serveOn(t, network)
			defer func() { _ = s.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			question := wire.AppendKey(nil, wire.Legacy, wire.WatchKey, "/k")
			c, err := Dial(ctx, "store:1", WithDialer(func(ctx context.Context, kind, addr string) (net.Conn, error) {
				conn, err := network.Dial(ctx, kind, addr)
				return &writing{conn, func(b []byte) {
					if !begun && bytes.Equal(b, question) {
						s.Clear()
					}
				}}, err
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err = c.Set(ctx, "k", nil); err != nil {
				t.Fatal(err)
			}
			from := time.Now()
			err = c.Watch(ctx, "k", func() {
				if !begun {
					t.Error("another store is watched")
				}
				s.Clear()
			}, func(Change) { t.Error("a change") })
			if took := time.Since(from); !errors.Is(err, cohort.Replaced) || took > 5*time.Second {
				t.Errorf("after the watch has begun %v: %v, after %v", begun, err, took)
			}
		})
	}
}

// TestClearEndsWatches: a watch does not outlive the store that it watches: a client that clears the store ends the watches of all clients,
// its own too, with an error that says why. None of them goes on as if nothing had been between two changes, and a watch that is begun
// again sees the new store.
func TestClearEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &faultnet.Network{}
		s := serveOn(t, network)
		defer func() { _ = s.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		clients, over := make([]*Client, 2), make([]chan error, 2)
		for i := range clients {
			c, err := Dial(ctx, "store:1", WithDialer(network.Dial))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Set(ctx, "k", []byte("old")); err != nil {
				t.Fatal(err)
			}
			ready := make(chan struct{})
			clients[i], over[i] = c, make(chan error, 1)
			go func() {
				over[i] <- c.Watch(ctx, "k", func() { close(ready) }, func(ch Change) {
					if !bytes.Equal(ch.New, []byte("old")) {
						t.Errorf("client %d is told of %q after %q", i, ch.New, ch.Old)
					}
				})
			}()
			<-ready
		}
		id, _, err := clients[0].Hello(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := clients[0].Clear(ctx, id); err != nil {
			t.Fatal(err)
		}
		if err := clients[0].Set(ctx, "k", []byte("new")); err != nil {
			t.Fatal(err)
		}
		for i := range clients {
			if err := <-over[i]; !errors.Is(err, cohort.Replaced) {
				t.Errorf("the watch of client %d: %v", i, err)
			}
		}
		if _, _, err := clients[1].Hello(ctx); err != nil { // it accepts the new store
			t.Fatal(err)
		}
		seen := make(chan Change, 1)
		short, end := context.WithCancel(ctx)
		defer end()
		go func() {
			change := func() { _ = clients[0].Set(ctx, "k", []byte("newer")) }
			over[1] <- clients[1].Watch(short, "k", change, func(ch Change) { seen <- ch })
		}()
		if ch := <-seen; string(ch.Old) != "new" || string(ch.New) != "newer" {
			t.Errorf("the watch that was begun again: %q after %q", ch.New, ch.Old)
		}
		end()
		<-over[1]
	})
}

// TestWatchOfAServerThatIsGone: the question whether the store was cleared does not hold up the end of a watch whose server is gone.
func TestWatchOfAServerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, ctx := &faultnet.Network{}, t.Context()
		s := serveOn(t, network)
		c, err := Dial(ctx, "store:1", WithDialer(network.Dial))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		from := time.Now()
		err = c.Watch(ctx, "k", func() { _ = s.Close() }, nil)
		if took := time.Since(from); !errors.Is(err, cohort.PeerLost) || took > 2*minReplyTime {
			t.Errorf("%v, after %v", err, took)
		}
	})
}
