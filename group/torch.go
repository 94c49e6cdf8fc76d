// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo/torch"
	"github.com/cohort-dist/cohort/internal/gloo/wire"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// torchVersion is how the PyTorch ranks of a group meet. What they can do is in package torch.
type torchVersion uint8

const (
	torchNone torchVersion = iota // all ranks are Go: everything works
	torch113                      // up to 2.2
	torch26                       // from 2.3 on
)

func (v torchVersion) String() string {
	switch v {
	case torch113:
		return "PyTorch 1.13"
	case torch26:
		return "PyTorch 2"
	case torchNone:
	}
	return "Go"
}

// torchSteps is how far an operation moves the count that PyTorch 2.x puts into fingerprints. A monitored barrier counts the
// messages it consists of.
func (g *Group) torchSteps(w *Work) uint64 {
	switch {
	case w.call.Parts > 1:
		return uint64(w.call.Parts)
	case w.steps == nil, w.call.Parts == 1:
		return 1
	case g.rank == 0:
		return 2 * uint64(g.size-1) //nolint:gosec // at least one rank
	default:
		return 2
	}
}

// levelOf reads what an option or the environment says about the peers.
func levelOf(p Peers) (l torch.Level, newer, ok bool) {
	if p == AnyPeers || p == OnlyGo {
		return torch.None, false, false
	}
	return torch.Parse(string(p))
}

// findPeers finds out which versions the PyTorch ranks may be: from what the user says, else from what they publish, else from
// what their store can do.
func (c *choice) findPeers(ctx context.Context, p *plan) (torch.Peers, error) {
	switch {
	case c.torch == torchNone:
		return torch.Peers{}, nil
	case p.parent != nil && !p.parent.peers.None():
		return p.parent.peers, nil
	}
	said := p.config.peers
	if said == AnyPeers {
		said = Peers(os.Getenv(torch.Variable))
	}
	if said != AnyPeers && said != OnlyGo {
		l, newer, ok := levelOf(said)
		if !ok {
			return torch.Peers{}, dist.Newf("group: rendezvous", dist.InvalidArgument, "%s=%q is no version of PyTorch", torch.Variable, said)
		}
		if newer {
			sayNewer(p.config.logger, said)
		}
		if (l == torch.V1_13) != (c.torch == torch113) {
			return torch.Peers{}, dist.Newf("group: rendezvous", dist.Mismatch, "the other ranks are said to be %s, but they meet as %v does", said, c.torch)
		}
		return torch.Exactly(l), nil
	}
	if c.torch == torch113 {
		return torch.Exactly(torch.V1_13), nil
	}
	known := torch.Peers{Low: torch.V2_6, High: torch.Newest}
	switch p.origin {
	case fromReconfigure:
		return torch.Exactly(torch.Newest), nil
	case fromSplit, fromMerge:
		known = known.AtLeast(torch.V2_9)
	case fromPython:
	}
	for r, m := range c.members {
		if m.Go {
			continue
		}
		if raw, err := readIfThere(ctx, p.store, c.layout.FirstKey(p.meshPrefix(c.layout), r)); err != nil {
			return known, err
		} else if record, err := wire.ParseRecord(raw, len(p.globals)); raw != nil && err == nil && record.IDs == nil {
			return known.AtLeast(torch.V2_8), nil // it connects at the first use
		}
	}
	return askStore(ctx, p.store, known)
}

// saidNewer are the versions of which this process has said that they are newer than any that is known.
var saidNewer sync.Map

// sayNewer says it once in a process, however many groups are made.
func sayNewer(logger *slog.Logger, said Peers) {
	if _, before := saidNewer.LoadOrStore(said, true); !before {
		logger.Warn("this PyTorch is newer than any that is known: it is treated as the newest that is", slog.String("said", string(said)), slog.String("as", torch.Newest.String()))
	}
}

// readIfThere returns the value of a key, or nil if there is none.
func readIfThere(ctx context.Context, s store.Store, key string) ([]byte, error) {
	if has, err := s.Check(ctx, key); err != nil || !has {
		return nil, err
	}
	return s.Get(ctx, key)
}

// askStore narrows what is known about the PyTorch ranks by what the store of one of them can do.
func askStore(ctx context.Context, s store.Store, known torch.Peers) (torch.Peers, error) {
	client, ok := store.UnderlyingNonPrefix(s).(*tcpstore.Client)
	if !ok || client.Dialect() == tcpstore.DialectNative {
		return known, nil // a Go store says nothing about its clients
	}
	lists, err := client.AskSupport(ctx, store.FeatureListKeys)
	if err != nil {
		return known, err
	}
	if lists {
		known = known.AtLeast(torch.V2_10)
		barrier, failure := client.HasBarrier(ctx)
		if failure != nil {
			return known, failure
		}
		if barrier {
			return known.AtLeast(torch.V2_12), nil
		}
		return known.AtMost(torch.V2_10), nil
	}
	queues, err := client.AskSupport(ctx, store.FeatureQueue)
	if err != nil {
		return known, err
	}
	if queues {
		return known.AtLeast(torch.V2_8).AtMost(torch.V2_9), nil
	}
	return known.AtMost(torch.V2_9), nil // 2.8 and 2.9 have no queues on a server without libuv
}
