// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// at is a connection to an address.
type at struct {
	net.Conn

	addr string
}

func (a at) RemoteAddr() net.Addr { return named(a.addr) }

type named string

func (named) Network() string  { return "tcp" }
func (n named) String() string { return string(n) }

// TestFaithfulIsPatient: the address that was reached before is given seconds to answer before another one is dialled, as many as there
// are; another is reached nevertheless in time when it stays silent.
func TestFaithfulIsPatient(t *testing.T) {
	for name, c := range map[string]struct {
		answers, limit time.Duration
		want           string
	}{
		"at once":                        {0, time.Minute, "second"},
		"the first packet was lost":      {1100 * time.Millisecond, time.Minute, "second"},
		"two packets were lost":          {3100 * time.Millisecond, time.Minute, "second"},
		"the first packet, little time":  {1100 * time.Millisecond, 2 * time.Second, "second"},
		"it is silent":                   {time.Hour, time.Minute, "first"},
		"it is silent, with little time": {time.Hour, 2 * time.Second, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial := func(ctx context.Context, addr string) (net.Conn, error) {
					if addr == "second" {
						select {
						case <-time.After(c.answers):
						case <-ctx.Done():
							return nil, ctx.Err()
						}
					}
					return at{addr: addr}, nil
				}
				var f Faithful
				f.mu.reached = "second"
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				conn, err := f.dial(ctx, []string{"first", "second", "third"}, dial)
				if err != nil {
					t.Fatal(err)
				}
				if got := conn.RemoteAddr().String(); got != c.want || f.mu.reached != c.want {
					t.Errorf("reached %s, then %s, want %s", got, f.mu.reached, c.want)
				}
			})
		})
	}
	f, refused := Faithful{}, errors.New("refused")
	f.mu.reached = "second"
	if _, err := f.dial(t.Context(), []string{"first", "second"}, func(_ context.Context, addr string) (net.Conn, error) {
		if addr == "second" {
			return nil, refused
		}
		return nil, errors.New("another")
	}); !errors.Is(err, refused) {
		t.Errorf("no listener: %v", err)
	}
}

type client struct {
	addr    string
	reached net.Addr
}

func (c client) Addr() string      { return c.addr }
func (c client) Reached() net.Addr { return c.reached }

type plain struct{ addr string }

func (p plain) Addr() string { return p.addr }

func TestTowards(t *testing.T) {
	tcp := func(ip string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: port} }
	for _, c := range []struct {
		client any
		want   string
	}{
		{nil, ""},
		{42, ""},
		{plain{"node0:29500"}, "node0:29500"},
		{client{"node0:29500", nil}, "node0:29500"},
		{client{"node0:29500", &net.UnixAddr{Name: "x", Net: "unix"}}, "node0:29500"},
		{client{"node0:29500", tcp("10.0.0.2", 29500)}, "10.0.0.2:29500"},
		{client{"node0:29500", tcp("::ffff:10.0.0.2", 29500)}, "10.0.0.2:29500"},
		{client{"node0:29500", tcp("fd00::2", 29500)}, "node0:29500"},
		{client{"node0:29500", tcp("127.0.0.1", 40000)}, "node0:29500"},
		{client{"10.0.0.1:29500", tcp("10.0.0.2", 29500)}, "10.0.0.1:29500"},
		{client{"node0", tcp("10.0.0.2", 29500)}, "node0"},
	} {
		if got := Towards(c.client); got != c.want {
			t.Errorf("%+v: %q, want %q", c.client, got, c.want)
		}
	}
}

// TestRefused: a refusal is recognised by the numbers of each system, and nothing else is one.
func TestRefused(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	conn, err := Dial(t.Context(), &net.Dialer{}, "tcp", gone.Addr().String())
	if err == nil {
		_ = conn.Close()
	}
	system := func(number syscall.Errno) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("connectex", number)}
	}
	const windows = 10061 // WSAECONNREFUSED
	if !Refused(err) || !Refused(system(syscall.ECONNREFUSED)) || !Refused(system(windows)) {
		t.Errorf("not taken for a refusal: %v, %v or %v", err, system(syscall.ECONNREFUSED), system(windows))
	}
	for _, other := range []error{nil, system(syscall.ECONNRESET), system(syscall.ETIMEDOUT), net.ErrClosed} {
		if Refused(other) {
			t.Errorf("taken for a refusal: %v", other)
		}
	}
}

// TestEnds: the numbers of each system for a connection that has ended, or a machine that does not answer, are
// recognised, and nothing else is.
func TestEnds(t *testing.T) {
	t.Parallel()
	system := func(number syscall.Errno) error {
		return &net.OpError{Op: "read", Err: os.NewSyscallError("wsarecv", number)}
	}
	const windowsAborted, windowsReset, windowsTimedOut, windowsDown, windowsUnreachable = 10053, 10054, 10060, 10064, 10065
	for _, c := range []struct {
		err                  error
		reset, ended, silent bool
	}{
		{err: nil},
		{err: net.ErrClosed},
		{err: os.ErrDeadlineExceeded},
		{err: system(syscall.ECONNREFUSED)},
		{err: io.EOF, ended: true},
		{err: io.ErrUnexpectedEOF, ended: true},
		{err: system(syscall.ECONNRESET), reset: true, ended: true},
		{err: system(syscall.EPIPE), reset: true, ended: true},
		{err: system(windowsReset), reset: true, ended: true},
		{err: system(windowsAborted), reset: true, ended: true},
		{err: system(syscall.ETIMEDOUT), silent: true},
		{err: system(syscall.EHOSTUNREACH), silent: true},
		{err: system(windowsTimedOut), silent: true},
		{err: system(windowsDown), silent: true},
		{err: system(windowsUnreachable), silent: true},
	} {
		if Reset(c.err) != c.reset || Ended(c.err) != c.ended || Silent(c.err) != c.silent {
			t.Errorf("%v: reset %v, ended %v, silent %v", c.err, Reset(c.err), Ended(c.err), Silent(c.err))
		}
	}
}
