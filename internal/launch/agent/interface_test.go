// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/launch/rundir"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

var hostInterfaces = []netInterface{
	{name: "lo", loopback: true, addrs: addrs("127.0.0.1", "::1", "10.9.9.9")},
	{name: "eth0", addrs: addrs("10.0.0.7", "fe80::1")},
	{name: "eth1", addrs: addrs("10.1.0.7", "2001:db8::7")},
}

// TestNameFault: the name of a host is right if the first of its addresses that a rank can listen at is one that others reach.
func TestNameFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ips  []netip.Addr
		want string
	}{
		"right":                  {addrs("10.0.0.7"), ""},
		"right, IPv6":            {addrs("2001:db8::7"), ""},
		"right, written as IPv6": {addrs("::ffff:10.0.0.7"), ""},
		"foreign, then right":    {addrs("192.0.2.1", "10.1.0.7"), ""},
		"right, then loopback":   {addrs("10.0.0.7", "127.0.1.1"), ""},
		"loopback":               {addrs("127.0.1.1"), "the host name alpha leads to 127.0.1.1"},
		"loopback, then right":   {addrs("127.0.1.1", "10.0.0.7"), "the host name alpha leads to 127.0.1.1"},
		"loopback of IPv6":       {addrs("::1"), "the host name alpha leads to ::1"},
		"nothing":                {nil, "the host name alpha has no address"},
		"foreign":                {addrs("192.0.2.1"), "the host name alpha leads to 192.0.2.1, which is not an address of this host"},
	} {
		if got := nameFault("alpha", c.ips, hostInterfaces); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestInterfaceOf(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"10.0.0.7": "eth0", "fe80::1%eth0": "eth0", "::ffff:10.1.0.7": "eth1", "127.0.0.1": "", "10.9.9.9": "", "192.0.2.1": "",
	} {
		if got := interfaceOf(netip.MustParseAddr(addr), hostInterfaces); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
	if got := interfaceOf(netip.Addr{}, hostInterfaces); got != "" {
		t.Errorf("no address: %q", got)
	}
}

// TestInterfaceVariables: workers get both variables, unless the user has set one of them for the launcher or for the role.
func TestInterfaceVariables(t *testing.T) {
	both := []string{"GLOO_SOCKET_IFNAME=eth0", "TP_SOCKET_IFNAME=eth0"}
	for name, c := range map[string]struct {
		iface, role string
		want        []string
	}{
		"chosen": {"eth0", "", both}, "not chosen": {"", "", nil},
		"set in the role": {"eth0", "TP_SOCKET_IFNAME=ib0", []string{"TP_SOCKET_IFNAME=ib0"}},
	} {
		role := Role{Workers: 1}
		if c.role != "" {
			role.Env = []string{c.role}
		}
		all, err := Config{Workers: 1, Roles: []Role{role}}.environment(place{iface: c.iface}, 0, &rundir.Dir{})
		if err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(all, func(v string) bool { return !strings.Contains(v, "_SOCKET_IFNAME=") })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
