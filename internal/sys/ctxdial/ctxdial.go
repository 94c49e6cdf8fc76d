// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ctxdial opens connections. If one cannot be opened, its error reports whether the context ended, the address is malformed or
// the host name does not exist. It also lists the addresses of this machine.
package ctxdial

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Dial connects as [net.Dialer.DialContext] does, but never gives up before ctx has ended. A dialer takes the deadline of a
// context for the socket's own, and the socket's timer can be the first: its caller then sees a time-out with a context that
// is alive, and takes it for a failure of the peer.
//
// If the host is a name with several addresses, one that does not answer does not keep it from the next, as it would a dialer.
func Dial(ctx context.Context, d *net.Dialer, network, addr string) (net.Conn, error) {
	addrs, err := addresses(ctx, d, network, addr)
	if err != nil {
		return nil, err
	}
	return first(ctx, addrs, one(d, network))
}

// undated ends when its context does, and does not report when that will be.
type undated struct{ context.Context } //nolint:containedctx // it is that context

func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// BadAddr reports whether no address could have been made of what the user wrote: package net calls a port that is neither a
// number nor the name of a service an unknown one.
func BadAddr(err error) bool {
	if _, bad := errors.AsType[*net.AddrError](err); bad {
		return true
	}
	lookup, is := errors.AsType[*net.DNSError](err)
	return is && lookup.Err == "unknown port"
}

// UnknownHost reports whether the name servers answered that a name does not exist.
func UnknownHost(err error) bool {
	lookup, is := errors.AsType[*net.DNSError](err)
	return is && lookup.IsNotFound && !BadAddr(err)
}

// Refused reports whether the other host refused the connection: no process listens there.
func Refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errWindowsRefused)
}

// Reset reports whether the other side, or a device on the way, has reset a connection.
func Reset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, errWindowsReset) ||
		errors.Is(err, errWindowsAborted)
}

// Ended reports whether the other side has ended a connection, in whatever way.
func Ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || Reset(err)
}

// Silent reports whether the machine of the other side does not answer, or cannot be reached.
func Silent(err error) bool {
	return errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.EHOSTDOWN) ||
		errors.Is(err, errWindowsTimedOut) || errors.Is(err, errWindowsHostDown) || errors.Is(err, errWindowsUnreachable)
}

// These are the numbers of Windows: package syscall has other numbers there under the names that it shares with other
// systems. No other system has these.
const (
	errWindowsAborted     = syscall.Errno(10053) // WSAECONNABORTED: what is written to a connection that was reset
	errWindowsReset       = syscall.Errno(10054) // WSAECONNRESET
	errWindowsTimedOut    = syscall.Errno(10060) // WSAETIMEDOUT
	errWindowsRefused     = syscall.Errno(10061) // WSAECONNREFUSED
	errWindowsHostDown    = syscall.Errno(10064) // WSAEHOSTDOWN
	errWindowsUnreachable = syscall.Errno(10065) // WSAEHOSTUNREACH
)

// IsLocal reports whether a host is this machine: it has its name, or one of its addresses. The empty name, which a listener takes for
// all addresses, is. A name that cannot be looked up is not.
func IsLocal(ctx context.Context, host string) bool {
	if own, _ := os.Hostname(); host == own || host == "" || host == "localhost" {
		return true
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	return err == nil && slices.ContainsFunc(ips, OwnAddress)
}

// OwnAddress reports whether an address is one of this machine.
func OwnAddress(ip netip.Addr) bool {
	if ip.Unmap().IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip.AsSlice())
	})
}

// LongAgo is a deadline that has passed.
var LongAgo = time.Unix(1, 0)

// Interrupt makes blocked reads and writes of a connection return when a context ends. Its End must be called.
type Interrupt struct {
	stop func() bool
	done chan struct{}
}

// InterruptBy moves a deadline of a connection into the past when ctx ends. set is the method of the connection that sets it: that
// of reads, that of writes, or that of both.
func InterruptBy(ctx context.Context, set func(time.Time) error) Interrupt {
	if ctx.Done() == nil {
		return Interrupt{}
	}
	done := make(chan struct{})
	return Interrupt{done: done, stop: context.AfterFunc(ctx, func() {
		failpoint.At("tcpstore.dial.interrupt") // the store's client uses it
		_ = set(LongAgo)
		close(done)
	})}
}

// Begun reports whether there is a context to watch.
func (i Interrupt) Begun() bool { return i.stop != nil }

// End stops watching and reports whether the context had ended: then the deadline is in the past.
func (i Interrupt) End() bool {
	if i.stop == nil || i.stop() {
		return false
	}
	failpoint.At("tcpstore.dial.interrupted")
	<-i.done // so that the deadline is not changed behind the next user's back
	return true
}

// Towards returns the address ("host:port") that routes towards a server are looked up with, or "" if it has none. A client of the
// server has Addr, what the user gave, and Reached, what it has connected to. A name may have several addresses, of which some may be
// dead, so that of the connection counts.
//
// Two kinds of connections do not. PyTorch prefers IPv4 where a name has both, and all ranks must agree: the address of a connection by
// IPv6 is left to the name. A connection to another port goes through a tunnel, which shows nothing about the route to the server.
func Towards(client any) string {
	server, ok := client.(interface{ Addr() string })
	if !ok {
		return ""
	}
	addr := server.Addr()
	connected, ok := client.(interface{ Reached() net.Addr })
	if !ok {
		return addr
	}
	reached, ok := connected.Reached().(*net.TCPAddr)
	if !ok {
		return addr
	}
	host, port, err := net.SplitHostPort(addr)
	at := netip.AddrPortFrom(reached.AddrPort().Addr().Unmap(), reached.AddrPort().Port())
	if _, literal := netip.ParseAddr(host); err != nil || literal == nil || !at.Addr().Is4() {
		return addr
	}
	if _, reachedPort, _ := net.SplitHostPort(at.String()); reachedPort != port {
		return addr
	}
	return at.String()
}
