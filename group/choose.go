// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/gloo/torch"
	"github.com/cohort-dist/cohort/internal/muster"
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
	peers     torch.Peers
	layout    gloo.Layout
	place     *muster.Place // among the Go ranks; nil in a group of one
	id        [16]byte
	members   []member
	addresses []string
	local     []bool // by rank: it runs on this host
	shared    bool   // another rank is a goroutine of this process
	listener  net.Listener
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

// giveUpLimit bounds how long a rank that gives up the making of a group takes to tell the others.
const giveUpLimit = time.Second

// choose finds out who the ranks are and picks the transport. A rank that fails here has told the others not to wait for it.
func choose(ctx context.Context, p *plan) (*choice, error) {
	size := len(p.globals)
	c := &choice{members: make([]member, size)}
	c.known(p)
	if _, _, torch := levelOf(p.config.peers); size == 1 && !torch && p.config.transport != Gloo {
		c.transport, c.reason = TCP, "a single rank needs none"
		c.members[0].Go = true
		return c, nil
	}
	caps, err := c.exchange(ctx, p)
	if err == nil {
		err = c.decide(p, caps)
	}
	if err == nil {
		c.peers, err = c.findPeers(ctx, p)
	}
	if err == nil && !c.peers.None() {
		c.reason = "a rank runs " + c.peers.String()
	}
	if err != nil {
		c.abandon(ctx)
		return nil, err
	}
	return c, nil
}

// abandon ends an attempt that failed.
func (c *choice) abandon(ctx context.Context) {
	c.closeListener()
	if c.place != nil {
		c.place.GiveUp(ctx, giveUpLimit)
	}
}

// lookAgain completes what is known about the ranks once all are connected: a Go rank that was slower than the first
// PyTorch rank has published its capability by then. Sub-groups rely on it.
func (c *choice) lookAgain(ctx context.Context, p *plan) error {
	caps, err := c.present(ctx, p)
	if err != nil {
		return err
	}
	for r, rank := range caps {
		if rank != nil {
			c.members[r] = member{Go: true, Host: rank.Hostname, PID: rank.PID, Addr: rank.Addr}
		}
	}
	return nil
}

// keys is the prefix of cohort's own keys of this group. Sub-groups stand below the group that they are made from, in its
// generation: so they have nothing to do with those of an earlier one. Names may be anything.
func (p *plan) keys() string {
	size := "/" + strconv.Itoa(len(p.globals))
	name := hex.EncodeToString([]byte(p.config.name))
	switch {
	case p.parent != nil && p.parent.place != nil:
		return p.parent.place.Prefix() + "/sub/" + p.torchName + "/" + name + size
	case p.origin == fromReconfigure:
		return gloo.ReconfigurePrefix(gloo.Join(p.config.outer, "cohort/group/"+p.torchName+"/"+name), p.membership.uuid) + size
	case p.origin == fromMerge:
		return gloo.Join(p.config.outer, "cohort/merge"+size)
	case p.parent == nil && p.config.name == gloo.GroupName(0):
		return gloo.Join(p.config.outer, "cohort/group/0"+size)
	default:
		return gloo.Join(p.config.outer, "cohort/group/"+p.torchName+"/"+name+size)
	}
}

