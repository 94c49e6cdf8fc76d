// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
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
