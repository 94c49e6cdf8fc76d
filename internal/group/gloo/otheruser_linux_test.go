// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// listening returns a device of rank 0 of 2 that listens, and its published record.
func listening(t *testing.T, generation Generation, log *strings.Builder) (*device, *endpoints) {
	t.Helper()
	d := newDevice(&Config{Size: 2, Generation: generation, Logger: slog.New(slog.NewTextHandler(log, nil))}, 0, "here")
	e, err := d.listen(t.Context(), netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.closeAll()
		if d.listener != nil {
			d.listener.stop()
		}
		d.wg.Wait()
		d.end()
	})
	return d, e
}

// TestOtherUser: the connection of another user of the host is not taken, even if it knows the identifier of a rank, and that is said.
func TestOtherUser(t *testing.T) {
	testkit.NeedOtherUser(t)
	for _, generation := range []Generation{A, B, C, D} {
		var log strings.Builder
		d, e := listening(t, generation, &log)
		at := e.record.Addrs[0].Addr.String()
		conn, err := testkit.DialAs(t, "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if generation == A {
			go func() {
				time.Sleep(50 * time.Millisecond)
				_ = e.perPair[1].Close()
			}()
			if c, failed := e.perPair[1].Accept(); failed == nil {
				t.Errorf("generation %v: %v is taken", generation, c.RemoteAddr())
			}
		} else {
			if _, err = conn.Write(gloowire.AppendPreamble(nil, d.ids[1])); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(soon))
			if n, err := conn.Read(make([]byte, 1)); err == nil || n > 0 || d.pairs[1].parked != nil {
				t.Errorf("generation %v: it is taken (%v)", generation, err)
			}
			d.listener.stop()
			d.wg.Wait()
		}
		if !strings.Contains(log.String(), "it belongs to user 65534") {
			t.Errorf("generation %v: it is not said who came: %s", generation, log.String())
		}
	}
}

// TestDialledAndDied: a rank that has dialled and died before it was taken is noticed, because it has written what only a process of the
// job knows. One that has written its rank, as any process can, is not believed then.
func TestDialledAndDied(t *testing.T) {
	for name, c := range map[string]struct {
		generation Generation
		user       peeruid.Verdict
		write      func(*device) int64
		taken      bool
	}{
		"its identifier":               {B, peeruid.Gone, func(d *device) int64 { return d.ids[1] }, true},
		"its rank":                     {B, peeruid.Gone, func(*device) int64 { return 1 }, false},
		"its rank, where that is all":  {D, peeruid.Gone, func(*device) int64 { return 1 }, false},
		"its rank, and it is known":    {D, peeruid.Accepted, func(*device) int64 { return 1 }, true},
		"another number":               {B, peeruid.Accepted, func(d *device) int64 { return d.ids[1] + 1 }, false},
		"its identifier, and is known": {C, peeruid.Accepted, func(d *device) int64 { return d.ids[1] }, true},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			d, _ := listening(t, c.generation, &log)
			here, there := net.Pipe()
			t.Cleanup(func() { _, _ = here.Close(), there.Close() })
			go func() { _, _ = there.Write(gloowire.AppendPreamble(nil, c.write(d))) }()
			if !d.listener.admit(here) {
				t.Fatal("it is not admitted")
			}
			d.wg.Add(1)
			d.listener.identify(here, c.user)
			if (d.pairs[1].parked != nil) != c.taken {
				t.Errorf("taken: %v", d.pairs[1].parked != nil)
			}
		})
	}
}
