// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/postmortem"
)

// TestEarlyEnd: a rank that ended well while others needed it is the cause of their failure; one that ended well after it,
// or beside a failure with a cause of its own, is not.
func TestEarlyEnd(t *testing.T) {
	t.Parallel()
	second := func(n float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(n * float64(time.Second))) }
	for name, c := range map[string]struct {
		kind postmortem.Kind
		left float64
		want string
	}{
		"at the same time": {postmortem.LostPeer, 2.4, "rank 1 ended with exit code 0 while others still needed it; then rank 0 lost its connection"},
		"before":           {postmortem.LostPeer, 1, "rank 1 ended with exit code 0 while others still needed it; then rank 0 lost its connection"},
		"after":            {postmortem.LostPeer, 3, "rank 0 lost its connection"},
		"its own affair":   {postmortem.Exception, 1, "rank 0 lost its connection"},
	} {
		a := Attempt{First: 0, Workers: []WorkerEnd{
			{Rank: 0, Code: 1, Kind: c.kind.String(), Words: "lost its connection", Ended: second(2)},
			{Rank: 1, Kind: postmortem.Success.String(), Words: "succeeded", Ended: second(c.left)},
		}}
		if got := a.Sentence(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
