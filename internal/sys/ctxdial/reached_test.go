// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"net"
	"testing"
)

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
