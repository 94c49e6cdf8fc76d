// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"net"
	"time"
)

// Greeting is a connection of which the first byte may be waited for before it is read.
type Greeting struct {
	net.Conn
	first []byte
}

// Greeted returns a connection of which nothing has been read.
func Greeted(c net.Conn) *Greeting { return &Greeting{Conn: c} }

// Wait reports whether something arrives in time.
func (g *Greeting) Wait(limit time.Duration) bool {
	var b [1]byte
	_ = g.SetReadDeadline(time.Now().Add(limit))
	n, _ := g.Conn.Read(b[:])
	_ = g.SetReadDeadline(time.Time{})
	g.first = append(g.first, b[:n]...)
	return n > 0
}

// Read implements [net.Conn].
func (g *Greeting) Read(b []byte) (int, error) {
	if n := copy(b, g.first); n > 0 {
		g.first = g.first[n:]
		return n, nil
	}
	return g.Conn.Read(b)
}