// known takes over what the options and the parent group say about PyTorch ranks.
func (c *choice) known(p *plan) {
	c.layout = gloo.Torch26
	switch l, _, ok := levelOf(p.config.peers); {
	case !ok:
	case l == torch.V1_13:
		c.torch, c.layout = torch113, gloo.Torch113
	default:
		c.torch = torch26
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
	more := []string{"shm"}
	for device := range max(1, len(p.config.devices)) {
		more = append(more, "gloo/"+strconv.Itoa(device))
	}
	if c.place, err = muster.Take(ctx, p.store, p.keys(), p.rank, len(p.globals), data, more...); err != nil {
		return nil, dist.Wrap(op, dist.Unavailable, err)
	}
	if p.origin.once() && c.place.Generation() > 0 {
		return nil, muster.ErrOver // this rank has been here before, or another one gave up
	}
	stop := c.sayWhoIsMissing(ctx, p)
	defer stop()
	for r := range p.globals {
		foreign, failure := c.await(ctx, p, r)
		if failure != nil {
			return nil, c.notCome(ctx, p, r, failure)
		}
		if foreign {
			// Capabilities that are there by now still count; a rank without one is treated as PyTorch.
			return c.present(ctx, p)
		}
	}
	all := make([]int, len(p.globals))
	for r := range all {
		all[r] = r
	}
	caps, err := c.read(ctx, p, all)
	if err != nil && (ctx.Err() != nil || errors.Is(err, muster.ErrOver)) {
		return nil, c.notCome(ctx, p, -1, err)
	}
	return caps, err
}

// await waits until a rank has come, and reports whether it is a PyTorch rank.
func (c *choice) await(ctx context.Context, p *plan, r int) (foreign bool, err error) {
	if r == p.rank {
		return false, nil
	}
	if p.parent != nil {
		// The parent knows which of its ranks are PyTorch's.
		if in := p.parent.GroupRank(p.globals[r]); in >= 0 && !p.parent.members[in].Go {
			c.torch = p.parent.torch
			return true, nil
		}
	}
	if p.parent != nil || p.config.peers == OnlyGo {
		_, err = c.place.Await(ctx, r)
		return false, err
	}
	var keys []string
	var layouts []gloo.Layout
	for _, layout := range []gloo.Layout{gloo.Torch113, gloo.Torch26} {
		if c.torch == torch113 && layout != gloo.Torch113 || c.torch == torch26 && layout != gloo.Torch26 {
			continue
		}
		if layout == gloo.Torch113 && p.origin != fromPython {
			continue
		}
		keys = append(keys, layout.FirstKey(p.meshPrefix(layout), r))
		layouts = append(layouts, layout)
	}
	found, err := c.place.Await(ctx, r, keys...)
	if err != nil || found < 0 {
		return false, err
	}
	// A Go rank takes its place before it publishes what PyTorch's ranks read, so look for that once more.
	if has, err := p.store.Check(ctx, c.place.Key(r)); has || err != nil {
		return false, err
	}
	if c.layout = layouts[found]; c.layout == gloo.Torch113 {
		c.torch = torch113
	} else {
		c.torch = torch26
	}
	return true, nil
}

// read returns the capabilities of ranks that have come; the others have none.
func (c *choice) read(ctx context.Context, p *plan, ranks []int) ([]*capability, error) {
	const op = "group: rendezvous"
	words, err := c.place.Words(ctx, ranks...)
	if err != nil {
		if errors.Is(err, muster.ErrOver) {
			return nil, err
		}
		return nil, dist.Wrap(op, dist.Unavailable, err)
	}
	caps := make([]*capability, len(p.globals))
	for i, r := range ranks {
		var found capability
		if len(words[i]) > maxCapability || json.Unmarshal(words[i], &found) != nil {
			return nil, dist.Newf(op, dist.Protocol, "rank %d published something that is no capability under %q", r, c.place.Key(r))
		}
		if found.Version != capabilityVersion {
			return nil, dist.Newf(op, dist.Protocol, "rank %d speaks version %d of the rendezvous, this rank %d; use the same release on all ranks", r, found.Version, capabilityVersion)
		}
		caps[r] = &found
	}
	return caps, nil
}

// present returns the capabilities of the ranks that have come so far.
func (c *choice) present(ctx context.Context, p *plan) ([]*capability, error) {
	missing, err := c.place.Missing(ctx)
	if err != nil {
		return nil, dist.Wrap("group: rendezvous", dist.Unavailable, err)
	}
	var here []int
	for r := range p.globals {
		if !slices.Contains(missing, r) {
			here = append(here, r)
		}
	}
	return c.read(ctx, p, here)
}

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

// torchBase is the prefix in front of PyTorch's keys.
func (p *plan) torchBase() string {
	if p.config.barePrefix {
		return p.config.outer
	}
	return gloo.Join(p.config.outer, gloo.DefaultPrefix)
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
		}
		own := caps[p.rank]
		c.local = append(c.local, rank.Host != "" && rank.Host == own.Host)
		c.shared = c.shared || r != p.rank && rank.PID == own.PID && rank.Hostname == own.Hostname && rank.Host == own.Host
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
