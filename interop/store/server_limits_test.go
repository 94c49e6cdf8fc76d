// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"flag"
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

//go:embed server_limits.py
var limitsScript string

// TestServerLimits: PyTorch clients of two versions that go beyond the limits of a store lose the connections on which they do. What they
// stored before stays, and the connections that keep to the limits go on.
func TestServerLimits(t *testing.T) {
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	s, err := tcpstore.Listen("127.0.0.1:0",
		tcpstore.WithLimits(tcpstore.Limits{Conns: 16, Memory: 16 << 20, Value: 1 << 20, Key: 4 << 10}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	var procs []*torchtest.Proc
	for i := range 2 {
		for _, torch := range []*torchtest.Torch{torchtest.V26, torchtest.Newest} {
			procs = append(procs, torch.Start(t,
				torchtest.Script{Source: limitsScript, Args: []string{strconv.Itoa(s.Port()), fmt.Sprintf("%s-%d", torch.Name, i)}}))
		}
	}
	for _, p := range procs {
		p.Expect(t, "ready")
	}
	for _, p := range procs {
		p.Send(t, "go")
	}
	for _, p := range procs {
		line := p.Line(t)
		if !strings.HasPrefix(line, "ok ") {
			t.Fatalf("output %q", line)
		}
		for _, what := range []string{"value", "key", "memory"} { // there may be room for the connections of one client
			if !strings.Contains(line, what) {
				t.Errorf("%s was never refused: %s", what, line)
			}
		}
		t.Log(line)
		p.MustExit(t, time.Minute)
	}
	if stats := s.Stats(); stats.Cut == 0 {
		t.Errorf("%+v", stats)
	}
}

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
