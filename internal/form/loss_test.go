// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"strings"
	"testing"

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
