// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package dist holds the few words that every layer of cohort shares: ranks, error codes, the one error type and the
// future of a single value.
//
// It imports nothing of cohort, so stores, groups and agents can all speak it without knowing each other. Programs meet
// it mostly through errors:
//
//	var e *dist.Error
//	if errors.As(err, &e) && e.Code == dist.PeerLost {
//	    log.Printf("rank %d on %s is gone", e.Rank, e.Peer)
//	}
//
// A [Code] is itself an error, so errors.Is(err, dist.PeerLost) asks the same question in one line.
package dist
