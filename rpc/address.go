// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

// numeric is the host:port that is published for a given one. PyTorch workers dial addresses, not names.
func numeric(ctx context.Context, addr string) (string, error) {
	refuse := func(err error) (string, error) {
		e := dist.Wrap("rpc: join", dist.InvalidArgument, err)
		e.Key, e.Code, e.Detail = addr, dist.InvalidArgument, "the address to publish must be host:port that others can dial: "+err.Error()
		return "", e
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return refuse(err)
	}
	if n, portErr := net.DefaultResolver.LookupPort(ctx, "tcp", port); portErr != nil || n == 0 {
		return refuse(dist.Newf("rpc: address", dist.InvalidArgument, "port %q", port))
	}
	if ip, ipErr := netip.ParseAddr(host); ipErr == nil {
		if ip.IsUnspecified() {
			return refuse(dist.Newf("rpc: address", dist.InvalidArgument, "%s is every address of whoever dials it", host))
		}
		return addr, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return refuse(err)
	}
	best := ips[0]
	for _, ip := range ips {
		if ip.Unmap().Is4() { // what PyTorch prefers
			best = ip.Unmap()
			break
		}
	}
	return net.JoinHostPort(best.String(), port), nil
}

// dialable is the address of a listener for others. Who listens on every address of a host is reached at the one that PyTorch
// would listen on.
func dialable(bound net.Addr) string {
	if tcp, ok := bound.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		_, port, _ := net.SplitHostPort(bound.String())
		return net.JoinHostPort(defaultHost(), port)
	}
	return bound.String()
}
