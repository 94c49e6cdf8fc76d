// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"flag"
	"fmt"
	"path"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

//go:embed sharded.py
var shardedScript string

var shardedSeed = flag.Int("sharded", 1, "the first seed of the shapes of sharded tensors")

// TestServerShardedJob: a PyTorch job whose store is ours spreads tensors over its ranks, saves a distributed checkpoint and
// loads it with another cut, all of it bit by bit. Seeds choose shapes, cuts and the number of ranks.
func TestServerShardedJob(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 5) {
			torch.NotApplicable(t, "has no public DTensor")
		}
		for seed, size := range []int{3, 2, 4} {
			t.Run(fmt.Sprint("ranks=", size), func(t *testing.T) {
				s := serve(t)
				_, folder := torch.TempDir(t)
				var procs []*torchtest.Proc
				for rank := range size {
					procs = append(procs, torch.Start(t, torchtest.Script{
						Source: shardedScript, Shared: []string{"torch.distributed.checkpoint", "torch.distributed.tensor"},
						Args: []string{
							strconv.Itoa(s.Port()), strconv.Itoa(rank), strconv.Itoa(size),
							path.Join(folder, "checkpoint"), strconv.Itoa(seed + *shardedSeed),
						},
					}))
				}
				for _, p := range procs {
					p.Expect(t, "ok")
					p.MustExit(t, time.Minute)
				}
			})
		}
	})
}
