// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"context"
	"errors"
	"net"
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
