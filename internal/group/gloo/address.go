// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// IfnameEnv is the environment variable by which PyTorch chooses interfaces: names separated by commas, one per device.
const IfnameEnv = "GLOO_SOCKET_IFNAME"

// DevicesFromEnv returns the devices that GLOO_SOCKET_IFNAME asks for, given a lookup such as os.Getenv; nil if it is
// not set.
func DevicesFromEnv(getenv func(string) string) []string {
	var devices []string
	for name := range strings.SplitSeq(getenv(IfnameEnv), ",") {
		if name = strings.TrimSpace(name); name != "" {
			devices = append(devices, name)
		}
	}
	return devices
}

// address is the address that a device binds to and publishes, and why it was chosen.
type address struct {
	IP     netip.Addr
	Reason string
}

// ChooseAddress resolves a device: an IP address, an interface's name, or "" for the address that this host uses
// towards storeAddr ("host:port"), which is the one the peers can most likely reach. Without a store address, as with a file
// that several hosts share, it is that of the host's name, as in PyTorch.
func ChooseAddress(ctx context.Context, device, storeAddr string) (address, error) {
	if device != "" {
		if ip, err := netip.ParseAddr(device); err == nil {
			return address{ip.Unmap(), "given as bind address"}, nil
		}
		return interfaceAddress(device)
	}
	if storeAddr == "" {
		return hostAddress(ctx, hostName(), net.DefaultResolver.LookupNetIP), nil
	}
	// PyTorch prefers IPv4 on hosts that have both, and all ranks must agree on the family.
	for _, network := range []string{"udp4", "udp6"} {
		conn, err := ctxdial.Dial(ctx, &net.Dialer{}, network, storeAddr) // sends nothing
		if err != nil {
			continue
		}
		local, ok := conn.LocalAddr().(*net.UDPAddr)
		_ = conn.Close()
		if ok {
			return address{local.AddrPort().Addr().Unmap(), "source address of the route towards the store at " + storeAddr}, nil
		}
	}
	if ctx.Err() != nil {
		return address{}, cohort.Ended(ctx, "gloo: choose address")
	}
	return address{}, cohort.Newf("gloo: choose address", cohort.Unavailable,
		"no route towards the store at %s: set the bind address or %s", storeAddr, IfnameEnv)
}

// hostAddress is the first address of the host's name that can be bound to, else that of the loopback interface.
func hostAddress(ctx context.Context, name string, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)) address {
	for _, network := range []string{"ip4", "ip6"} {
		ips, err := lookup(ctx, network, name)
		if err != nil {
			continue
		}
		for _, ip := range ips {
			ip = ip.Unmap()
			ln, err := listenOn(ctx, ip)
			if err != nil {
				continue
			}
			_ = ln.Close()
			return address{ip, "address of the host's name " + name}
		}
	}
	return address{
		netip.AddrFrom4([4]byte{127, 0, 0, 1}),
		"the host's name " + name + " has no address here: loopback, which other hosts cannot reach; set the bind address or " + IfnameEnv,
	}
}

func interfaceAddress(name string) (address, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return address{}, cohort.Newf("gloo: choose address", cohort.InvalidArgument,
			"device %q is neither an IP address nor an interface of this host: %w", name, err)
	}
	addrs, err := iface.Addrs()
	if err != nil {
		return address{}, cohort.Wrap("gloo: choose address", cohort.Unavailable, err)
	}
	var v6 netip.Addr
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		switch ip := prefix.Addr().Unmap(); {
		case ip.Is4():
			return address{ip, "first address of interface " + name}, nil
		case !v6.IsValid() && !ip.IsLinkLocalUnicast():
			v6 = ip
		}
	}
	if v6.IsValid() {
		return address{v6, "first IPv6 address of interface " + name + ", which has no IPv4 address"}, nil
	}
	return address{}, cohort.Newf("gloo: choose address", cohort.Unavailable, "interface %s has no address", name)
}
