// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"context"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
)

// World is a job as one of its processes sees it. Its methods are safe for concurrent use; two worlds can live in one
// process.
type World struct {
	member *rendezvous.Member
}

// Store returns the store that all ranks share. It ends with the World.
func (w *World) Store() store.Store { return w.member.Store() }

// Rank returns the number of this process in the world. It corresponds to torch.distributed.get_rank.
func (w *World) Rank() dist.Rank { return w.member.Rank() }

// Size returns the number of ranks, or -1 in an open world. It corresponds to torch.distributed.get_world_size.
func (w *World) Size() int { return w.member.Size() }

// Shutdown leaves the world in order: a rank that hosts the store stays until all its clients are gone or ctx ends, and
// in either case everything is closed when Shutdown returns. Its error says if clients were cut off.
//
// It corresponds to torch.distributed.destroy_process_group, which however ends the store while others may use it.
func (w *World) Shutdown(ctx context.Context) error { return w.member.Shutdown(ctx) }

// Close ends the world at once, also while a Shutdown waits. It is idempotent and returns when all goroutines of the
// world have ended.
func (w *World) Close() error { return w.member.Close() }
