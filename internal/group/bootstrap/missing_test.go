// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// stopped is a store that answers no question once its process is stopped.
type stopped struct {
	store.Store
	now atomic.Bool
}

func (s *stopped) Check(ctx context.Context, keys ...string) (bool, error) {
	if s.now.Load() {
		<-ctx.Done()
		return false, cohort.FromContext(ctx, "store: check")
	}
	return s.Store.Check(ctx, keys...)
}

// TestSilentStoreIsNamed: a rank that waits for others when the store stops says that the store does not answer, and blames no rank.
func TestSilentStoreIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory()
		defer func() { _ = memory.Close() }()
		s := &stopped{Store: memory}
		p := &Plan{Rank: 0, Globals: []int{0, 1}, Store: s, Options: Options{Name: "g", StoreAddr: "node0:29500"}}
		place, err := assemble.Take(t.Context(), s, "g", 0, 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := &attempt{p: p, Formed: &Formed{Place: place}}
		s.now.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		<-ctx.Done()
		err = a.missingError(ctx, 1, ctx.Err())
		if cohort.CodeOf(err) != cohort.DeadlineExceeded || rankOf(err) != cohort.NoRank ||
			!strings.Contains(err.Error(), "the store at node0:29500 does not report") {
			t.Errorf("the store is stopped: %v", err)
		}
	})
}

// TestSilentStoreKeepsWhatWasSeen: without the store's word, the rank whose end this one saw counts.
func TestSilentStoreKeepsWhatWasSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory()
		defer func() { _ = memory.Close() }()
		s := &stopped{Store: memory}
		p := &Plan{Rank: 0, Globals: []int{0, 1, 2}, Store: s, Options: Options{Name: "g"}}
		place, err := assemble.Take(t.Context(), s, "g", 0, 3, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := &attempt{p: p, Formed: &Formed{Place: place}}
		s.now.Store(true)
		lost := cohort.New("tcp: connect", cohort.PeerLost, "connection refused")
		lost.Rank = 2
		a.remember(t.Context(), lost)
		if !slices.Equal(p.missing, []int{2}) {
			t.Errorf("rank 2 was seen to end, and ranks %v are named", p.missing)
		}
	})
}

// TestKeysOfALargeSplit: the ranks of a split can be more than a key has room for.
func TestKeysOfALargeSplit(t *testing.T) {
	t.Parallel()
	p := &Plan{Origin: FromSplit, Options: Options{Name: "half"}}
	for r := range 4096 {
		p.Globals = append(p.Globals, r)
	}
	first := p.keys()
	p.Globals[0], p.Globals[1] = 1, 0
	if second := p.keys(); first == second || len(first) > 200 {
		t.Errorf("keys %q and %q", first, second)
	}
}

// TestLossesOfGoRanksAreTheirOwn: that a build of PyTorch has no half types does not explain why a Go rank is gone. It can explain the
// loss of a PyTorch rank or of one that no rank can name, and why a Go rank is late, which may wait for another one itself.
func TestLossesOfGoRanksAreTheirOwn(t *testing.T) {
	f := &Formed{Peers: torchcaps.Exactly(torchcaps.Newest), Members: []member{{Go: true}, {Go: true}, {}}}
	for _, c := range []struct {
		code cohort.Code
		rank cohort.Rank
		want bool
	}{
		{cohort.PeerLost, 1, false}, {cohort.PeerLost, 2, true}, {cohort.PeerLost, cohort.NoRank, true}, {cohort.DeadlineExceeded, 1, true},
	} {
		e := cohort.New("x", c.code, "why")
		e.Rank = c.rank
		if err := f.Explain(tensor.Float16, false, e); strings.Contains(err.Error(), "PyTorch") != c.want {
			t.Errorf("%v became %v", e, err)
		}
	}
	if err := f.Explain(tensor.Float16, false, nil); err != nil {
		t.Error(err)
	}
}

// TestWhoWasCutOffSaysThatItLives: while a group forms, rank 0 records that it has lost rank 1, which lives. Rank 1
// names itself, as all do, and says so whichever way it learns of that.
func TestWhoWasCutOffSaysThatItLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := attempts(t, 3)
		loss := func(rank cohort.Rank) error {
			e := cohort.New("tcp", cohort.PeerLost, "its connection closed without a shutdown message")
			e.Rank = rank
			return e
		}
		_ = all[0].Failure.Judge(loss(1))
		for name, ways := range map[string]func(a *attempt) error{
			"explained": func(a *attempt) error { return a.explain(t.Context(), loss(0), false) },
			"judged":    func(a *attempt) error { return a.Failure.Judge(loss(0)) },
			"told":      func(a *attempt) error { return a.Failure.awaitReason(t.Context()) },
		} {
			for r := 1; r < 3; r++ {
				err := ways(all[r])
				if cohort.CodeOf(err) != cohort.PeerLost || rankOf(err) != 1 ||
					strings.Contains(err.Error(), "which is alive") != (r == 1) {
					t.Errorf("%s, rank %d: %v", name, r, err)
				}
			}
		}
	})
}
