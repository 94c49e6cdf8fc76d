// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblisten

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

// from is a connection from an address that tells when it was closed.
type from struct {
	net.Conn
	host   string
	closed bool
}

func (c *from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 7} }
func (c *from) Close() error         { c.closed = true; return nil }

// TestStrangersAreFew: of too many strangers the oldest one of the address that has most of them is closed, so that one address cannot
// push out those of others.
func TestStrangersAreFew(t *testing.T) {
	t.Parallel()
	const most = 8
	s := newStrangers(most)
	var all []*from
	add := func(host string) *Stranger {
		c := &from{host: host}
		all = append(all, c)
		return s.add(c)
	}
	add("192.0.2.1")
	joined := add("192.0.2.2")
	fell := add("192.0.2.66")
	for range 99 {
		add("192.0.2.66")
	}
	var closed strings.Builder
	for i, c := range all {
		if c.closed {
			closed.WriteString(strconv.Itoa(i) + " ")
		}
	}
	if !strings.HasPrefix(closed.String(), "2 3 4 ") || !strings.HasSuffix(closed.String(), " 94 95 ") || s.mu.n != most {
		t.Errorf("%d are left; closed were %s", s.mu.n, closed.String())
	}
	if first, again, dropped := s.Remove(joined), s.Remove(joined), s.Remove(fell); !first || again || dropped {
		t.Errorf("a stranger that joins is one: %v, then %v; one that was closed is one: %v", first, again, dropped)
	}
	if s.mu.n != most-1 || all[1].closed {
		t.Errorf("%d are left when one has joined; closed: %v", s.mu.n, all[1].closed)
	}
	if !s.drop() || s.mu.n != (most-1)/2 {
		t.Errorf("%d are left when descriptors are short", s.mu.n)
	}
	s.End()
	if add("192.0.2.3"); s.mu.n != 0 || !all[len(all)-1].closed || s.drop() || len(s.mu.byHost) != 0 {
		t.Errorf("%d are left at the end", s.mu.n)
	}
}
