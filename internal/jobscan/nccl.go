// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"cmp"
	"context"

	"github.com/cohort-dist/cohort/internal/ncclras"
)

// askNCCL asks NCCL's own network about the communicators of ranks that use it, and returns lines. The first rank that does knows where
// it answers; it answers for all.
func askNCCL(ctx context.Context, ranks []Rank) []string {
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
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	report, err := ncclras.Ask(ctx, addr)
	if err != nil {
		return nil // it is switched off, older than 2.24, or has no communicator yet
	}
	report.Of(pids)
	return report.Lines()
}
