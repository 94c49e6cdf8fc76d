// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"

	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
)

// LatestRound is the last round with a world, or 0.
func (w *World) LatestRound(ctx context.Context) (int, error) {
	m := worldcore.NewLatest()
	w.drive(ctx, m, nil)
	return m.Round(), m.Err()
}
