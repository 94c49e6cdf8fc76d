// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"hash/maphash"
	"slices"
)

// table is the key space: an open-addressed index over entries that sit in chunks. Key and value share one allocation,
// so that a small pair costs its bytes and about fifty more, and the index holds no pointers for the collector to
// follow.
type table struct {
	seed   maphash.Seed
	slots  []uint64  // high half: hash; low half: entry number plus one, 0 for a free slot
	chunks [][]entry // all of chunkSize
	fresh  int       // entries ever used; those above are new
	free   uint32    // number plus one of the first recycled entry
	count  int       // keys
	bytes  int64     // memory of keys and values
}

const (
	chunkSize  = 1 << 8
	firstSlots = 1 << 6
	// entryCost is what a key takes beside its bytes: its entry and its share of the index.
	entryCost = 48
)

// entry is one key. A recycled entry links to the next one through keyLen.
type entry struct {
	data   []byte // the key, then the value
	keyLen uint32
	hash   uint32
}

func (e *entry) key() []byte   { return e.data[:e.keyLen] }
func (e *entry) value() []byte { return e.data[e.keyLen:] }

func newTable() *table {
	return &table{seed: maphash.MakeSeed(), slots: make([]uint64, firstSlots)}
}

func (t *table) at(n uint32) *entry { return &t.chunks[n/chunkSize][n%chunkSize] }

// find returns the entry of key, or nil.
func (t *table) find(key []byte) *entry {
	hash := uint32(maphash.Bytes(t.seed, key)) //nolint:gosec // the low half is enough
	mask := uint32(len(t.slots) - 1)           //nolint:gosec // a power of two below 2^32
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := t.slots[i]
		if slot == 0 {
			return nil
		}
		if uint32(slot>>32) != hash {
			continue
		}
		if e := t.at(uint32(slot) - 1); bytes.Equal(e.key(), key) { //nolint:gosec // the low half
			return e
		}
	}
}

// insert adds a key that is not there.
func (t *table) insert(key, value []byte) {
	if (t.count+1)*8 > len(t.slots)*7 {
		t.grow()
	}
	hash := uint32(maphash.Bytes(t.seed, key)) //nolint:gosec // the low half is enough
	var n uint32
	if t.free != 0 {
		n = t.free - 1
		t.free = t.at(n).keyLen
	} else {
		n = uint32(t.fresh) //nolint:gosec // bounded by memory
		if t.fresh == len(t.chunks)*chunkSize {
			t.chunks = append(t.chunks, make([]entry, chunkSize))
		}
		t.fresh++
	}
	e := t.at(n)
	data := slices.Grow([]byte(nil), len(key)+len(value))
	e.data = append(append(data, key...), value...)
	e.keyLen, e.hash = uint32(len(key)), hash //nolint:gosec // a key is far below 4 GiB
	t.count++
	t.bytes += int64(cap(e.data)) + entryCost
	t.place(hash, n)
}

func (t *table) place(hash, n uint32) {
	mask := uint32(len(t.slots) - 1) //nolint:gosec // a power of two below 2^32
	i := hash & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = uint64(hash)<<32 | uint64(n+1)
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]uint64, 2*len(old))
	for _, slot := range old {
		if slot != 0 {
			t.place(uint32(slot>>32), uint32(slot)-1) //nolint:gosec // the two halves
		}
	}
}

// set replaces the value of an entry. Memory is used again where it fits and not much of it would be wasted.
func (t *table) set(e *entry, value []byte) {
	need := int(e.keyLen) + len(value)
	if have := cap(e.data); need <= have && have <= 2*need+256 {
		e.data = append(e.data[:e.keyLen], value...)
		return
	}
	t.bytes -= int64(cap(e.data))
	data := slices.Grow([]byte(nil), need)
	e.data = append(append(data, e.key()...), value...)
	t.bytes += int64(cap(e.data))
}

// extend puts more behind the value of an entry.
func (t *table) extend(e *entry, more []byte) {
	t.bytes -= int64(cap(e.data))
	e.data = append(e.data, more...)
	t.bytes += int64(cap(e.data))
}

// remove deletes key, if it is there.
func (t *table) remove(key []byte) bool {
	e := t.find(key)
	if e == nil {
		return false
	}
	mask := uint32(len(t.slots) - 1) //nolint:gosec // a power of two below 2^32
	i := e.hash & mask
	for {
		slot := t.slots[i]
		if uint32(slot>>32) == e.hash && t.at(uint32(slot)-1) == e { //nolint:gosec // the two halves
			break
		}
		i = (i + 1) & mask
	}
	n := uint32(t.slots[i]) - 1 //nolint:gosec // the low half
	// Close the gap: move back every later slot of this run that may stand here.
	for j := i; ; {
		j = (j + 1) & mask
		slot := t.slots[j]
		if slot == 0 {
			break
		}
		home := uint32(slot>>32) & mask
		if (j-home)&mask >= (j-i)&mask {
			t.slots[i] = slot
			i = j
		}
	}
	t.slots[i] = 0
	t.bytes -= int64(cap(e.data)) + entryCost
	*e = entry{keyLen: t.free}
	t.free = n + 1
	t.count--
	return true
}

// each calls fn for every key in no particular order.
func (t *table) each(fn func(e *entry)) {
	for _, slot := range t.slots {
		if slot != 0 {
			fn(t.at(uint32(slot) - 1)) //nolint:gosec // the low half
		}
	}
}
