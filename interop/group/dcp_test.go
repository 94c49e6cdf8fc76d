// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

//go:embed dcp.py
var dcpSource string

// empty is what dcp.py sends: the pickles of what a rank contributes that has nothing to save or to load.
type empty struct{ savePlan, loadPlan, results, keys, none []byte }

// checkpointed takes part in a save and a load of PyTorch's distributed checkpoints whose coordinator is rank 0. leave is called after
// the plans of the save.
func (e empty) checkpointed(ctx context.Context, g *group.Group, keys bool, leave func() bool) error {
	const coordinator = 0
	plan := func(p []byte) error {
		if _, err := g.GatherObject(ctx, p, coordinator); err != nil {
			return err
		}
		_, err := g.ScatterObjects(ctx, nil, coordinator)
		return err
	}
	if err := plan(e.savePlan); err != nil || leave() {
		return err
	}
	if _, err := g.GatherObject(ctx, e.results, coordinator); err != nil {
		return err
	}
	if err := g.BroadcastObjects(ctx, make([][]byte, 1), coordinator); err != nil { // the metadata
		return err
	}
	if keys {
		if _, err := g.AllGatherObject(ctx, e.keys); err != nil {
			return err
		}
	}
	if err := plan(e.loadPlan); err != nil {
		return err
	}
	_, err := g.AllGatherObject(ctx, e.none)
	return err
}

// TestCheckpoints: PyTorch ranks save and load distributed checkpoints in a world with a Go rank, which is left out by a group of the
// others, or takes part with nothing to save. A Go rank that leaves in the middle ends it on all ranks.
func TestCheckpoints(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 0) {
			torch.NotApplicable(t, "has checkpoints that its Python cannot import")
		}
		for _, c := range []struct {
			goRank int
			what   string
		}{{2, "stay"}, {1, "stay"}, {2, "die"}} {
			t.Run(fmt.Sprintf("go=%d,%s", c.goRank, c.what), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				_, folder := torch.TempDir(t)
				w := world{size: 3, goRanks: []int{c.goRank}, shared: []string{"torch.distributed.checkpoint"}}
				port := testkit.FreePort(t)
				procs := w.startTorch(t, torch, port, dcpSource, strconv.Itoa(c.goRank), folder, c.what)
				g := w.joinGo(ctx, t, port)[c.goRank]
				var torches []cohort.Rank
				for r := range procs {
					torches = append(torches, cohort.Rank(r))
				}
				if sub, err := g.NewGroup(ctx, torches); err != nil || sub != nil {
					t.Fatalf("a group of the others: %v, %v", sub, err)
				}
				list := make([][]byte, 5)
				if err := g.BroadcastObjects(ctx, list, 0); err != nil {
					t.Fatal(err)
				}
				gathers := []int64{0}
				if err := group.BroadcastSlice(ctx, g, gathers, 0); err != nil {
					t.Fatal(err)
				}
				left := func() bool {
					if c.what == "die" {
						_ = g.Close()
					}
					return c.what == "die"
				}
				e := empty{list[0], list[1], list[2], list[3], list[4]}
				if err := e.checkpointed(ctx, g, gathers[0] == 1, left); err != nil {
					t.Fatal(err)
				}
				if c.what == "stay" {
					x := []float32{1, 1, 1}
					if err := group.AllReduceSlice(ctx, g, x, group.Sum); err != nil || x[0] != 3 {
						t.Errorf("the sum is %v, %v", x, err)
					}
				}
				for r, p := range procs {
					p.Expect(t, "without")
					if c.what == "stay" {
						p.Expect(t, "with")
						p.Expect(t, "sum 3")
					} else if line := p.Line(t); !strings.HasPrefix(line, "raised ") {
						t.Errorf("rank %d printed %q", r, line)
					}
				}
			})
		}
	})
}
