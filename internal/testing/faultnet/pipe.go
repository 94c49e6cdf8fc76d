// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package faultnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferSize is how much one direction of a pipe holds before its writer blocks, like a socket buffer.
const bufferSize = 256 << 10

// Addr is an address of a network in memory.
type Addr string

// Network returns "mem".
func (Addr) Network() string { return "mem" }

// String returns the address.
func (a Addr) String() string { return string(a) }

// Conn is one end of a connection in memory. Besides net.Conn it has Reset, the counterpart of a TCP reset.
type Conn struct {
	in, out       *stream
	local, remote Addr
	closed        sync.Once
	onClose       func()

	readDeadline, writeDeadline deadline
}

// pipe returns the two ends of a connection in memory. Unlike net.Pipe's its writes are buffered.
func pipe(local, remote Addr, onClose func()) (client, server *Conn) {
	up, down := newStream(), newStream()
	client = &Conn{in: down, out: up, local: local, remote: remote, onClose: onClose}
	server = &Conn{in: up, out: down, local: remote, remote: local}
	client.readDeadline.init()
	client.writeDeadline.init()
	server.readDeadline.init()
	server.writeDeadline.init()
	return client, server
}

// Read reads what the other end wrote. After the other end was closed and everything was read it returns io.EOF.
func (c *Conn) Read(p []byte) (int, error) { return c.in.read(p, &c.readDeadline) }

// Write hands p to the other end, waiting while the buffer between them is full.
func (c *Conn) Write(p []byte) (int, error) { return c.out.write(p, &c.writeDeadline) }

// Close ends both directions: the other end reads what was written and then io.EOF.
func (c *Conn) Close() error {
	c.end(io.EOF, syscall.EPIPE)
	return nil
}

// Reset ends both directions at once; what was not read yet is lost and the other end sees ECONNRESET.
func (c *Conn) Reset() {
	c.out.drop()
	c.end(syscall.ECONNRESET, syscall.ECONNRESET)
}

// Cut ends both directions as a broken network does: both ends see ECONNRESET, and what was not read yet is lost.
func (c *Conn) Cut() {
	c.out.drop()
	c.in.drop()
	c.closed.Do(func() {
		c.out.close(syscall.ECONNRESET, syscall.ECONNRESET)
		c.in.close(syscall.ECONNRESET, syscall.ECONNRESET)
		if c.onClose != nil {
			c.onClose()
		}
	})
}

func (c *Conn) end(theirRead, theirWrite error) {
	c.closed.Do(func() {
		c.out.close(theirRead, net.ErrClosed)
		c.in.drop()
		c.in.close(net.ErrClosed, theirWrite)
		if c.onClose != nil {
			c.onClose()
		}
	})
}

// LocalAddr returns this end's address.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the other end's address.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	c.readDeadline.set(t)
	c.writeDeadline.set(t)
	return nil
}

// SetReadDeadline ends pending and later reads at t with os.ErrDeadlineExceeded.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readDeadline.set(t)
	return nil
}

// SetWriteDeadline ends pending and later writes at t with os.ErrDeadlineExceeded.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeDeadline.set(t)
	return nil
}

// stream is one direction. Its lock is a channel, because a goroutine that waits for a mutex keeps synctest's clock from
// advancing.
type stream struct {
	lock    chan struct{}
	data    []byte
	changed chan struct{} // closed and replaced at every change

	readErr, writeErr error
}

func newStream() *stream {
	return &stream{lock: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (s *stream) touch() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) read(p []byte, d *deadline) (int, error) {
	for {
		if d.passed() {
			return 0, os.ErrDeadlineExceeded
		}
		s.lock <- struct{}{}
		if len(s.data) > 0 || (len(p) == 0 && s.readErr == nil) {
			n := copy(p, s.data)
			s.data = s.data[n:]
			s.touch()
			<-s.lock
			return n, nil
		}
		err, changed := s.readErr, s.changed
		<-s.lock
		if err != nil {
			return 0, err
		}
		select {
		case <-changed:
		case <-d.wait():
		}
	}
}

func (s *stream) write(p []byte, d *deadline) (int, error) {
	written := 0
	for {
		if d.passed() {
			return written, os.ErrDeadlineExceeded
		}
		s.lock <- struct{}{}
		if s.writeErr != nil {
			err := s.writeErr
			<-s.lock
			return written, err
		}
		if room := bufferSize - len(s.data); room > 0 {
			n := min(room, len(p)-written)
			s.data = append(s.data, p[written:written+n]...)
			written += n
			s.touch()
		}
		changed := s.changed
		<-s.lock
		if written == len(p) {
			return written, nil
		}
		select {
		case <-changed:
		case <-d.wait():
		}
	}
}

func (s *stream) drop() {
	s.lock <- struct{}{}
	s.data = nil
	<-s.lock
}

// close ends the direction; the first end wins.
func (s *stream) close(readErr, writeErr error) {
	s.lock <- struct{}{}
	if s.readErr == nil {
		s.readErr = readErr
	}
	if s.writeErr == nil {
		s.writeErr = writeErr
	}
	s.touch()
	<-s.lock
}

// deadline is a point in time that can be moved while a goroutine waits for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{} // closed when the deadline has passed
}

func (d *deadline) init() { d.done = make(chan struct{}) }

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *deadline) passed() bool {
	select {
	case <-d.wait():
		return true
	default:
		return false
	}
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.done // the timer has fired or is about to
	}
	d.timer = nil
	fired := false
	select {
	case <-d.done:
		fired = true
	default:
	}
	if t.IsZero() || time.Until(t) > 0 {
		if fired {
			d.done = make(chan struct{})
		}
		if !t.IsZero() {
			done := d.done
			d.timer = time.AfterFunc(time.Until(t), func() { close(done) })
		}
		return
	}
	if !fired {
		close(d.done)
	}
}
