// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
)

// MaxWorkerID is the largest id that PyTorch's messages can name.
const MaxWorkerID = math.MaxInt16

// The keys of a world in its store, below the prefix of the round. Those that begin with "cohort" are ours, the others
// PyTorch's.
const (
	KeyStatic  = "rpcIsStaticGroup"
	KeyNames   = "names/" // + id
	KeyInfos   = "names/_ALL_WORKER_INFOS"
	KeyAddrs   = "addrs/"
	KeyCohort  = "cohort/"     // + name: the entry of a Go worker on the cohort transport, set before its address
	KeyGo      = "cohort/go/"  // + name: a Go worker, whatever it speaks; set before its address
	KeyOver    = "cohort/over" // a static world is about to end in order
	KeyLost    = "cohort/lost" // the first worker of a static world that has died or given up its shutdown: see Loss
	keyToken   = "RpcGroupManagementToken"
	keyGoRanks = "cohort/rank/"   // + rank: a Go worker of a static world, set first of all
	keyMixed   = "cohort/mixed"   // a round in which a PyTorch rank has begun to start, and that rank, once a Go rank has seen it
	keySize    = "cohort/size"    // of a static world with Go workers
	keyRestart = "cohort/again"   // in this static world a rank stopped between its name and its address, and now starts in a later one
	keyMonitor = "cohort/monitor" // the Go rank that looks for PyTorch ranks, on behalf of all
	keyBeat    = "cohort/beat/"   // + token: grows while the Go worker that holds the token lives
	keyRounds  = "cohort/rounds"  // of the store itself: a hint where the latest world is
)

// RankKey is the key by which a Go rank of a static world shows itself.
func RankKey(r int) string { return keyGoRanks + strconv.Itoa(r) }

// readyKey is the key of a barrier of a world's end that everybody has entered.
func readyKey(n int) string { return "shutdown/READY_ID_" + strconv.Itoa(n) }

// activeKey is the key of the sum that the workers add up in a barrier. The first one that enters it makes it.
func activeKey(n int) string { return "shutdown/ACTIVE_CALLS_ID_" + strconv.Itoa(n) }

// countKey is the key of how many workers have entered a barrier.
func countKey(n int) string { return "shutdown/PROCESS_COUNT_ID_" + strconv.Itoa(n) }

// ParseInfos reads PyTorch's list of the members of a dynamic world.
func ParseInfos(raw string) ([]Worker, error) {
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
			return nil, cohort.Newf("rpc: join", cohort.Protocol, "the list of workers has an entry %q", entry)
		}
		members = append(members, Worker{Name: entry[:at], ID: id})
	}
	return members, nil
}

// formatInfos writes it.
func formatInfos(members []Worker) string {
	var b strings.Builder
	for _, m := range members {
		fmt.Fprintf(&b, "%s-%d,", m.Name, m.ID)
	}
	return b.String()
}
