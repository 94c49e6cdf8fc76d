// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/shm"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// capability is what a Go rank says about itself in the store, before it publishes anything of gloo's rendezvous: a rank
// that has published a gloo record and no capability is a PyTorch rank.
type capability struct {
	Version   int       `json:"version"`
	Addr      string    `json:"addr,omitempty"` // of the native wire, and the liveness listener
	Door      string    `json:"door,omitempty"` // of a rank without the native wire
	Host      string    `json:"host,omitempty"` // equal on ranks that can share memory
	Hostname  string    `json:"hostname,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Transport Transport `json:"transport"`
	ID        string    `json:"id,omitempty"`   // rank 0's: the identity of the group
	Call      string    `json:"call,omitempty"` // of Make: a random word, which tells two processes with the same rank apart
}

const capabilityVersion = 1

// maxCapability bounds a capability that is read.
const maxCapability = 4 << 10

// choose finds out who the ranks are and picks the transport.
func (a *attempt) choose(ctx context.Context) error {
	p := a.p
	a.known()
	if p.size() == 1 && p.Said().None() && p.Transport != Gloo {
		a.Transport, a.Reason = tcp, "a single rank needs none"
		a.Members[0].Go = true
		return nil
	}
	caps, err := a.exchange(ctx)
	if err == nil {
		err = a.decide(caps)
	}
	if err == nil {
		a.Peers, err = a.findPeers(ctx)
	}
	if err == nil && !a.Peers.None() {
		a.explainPeers()
	}
	return err
}

func (a *attempt) explainPeers() { a.Reason = "a rank runs " + a.Peers.String() }

// lookAgain completes what is known about the ranks once all are connected: a Go rank that was slower than the first
// PyTorch rank has published its capability by then. Sub-groups rely on it.
func (a *attempt) lookAgain(ctx context.Context) error {
	caps, err := a.present(ctx)
	if err != nil {
		return err
	}
	for r, rank := range caps {
		if rank != nil {
			a.Members[r] = member{Go: true, Host: rank.Hostname, PID: rank.PID, Addr: rank.Addr, livenessListener: rank.livenessAddr()}
		}
	}
	return nil
}

// keys is the prefix of cohort's own keys of this group. Sub-groups stand below the group that they are made from, in its
// generation: so they have nothing to do with those of an earlier one. Names may be anything.
func (p *Plan) keys() string {
	size := "/" + strconv.Itoa(p.size())
	if p.Origin == FromSplit { // other groups of the same split may have its name
		sum := sha256.Sum256([]byte(fmt.Sprint(p.Globals))) // a list can be longer than a key may be
		size += "/" + hex.EncodeToString(sum[:8])
	}
	name := hex.EncodeToString([]byte(p.Name))
	switch {
	case p.Parent != nil && p.Parent.Place != nil:
		return p.Parent.Place.Prefix() + "/sub/" + p.TorchName + "/" + name + size
	case p.Origin == FromReconfigure:
		return gloo.ReconfigurePrefix(gloo.Join(p.Prefix, "cohort/group/"+p.TorchName+"/"+name), p.UUID) + size
	case p.Origin == FromMerge:
		return gloo.Join(p.Prefix, "cohort/merge"+size)
	case p.Parent == nil && p.Name == gloo.GroupName(0):
		return gloo.Join(p.Prefix, "cohort/group/0"+size)
	default:
		return gloo.Join(p.Prefix, "cohort/group/"+p.TorchName+"/"+name+size)
	}
}

// known takes over what the options and the parent group say about PyTorch ranks.
func (a *attempt) known() {
	p := a.p
	a.Layout = gloo.Torch26
	switch said := p.Said(); {
	case said.None():
	case said.Low == torchcaps.V1_13:
		a.torch, a.Layout = torch113, gloo.Torch113
	default:
		a.torch = torch26
	}
	if p.Parent != nil && p.Parent.torch != torchNone {
		a.Layout = p.Parent.Layout
	}
}

// exchange publishes what this rank can do and reads what the others can, until all are known or a PyTorch rank shows up.
func (a *attempt) exchange(ctx context.Context) ([]*capability, error) {
	p := a.p
	const op = rendezvousOp
	own := capability{Version: capabilityVersion, Transport: p.Transport, PID: os.Getpid(), Host: shm.HostID(), Call: p.rivals.own}
	own.Hostname, _ = os.Hostname()
	if err := a.listen(ctx, &own); err != nil {
		return nil, err
	}
	if p.Rank == 0 {
		var id [16]byte
		_, _ = rand.Read(id[:])
		own.ID = hex.EncodeToString(id[:])
	}
	data, err := json.Marshal(own)
	if err != nil {
		return nil, cohort.Wrap(op, cohort.Internal, err)
	}
	more := []string{"shm"}
	for device := range max(1, len(p.Devices)) {
		more = append(more, "gloo/"+strconv.Itoa(device))
	}
	a.Place, err = assemble.TakeUnless(ctx, p.Store, p.keys(), p.Rank, p.size(), data, func(at *assemble.Place, words []byte) error {
		return p.taken(at, words, &own)
	}, more...)
	if err != nil {
		if useless(cohort.CodeOf(err)) {
			return nil, err
		}
		return nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	if p.Origin.once() && a.Place.Generation() > 0 {
		return nil, assemble.ErrAttemptAbandoned // this rank has been here before, or another one gave up
	}
	if p.last != nil { // while this rank was between the attempts, one may have been refused
		if why := a.refusal(ctx); why != nil {
			return nil, why
		}
	}
	a.endQuits = a.watchQuits(ctx)
	caps, err := a.awaitAll(ctx)
	if err != nil {
		if why := a.refusal(ctx); why != nil {
			return nil, why
		}
	}
	return caps, err
}

// awaitAll waits until all have come, or a PyTorch rank has.
func (a *attempt) awaitAll(ctx context.Context) ([]*capability, error) {
	p := a.p
	defer a.reportMissing(ctx)()
	defer a.watchSizes(ctx)()
	for r := range p.Globals {
		foreign, failure := a.await(ctx, r)
		if failure != nil {
			return nil, a.missingError(ctx, r, failure)
		}
		if foreign {
			// Capabilities that are there by now still count; a rank without one is treated as PyTorch.
			return a.present(ctx)
		}
	}
	all := make([]int, p.size())
	for r := range all {
		all[r] = r
	}
	caps, err := a.read(ctx, all)
	if err != nil && (ctx.Err() != nil || errors.Is(err, assemble.ErrAttemptAbandoned)) {
		return nil, a.missingError(ctx, -1, err)
	}
	return caps, err
}

// await waits until a rank has come, and reports whether it is a PyTorch rank.
func (a *attempt) await(ctx context.Context, r int) (foreign bool, err error) {
	p := a.p
	if r == p.Rank {
		return false, nil
	}
	if p.Parent != nil {
		// The parent knows which of its ranks are PyTorch's.
		if in := slices.Index(p.Parent.globals, p.Globals[r]); in >= 0 && !p.Parent.Members[in].Go {
			a.torch = p.Parent.torch
			return true, nil
		}
	}
	if p.Parent != nil || p.Peers == OnlyGo {
		_, err = a.Place.Await(ctx, r)
		return false, err
	}
	var keys []string
	var layouts []gloo.Layout
	for _, layout := range []gloo.Layout{gloo.Torch113, gloo.Torch26} {
		if a.torch == torch113 && layout != gloo.Torch113 || a.torch == torch26 && layout != gloo.Torch26 {
			continue
		}
		if layout == gloo.Torch113 && p.Origin != FromPython {
			continue
		}
		keys = append(keys, layout.FirstKey(p.meshPrefix(layout), r))
		layouts = append(layouts, layout)
	}
	found, err := a.Place.Await(ctx, r, keys...)
	if err != nil || found < 0 {
		return false, err
	}
	// A Go rank takes its place before it publishes what PyTorch's ranks read, so look for that once more.
	if has, err := p.Store.Check(ctx, a.Place.Key(r)); has || err != nil {
		return false, err
	}
	if a.Layout = layouts[found]; a.Layout == gloo.Torch113 {
		a.torch = torch113
	} else {
		a.torch = torch26
	}
	return true, nil
}

// read returns the capabilities of ranks that have come; the others have none.
func (a *attempt) read(ctx context.Context, ranks []int) ([]*capability, error) {
	p := a.p
	const op = "group: rendezvous"
	words, err := a.Place.Words(ctx, ranks...)
	if err != nil {
		if errors.Is(err, assemble.ErrAttemptAbandoned) {
			return nil, err
		}
		return nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	caps := make([]*capability, p.size())
	for i, r := range ranks {
		var found capability
		if len(words[i]) > maxCapability || printable.Unmarshal(words[i], &found) != nil {
			return nil, cohort.Newf(op, cohort.Protocol, "rank %d published a malformed capability under %q", r, a.Place.Key(r))
		}
		if found.Version != capabilityVersion {
			return nil, cohort.Newf(op, cohort.Protocol,
				"rank %d speaks version %d of the rendezvous, this rank %d; use the same release on all ranks", r, found.Version,
				capabilityVersion)
		}
		caps[r] = &found
	}
	return caps, nil
}

// present returns the capabilities of the ranks that have come so far.
func (a *attempt) present(ctx context.Context) ([]*capability, error) {
	p := a.p
	missing, err := a.Place.Missing(ctx)
	if err != nil {
		return nil, cohort.Wrap("group: rendezvous", cohort.Unavailable, err)
	}
	var here []int
	for r := range p.Globals {
		if !slices.Contains(missing, r) {
			here = append(here, r)
		}
	}
	return a.read(ctx, here)
}

// listen opens the liveness listener, which is the listener of the native wire where there is one.
func (a *attempt) listen(ctx context.Context, own *capability) error {
	p := a.p
	device := ""
	if len(p.Devices) > 0 {
		device = p.Devices[0]
	}
	addr, err := gloo.ChooseAddress(ctx, device, p.route())
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	if a.listener, err = lc.Listen(ctx, "tcp", net.JoinHostPort(addr.IP.String(), "0")); err != nil {
		return cohort.Newf("group: listen", cohort.Unavailable, "address %s (%s): %w", addr.IP, addr.Reason, err)
	}
	if own.Door = a.listener.Addr().String(); nativetcp.Supported {
		own.Addr, own.Door = own.Door, ""
	}
	if err = a.keepLivenessListener(); err == nil {
		a.listener = peeruid.Default(nil, peeruid.ToLog(p.Logger, slog.String("group", p.Name))).Listener(a.listener)
	}
	return err
}

// torchBase is the prefix in front of PyTorch's keys.
func (p *Plan) torchBase() string {
	if p.BareStore {
		return p.Prefix
	}
	return gloo.Join(p.Prefix, gloo.DefaultPrefix)
}

// decide picks the transport.
func (a *attempt) decide(caps []*capability) error {
	p := a.p
	const op = "group: rendezvous"
	goRanks, sameHost := 0, true
	want := p.Transport
	for r, rank := range caps {
		if rank == nil {
			continue
		}
		goRanks++
		a.Members[r] = member{Go: true, Host: rank.Hostname, PID: rank.PID, Addr: rank.Addr, livenessListener: rank.livenessAddr()}
		if rank.Host == "" || rank.Host != caps[p.Rank].Host {
			sameHost = false
		}
		own := caps[p.Rank]
		a.local = append(a.local, rank.Host != "" && rank.Host == own.Host)
		a.shared = a.shared || r != p.Rank && rank.PID == own.PID && rank.Hostname == own.Hostname && rank.Host == own.Host
		if rank.Transport != want {
			return cohort.Newf(op, cohort.Mismatch, "rank %d wants transport %q, rank %d %q; give the same on all ranks", r,
				rank.Transport, p.Rank, want)
		}
		a.addresses = append(a.addresses, rank.Addr)
	}
	if goRanks < len(caps) {
		if want != Auto && want != Gloo {
			return cohort.Newf(op, cohort.NotSupported, "transport %q needs Go processes on all ranks, but a rank runs %v", want, a.torch)
		}
		if a.torch == torchNone {
			a.torch = torch26
		}
		a.Transport, a.Reason = Gloo, "a rank runs "+a.torch.String()
		return nil
	}
	a.torch = torchNone
	id, err := hex.DecodeString(caps[0].ID)
	if err != nil || len(id) != len(a.id) {
		return cohort.Newf(op, cohort.Protocol, "rank 0 published no identity of the group")
	}
	copy(a.id[:], id)
	native := true
	for r := range caps {
		native = native && caps[r].Addr != ""
		if want != Gloo && want != Auto && caps[r].Addr == "" {
			return cohort.Newf(op, cohort.NotSupported,
				"rank %d has no native wire on its platform; use the transport gloo on all ranks", r)
		}
	}
	switch {
	case want == Auto && !native:
		a.Transport, a.Reason = Gloo, "a rank runs on a platform without the native wire"
	case want != Auto:
		a.Transport, a.Reason = want, "by option"
		if want == SharedMemory && !sameHost {
			return cohort.New(op, cohort.NotSupported, "shared memory needs all ranks on one host")
		}
	case sameHost && len(caps) <= shm.MaxRanks:
		a.Transport, a.Reason = SharedMemory, "all ranks are Go processes of one host"
	default:
		a.Transport, a.Reason = tcp, "all ranks are Go processes"
	}
	return nil
}
