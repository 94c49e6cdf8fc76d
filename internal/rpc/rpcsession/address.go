// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
)

// Numeric is the host:port that is published for a given one. PyTorch workers dial addresses, not names.
func Numeric(ctx context.Context, addr string) (string, error) {
	refuse := func(err error) (string, error) {
		e := cohort.Wrap("rpc: join", cohort.InvalidArgument, err)
		e.Key, e.Code, e.Detail = addr, cohort.InvalidArgument,
			"the address to publish must be host:port that others can dial: "+err.Error()
		return "", e
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return refuse(err)
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if ctx.Err() != nil {
		return "", cohort.FromContext(ctx, "rpc: join")
	}
	if err != nil || n == 0 {
		return refuse(cohort.Newf("rpc: address", cohort.InvalidArgument, "port %q", port))
	}
	if ip, ipErr := netip.ParseAddr(host); ipErr == nil {
		if ip.IsUnspecified() {
			return refuse(cohort.Newf("rpc: address", cohort.InvalidArgument,
				"%s is a wildcard address, which other workers cannot dial", host))
		}
		return addr, nil
	}
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(limited, "ip", host)
	if ctx.Err() != nil {
		return "", cohort.FromContext(ctx, "rpc: join")
	}
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

// Dialable is the address of a listener for others. A worker that listens on every address of a host is reached at the one that PyTorch
// would listen on.
func Dialable(ctx context.Context, bound net.Addr) (string, error) {
	tcp, ok := bound.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return bound.String(), nil
	}
	host, err := defaultHost(ctx)
	return net.JoinHostPort(host, strconv.Itoa(tcp.Port)), err
}

// defaultHost is where PyTorch would listen. It fails only when ctx ends.
func defaultHost(ctx context.Context) (string, error) {
	if name := os.Getenv("TP_SOCKET_IFNAME"); name != "" {
		if i, err := net.InterfaceByName(name); err == nil {
			addrs, _ := i.Addrs()
			for _, addr := range addrs {
				if n, ok := addr.(*net.IPNet); ok && n.IP.To4() != nil {
					return n.IP.String(), nil
				}
			}
			for _, addr := range addrs {
				if n, ok := addr.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
					return n.IP.String(), nil
				}
			}
		}
	}
	if host, err := os.Hostname(); err == nil {
		ips, _ := net.DefaultResolver.LookupHost(ctx, host) // a host that does not know its name has its loopback address
		if ctx.Err() != nil {
			return "", cohort.FromContext(ctx, "rpc: join")
		}
		for _, ip := range ips {
			l, err := net.Listen("tcp", net.JoinHostPort(ip, "0")) //nolint:noctx // closed at once
			if err == nil {
				_ = l.Close()
				return ip, nil
			}
		}
	}
	return "127.0.0.1", nil
}
