// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestOtherUser: the listener of a rank leaves out connections of another user of the host, and says so.
func TestOtherUser(t *testing.T) {
	testkit.NeedOtherUser(t)
	var log bytes.Buffer
	d := &device{cfg: &Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	ln, err := d.listenOwn(t.Context(), netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if _, err = testkit.DialAs(t, "tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	own, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if c.RemoteAddr().String() != own.LocalAddr().String() || !strings.Contains(log.String(), "user 65534") {
		t.Errorf("%v connected, want %v\n%s", c.RemoteAddr(), own.LocalAddr(), log.String())
	}
}
