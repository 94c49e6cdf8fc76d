// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package peeruid

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
)

var (
	here  = netip.MustParseAddrPort("127.0.0.1:29500")
	there = netip.MustParseAddrPort("127.0.0.1:40000")
	// outside is an address of this host that others reach, elsewhere one of another host.
	outside   = netip.MustParseAddrPort("192.0.2.7:29500")
	elsewhere = netip.MustParseAddrPort("192.0.2.1:40000")
)

// policy returns a policy for a system that answers so.
func policy(said *[]string, s sockdiag.Socket, err error, allowed ...uint32) *Policy {
	p := newPolicy(allowed, func(text string) { *said = append(*said, text) })
	p.find = func(local, remote netip.AddrPort) (sockdiag.Socket, error) {
		s.Local, s.Remote = local, remote
		return s, err
	}
	return p
}

// TestAccepts: this process's user, root and those who are allowed may connect from this host, others not. A connection whose user is not
// known any more may not, and one of another host may.
func TestAccepts(t *testing.T) {
	t.Parallel()
	me := uint32(os.Getuid())
	const other = 4242
	for name, c := range map[string]struct {
		socket  sockdiag.Socket
		err     error
		allowed []uint32
		remote  netip.AddrPort
		local   netip.AddrPort
		want    bool
		says    string
	}{
		"this user":       {socket: sockdiag.Socket{State: sockdiag.Established, Inode: 7, UID: me}, want: true},
		"root":            {socket: sockdiag.Socket{State: sockdiag.Established, Inode: 7}, want: true},
		"another":         {socket: sockdiag.Socket{State: sockdiag.Established, Inode: 7, UID: other}, says: "--allow-uid 4242"},
		"an allowed one":  {socket: sockdiag.Socket{Inode: 7, UID: other}, allowed: []uint32{other}, want: true},
		"a closed socket": {socket: sockdiag.Socket{State: 5}},
		"no such socket":  {err: sockdiag.ErrNotFound},
		"not known":       {err: sockdiag.ErrUnavailable, want: true, says: "does not report which user"},
		"another host":    {err: sockdiag.ErrNotFound, remote: elsewhere, local: outside, want: true},
		"another host over IPv6": {
			err: sockdiag.ErrNotFound, remote: netip.MustParseAddrPort("[::ffff:192.0.2.1]:40000"), local: outside, want: true,
		},
		"an unknown address at a loopback one": {socket: sockdiag.Socket{Inode: 7, UID: other}, remote: elsewhere, says: "user 4242"},
		"loopback as IPv6": {
			socket: sockdiag.Socket{Inode: 7, UID: other}, remote: netip.MustParseAddrPort("[::ffff:127.0.0.1]:40000"), says: "user 4242",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said []string
			p := policy(&said, c.socket, c.err, c.allowed...)
			if !c.remote.IsValid() {
				c.remote = there
			}
			if !c.local.IsValid() {
				c.local = here
			}
			for range 3 {
				if got := p.Accepts(c.local, c.remote); got != c.want {
					t.Errorf("accepted: %v", got)
				}
			}
			if c.says == "" && len(said) > 0 || c.says != "" && (len(said) != 1 || !strings.Contains(said[0], c.says)) {
				t.Errorf("%q", said)
			}
		})
	}
}

// TestSaid: what is said is bounded, however many users there are.
func TestSaid(t *testing.T) {
	t.Parallel()
	var said []string
	p := policy(&said, sockdiag.Socket{}, nil)
	for uid := range uint32(100) {
		p.find = func(netip.AddrPort, netip.AddrPort) (sockdiag.Socket, error) {
			return sockdiag.Socket{Inode: 1, UID: 100000 + uid}, nil
		}
		if p.Accepts(here, there) {
			t.Errorf("user %d is accepted", uid)
		}
	}
	if len(said) != maxSaid {
		t.Errorf("%d sentences", len(said))
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]uint32{"": nil, "7": {7}, " 1002, 1003,": {1002, 1003}, "4294967295": {4294967295}} {
		got, err := Parse(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if again, err := Parse(Format(got)); err != nil || !slices.Equal(again, want) {
			t.Errorf("%q again: %v, %v", text, again, err)
		}
	}
	for _, text := range []string{"root", "-1", "4294967296", "1;2", strings.Repeat("1,", maxAllowed+1)} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%.20q: %v", text, got)
		}
	}
}

// TestDefault: the environment allows users, and is not silently wrong.
func TestDefault(t *testing.T) {
	var said []string
	say := func(text string) { said = append(said, text) }
	t.Setenv(Env, "77")
	if p := Default([]uint32{78}, say); !slices.Contains(p.allowed, 77) || !slices.Contains(p.allowed, 78) || len(said) > 0 {
		t.Errorf("%v, %q", p.allowed, said)
	}
	t.Setenv(Env, "77,me")
	if p := Default(nil, say); slices.Contains(p.allowed, 77) || len(said) != 1 || !strings.Contains(said[0], Env+`: "me" is not the id`) {
		t.Errorf("%v, %q", p.allowed, said)
	}
}
