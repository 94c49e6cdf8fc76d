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
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, errWindowsReset) || errors.Is(err, errWindowsAborted)
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

// These are the numbers of Windows: package syscall has other numbers there under the names that it shares with other systems. No other system has
// these.
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
