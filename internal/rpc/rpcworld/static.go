// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"log/slog"

	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
)

// ErrRestart is the error of a start that has to be made again, from [World.ComeTogether] on: it may succeed in another round.
var ErrRestart = worldcore.ErrRestart

// ComeTogether finds the round of a static world and waits until all ranks have shown what they are; see [worldcore.Start]. A
// world without PyTorch ranks needs no gloo group; see [World.Mixed].
func (w *World) ComeTogether(ctx context.Context) error {
	m := worldcore.NewStart(w.self())
	w.drive(ctx, m, func(ctx context.Context, op worldcore.Op) worldcore.Event { return w.deal(ctx, nil, nil, op) })
	w.torch, w.mixed = m.Mixed()
	w.cfg.Logger.Debug("the ranks have come together", slog.String("worker", w.cfg.Name), slog.Int("round", w.round),
		slog.Bool("mixed", w.mixed))
	return m.Err()
}

// Names publishes the own name and address, waits for those of all ranks, and makes the workers known to c. It returns the
// names in the order of the ranks, or [ErrRestart] if the ranks have to come together again.
func (w *World) Names(ctx context.Context, c Caller, addr string) ([]string, error) {
	m := worldcore.NewNaming(w.self(), w.round, addr, w.mixed)
	w.drive(ctx, m, func(ctx context.Context, op worldcore.Op) worldcore.Event { return w.deal(ctx, c, nil, op) })
	names := make([]string, len(m.Workers()))
	for i, x := range m.Workers() {
		names[i] = x.Name
	}
	return names, m.Err()
}

// LatestRound is the last round with a world, or 0.
func (w *World) LatestRound(ctx context.Context) (int, error) {
	m := worldcore.NewLatest()
	w.drive(ctx, m, nil)
	return m.Round(), m.Err()
}
