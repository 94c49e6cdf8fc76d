// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package keytable is the key space of a store server: a table of keys and values that never stops for long, however
// large it is. Its index grows and shrinks a few slots at a time, and [Table.Walk] lists the keys of one moment while
// they are added and removed.
package keytable

import (
	"bytes"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
)

// Table is an open-addressed index over entries that sit in chunks. Key and value share one allocation, so that a small pair costs its
// bytes and about sixty more, and the index holds no pointers for the collector to follow.
type Table struct {
	seed   maphash.Seed
	slots  index     // of all entries that are not in old
	old    index     // an index of another size that is being moved into slots, a few entries with each key that comes or goes
	moved  int       // slots of old below this one are empty
	chunks [][]Entry // all of chunkSize
	fresh  int       // entries ever used; those above are new
	free   uint32    // number plus one of the first recycled entry
	used   Bitset    // the entries that are keys

	walks  []*Walk // that must know which entries go
	begun  uint64  // walks ever
	valued int     // walks that must also know which entries change

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
	// EntryCost is what a key takes beside its bytes: its entry and its share of the index.
	EntryCost = 56
	// FixedSize is the largest value whose memory is used again for another one. That of a larger value never changes, so that others
	// may refer to it.
	FixedSize = 4 << 10
)

// Entry is one key. A recycled entry links to the next one through keyLen.
type Entry struct {
	data   []byte // the key, then the value
	keyLen uint32
	hash   uint32
	born   uint64 // how many walks had begun when the key came
}

// Key returns the key.
func (e *Entry) Key() []byte { return e.data[:e.keyLen] }

// Value returns the value, which the next change may change in place unless it is larger than FixedSize.
func (e *Entry) Value() []byte { return e.data[e.keyLen:] }

// Data returns the memory of both.
func (e *Entry) Data() []byte { return e.data }

// New returns a table without keys.
func New() *Table {
	return &Table{seed: maphash.MakeSeed(), slots: make(index, firstSlots)}
}

// Len returns the number of keys.
func (t *Table) Len() int { return t.count }

// KeyBytes returns the length of all keys together.
func (t *Table) KeyBytes() int { return t.keyBytes }

// Bytes returns the memory that keys and values take.
func (t *Table) Bytes() int64 { return t.bytes }

func (t *Table) at(n uint32) *Entry { return &t.chunks[n/chunkSize][n%chunkSize] }

// Hash returns a number that another key hardly ever has, in this table. It stays the same for the life of the table.
func (t *Table) Hash(key []byte) uint64 { return maphash.Bytes(t.seed, key) }

// Find returns the entry of key, or nil.
func (t *Table) Find(key []byte) *Entry {
	hash := uint32(t.Hash(key)) //nolint:gosec // the low half is enough
	if e := t.findIn(t.slots, key, hash); e != nil || t.old == nil {
		return e
	}
	return t.findIn(t.old, key, hash)
}

func (t *Table) findIn(slots index, key []byte, hash uint32) *Entry {
	mask := uint32(len(slots) - 1) //nolint:gosec // a power of two below 2^32
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := slots[i]
		if slot == 0 {
			return nil
		}
		if uint32(slot>>32) != hash {
			continue
		}
		if e := t.at(uint32(slot) - 1); bytes.Equal(e.Key(), key) { //nolint:gosec // the low half
			return e
		}
	}
}

// Pair returns key and value in memory of their own.
func Pair(key, value []byte) []byte {
	data := slices.Grow([]byte(nil), len(key)+len(value))
	return append(append(data, key...), value...)
}

