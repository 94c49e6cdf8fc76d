// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
)

// AnyRef is a *[Ref] of any type.
type AnyRef interface {
	ID() string
	Owner() WorkerInfo
}

// Holder is implemented by objects that hold references, so that [Cycles] and [Agent.References] can follow them.
// HeldReferences may be called at any time, from any goroutine. Some objects need not implement it: references
// themselves, and slices and structs whose references are in exported fields that do not change once the object has been
// made.
type Holder interface{ HeldReferences() []AnyRef }

// HoldInfo is a reference that an object keeps.
type HoldInfo struct {
	ID   string `json:"id"`             // the object it refers to
	Fork string `json:"fork,omitempty"` // the fork; empty for an object of the same worker
}

// Cycles finds objects that keep only each other alive: references among objects of different workers that form a cycle
// are never freed, here as in PyTorch. It takes the results of [Agent.References] of all workers, taken while no
// references are being passed on, and returns the ids of the objects of each cycle and of those that they keep alive. To
// free them, close one of the references.
func Cycles(workers ...ReferenceInfo) [][]string {
	objects := map[string]ObjectInfo{}
	holderOf := map[string]string{} // fork -> object that keeps it
	local := map[string][]string{}  // object -> objects of the same worker that keep it
	for _, w := range workers {
		for _, o := range w.Objects {
			objects[o.ID] = o
			for _, h := range o.Holds {
				if h.Fork != "" {
					holderOf[h.Fork] = o.ID
				} else {
					local[h.ID] = append(local[h.ID], o.ID)
				}
			}
		}
	}
	// An object that is kept by something outside this set is alive, and so is all that it keeps.
	garbage := map[string]bool{}
	for id := range objects {
		garbage[id] = true
	}
	for changed := true; changed; {
		changed = false
		for id := range garbage {
			if !keptBy(objects[id], holderOf, local[id], garbage) {
				delete(garbage, id)
				changed = true
			}
		}
	}
	near := map[string][]string{}
	for id := range garbage {
		near[id] = nil
		for _, h := range objects[id].Holds {
			if garbage[h.ID] {
				near[id] = append(near[id], h.ID)
			}
		}
	}
	return connectedComponents(near)
}

// keptBy reports whether an object is kept by members of the set only.
func keptBy(o ObjectInfo, holderOf map[string]string, local []string, set map[string]bool) bool {
	if o.Local != len(local) || len(o.Forks)+len(local) == 0 {
		return false
	}
	for _, f := range o.Forks {
		if !set[holderOf[f.ID]] {
			return false
		}
	}
	return !slices.ContainsFunc(local, func(id string) bool { return !set[id] })
}

// holds returns the references that an object keeps: those that its value names, if it is a [Holder], else those that could
// be seen in it when it was made. Its owner may change the value at any time, so it cannot be inspected later.
func (c *config) holds(o *rpcref.Object) []HoldInfo {
	value, cores := o.Held()
	if h, ok := value.(Holder); ok {
		cores = nil
		refs, _ := safecall.Get(c.panics, "rpc: holder", func() ([]AnyRef, error) { return h.HeldReferences(), nil })
		for _, ref := range refs {
			if core := coreOf(ref); core != nil {
				cores = append(cores, core)
			}
		}
	}
	var found []HoldInfo
	for _, core := range cores {
		if id, fork, open := core.Names(); open {
			found = append(found, HoldInfo{ID: id, Fork: fork})
		}
	}
	return found
}

// connectedComponents returns the connected components of an undirected graph: each with its members in order, the
// components in the order of their first members. near has an entry for every member, with its neighbours; an edge may
// stand at either end.
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
