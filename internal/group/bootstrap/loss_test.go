// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/tensor"
)

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
