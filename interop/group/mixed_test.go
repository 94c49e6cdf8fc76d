// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// mixedWorld returns a world with PyTorch ranks of two versions and the plan of a seed. A few have no Go rank: what
// PyTorch's ranks do with each other is what Go has to fit into.
func mixedWorld(t *testing.T, seed uint64) (world, []step) {
	t.Helper()
	old, recent := torchtest.V26.About(t), torchtest.Newest.About(t)
	f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 11)), version: "several", halves: old.Has(torchtest.Halves) &&
		recent.Has(torchtest.Halves)}
	f.peers, _, _ = torchcaps.ParsePeers(old.Version + "," + recent.Version)
	f.size = 3 + f.IntN(3)
	f.joined = make([]int, f.size)
	w := world{size: f.size, env: map[string]string{}, torches: map[int]*torchtest.Torch{}, unversioned: f.IntN(3) == 0}
	ranks := f.Perm(f.size)
	w.torches[ranks[0]], w.torches[ranks[1]] = torchtest.V26, torchtest.Newest
	for i, r := range ranks[2:] {
		switch kind := f.IntN(8); {
		case i == 0 && kind > 0, kind > 3:
			w.goRanks = append(w.goRanks, r)
		case kind%2 == 0:
			w.torches[r] = torchtest.V26
		default:
			w.torches[r] = torchtest.Newest
		}
	}
	slices.Sort(w.goRanks)
	f.goRanks = w.goRanks
	if f.detail = f.IntN(5) == 0; f.detail {
		maps.Copy(w.env, detailEnv)
		w.options = append(w.options, group.WithDetail())
	}
	if f.IntN(4) == 0 {
		w.env["GLOO_SOCKET_IFNAME"] = "lo,lo"
		w.options = append(w.options, group.WithDevices("lo", "lo"))
	}
	return w, f.plan()
}

// oracle returns what every rank must have after each step: that of a world of Go ranks, which know nothing of PyTorch and take part in
// everything but what is to be refused. The order in which a transport takes the ranks decides what becomes of NaN in a maximum.
func oracle(t *testing.T, transport group.Transport, size int, plan []step) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := world{size: size, options: []group.Option{group.WithTransport(transport), group.WithPeers(group.OnlyGo)}}
	for r := range size {
		w.goRanks = append(w.goRanks, r)
	}
	all := slices.Clone(plan)
	for k, s := range all {
		if s.MayRefuse {
			all[k] = step{Op: "barrier", Group: s.Group, Ranks: s.Ranks}
		}
	}
	groups := w.joinGo(ctx, t, testkit.FreePort(t))
	want := make([][]string, size)
	err := w.eachGo(func(r int) (err error) {
		want[r], err = runPlan(ctx, groups[r], all)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for r := range want {
		for k, s := range plan {
			if s.MayRefuse && (s.Group == "" || slices.Contains(s.Ranks, r)) {
				want[r][k] = "refused"
			}
		}
		_ = groups[r].Close()
	}
	return want
}

// TestMixedWorlds runs random plans in worlds whose PyTorch ranks are of two versions, and holds every rank's results against a world
// of Go ranks. More of them:
//
//	COHORT_INTEROP=auto go test ./interop/group -run MixedWorlds -worlds 100 -world 1000
func TestMixedWorlds(t *testing.T) {
	t.Parallel()
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	for i := range *fuzzSeeds {
		seed := *fuzzFirst + uint64(i)
		w, plan := mixedWorld(t, seed)
		t.Run(fmt.Sprintf("seed=%d,%v,unversioned=%v", seed, w, w.unversioned), func(t *testing.T) {
			t.Parallel()
			compare(t, plan, oracle(t, group.Gloo, w.size, plan), w.run(t, torchtest.Newest, plan))
		})
	}
}
