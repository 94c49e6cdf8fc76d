// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"hash/maphash"
	"slices"

	"github.com/cohort-dist/cohort/internal/marks"
)

// table is the key space: an open-addressed index over entries that sit in chunks. Key and value share one allocation,
// so that a small pair costs its bytes and about sixty more, and the index holds no pointers for the collector to
// follow.
type table struct {
	seed   maphash.Seed
	slots  index     // of all entries that are not in old
	old    index     // a smaller index that is being moved into slots, a few entries with each key that comes
	moved  int       // slots of old below this one are empty
	chunks [][]entry // all of chunkSize
	fresh  int       // entries ever used; those above are new
	free   uint32    // number plus one of the first recycled entry
	used   marks.Set // the entries that are keys

	listings []*listing // that must know which entries go
	begun    uint64     // listings ever

	count    int   // keys
	keyBytes int   // their length
	bytes    int64 // memory of keys and values
}

// index maps hashes to entries. High half of a slot: hash; low half: entry number plus one, 0 for a free slot. The slots
// of a hash begin at its low bits and go on without a gap.
type index []uint64

const (
	chunkSize  = 1 << 8
	firstSlots = 1 << 6
	// entryCost is what a key takes beside its bytes: its entry and its share of the index.
	entryCost = 56
)

// entry is one key. A recycled entry links to the next one through keyLen.
type entry struct {
	data   []byte // the key, then the value
	keyLen uint32
	hash   uint32
	born   uint64 // how many listings had begun when the key came
}

func (e *entry) key() []byte   { return e.data[:e.keyLen] }
func (e *entry) value() []byte { return e.data[e.keyLen:] }

func newTable() *table {
	return &table{seed: maphash.MakeSeed(), slots: make(index, firstSlots)}
}

func (t *table) at(n uint32) *entry { return &t.chunks[n/chunkSize][n%chunkSize] }

func (t *table) hash(key []byte) uint32 {
	return uint32(maphash.Bytes(t.seed, key)) //nolint:gosec // the low half is enough
}

// find returns the entry of key, or nil.
func (t *table) find(key []byte) *entry {
	hash := t.hash(key)
	if e := t.findIn(t.slots, key, hash); e != nil || t.old == nil {
		return e
	}
	return t.findIn(t.old, key, hash)
}

