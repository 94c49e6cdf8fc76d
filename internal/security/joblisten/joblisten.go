// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package joblisten accepts connections on a port of a job that strangers can reach. Who connects is a [Stranger] until it has shown that
// it is of the job: strangers may send little and have little time, and there are few of them at a time.
//
// [Listener] is for servers that know nothing of TLS: it hands out connections whose other end has shown a certificate of the job.
package joblisten

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
)

// handshakeTime is how long a stranger has for the handshake.
const handshakeTime = 5 * time.Second

// Why a client was refused, for errors.Is.
var (
	// ErrPlain: it does not begin with TLS.
	ErrPlain = errors.New("it does not use TLS")
	// ErrForeign: one side does not accept the certificate of the other.
	ErrForeign = errors.New("its certificate is not accepted")
	// ErrUnidentified: it speaks something else, or says nothing.
	ErrUnidentified = errors.New("it does not identify itself")
)

// Listener hands out connections over TLS. The other end has shown its certificate.
type Listener struct {
	raw       net.Listener
	config    *tls.Config
	onRefused func(addr string, why error)
	strangers *Strangers
	ready     chan net.Conn
	quit      chan struct{}
	joined    sync.WaitGroup
	close     sync.Once
	said      [3]sync.Once
}

// Listen makes a Listener of one, which belongs to it from then on. onRefused is called once for each kind of refusal, and may be called
// for two at the same time; nil: not at all.
func Listen(raw net.Listener, config *tls.Config, onRefused func(addr string, why error)) *Listener {
	if onRefused == nil {
		onRefused = func(string, error) {}
	}
	l := &Listener{
		raw: raw, config: config, onRefused: onRefused, strangers: NewStrangers(),
		ready: make(chan net.Conn), quit: make(chan struct{}),
	}
	l.joined.Go(func() {
		l.strangers.Accept(raw, l.quit, func(one *Stranger) { l.joined.Go(func() { l.meet(one) }) })
	})
	return l
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.quit:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.raw.Addr(), Err: net.ErrClosed}
	}
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return l.raw.Addr() }

// Close implements [net.Listener]. Connections that were handed out stay.
func (l *Listener) Close() error {
	err := error(nil)
	l.close.Do(func() {
		close(l.quit)
		err = l.raw.Close()
		l.strangers.End()
		l.joined.Wait()
	})
	return err
}

// meet hands out the connection of a stranger that has shown a certificate of the job.
func (l *Listener) meet(one *Stranger) {
	c, err := l.open(one)
	still := l.strangers.Remove(one)
	switch {
	case err != nil && still && !errors.Is(err, errGone):
		l.report(one.RemoteAddr().String(), err)
	case err == nil && still:
		select {
		case l.ready <- c:
			return
		case <-l.quit:
		}
	}
	_ = one.Close()
}

// errGone is of one that has ended the connection, which is not worth a word.
var errGone = errors.New("it has ended the connection")

// open makes TLS of a connection.
func (l *Listener) open(one *Stranger) (net.Conn, error) {
	_ = one.SetDeadline(time.Now().Add(handshakeTime))
	raw := Meter(one.Conn)
	switch first, err := raw.Peek(); {
	case err != nil && !silent(err):
		return nil, errGone
	case err != nil:
		return nil, ErrUnidentified
	case first != jobtls.Handshake:
		return nil, ErrPlain
	}
	c := tls.Server(raw, l.config)
	if err := c.HandshakeContext(context.Background()); err != nil { // the connection has a deadline
		return nil, reasonOf(err)
	}
	raw.Open()
	return &member{c, one.Conn}, one.SetDeadline(time.Time{})
}

// Foreign reports whether a handshake has failed because one side does not accept the certificate of the other, or that is not one of
// launchers.
func Foreign(err error) bool {
	if remote, ok := errors.AsType[*net.OpError](err); ok && remote.Op == "remote error" {
		return true
	}
	for _, e := range []error{jobcert.ErrForeign, jobcert.ErrExpired, jobcert.ErrClock, jobcert.ErrRole} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func reasonOf(err error) error {
	if Foreign(err) {
		return &foreign{err}
	}
	return ErrUnidentified
}

// foreign is ErrForeign in the words of the handshake.
type foreign struct{ error }

func (*foreign) Is(target error) bool { return target == ErrForeign }
func (f *foreign) Unwrap() error      { return f.error }

// report says, once for each kind of reason, who was refused.
func (l *Listener) report(addr string, err error) {
	for i, kind := range []error{ErrPlain, ErrForeign, ErrUnidentified} {
		if errors.Is(err, kind) {
			l.said[i].Do(func() { l.onRefused(addr, err) })
		}
	}
}

func silent(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// member is a connection over TLS that is closed without a farewell, for which a server that must not wait has no time. What is sent over
// it says where it ends.
type member struct {
	*tls.Conn
	raw net.Conn
}

// Close implements [net.Conn].
func (m *member) Close() error { return m.raw.Close() }
