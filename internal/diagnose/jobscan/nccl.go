// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/ncclras"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

const (
	// ncclTime bounds the question to NCCL: its network takes some seconds to give up a process that does not answer.
	ncclTime = 8 * time.Second
	// restTime is what is left of the caller's time, for the rest of the answer.
	restTime = 1500 * time.Millisecond
	// maxAsks is how often NCCL is asked. The processes of all jobs of a host share a port, and the kernel chooses one that answers.
	maxAsks = 8
	// Lines of NCCL, and their bytes: they travel from node to node. With the line that counts the others they are as many as a proof has.
	maxNCCLLines = 15
	maxNCCLBytes = 512
)

// ncclTold is what NCCL's own network says of the communicators of a job: lines, and who has started what.
type ncclTold struct {
	lines         []string
	communicators []verdict.Communicator
}

// askNCCL asks NCCL's own network about the communicators of ranks that use it. The first rank that does knows where it answers; it
// answers for all.
func askNCCL(ctx context.Context, j Job) ncclTold {
	pids := map[int]int{} // ranks by process, as NCCL knows it
	addr := ""
	for _, r := range j.Ranks {
		pid := ownPID("/proc", r.PID)
		if _, twice := pids[pid]; twice { // in another container
			pids[pid] = -1
		} else {
			pids[pid] = r.Rank
		}
		// Only a process with a GPU has communicators. To look for the library costs more.
		if addr == "" && (r.env["NCCL_RAS_ADDR"] != "" || usesGPU("/proc", r.PID)) && loaded(r.PID, "/libnccl") {
			addr = cmp.Or(r.env["NCCL_RAS_ADDR"], ncclras.DefaultAddr)
		}
	}
	if addr == "" {
		return ncclTold{}
	}
	limit := ncclTime
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)-restTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	report := &ncclras.Report{}
	for range maxAsks {
		answer := j.ask(ctx, question{What: askRAS, Addr: addr})
		if answer.Report == nil {
			break
		}
		report = answer.Report
		report.Text = answer.RASText
		if report.Of(slices.Collect(maps.Keys(pids))); len(report.Communicators) > 0 || report.Text != nil {
			break
		}
	}
	told := ncclTold{lines: boundedLines(report.Lines())}
	for _, c := range report.Communicators {
		if started := startedBy(c, j.World, pids, isLocal); len(started) > 1 && len(told.communicators) < maxNCCLLines {
			told.communicators = append(told.communicators, verdict.Communicator{Size: c.Size, Started: started})
		}
	}
	return told
}

// startedBy returns what the ranks of a communicator have started, those of the job that started the same together; nil if they are not
// known. pids are the ranks of this host by process, -1 where several have the same number; local tells its addresses. A communicator of
// all ranks has them in the order of the job.
func startedBy(c ncclras.Communicator, world int, pids map[int]int, local func(host string) bool) []verdict.Started {
	whole, known := c.Size == world, map[int]bool{}
	for _, r := range c.Ranks {
		rank, found := pids[r.PID]
		if found && rank >= 0 && (whole && rank == r.Rank || !whole && local(r.Host)) {
			known[rank] = true
		}
	}
	if !whole && len(known) < len(c.Ranks) || whole && len(known) < min(len(pids), len(c.Ranks)) {
		return nil
	}
	var all []verdict.Started
	for _, r := range c.Ranks {
		rank := r.Rank
		if !whole {
			rank = pids[r.PID]
		}
		counts := maps.Clone(r.Counts)
		maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
		i := slices.IndexFunc(all, func(s verdict.Started) bool { return maps.Equal(s.Counts, counts) })
		if i < 0 {
			all, i = append(all, verdict.Started{Counts: counts}), len(all)
		}
		all[i].Ranks = append(all[i].Ranks, rank)
	}
	return all
}

// isLocal reports whether a host, which NCCL names by its address, is this one.
func isLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ctxdial.OwnAddress(ip)
}

// boundedLines returns the first of lines, none of them long, and says how many there are besides.
func boundedLines(lines []string) []string {
	more := len(lines) - maxNCCLLines
	if more > 0 {
		lines = lines[:maxNCCLLines]
	}
	for i, line := range lines {
		if len(line) > maxNCCLBytes {
			lines[i] = strings.ToValidUTF8(line[:maxNCCLBytes], "") + "..."
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("NCCL: and %d more", more))
	}
	return lines
}
