// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpclink

import (
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

// Numeric is the host:port that is published for a given one. PyTorch workers dial addresses, not names.
func Numeric(ctx context.Context, addr string) (string, error) {
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

// defaultHost is where PyTorch would listen.
func defaultHost() string {
	if name := os.Getenv("TP_SOCKET_IFNAME"); name != "" {
		if i, err := net.InterfaceByName(name); err == nil {
			addrs, _ := i.Addrs()
			for _, addr := range addrs {
				if n, ok := addr.(*net.IPNet); ok && n.IP.To4() != nil {
					return n.IP.String()
				}
			}
			for _, addr := range addrs {
				if n, ok := addr.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
					return n.IP.String()
				}
			}
		}
	}
	if host, err := os.Hostname(); err == nil {
		if ips, err := net.LookupHost(host); err == nil { //nolint:noctx // the host's own name
			for _, ip := range ips {
				l, err := net.Listen("tcp", net.JoinHostPort(ip, "0")) //nolint:noctx // closed at once
				if err == nil {
					_ = l.Close()
					return ip
				}
			}
		}
	}
	return "127.0.0.1"
}
