// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"testing"
)

func TestEach(t *testing.T) {
	t.Parallel()
	bad, met := errors.New("bad"), make(chan struct{})
	err := EachRank(3, func(rank int) error {
		switch rank {
		case 0:
			<-met // all of them run at once
		case 1:
			close(met)
		default:
			return bad
		}
		return nil
	})
	if !errors.Is(err, bad) || err.Error() != "rank 2: bad" {
		t.Error(err)
	}
	if err := EachRank(0, func(int) error { return bad }); err != nil {
		t.Errorf("no ranks: %v", err)
	}
}
