// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tombstone remembers the most recent of many finished things, so that a late or repeated message cannot revive them.
package tombstone

import "maps"

// Set remembers the last keys that were added. The zero value is empty. Two tables take turns, since a table from which the
// oldest are taken one by one grows beyond what it holds.
type Set[K comparable] struct{ young, old map[K]struct{} }

// Has reports whether a key is remembered.
func (s *Set[K]) Has(key K) bool {
	_, young := s.young[key]
	_, old := s.old[key]
	return young || old
}

// Add remembers a key, and forgets the older half if there are most of them.
func (s *Set[K]) Add(key K, most int) {
	if s.Has(key) {
		return
	}
	if s.young == nil || len(s.young) >= max(most/2, 1) {
		s.young, s.old = s.old, s.young
		clear(s.young)
		if s.young == nil {
			s.young = map[K]struct{}{}
		}
	}
	s.young[key] = struct{}{}
}

// Forget forgets the keys for which of is true.
func (s *Set[K]) Forget(of func(K) bool) {
	for _, table := range []map[K]struct{}{s.young, s.old} {
		maps.DeleteFunc(table, func(key K, _ struct{}) bool { return of(key) })
	}
}

// Tables returns the two tables: what will be remembered longer, and what is forgotten next.
func (s *Set[K]) Tables() (young, old map[K]struct{}) { return s.young, s.old }

// Clone returns a copy.
func (s *Set[K]) Clone() Set[K] { return Set[K]{maps.Clone(s.young), maps.Clone(s.old)} }
