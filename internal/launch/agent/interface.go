// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// PyTorch's ranks tell each other the first address of their host's name that they can listen at, else 127.0.0.1. Where the name leads to
// the loopback interface, as in Debian's /etc/hosts, ranks of other nodes cannot connect to it.

// glooInterface and rpcInterface name the interface whose address is told instead, for groups and for RPC.
const glooInterface, rpcInterface = "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"

// nameTime bounds the wait for the addresses of the host's name and of the endpoint.
const nameTime = 5 * time.Second

// netInterface is an interface of this host and its addresses.
type netInterface struct {
	name     string
	loopback bool
	addrs    []netip.Addr
}

// chooseInterface has the workers of a job on several nodes use the interface that leads to the endpoint, if the name of this host does
// not lead there and the user has not named an interface. It prints that.
func (j *Job) chooseInterface() {
	if j.cfg.MaxNodes < 2 || j.nameChecked || setByUser(glooInterface) || setByUser(rpcInterface) {
		return
	}
	j.nameChecked = true
	all := netInterfaces()
	fault := nameFault(j.host, j.addrsOfName(), all)
	if fault == "" {
		return
	}
	if j.iface = interfaceOf(j.ownAddr(), all); j.iface != "" {
		j.screen.logf("%s: the workers get %s=%s and %s=%[3]s, so that other nodes can reach them",
			fault, glooInterface, j.iface, rpcInterface)
	}
}

func setByUser(name string) bool { _, set := os.LookupEnv(name); return set }

// addrsOfName are the addresses of this host's name. A name server that does not answer knows none.
func (j *Job) addrsOfName() []netip.Addr {
	ctx, cancel := context.WithTimeout(j.asked, nameTime)
	defer cancel()
	ips, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", j.host)
	return ips
}

// ownAddr is the address of this node that the user has given, else the one from which it reaches the endpoint.
func (j *Job) ownAddr() netip.Addr {
	if given, err := netip.ParseAddr(j.cfg.LocalAddr); err == nil {
		return given
	}
	ctx, cancel := context.WithTimeout(j.asked, nameTime)
	defer cancel()
	conn, err := ctxdial.Dial(ctx, &net.Dialer{}, "udp", j.cfg.Endpoint) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = conn.Close() }()
	at, _ := netip.ParseAddrPort(conn.LocalAddr().String())
	return at.Addr()
}

// nameFault says why other nodes cannot reach what listens at the address of a host's name, "" if they can.
func nameFault(name string, ips []netip.Addr, all []netInterface) string {
	if len(ips) == 0 {
		return fmt.Sprintf("the host name %s has no address", name)
	}
	for _, ip := range ips {
		if ip = plainAddr(ip); ip.IsLoopback() {
			return fmt.Sprintf("the host name %s leads to %s", name, ip)
		}
		if slices.ContainsFunc(all, func(i netInterface) bool { return slices.Contains(i.addrs, ip) }) {
			return ""
		}
	}
	return fmt.Sprintf("the host name %s leads to %s, which is not an address of this host", name, plainAddr(ips[0]))
}

// interfaceOf returns the name of the interface with an address, "" if there is none or only this host is behind it.
func interfaceOf(ip netip.Addr, all []netInterface) string {
	for _, i := range all {
		if !i.loopback && slices.Contains(i.addrs, plainAddr(ip)) {
			return i.name
		}
	}
	return ""
}

// netInterfaces are the interfaces of this host, none if the system does not tell.
func netInterfaces() (all []netInterface) {
	found, _ := net.Interfaces()
	for _, f := range found {
		i := netInterface{name: f.Name, loopback: f.Flags&net.FlagLoopback != 0}
		addrs, _ := f.Addrs()
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				i.addrs = append(i.addrs, plainAddr(prefix.Addr()))
			}
		}
		all = append(all, i)
	}
	return all
}

func plainAddr(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }
