// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
	"github.com/cohort-dist/cohort/rpc/py"
)

// MaxWorkerID is the largest id that PyTorch's messages can name.
const MaxWorkerID = worldcore.MaxWorkerID

// The keys of the machines of package worldcore, where they are explained.
const (
	keyStatic = worldcore.KeyStatic
	keyNames  = worldcore.KeyNames
	keyInfos  = worldcore.KeyInfos
	keyAddrs  = worldcore.KeyAddrs
	keyCohort = worldcore.KeyCohort
	keyGo     = worldcore.KeyGo
	keyOver   = worldcore.KeyOver
	keyLost   = worldcore.KeyLost
)

// RoundPrefix is the prefix of the k-th world on a store.
func RoundPrefix(k int) string { return "rpc_prefix_" + strconv.Itoa(k) }

// Worker is a worker by name and id.
type Worker = worldcore.Worker

// Entry is what a Go worker on the cohort transport publishes under its name: which start of it this is, and the secret by
// which it proves that it is the one that wrote the entry.
type Entry struct {
	Epoch  uint64
	Secret []byte
}

func (e Entry) text() []byte {
	return []byte(strconv.FormatUint(e.Epoch, 16) + " " + hex.EncodeToString(e.Secret))
}

func parseEntry(name string, raw []byte) (Entry, error) {
	epoch, secret, _ := strings.Cut(string(raw), " ")
	n, err := strconv.ParseUint(epoch, 16, 64)
	s, failed := hex.DecodeString(secret)
	if err != nil || failed != nil || n == 0 {
		return Entry{}, cohort.Newf("rpc: join", cohort.Protocol, "the entry of worker %q in the store is malformed", name)
	}
	return Entry{Epoch: n, Secret: s}, nil
}

// notifyLostTime bounds how long a worker is told that an all-gather cannot come to its end.
const notifyLostTime = time.Second

// ErrArguments says that a function was called with arguments that it does not take.
var ErrArguments = errors.New("wrong arguments")

// ServeGather takes a message of an all-gather: one of the functions [FuncToLeader], [FuncToFollowers] and [FuncGatherLost] that a worker
// has called here. again says that it may repeat what it has said. If late is not nil, the worker waits in vain, and late tells it.
func (w *World) ServeGather(p Party, fn, from string, again bool, args []any) (late func(context.Context), err error) {
	if len(args) == 0 {
		return nil, ErrArguments
	}
	id, ok := args[0].(string)
	switch {
	case !ok:
	case fn == FuncToLeader && len(args) == 4:
		member, known := args[1].(string)
		if names, readable := namesIn(args[3]); known && readable {
			err = w.Gathers.ToLeader(id, member, args[2], names, again)
			return w.notifyLate(p, id, from, names, args[3]), err
		}
	case fn == FuncToFollowers && len(args) == 2:
		if objects, ok := args[1].(*py.Dict); ok {
			return nil, w.Gathers.ToFollower(id, objects, again)
		}
	case fn == FuncGatherLost && len(args) == 3:
		dead, known := args[1].(string)
		if names, readable := namesIn(args[2]); known && readable && slices.Min(names) == from { // only the leader may say so
			return nil, w.Gathers.Fail(id, names, deathError(p, dead, "the leader "+from+" has found that its process has ended"))
		}
	}
	return nil, ErrArguments
}

// notifyLate returns what tells a worker that it has come too late to an all-gather to be told with the others why it fails, or nil.
func (w *World) notifyLate(p Party, id, to string, names []string, set any) func(context.Context) {
	dead := w.Gathers.Lost(id, names)
	if dead == "" {
		return nil
	}
	return func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, notifyLostTime)
		defer cancel()
		if w.IsGo(ctx, to) { // a PyTorch worker does not know this function
			_ = p.Call(ctx, to, FuncGatherLost, []any{id, dead, set})
		}
	}
}

// namesIn reads a set of names as Python and Go workers send it. It reports false if there are none.
func namesIn(v any) ([]string, bool) {
	var items []any
	switch v := v.(type) {
	case py.Set:
		items = v
	case py.FrozenSet:
		items = v
	case py.Tuple:
		items = v
	case []any:
		items = v
	}
	names := make([]string, len(items))
	for i, x := range items {
		name, ok := x.(string)
		if !ok {
			return nil, false
		}
		names[i] = name
	}
	return names, len(names) > 0
}