func (t *table) findIn(slots index, key []byte, hash uint32) *entry {
	mask := uint32(len(slots) - 1) //nolint:gosec // a power of two below 2^32
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := slots[i]
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

// pair returns key and value in memory of their own.
func pair(key, value []byte) []byte {
	data := slices.Grow([]byte(nil), len(key)+len(value))
	return append(append(data, key...), value...)
}

// insert adds a key that is not there. The table keeps data, the key, of keyLen bytes, and its value.
func (t *table) insert(data []byte, keyLen int) {
	key := data[:keyLen]
	if (t.count+1)*8 > len(t.slots)*7 {
		t.move(2 * len(t.old)) // all that is left, which is little or nothing: it is moved faster than keys can come
		t.old, t.moved = t.slots, 0
		t.slots = make(index, 2*len(t.old))
	}
	if t.old != nil {
		t.move(moveSlots)
	}
	hash := t.hash(key)
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
	e.data = data
	e.keyLen, e.hash, e.born = uint32(len(key)), hash, t.begun //nolint:gosec // a key is far below 4 GiB
	t.count++
	t.keyBytes += len(key)
	t.bytes += int64(cap(e.data)) + entryCost
	t.slots.place(hash, n)
	t.used.Add(int(n))
}

func (s index) place(hash, n uint32) {
	mask := uint32(len(s) - 1) //nolint:gosec // a power of two below 2^32
	i := hash & mask
	for s[i] != 0 {
		i = (i + 1) & mask
	}
	s[i] = uint64(hash)<<32 | uint64(n+1)
}

// moveSlots is how many slots of the old index each new key empties. The new index has twice as many slots, so that the old
// one, seven eighths full, is empty long before the new one is full.
const moveSlots = 8

// move takes slots of the old index, at most n, into the new one.
func (t *table) move(n int) {
	for ; n > 0 && t.moved < len(t.old); n-- {
		slot := t.old[t.moved]
		if slot == 0 {
			t.moved++
			continue
		}
		t.old.remove(uint32(t.moved))                   //nolint:gosec // below 2^32
		t.slots.place(uint32(slot>>32), uint32(slot)-1) //nolint:gosec // the two halves
	}
	if t.moved == len(t.old) {
		t.old, t.moved = nil, 0
	}
}

// remove empties slot i and closes the gap: it moves back every later slot of this run that may stand there.
func (s index) remove(i uint32) {
	mask := uint32(len(s) - 1) //nolint:gosec // a power of two below 2^32
	for j := i; ; {
		j = (j + 1) & mask
		slot := s[j]
		if slot == 0 {
			break
		}
		home := uint32(slot>>32) & mask
		if (j-home)&mask >= (j-i)&mask {
			s[i] = slot
			i = j
		}
	}
	s[i] = 0
}

// set replaces the value of an entry. Memory is used again where it fits and not much of it would be wasted; never that of a
// large value, which replies may refer to.
func (t *table) set(e *entry, value []byte) {
	need := int(e.keyLen) + len(value)
	if have := cap(e.data); len(e.value()) <= sharedSize && need <= have && have <= 2*need+256 {
		e.data = append(e.data[:e.keyLen], value...)
		return
	}
	t.replace(e, pair(e.key(), value))
}

// replace gives an entry other memory with the same key. The table keeps data.
func (t *table) replace(e *entry, data []byte) {
	t.bytes += int64(cap(data) - cap(e.data))
	e.data = data
}

// extension is how much more memory an entry takes when n bytes are put behind its value.
func (t *table) extension(e *entry, n int) int {
	need := len(e.data) + n
	if need <= cap(e.data) {
		return 0
	}
	return max(need, cap(e.data)+cap(e.data)/4) - cap(e.data)
}

// extend puts more behind the value of an entry. What replies refer to stays as it is.
func (t *table) extend(e *entry, more []byte) {
	t.bytes -= int64(cap(e.data))
	if n := t.extension(e, len(more)); n > 0 {
		e.data = append(make([]byte, 0, cap(e.data)+n), e.data...)
	}
	e.data = append(e.data, more...)
	t.bytes += int64(cap(e.data))
}

// remove deletes key, if it is there.
func (t *table) remove(key []byte) bool {
	e := t.find(key)
	if e == nil {
		return false
	}
	n, ok := t.unlink(t.slots, e)
	if !ok {
		n, _ = t.unlink(t.old, e)
	}
	for _, l := range t.listings {
		l.went(n, e)
	}
	t.used.Remove(int(n))
	t.bytes -= int64(cap(e.data)) + entryCost
	t.keyBytes -= int(e.keyLen)
	*e = entry{keyLen: t.free}
	t.free = n + 1
	t.count--
	t.shrink()
	return true
}

// shrink gives memory back: all of it when nothing is left, and an index that is far too large, a few slots with each key
// that goes. A listing walks the index, so its size must be that of the keys.
func (t *table) shrink() {
	switch {
	case t.count == 0 && t.fresh > chunkSize && len(t.listings) == 0:
		*t = *newTable()
	case t.old != nil:
		t.move(4 * moveSlots) // the keys become fewer while it is moved: be faster than they go
	case len(t.slots) > firstSlots && t.count*16 < len(t.slots):
		t.old, t.moved = t.slots, 0
		t.slots = make(index, len(t.old)/4)
	}
}

// unlink takes an entry out of an index, if it is there, and returns its number.
func (t *table) unlink(slots index, e *entry) (n uint32, ok bool) {
	if slots == nil {
		return 0, false
	}
	mask := uint32(len(slots) - 1) //nolint:gosec // a power of two below 2^32
	for i := e.hash & mask; slots[i] != 0; i = (i + 1) & mask {
		slot := slots[i]
		if n := uint32(slot) - 1; uint32(slot>>32) == e.hash && t.at(n) == e { //nolint:gosec // the two halves
			slots.remove(i)
			return n, true
		}
	}
	return 0, false
}
