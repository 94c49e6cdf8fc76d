// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
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

// dialGrace is how long a dial may continue after its context ended. A connection that a PyTorch listener accepted must get
// its preamble, so a dial is not cut off in the middle.
const dialGrace = time.Second

// dialAttempts is how often a refused dial is tried. A peer listens before it publishes, so refusal means that its process has ended,
// or that its queue is full for a moment.
const dialAttempts = 4

// dial connects to a peer, from our published address, by which a Go peer of generation A knows us, and identifies this rank.
func dial(ctx context.Context, from netip.Addr, addr netip.AddrPort, id int64, hello bool) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, cohort.FromContext(ctx, "gloo: dial")
	}
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(dialGrace, cancel)
		context.AfterFunc(patient, func() { t.Stop() })
	})
	defer stop()

	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	if !hello {
		dialer.LocalAddr = &net.TCPAddr{IP: from.AsSlice(), Zone: from.Zone()}
	}
	wait := 25 * time.Millisecond
	var err error
	for attempt := range dialAttempts {
		if attempt > 0 {
			failpoint.At("gloo.dial.pause")
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil, cohort.FromContext(ctx, "gloo: dial")
			}
			wait *= 2
		}
		failpoint.At("gloo.dial")
		var conn net.Conn
		if conn, err = dialer.DialContext(patient, "tcp", addr.String()); err != nil {
			if errors.Is(err, syscall.EADDRNOTAVAIL) && dialer.LocalAddr != nil {
				dialer.LocalAddr = nil // no route from there: PyTorch does not check our address
				continue
			}
			if ctxdial.Refused(err) {
				continue
			}
			break
		}
		if hello {
			failpoint.At("gloo.dial.hello")
			var buf [gloowire.PreambleSize]byte
			if _, err = conn.Write(gloowire.AppendPreamble(buf[:0], id)); err != nil {
				_ = conn.Close()
				break
			}
		}
		if ctx.Err() != nil {
			_ = conn.Close()
			return nil, cohort.FromContext(ctx, "gloo: dial")
		}
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, cohort.FromContext(ctx, "gloo: dial")
	}
	e := cohort.Newf("gloo: dial", cohort.PeerLost, "the peer published %v but cannot be reached there: %w", addr, err)
	e.Peer = addr.String()
	return nil, e
}

// setLazy notes what this rank published, for the time when the pair is used first.
func (p *pair) setLazy(own gloowire.Record) {
	failpoint.At("gloo.lazy.set")
	p.d.mu.Lock()
	p.own = own
	p.d.mu.Unlock()
}

// connectLazily starts connecting a pair at its first use, or when its peer dials us. Ops queue up meanwhile.
func (p *pair) connectLazily() {
	p.lazyOnce.Do(func() {
		if p.d.wanted != nil {
			failpoint.At("gloo.lazy.want")
			p.d.wanted <- p // has room for every pair once
		}
	})
}

// connectWanted connects lazy pairs as they are asked for, until the mesh ends.
func (d *device) connectWanted(life context.Context) {
	defer d.wg.Done()
	var pairs sync.WaitGroup
	defer func() {
		failpoint.At("gloo.lazy.end")
		pairs.Wait()
	}()
	for {
		failpoint.At("gloo.lazy.next")
		select {
		case p := <-d.wanted:
			pairs.Go(func() {
				ctx, cancel := context.WithTimeout(life, d.cfg.Timeout)
				defer cancel()
				if err := p.connectNow(ctx); err != nil {
					p.notConnected(err)
				}
			})
		case <-life.Done():
			return
		}
	}
}

// notConnected ends a pair that could not be connected.
func (p *pair) notConnected(err error) {
	e := cohort.Wrap("gloo: connect", cohort.Unavailable, err)
	e.Rank, e.Peer = cohort.Rank(p.peer), p.address()
	failpoint.At("gloo.lazy.failed")
	p.d.mu.Lock()
	p.d.machine.Lost(p.peer, e)
	p.d.finish()
	p.kill(e)
}

// connectNow reads the peer's record and dials or waits, whichever is this side's part.
func (p *pair) connectNow(ctx context.Context) error {
	d := p.d
	peer, err := d.fetch(ctx, p)
	if err != nil {
		return err
	}
	theirs, id, hello, err := peer.For(d.cfg.Rank, p.peer)
	if err != nil {
		return err
	}
	ours, _, _, err := p.own.For(p.peer, d.cfg.Rank)
	if err != nil {
		return err
	}
	dials, err := gloowire.Dials(ours.Addr, theirs.Addr)
	if err != nil {
		return err
	}
	if dials {
		p.setRole(roleDial, false)
		return p.dialAndAttach(ctx, ours.Addr.Addr(), theirs.Addr, id, hello)
	}
	p.setRole(roleListen, d.writesRank(peer))
	failpoint.At("gloo.lazy.wait")
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
		e := cohort.Ended(ctx, "gloo: connect")
		e.Detail = "the peer did not connect" + d.listener.acceptProblem()
		return e
	}
}
