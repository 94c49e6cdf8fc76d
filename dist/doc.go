// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package dist holds the few types that every layer of cohort shares: ranks, error codes, the error type and futures.
//
// It imports no other package of cohort, so stores, groups and agents can all use it without depending on each other.
// Programs use it mostly to inspect errors:
//
//	var e *dist.Error
//	if errors.As(err, &e) && e.Code == dist.PeerLost {
//	    log.Printf("rank %d on %s is gone", e.Rank, e.Peer)
//	}
//
// A [Code] is itself an error, so errors.Is(err, dist.PeerLost) does the same in one line.
package dist
