// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblisten

import (
	"errors"
	"io"
	"math"
	"net"
)

// maxHandshake bounds what a client may send before it is known, in bytes of TLS: the handshake with the certificates of a user's PKI, and
// the request to join.
const maxHandshake = 32 << 10

var errHandshake = errors.New("too much was sent before it was known who sends it")

// Metered is a connection of which only so many bytes may be read until it is known whose it is.
type Metered struct {
	net.Conn
	left   int
	began  byte // its first byte
	read   bool // there was one
	peeked bool // it is to be read once more
}

// Meter makes a metered connection.
func Meter(c net.Conn) *Metered { return &Metered{Conn: c, left: maxHandshake} }

// Open ends the limit.
func (b *Metered) Open() { b.left = math.MaxInt }

// Peek returns the first byte, which stays to be read.
func (b *Metered) Peek() (byte, error) {
	var first [1]byte
	if _, err := io.ReadFull(b, first[:]); err != nil {
		return 0, err
	}
	b.peeked = true
	return first[0], nil
}

// Read implements [net.Conn].
func (b *Metered) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case b.peeked:
		b.peeked = false
		p[0] = b.began
		return 1, nil
	case b.left <= 0:
		return 0, errHandshake
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	if n > 0 && !b.read {
		b.read, b.began = true, p[0]
	}
	return n, err
}

// CloseWrite passes on the end of what is sent.
func (b *Metered) CloseWrite() error {
	if half, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
