// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ilist

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type item struct {
	n    int
	a, b Place[item]
}

// TestList compares two lists of the same items with slices, through additions and removals in any order.
func TestList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var a, b List[item]
	var wantA, wantB []int
	items := make([]item, 20)
	for i := range items {
		items[i].n = i
	}
	toggle := func(l *List[item], p *Place[item], it *item, want []int) []int {
		if at := slices.Index(want, it.n); at >= 0 {
			l.Remove(p)
			return slices.Delete(want, at, at+1)
		}
		l.Add(p, it)
		return append(want, it.n)
	}
	listed := func(l *List[item]) (got []int) {
		var last *Place[item]
		for p := l.First(); p != nil; p = p.Next() {
			if p.prev != last {
				t.Fatal("a place has a wrong predecessor")
			}
			got, last = append(got, p.Of().n), p
		}
		if l.last != last {
			t.Fatal("the list does not know its end")
		}
		return got
	}
	for range 10_000 {
		it := &items[r.IntN(len(items))]
		if r.IntN(2) == 0 {
			wantA = toggle(&a, &it.a, it, wantA)
		} else {
			wantB = toggle(&b, &it.b, it, wantB)
		}
		if got := listed(&a); !slices.Equal(got, wantA) {
			t.Fatalf("got %v, want %v", got, wantA)
		}
		if got := listed(&b); !slices.Equal(got, wantB) {
			t.Fatalf("got %v, want %v", got, wantB)
		}
	}
}
