// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"math"
	"slices"
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

// Loss is why the workers of a static world cannot do together what they wait for. The first one is in the store, under [KeyLost]: a
// worker has died, which another one has found; or it abandoned its shutdown, which it says itself before it goes.
type Loss struct {
	Worker string
	Code   cohort.Code // why it has given up; zero: it has died
	Detail string
}

// maxLossDetail bounds the words in the store.
const maxLossDetail = 1 << 10

// GivenUp is the loss of a worker whose shutdown has failed. The others report its code, also that of a deadline, which is not their own.
func GivenUp(worker string, err error) Loss {
	l := Loss{Worker: worker, Code: cohort.CodeOf(err), Detail: err.Error()}
	if l.Code == cohort.Canceled || l.Code == cohort.Unknown { // what the others wait for was not canceled
		l.Code = cohort.Aborted
	}
	l.Detail = strings.ToValidUTF8(l.Detail[:min(len(l.Detail), maxLossDetail)], "")
	return l
}

// Text is how it stands in the store. The name of a worker has no line break.
func (l Loss) Text() string {
	if l.Code == 0 {
		return l.Worker
	}
	return l.Worker + "\n" + strconv.Itoa(int(l.Code)) + "\n" + l.Detail
}

// parseLoss reads it.
func parseLoss(text string) Loss {
	worker, why, gaveUp := strings.Cut(text, "\n")
	l := Loss{Worker: worker}
	if !gaveUp {
		return l
	}
	code, detail, _ := strings.Cut(why, "\n")
	n, err := strconv.ParseUint(code, 10, 8)
	if err != nil || n == 0 {
		n = uint64(cohort.Aborted)
	}
	l.Code, l.Detail = cohort.Code(n), detail
	return l
}

// among reports whether it is a worker of these.
func (l Loss) among(names []string) bool { return slices.Contains(names, l.Worker) }

// err is the error of a wait for the worker.
func (l Loss) err(rank int) *cohort.Error {
	if l.Code == 0 {
		return deathOf(l.Worker, rank, foundByOther, nil)
	}
	e := deathOf(l.Worker, rank, "it abandoned its shutdown: "+l.Detail, nil)
	e.Code = l.Code
	return e
}
