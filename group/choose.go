// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/native/tcp"
	"github.com/cohort-dist/cohort/internal/shm"
)

// capability is what a Go rank says about itself in the store, before it publishes anything of gloo's rendezvous: a rank
// that has published a gloo record and no capability is a PyTorch rank.
type capability struct {
	Version   int       `json:"version"`
	Addr      string    `json:"addr,omitempty"` // of the native wire
	Host      string    `json:"host,omitempty"` // equal on ranks that can share memory
	Hostname  string    `json:"hostname,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Transport Transport `json:"transport"`
	ID        string    `json:"id,omitempty"` // rank 0's: the identity of the group
}

const capabilityVersion = 1

// maxCapability bounds a capability that is read.
const maxCapability = 4 << 10

// choice is the transport of a group and what is needed to connect it.
type choice struct {
	transport Transport
	reason    string
	torch     torchVersion
	layout    gloo.Layout
	prefix    string // of cohort's own keys
	id        [16]byte
	members   []member
	addresses []string
	local     int // ranks on this host
	listener  net.Listener
	caps      []*capability
}

func (c *choice) closeListener() {
	if c.listener != nil {
		_ = c.listener.Close()
	}
}

// takeListener hands the listener over.
func (c *choice) takeListener() net.Listener {
	l := c.listener
	c.listener = nil
	return l
}

// choose finds out who the ranks are and picks the transport.
func choose(ctx context.Context, p *plan) (*choice, error) {
	size := len(p.globals)
	c := &choice{members: make([]member, size), prefix: gloo.Join(p.config.outer, "cohort/group/"+p.keyName())}
	c.known(p)
	if size == 1 && p.config.peers != Torch113 && p.config.peers != Torch26 && p.config.transport != Gloo {
		c.transport, c.reason = TCP, "a single rank needs none"
		c.members[0].Go = true
		return c, nil
	}
	caps, err := c.exchange(ctx, p)
	if err != nil {
		c.closeListener()
		return nil, err
	}
	if err := c.decide(p, caps); err != nil {
		c.closeListener()
		return nil, err
	}
	c.caps = caps
	return c, nil
}

// lookAgain completes what is known about the ranks once all are connected: a Go rank that was slower than the first
// PyTorch rank has published its capability by then. Sub-groups rely on it.
func (c *choice) lookAgain(ctx context.Context, p *plan) error {
	if _, err := c.collect(ctx, p, c.caps); err != nil {
		return err
	}
	for r, rank := range c.caps {
		if rank != nil {
			c.members[r] = member{Go: true, Host: rank.Hostname, PID: rank.PID, Addr: rank.Addr}
		}
	}
	return nil
}

// keyName is the part of the keys that belongs to this group: names may be anything.
func (p *plan) keyName() string {
	if p.parent == nil && p.config.name == gloo.GroupName(0) {
		return "0"
	}
	return p.torchName + "/" + hex.EncodeToString([]byte(p.config.name))
}

// known takes over what the options and the parent group say about PyTorch ranks.
func (c *choice) known(p *plan) {
	switch p.config.peers {
	case Torch113:
		c.torch, c.layout = torch113, gloo.Torch113
	case Torch26:
		c.torch, c.layout = torch26, gloo.Torch26
	case AnyPeers, OnlyGo:
		c.layout = gloo.Torch26
	}
	if p.parent != nil && p.parent.torch != torchNone {
		c.layout = p.family.layout
	}
}

// exchange publishes what this rank can do and reads what the others can, until all are known or a PyTorch rank shows up.
func (c *choice) exchange(ctx context.Context, p *plan) ([]*capability, error) {
	const op = "group: rendezvous"
	own := capability{Version: capabilityVersion, Transport: p.config.transport, PID: os.Getpid(), Host: shm.HostID()}
	own.Hostname, _ = os.Hostname()
	if tcp.Supported && p.config.transport != Gloo {
		if err := c.listen(ctx, p, &own); err != nil {
			return nil, err
		}
	}
	if p.rank == 0 {
		var id [16]byte
		_, _ = rand.Read(id[:])
		own.ID = hex.EncodeToString(id[:])
	}
	data, err := json.Marshal(own)
	if err != nil {
		return nil, dist.Wrap(op, dist.Internal, err)
	}
	if err := p.store.Set(ctx, c.key(p.rank), data); err != nil {
		return nil, dist.Wrap(op, dist.Unavailable, err)
	}
	caps := make([]*capability, len(p.globals))
	caps[p.rank] = &own
	pause := time.Millisecond
	var missing []int
	// ended says who was missing when the context ended, whatever was going on then.
	ended := func(err error) error {
		if ctx.Err() == nil || len(missing) == 0 {
			return err
		}
		e := dist.Ended(op, ctx)
		e.Rank = dist.Rank(missing[0])
		e.Detail = rankList(missing) + " of group " + p.config.name + " did not appear"
		return e
	}
	for {
		now, err := c.collect(ctx, p, caps)
		if err != nil {
			return nil, ended(err)
		}
		if missing = now; len(missing) == 0 {
			return caps, nil
		}
		foreign, err := c.foreign(ctx, p, missing)
		if err != nil {
			return nil, ended(err)
		}
		if foreign {
			// Capabilities that are there by now still count; a rank without one is treated as PyTorch.
			_, err := c.collect(ctx, p, caps)
			return caps, err
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 20*time.Millisecond)
		case <-ctx.Done():
			return nil, ended(ctx.Err())
		}
	}
}

func (c *choice) key(rank int) string { return c.prefix + "/rank/" + strconv.Itoa(rank) }

// listen opens the listener of the native wire.
func (c *choice) listen(ctx context.Context, p *plan, own *capability) error {
	device := ""
	if len(p.config.devices) > 0 {
		device = p.config.devices[0]
	}
	addr, err := gloo.ChooseAddress(ctx, device, p.config.storeAddr)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	if c.listener, err = lc.Listen(ctx, "tcp", net.JoinHostPort(addr.IP.String(), "0")); err != nil {
		return dist.Newf("group: listen", dist.Unavailable, "address %s (%s): %w", addr.IP, addr.Reason, err)
	}
	own.Addr = c.listener.Addr().String()
	return nil
}

// collect reads the capabilities that have appeared and returns the ranks that have none yet.
func (c *choice) collect(ctx context.Context, p *plan, caps []*capability) (missing []int, err error) {
	const op = "group: rendezvous"
	for r := range caps {
		if caps[r] != nil {
			continue
		}
		has, err := p.store.Check(ctx, c.key(r))
		if err != nil {
			return nil, dist.Wrap(op, dist.Unavailable, err)
		}
		if !has {
			missing = append(missing, r)
			continue
		}
		data, err := p.store.Get(ctx, c.key(r))
		if err != nil {
			return nil, dist.Wrap(op, dist.Unavailable, err)
		}
		var found capability
		if len(data) > maxCapability || json.Unmarshal(data, &found) != nil {
			return nil, dist.Newf(op, dist.Protocol, "rank %d published something that is no capability under %q", r, c.key(r))
		}
		if found.Version != capabilityVersion {
			return nil, dist.Newf(op, dist.Protocol, "rank %d speaks version %d of the rendezvous, this rank %d; use the same release on all ranks", r, found.Version, capabilityVersion)
		}
		caps[r] = &found
	}
	return missing, nil
}

// foreign reports whether one of the ranks without a capability has published what PyTorch publishes.
func (c *choice) foreign(ctx context.Context, p *plan, missing []int) (bool, error) {
	if p.config.peers == OnlyGo {
		return false, nil
	}
	for _, r := range missing {
		if p.parent != nil {
			// The parent knows which of its ranks are PyTorch's.
			if parent := p.parent.GroupRank(p.globals[r]); parent >= 0 && !p.parent.members[parent].Go {
				c.torch = p.parent.torch
				return true, nil
			}
			continue
		}
		for _, layout := range []gloo.Layout{gloo.Torch113, gloo.Torch26} {
			if c.torch == torch113 && layout != gloo.Torch113 || c.torch == torch26 && layout != gloo.Torch26 {
				continue
			}
			prefix := layout.MeshPrefix(p.torchBase(), p.torchName)
			key, version := gloo.Join(prefix, "0/"+strconv.Itoa(r)), torch26
			if layout == gloo.Torch113 {
				key, version = gloo.Join(prefix, "0/rank_"+strconv.Itoa(r)), torch113
			}
			has, err := p.store.Check(ctx, key)
			if err != nil {
				return false, dist.Wrap("group: rendezvous", dist.Unavailable, err)
			}
			if !has {
				continue
			}
			// A Go rank publishes its capability before its record, so look for that once more.
			if has, err := p.store.Check(ctx, c.key(r)); has || err != nil {
				return false, err
			}
			c.torch, c.layout = version, layout
			return true, nil
		}
	}
	return false, nil
}

// torchBase is the prefix in front of PyTorch's keys.
func (p *plan) torchBase() string {
	base := gloo.DefaultPrefix
	if p.config.barePrefix {
		base = ""
	}
	return gloo.Join(p.config.outer, base)
}

// decide picks the transport.
func (c *choice) decide(p *plan, caps []*capability) error {
	const op = "group: rendezvous"
	goRanks, sameHost := 0, true
	want := p.config.transport
	for r, rank := range caps {
		if rank == nil {
			continue
		}
		goRanks++
		c.members[r] = member{Go: true, Host: rank.Hostname, PID: rank.PID, Addr: rank.Addr}
		if rank.Host == "" || rank.Host != caps[p.rank].Host {
			sameHost = false
		} else {
			c.local++
		}
		if rank.Transport != want {
			return dist.Newf(op, dist.Mismatch, "rank %d wants transport %q, rank %d %q; give the same on all ranks", r, rank.Transport, p.rank, want)
		}
		c.addresses = append(c.addresses, rank.Addr)
	}
	if goRanks < len(caps) {
		if want != Auto && want != Gloo {
			return dist.Newf(op, dist.NotSupported, "transport %q needs Go processes on all ranks, but a rank runs %v", want, c.torch)
		}
		if c.torch == torchNone {
			c.torch = torch26
		}
		c.transport, c.reason = Gloo, "a rank runs "+c.torch.String()
		return nil
	}
	c.torch = torchNone
	id, err := hex.DecodeString(caps[0].ID)
	if err != nil || len(id) != len(c.id) {
		return dist.Newf(op, dist.Protocol, "rank 0 published no identity of the group")
	}
	copy(c.id[:], id)
	native := true
	for r := range caps {
		native = native && caps[r].Addr != ""
		if want != Gloo && want != Auto && caps[r].Addr == "" {
			return dist.Newf(op, dist.NotSupported, "rank %d has no native wire on its platform; use the transport gloo on all ranks", r)
		}
	}
	switch {
	case want == Auto && !native:
		c.transport, c.reason = Gloo, "a rank runs on a platform without the native wire"
	case want != Auto:
		c.transport, c.reason = want, "by option"
		if want == SharedMemory && !sameHost {
			return dist.New(op, dist.NotSupported, "shared memory needs all ranks on one host")
		}
	case sameHost && len(caps) <= shm.MaxRanks:
		c.transport, c.reason = SharedMemory, "all ranks are Go processes of one host"
	default:
		c.transport, c.reason = TCP, "all ranks are Go processes"
	}
	return nil
}
