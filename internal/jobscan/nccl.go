// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/ncclras"
)

const (
	// ncclTime bounds the question to NCCL: its network takes some seconds to give up a process that does not answer.
	ncclTime = 8 * time.Second
	// restTime is what is left of the time of whoever asks, for the rest of the answer.
	restTime = 1500 * time.Millisecond
	// Lines of NCCL, and their bytes: they travel from node to node. With the line that counts the others they are as many as a proof has.
	maxNCCLLines = 15
	maxNCCLBytes = 512
)

// AskNCCL asks NCCL's own network about the communicators of ranks that use it, and returns lines. The first rank that does knows where
// it answers; it answers for all.
func AskNCCL(ctx context.Context, ranks []Rank) []string {
	var pids []int
	addr := ""
	for _, r := range ranks {
		pids = append(pids, r.PID)
		if addr == "" && loaded(r.PID, "/libnccl") {
			addr = cmp.Or(r.env["NCCL_RAS_ADDR"], ncclras.DefaultAddr)
		}
	}
	if addr == "" {
		return nil
	}
	limit := ncclTime
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)-restTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	report, err := ncclras.Ask(ctx, addr)
	if err != nil {
		return nil // it is switched off, older than 2.24, or has no communicator yet
	}
	report.Of(pids)
	return bounded(report.Lines())
}

// bounded returns the first of lines, none of them long, and says how many there are besides.
func bounded(lines []string) []string {
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
