// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// keyValue is the replicated state of the simulation: counters, and the last answer of each session.
type keyValue struct {
	values   map[uint64]int64
	sessions map[uint64]answer
	applied  uint64
	// forgetful: the record of answered requests is missing.
	forgetful bool
}

type answer struct {
	seq   uint64
	value int64
}

// request is what a client asks for.
type request struct {
	session, seq uint64
	op           byte // 'a' adds, 'p' puts, 'g' gets
	key          uint64
	arg          int64
}

func newKeyValue(forgetful bool) *keyValue {
	return &keyValue{values: map[uint64]int64{}, sessions: map[uint64]answer{}, forgetful: forgetful}
}

// apply carries out a command once, however often it was proposed.
func (kv *keyValue) apply(index uint64, payload []byte) (a answer, fresh bool) {
	r := decodeRequest(payload)
	if index <= kv.applied {
		panic(fmt.Sprintf("entry %d is applied after entry %d", index, kv.applied))
	}
	kv.applied = index
	if last := kv.sessions[r.session]; !kv.forgetful && r.seq <= last.seq {
		return last, false
	}
	switch r.op {
	case 'a':
		kv.values[r.key] += r.arg
	case 'p':
		kv.values[r.key] = r.arg
	}
	a = answer{r.seq, kv.values[r.key]}
	kv.sessions[r.session] = a
	return a, true
}

func (r request) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, r.session)
	b = binary.LittleEndian.AppendUint64(b, r.seq)
	b = append(b, r.op)
	b = binary.LittleEndian.AppendUint64(b, r.key)
	return binary.LittleEndian.AppendUint64(b, uint64(r.arg))
}

func decodeRequest(b []byte) request {
	if len(b) != 33 {
		panic(fmt.Sprintf("a command has %d bytes", len(b)))
	}
	u := binary.LittleEndian.Uint64
	return request{u(b), u(b[8:]), b[16], u(b[17:]), int64(u(b[25:]))}
}

// snapshot is the whole state as bytes, the same for equal states.
func (kv *keyValue) snapshot() []byte {
	b := binary.LittleEndian.AppendUint64(nil, kv.applied)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(kv.values)))
	for _, k := range slices.Sorted(maps.Keys(kv.values)) {
		b = binary.LittleEndian.AppendUint64(b, k)
		b = binary.LittleEndian.AppendUint64(b, uint64(kv.values[k]))
	}
	for _, k := range slices.Sorted(maps.Keys(kv.sessions)) {
		b = binary.LittleEndian.AppendUint64(b, k)
		b = binary.LittleEndian.AppendUint64(b, kv.sessions[k].seq)
		b = binary.LittleEndian.AppendUint64(b, uint64(kv.sessions[k].value))
	}
	return b
}

func (kv *keyValue) restore(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	next := func() (v uint64) {
		if len(b) < 8 {
			err = errors.New("the snapshot is cut off")
			return 0
		}
		v, b = binary.LittleEndian.Uint64(b), b[8:]
		return v
	}
	*kv = *newKeyValue(kv.forgetful)
	kv.applied = next()
	for n := next(); n > 0 && err == nil; n-- {
		k := next()
		kv.values[k] = int64(next())
	}
	for len(b) > 0 && err == nil {
		k := next()
		kv.sessions[k] = answer{next(), int64(next())}
	}
	return err
}
