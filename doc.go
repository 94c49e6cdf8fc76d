// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package cohort holds the vocabulary of the module, torch.distributed in Go on PyTorch's own wires: ranks, error codes, the error type
// and futures.
//
// A program starts with world.Join, which returns the store, the rank and the groups of a job:
//
//	w, err := world.Join(ctx, "env://")
//	if err != nil {
//		return err
//	}
//	defer w.Close()
//
// This package imports no other package of the module, so stores, groups and agents can all use it without depending on each other.
// Programs use it mostly to inspect errors:
//
//	var e *cohort.Error
//	if errors.As(err, &e) && e.Code == cohort.PeerLost {
//		log.Printf("rank %d on %s was lost", e.Rank, e.Peer)
//	}
//
// A [Code] is itself an error, so errors.Is(err, cohort.PeerLost) does the same in one line.
package cohort
