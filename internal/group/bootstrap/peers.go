// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
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

// findPeers finds out which versions the PyTorch ranks may be: from what the user says, else from what they publish, else from
// what their store can do.
func (a *attempt) findPeers(ctx context.Context) (torchcaps.Peers, error) {
	p := a.p
	switch {
	case a.torch == torchNone:
		return torchcaps.Peers{}, nil
	case p.Parent != nil && !p.Parent.Peers.None() && (p.Peers == AnyPeers || p.Peers == OnlyGo):
		return p.Parent.Peers, nil
	}
	said := p.Peers
	if said == AnyPeers {
		said = os.Getenv(torchcaps.Variable)
	}
	if said != AnyPeers && said != OnlyGo {
		peers, newer, err := parsePeers(said)
		if err != nil {
			return torchcaps.Peers{}, cohort.Newf("group: rendezvous", cohort.InvalidArgument, "%s=%q: %v", torchcaps.Variable, said, err)
		}
		if newer {
			warnNewer(p.Logger, said)
		}
		if (peers.Low == torchcaps.V1_13) != (a.torch == torch113) {
			return torchcaps.Peers{}, cohort.Newf("group: rendezvous", cohort.Mismatch,
				"the other ranks are said to be %s, but they meet as %v does", said, a.torch)
		}
		return peers, nil
	}
	if a.torch == torch113 {
		return torchcaps.Exactly(torchcaps.V1_13), nil
	}
	known := torchcaps.Peers{Low: torchcaps.V2_6, High: torchcaps.Newest}
	switch p.Origin {
	case FromReconfigure:
		return torchcaps.Exactly(torchcaps.Newest), nil
	case FromSplit, FromMerge:
		known = known.AtLeast(torchcaps.V2_9)
	case FromPython:
	}
	for r, m := range a.Members {
		if m.Go {
			continue
		}
		if raw, err := readIfThere(ctx, p.Store, a.Layout.FirstKey(p.meshPrefix(a.Layout), r)); err != nil {
			return known, err
		} else if record, err := gloowire.ParseRecord(raw, p.size()); raw != nil && err == nil && record.IDs == nil {
			return known.AtLeast(torchcaps.V2_8), nil // it connects at the first use
		}
	}
	found, err := askStore(ctx, p.Store, known)
	found.Assumed = found != known // no rank need be what the host of the store is: a launcher may host it
	return found, err
}

// warnedNewer are the versions of which this process has said that they are newer than any that is known.
var warnedNewer sync.Map

// warnNewer says it once in a process, however many groups are made.
func warnNewer(logger *slog.Logger, said string) {
	if _, before := warnedNewer.LoadOrStore(said, true); !before {
		logger.Warn("this PyTorch is newer than any that is known: it is treated as the newest that is", slog.String("said", said),
			slog.String("as", torchcaps.Newest.String()))
	}
}

// readIfThere returns the value of a key, or nil if there is none.
func readIfThere(ctx context.Context, s store.Store, key string) ([]byte, error) {
	if has, err := s.Check(ctx, key); err != nil || !has {
		return nil, err
	}
	return s.Get(ctx, key)
}

// readBackTime is how long PyTorch ranks may take to read their own addresses before an operation is refused, and readBackPause how often
// the store is asked.
const (
	readBackTime  = 2 * time.Second
	readBackPause = 5 * time.Millisecond
)

// readBack narrows what is known about the PyTorch ranks by what they have done in a Go process's store. A rank that is connected need not
// have read its address yet, and an older one never will: so the store is asked again when it matters, and not waited for now.
func (a *attempt) readBack(ctx context.Context) error {
	if a.Peers.Several || a.Peers.Low >= torchcaps.V2_8 || a.Peers.High < torchcaps.V2_8 {
		return nil
	}
	client, keys := a.addressKeys()
	if client == nil {
		return nil
	}
	read, err := allRead(ctx, client, keys)
	if err != nil {
		return err
	}
	known, newer := a.Peers, a.Peers.AtLeast(torchcaps.V2_8)
	if read {
		a.Peers = newer
		a.explainPeers()
		return nil
	}
	var settled atomic.Pointer[torchcaps.Peers]
	a.Narrow = func(ctx, group context.Context) (torchcaps.Peers, error) {
		if found := settled.Load(); found != nil {
			return *found, nil
		}
		limited, cancel := context.WithTimeout(ctx, readBackTime)
		defer cancel()
		defer context.AfterFunc(group, cancel)()
		found := known
		if untilRead(limited, client, keys) {
			found = newer
		}
		if ctx.Err() != nil {
			return found, cohort.FromContext(ctx, "group: ask which PyTorch the other ranks run")
		}
		settled.Store(&found)
		return found, nil
	}
	return nil
}

// untilRead waits until the PyTorch ranks have read the keys that they set, and reports whether they have.
func untilRead(ctx context.Context, client *tcpstore.Client, keys []string) bool {
	for ctx.Err() == nil {
		if read, err := allRead(ctx, client, keys); read || err != nil {
			return read
		}
		failpoint.At("bootstrap.read_back")
		select {
		case <-time.After(readBackPause):
		case <-ctx.Done():
		}
	}
	return false
}

// addressKeys returns the keys of the PyTorch ranks' addresses, as they are in the store of a Go process; nil where it is another's.
func (a *attempt) addressKeys() (client *tcpstore.Client, keys []string) {
	p := a.p
	for r, m := range a.Members {
		if m.Go {
			continue
		}
		below, key := p.Store, a.Layout.FirstKey(p.meshPrefix(a.Layout), r)
		for view, ok := below.(*store.PrefixStore); ok; view, ok = below.(*store.PrefixStore) {
			below, key = view.Underlying(), view.Key(key)
		}
		var ok bool
		if client, ok = below.(*tcpstore.Client); !ok || client.Dialect() != tcpstore.DialectNative {
			return nil, nil
		}
		keys = append(keys, key)
	}
	return client, keys
}

// allRead reports whether the PyTorch ranks that set the keys have read them all.
func allRead(ctx context.Context, client *tcpstore.Client, keys []string) (bool, error) {
	for _, key := range keys {
		if read, err := client.ReadBack(ctx, key); err != nil || !read {
			return false, err
		}
	}
	return true, nil
}

// askStore narrows what is known about the PyTorch ranks by what the store of one of them can do.
func askStore(ctx context.Context, s store.Store, known torchcaps.Peers) (torchcaps.Peers, error) {
	client, ok := store.UnderlyingNonPrefix(s).(*tcpstore.Client)
	if !ok || client.Dialect() == tcpstore.DialectNative {
		return known, nil // a Go store says nothing about its clients
	}
	lists, err := client.AskSupport(ctx, store.FeatureListKeys)
	if err != nil {
		return known, err
	}
	if lists {
		known = known.AtLeast(torchcaps.V2_10)
		barrier, failure := client.HasBarrier(ctx)
		if failure != nil {
			return known, failure
		}
		if barrier {
			return known.AtLeast(torchcaps.V2_12), nil
		}
		return known.AtMost(torchcaps.V2_11), nil
	}
	queues, err := client.AskSupport(ctx, store.FeatureQueue)
	if err != nil {
		return known, err
	}
	if queues {
		return known.AtLeast(torchcaps.V2_8).AtMost(torchcaps.V2_9), nil
	}
	return known.AtMost(torchcaps.V2_9), nil // 2.8 and 2.9 have no queues on a server without libuv
}
