// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo/torch"
	"github.com/cohort-dist/cohort/tensor"
)

// TestLossesOfGoRanksAreTheirOwn: that a build of PyTorch has no half types does not explain why a Go rank is gone. It can explain the
// loss of a PyTorch rank or of one that nobody can name, and why a Go rank is late, which may wait for another one itself.
func TestLossesOfGoRanksAreTheirOwn(t *testing.T) {
	f := &Formed{Peers: torch.Exactly(torch.Newest), Members: []Member{{Go: true}, {Go: true}, {}}}
	for _, c := range []struct {
		code dist.Code
		rank dist.Rank
		want bool
	}{
		{dist.PeerLost, 1, false}, {dist.PeerLost, 2, true}, {dist.PeerLost, dist.NoRank, true}, {dist.DeadlineExceeded, 1, true},
	} {
		e := dist.New("x", c.code, "why")
		e.Rank = c.rank
		if err := f.Explain(tensor.Float16, false, e); strings.Contains(err.Error(), "PyTorch") != c.want {
			t.Errorf("%v became %v", e, err)
		}
	}
	if err := f.Explain(tensor.Float16, false, nil); err != nil {
		t.Error(err)
	}
}

// TestWhoWasCutOffSaysThatItLives: while a group forms, rank 0 records that it has lost rank 1, which lives. Rank 1 names itself, as all do, and says so
// whichever way it learns of that.
func TestWhoWasCutOffSaysThatItLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := attempts(t, 3)
		loss := func(rank dist.Rank) error {
			e := dist.New("tcp", dist.PeerLost, "its connection ended without a goodbye")
			e.Rank = rank
			return e
		}
		_ = all[0].Verdict.Judge(loss(1))
		for name, ways := range map[string]func(a *attempt) error{
			"explained": func(a *attempt) error { return a.explain(t.Context(), loss(0), false) },
			"judged":    func(a *attempt) error { return a.Verdict.Judge(loss(0)) },
			"told":      func(a *attempt) error { return a.Verdict.told(t.Context()) },
		} {
			for r := 1; r < 3; r++ {
				err := ways(all[r])
				if dist.CodeOf(err) != dist.PeerLost || rankOf(err) != 1 || strings.Contains(err.Error(), "which lives") != (r == 1) {
					t.Errorf("%s, rank %d: %v", name, r, err)
				}
			}
		}
	})
}
