// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package keytable

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// TestTable compares the key table with a map.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, want := New(), map[string]string{}
		for range rapid.IntRange(0, 2000).Draw(t, "steps") {
			key := fmt.Sprint("key", rapid.IntRange(0, 300).Draw(t, "key"))
			value := string(make([]byte, rapid.SampledFrom([]int{0, 1, 30, 500, 5000}).Draw(t, "size")))
			e := table.Find([]byte(key))
			if _, ok := want[key]; ok != (e != nil) {
				t.Fatalf("%s: found %v", key, e != nil)
			}
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				if table.Remove([]byte(key)) != (e != nil) {
					t.Fatalf("remove %s", key)
				}
				delete(want, key)
			case 1:
				if e != nil {
					table.Extend(e, []byte("x"))
					want[key] += "x"
				}
			default:
				if e == nil {
					table.Insert(Pair([]byte(key), []byte(value)), len(key))
				} else {
					table.Set(e, []byte(value))
				}
				want[key] = value
			}
		}
		got, size := map[string]string{}, int64(0)
		for n, _ := table.used.Next(0); n != NoBit; n, _ = table.used.Next(n + 1) {
			e := table.at(uint32(n))
			got[string(e.Key())] = string(e.Value())
			size += int64(cap(e.data)) + EntryCost
		}
		if len(got) != len(want) || table.count != len(want) || table.bytes != size {
			t.Fatalf("%d keys, counted %d, want %d; %d bytes, counted %d", len(got), table.count, len(want), size, table.bytes)
		}
		for k, v := range want {
			if got[k] != v {
				t.Fatalf("%s: %d bytes, want %d", k, len(got[k]), len(v))
			}
		}
	})
}

func TestIndexGrowsAFewSlotsAtATime(t *testing.T) {
	table := New()
	for i := range 100_000 {
		moved, old := table.moved, len(table.old)
		key := fmt.Append(nil, "key", i)
		table.Insert(key, len(key))
		if old == len(table.old) && table.moved-moved > moveSlots {
			t.Fatalf("key %d moved %d slots", i, table.moved-moved)
		}
		if old > 0 && len(table.old) > old {
			t.Fatalf("key %d: the index grew again before it had been moved", i)
		}
	}
}

// TestWalk: a walk visits each key of the moment at which it began once, while keys come, go and come back, and while others walk.
func TestWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type walk struct {
			*Walk
			want map[string]bool
			seen []string
		}
		table, have := New(), map[string]bool{}
		var walks []*walk
		for range rapid.IntRange(0, 500).Draw(t, "steps") {
			key := fmt.Sprint("key", rapid.IntRange(0, 50).Draw(t, "key"))
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op == 0:
				w := &walk{want: maps.Clone(have)}
				w.Walk = table.Walk(func(e *Entry) { w.seen = append(w.seen, string(e.Key())) })
				walks = append(walks, w)
			case op < 4 && len(walks) > 0:
				if w := walks[rapid.IntRange(0, len(walks)-1).Draw(t, "walk")]; !w.Done() {
					if e, _, ok := w.Next(); ok {
						w.seen = append(w.seen, string(e.Key()))
					}
				}
			case have[key]:
				table.Remove([]byte(key))
				delete(have, key)
			default:
				table.Insert([]byte(key), len(key))
				have[key] = true
			}
		}
		for _, w := range walks {
			for !w.Done() {
				if e, _, ok := w.Next(); ok {
					w.seen = append(w.seen, string(e.Key()))
				}
			}
			w.End()
			slices.Sort(w.seen)
			if want := slices.Sorted(maps.Keys(w.want)); !slices.Equal(w.seen, want) {
				t.Fatalf("visited %v, want %v", w.seen, want)
			}
		}
		if table.Walks() != 0 {
			t.Fatalf("%d walks are left", table.Walks())
		}
	})
}

// TestHashStays: the hash of a key stays the same for the life of a table, also when all keys have gone.
func TestHashStays(t *testing.T) {
	table := New()
	want := table.Hash([]byte("key"))
	for i := range 2 * chunkSize {
		key := fmt.Append(nil, i)
		table.Insert(key, len(key))
	}
	for i := range 2 * chunkSize {
		table.Remove(fmt.Append(nil, i))
	}
	if table.Len() != 0 || len(table.chunks) != 0 {
		t.Fatalf("%d keys and %d chunks are left", table.Len(), len(table.chunks))
	}
	if got := table.Hash([]byte("key")); got != want {
		t.Errorf("the hash was %x and is %x", want, got)
	}
}

// Walks over values get each key with the value that it had when they began, whatever is changed meanwhile, and walks over keys each key
// once.
func TestWalkValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type walk struct {
			*Walk
			want, seen []string
		}
		table, have := New(), map[string]string{}
		var walks []*walk
		visit := func(w *walk, e *Entry) {
			if w.values {
				w.seen = append(w.seen, string(e.Key())+"="+string(e.Value()))
			} else {
				w.seen = append(w.seen, string(e.Key()))
			}
		}
		begin := func(values bool) {
			w := &walk{}
			for key, value := range have {
				if values {
					key += "=" + value
				}
				w.want = append(w.want, key)
			}
			if w.Walk = table.Walk(nil); values {
				w.End()
				w.Walk = table.WalkValues(nil)
			}
			w.gone = func(e *Entry) { visit(w, e) }
			walks = append(walks, w)
		}
		change := func(key, value string, how int) {
			e := table.Find([]byte(key))
			switch {
			case e == nil:
				table.Insert(Pair([]byte(key), []byte(value)), len(key))
				have[key] = value
			case how == 0:
				table.Set(e, []byte(value))
				have[key] = value
			case how == 1:
				table.Replace(e, Pair([]byte(key), []byte(value)))
				have[key] = value
			case how == 2:
				table.Extend(e, []byte(value))
				have[key] += value
			default:
				table.Remove([]byte(key))
				delete(have, key)
			}
		}
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 19).Draw(t, "op"); {
			case op < 2:
				begin(op == 0)
			case op < 8 && len(walks) > 0:
				if w := walks[rapid.IntRange(0, len(walks)-1).Draw(t, "walk")]; !w.Done() {
					if e, _, ok := w.Next(); ok {
						visit(w, e)
					}
				}
			default:
				change(strconv.Itoa(rapid.IntRange(0, 90).Draw(t, "key")), rapid.StringN(0, 9, 9).Draw(t, "value"), op%4)
			}
		}
		for _, w := range walks {
			for !w.Done() {
				if e, _, ok := w.Next(); ok {
					visit(w, e)
				}
			}
			slices.Sort(w.want)
			slices.Sort(w.seen)
			if !slices.Equal(w.seen, w.want) {
				t.Fatalf("a walk saw %q, want %q", w.seen, w.want)
			}
			w.End()
		}
		if table.valued != 0 || len(table.walks) != 0 {
			t.Fatalf("%d and %d walks are left", table.valued, len(table.walks))
		}
	})
}
