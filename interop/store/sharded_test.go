// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"path"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/torchtest"
)

//go:embed sharded.py
var shardedScript string

// TestServerShardedJob: a PyTorch job whose store is ours spreads tensors over its ranks, saves a distributed checkpoint and
// loads it with another cut.
func TestServerShardedJob(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 5) {
			torch.NotApplicable(t, "has no public DTensor")
		}
		s := serve(t)
		_, folder := torch.TempDir(t)
		const size = 3
		var procs []*torchtest.Proc
		for rank := range size {
			procs = append(procs, torch.Start(t, torchtest.Script{
				Source: shardedScript, Args: []string{strconv.Itoa(s.Port()), strconv.Itoa(rank), strconv.Itoa(size), path.Join(folder, "checkpoint")},
			}))
		}
		for _, p := range procs {
			p.Expect(t, "ok")
			p.MustExit(t, time.Minute)
		}
	})
}