// Insert adds a key that is not there. The table keeps data, the key, of keyLen bytes, and its value.
func (t *Table) Insert(data []byte, keyLen int) {
	key := data[:keyLen]
	if (t.count+1)*8 > len(t.slots)*7 {
		t.move(2 * len(t.old)) // all that is left, which is little or nothing: it is moved faster than keys can come
		t.old, t.moved = t.slots, 0
		t.slots = make(index, 2*len(t.old))
	}
	if t.old != nil {
		t.move(moveSlots)
	}
	hash := uint32(t.Hash(key)) //nolint:gosec // the low half is enough
	var n uint32
	if t.free != 0 {
		n = t.free - 1
		t.free = t.at(n).keyLen
	} else {
		n = uint32(t.fresh) //nolint:gosec // bounded by memory
		if t.fresh == len(t.chunks)*chunkSize {
			t.chunks = append(t.chunks, make([]Entry, chunkSize))
		}
		t.fresh++
	}
	e := t.at(n)
	e.data = data
	e.keyLen, e.hash, e.born = uint32(len(key)), hash, t.begun //nolint:gosec // a key is far below 4 GiB
	t.count++
	t.keyBytes += len(key)
	t.bytes += int64(cap(e.data)) + EntryCost
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
func (t *Table) move(n int) {
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

// Set replaces the value of an entry. Memory is used again where it fits and not much of it would be wasted; never that of a
// value larger than FixedSize.
func (t *Table) Set(e *Entry, value []byte) {
	if t.valued > 0 {
		t.changing(e)
	}
	need := int(e.keyLen) + len(value)
	if have := cap(e.data); len(e.Value()) <= FixedSize && need <= have && have <= 2*need+256 {
		e.data = append(e.data[:e.keyLen], value...)
		return
	}
	t.replace(e, Pair(e.Key(), value))
}

// Replace gives an entry other memory with the same key. The table keeps data.
func (t *Table) Replace(e *Entry, data []byte) {
	if t.valued > 0 {
		t.changing(e)
	}
	t.replace(e, data)
}

func (t *Table) replace(e *Entry, data []byte) {
	t.bytes += int64(cap(data) - cap(e.data))
	e.data = data
}

// Extension is how much more memory an entry takes when n bytes are put behind its value.
func (t *Table) Extension(e *Entry, n int) int {
	need := len(e.data) + n
	if need <= cap(e.data) {
		return 0
	}
	return max(need, cap(e.data)+cap(e.data)/4) - cap(e.data)
}

// Extend puts more behind the value of an entry. What others refer to stays as it is.
func (t *Table) Extend(e *Entry, more []byte) {
	if t.valued > 0 {
		t.changing(e)
	}
	t.bytes -= int64(cap(e.data))
	if n := t.Extension(e, len(more)); n > 0 {
		e.data = append(make([]byte, 0, cap(e.data)+n), e.data...)
	}
	e.data = append(e.data, more...)
	t.bytes += int64(cap(e.data))
}

// Remove deletes key, and reports whether it was there.
func (t *Table) Remove(key []byte) bool {
	e := t.Find(key)
	if e == nil {
		return false
	}
	n, ok := t.unlink(t.slots, e)
	if !ok {
		n, _ = t.unlink(t.old, e)
	}
	for _, w := range t.walks {
		w.went(n, e)
	}
	t.used.Remove(int(n))
	t.bytes -= int64(cap(e.data)) + EntryCost
	t.keyBytes -= int(e.keyLen)
	*e = Entry{keyLen: t.free}
	t.free = n + 1
	t.count--
	t.shrink()
	return true
}

// shrink gives memory back: all of it when nothing is left, and an index that is far too large, a few slots with each key
// that goes.
func (t *Table) shrink() {
	switch {
	case t.count == 0 && t.fresh > chunkSize && len(t.walks) == 0:
		*t = Table{seed: t.seed, slots: make(index, firstSlots)} // hashes stay
	case t.old != nil:
		t.move(4 * moveSlots) // the keys become fewer while it is moved: be faster than they go
	case len(t.slots) > firstSlots && t.count*16 < len(t.slots):
		t.old, t.moved = t.slots, 0
		t.slots = make(index, len(t.old)/4)
	}
}

// unlink takes an entry out of an index, if it is there, and returns its number.
func (t *Table) unlink(slots index, e *Entry) (n uint32, ok bool) {
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

// changing is called before the value of an entry changes while walks look at values. It is as if the key went and came again: the
// walks get what it was, and it is newer than they are.
func (t *Table) changing(e *Entry) {
	n, ok := t.slots.number(t, e)
	if !ok {
		n, _ = t.old.number(t, e)
	}
	for _, w := range t.walks {
		w.went(n, e)
	}
	e.born = t.begun
}

// number returns the number of an entry, if it is in this index.
func (s index) number(t *Table, e *Entry) (n uint32, ok bool) {
	if s == nil {
		return 0, false
	}
	mask := uint32(len(s) - 1) //nolint:gosec // a power of two below 2^32
	for i := e.hash & mask; s[i] != 0; i = (i + 1) & mask {
		if n := uint32(s[i]) - 1; uint32(s[i]>>32) == e.hash && t.at(n) == e { //nolint:gosec // the two halves
			return n, true
		}
	}
	return 0, false
}

// Bitset is a set of small numbers in which the next one is found quickly, also where there are few of once many: a bit for
// each number, and a bit for each word of those that is not empty.
type Bitset struct{ low, high []uint64 }

// Add puts a number into the set.
func (s *Bitset) Add(n int) {
	for n>>6 >= len(s.low) {
		s.low = append(s.low, 0)
	}
	for n>>12 >= len(s.high) {
		s.high = append(s.high, 0)
	}
	s.low[n>>6] |= 1 << (n & 63)
	s.high[n>>12] |= 1 << (n >> 6 & 63)
}

// Remove takes a number out of the set that is in it.
func (s *Bitset) Remove(n int) {
	if s.low[n>>6] &^= 1 << (n & 63); s.low[n>>6] == 0 {
		s.high[n>>12] &^= 1 << (n >> 6 & 63)
	}
}

// Next returns the first number from n on that is in the set, or [None], and how many words it looked at.
func (s *Bitset) Next(n int) (found, looked int) {
	word := n >> 6
	if word >= len(s.low) {
		return NoBit, 1
	}
	if left := s.low[word] &^ (1<<(n&63) - 1); left != 0 {
		return word<<6 + bits.TrailingZeros64(left), 1
	}
	word++
	mask := ^uint64(0) << (word & 63)
	for h := word >> 6; h < len(s.high); h++ {
		looked++
		if left := s.high[h] & mask; left != 0 {
			word = h<<6 + bits.TrailingZeros64(left)
			return word<<6 + bits.TrailingZeros64(s.low[word]), looked + 1
		}
		mask = ^uint64(0)
	}
	return NoBit, looked + 1
}

// NoBit is more than any number in a set.
const NoBit = math.MaxInt

// Walk visits the keys that a table has at one moment, a few at a time: those that come later say so, and the table tells it of those
// that go meanwhile.
type Walk struct {
	table  *Table
	gone   func(e *Entry)
	values bool
	at     int    // entries below are done with
	end    int    // those from here on are newer
	turn   uint64 // among all walks of the table: in between, those that came in it or later are newer, too
}

// Walk begins a walk over the keys that the table has now. A key that is deleted before Next comes to it is passed to gone instead.
// The caller ends a walk that it has begun.
func (t *Table) Walk(gone func(e *Entry)) *Walk {
	t.begun++
	w := &Walk{table: t, gone: gone, end: t.fresh, turn: t.begun}
	t.walks = append(t.walks, w)
	return w
}

// WalkValues is Walk for the values, too: a key whose value changes before Next comes to it is passed to gone before that.
func (t *Table) WalkValues(gone func(e *Entry)) *Walk {
	w := t.Walk(gone)
	w.values = true
	t.valued++
	return w
}

// Walks returns how many walks have not ended.
func (t *Table) Walks() int { return len(t.walks) }

// Done reports whether all keys have been visited.
func (w *Walk) Done() bool { return w.at >= w.end }

// Next goes on to the next key. There may be none, or it may be newer than the walk: then ok is false. looked says what it took to find
// it.
func (w *Walk) Next() (e *Entry, looked int, ok bool) {
	n, looked := w.table.used.Next(w.at)
	if w.at = min(n, w.end); w.at == w.end {
		return nil, looked, false
	}
	w.at++
	e = w.table.at(uint32(n)) //nolint:gosec // the number of an entry
	return e, looked, e.born < w.turn
}

// went is called before entry n is not used any more.
func (w *Walk) went(n uint32, e *Entry) {
	if int(n) >= w.at && int(n) < w.end && e.born < w.turn {
		w.gone(e)
	}
}

// End ends the walk, done or not.
func (w *Walk) End() {
	if w.values {
		w.values = false
		w.table.valued--
	}
	w.table.walks = slices.DeleteFunc(w.table.walks, func(o *Walk) bool { return o == w })
}
