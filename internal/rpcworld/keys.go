// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/dist"
)

// MaxWorkerID is the largest id that PyTorch's messages can name.
const MaxWorkerID = math.MaxInt16

// The keys of a world in its store, below the prefix of the round. Those that begin with "cohort" are ours, the others
// PyTorch's.
const (
	keyStatic  = "rpcIsStaticGroup"
	keyToken   = "RpcGroupManagementToken"
	keyNames   = "names/"
	keyInfos   = "names/_ALL_WORKER_INFOS"
	keyAddrs   = "addrs/"
	keyCohort  = "cohort/"      // + name: the entry of a Go worker on the cohort transport, set before its address
	keyGo      = "cohort/go/"   // + name: a Go worker, whatever it speaks; set before its address
	keyGoRanks = "cohort/rank/" // + rank: a Go worker of a static world, set first of all
	keyCame    = "cohort/came"  // how many Go ranks have come to a static world
	keyMixed   = "cohort/mixed" // a round in which a PyTorch rank has begun to start, once a Go rank has seen it
	keySize    = "cohort/size"  // of a static world with Go workers
	keyOver    = "cohort/over"  // a static world is about to end in order
	keyLost    = "cohort/lost"  // a worker of a static world that has died, once somebody who waited has found out
	keyBeat    = "cohort/beat/" // + token: grows while the Go worker that holds the token lives
	keyRounds  = "cohort/rounds"
)

// RoundPrefix is the prefix of the k-th world on a store.
func RoundPrefix(k int) string { return "rpc_prefix_" + strconv.Itoa(k) }

// Worker is a worker by name and id.
type Worker struct {
	Name string
	ID   int
}

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
		return Entry{}, dist.Newf("rpc: join", dist.Protocol, "the entry of worker %q in the store is no entry", name)
	}
	return Entry{Epoch: n, Secret: s}, nil
}

// parseInfos reads PyTorch's list of the members of a dynamic world.
func parseInfos(raw string) ([]Worker, error) {
	var members []Worker
	for entry := range strings.SplitSeq(raw, ",") {
		if entry == "" {
			continue
		}
		at := strings.LastIndexByte(entry, '-')
		id, err := -1, error(nil)
		if at >= 0 {
			id, err = strconv.Atoi(entry[at+1:])
		}
		if err != nil || id < 0 || id > MaxWorkerID {
			return nil, dist.Newf("rpc: join", dist.Protocol, "the list of workers has an entry %q", entry)
		}
		members = append(members, Worker{Name: entry[:at], ID: id})
	}
	return members, nil
}

func formatInfos(members []Worker) []byte {
	var b strings.Builder
	for _, m := range members {
		fmt.Fprintf(&b, "%s-%d,", m.Name, m.ID)
	}
	return []byte(b.String())
}
