// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// This file finds the connected components of a graph.
package rpc

import (
	"cmp"
	"maps"
	"slices"
)

// connectedComponents returns the connected components of an undirected graph: each with its members in order, the components in the order of their
// first members. near has an entry for every member, with its neighbours; an edge may stand at either end.
func connectedComponents[T cmp.Ordered](near map[T][]T) [][]T {
	both := make(map[T][]T, len(near))
	for a, list := range near {
		for _, b := range list {
			both[a], both[b] = append(both[a], b), append(both[b], a)
		}
	}
	var all [][]T
	seen := map[T]bool{}
	for _, first := range slices.Sorted(maps.Keys(near)) {
		if seen[first] {
			continue
		}
		seen[first] = true
		component := []T{first}
		for i := 0; i < len(component); i++ {
			for _, next := range both[component[i]] {
				if !seen[next] {
					seen[next] = true
					component = append(component, next)
				}
			}
		}
		slices.Sort(component)
		all = append(all, component)
	}
	return all
}
