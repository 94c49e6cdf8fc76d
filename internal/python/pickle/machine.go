// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"math"

	"github.com/cohort-dist/cohort"
)

// run executes the opcodes up to STOP.
func (r *reader) run() (any, error) {
	for {
		if r.pos >= len(r.data) {
			return nil, r.bad("the pickle ends without STOP")
		}
		op := r.data[r.pos]
		r.pos++
		if r.limits.JIT && !jitOpcodes[op] {
			return nil, r.bad("opcode %#02x is not one of TorchScript's", op)
		}
		if op == opStop {
			v, err := r.pop()
			if err != nil {
				return nil, err
			}
			return v, nil
		}
		if err := r.step(op); err != nil {
			return nil, err
		}
	}
}

// jitOpcodes is what the reader of TorchScript accepts.
var jitOpcodes = func() (set [256]bool) {
	for _, op := range []byte{
		opProto, opStop, opMark, opEmptyTuple, opTuple, opTuple1, opTuple2, opTuple3, opEmptyList, opAppend, opAppends,
		opList, opEmptyDict, opDict, opSetItem, opSetItems, opBinInt, opBinInt1, opBinInt2, opLong1, opBinFloat, opNone,
		opNewTrue, opNewFalse, opBinUnicode, opBinUnicode8, opGlobal, opNewObj, opBuild, opReduce, opBinPersID,
		opBinPut, opLongBinPut, opBinGet, opLongBinGet,
	} {
		set[op] = true
	}
	return set
}()

// step executes one opcode. It is split by kind to keep the parts readable.
func (r *reader) step(op byte) error {
	switch op {
	case opProto:
		version, err := r.uint(1)
		if err == nil && (version > 5 || r.limits.JIT && version != 2) {
			return r.errorf(cohort.NotSupported, "pickle protocol %d", version)
		}
		r.protocol = version
		return err
	case opFrame:
		n, err := r.uint(8)
		if err == nil && n > uint64(len(r.data)-r.pos) { //nolint:gosec // a length
			return r.bad("a frame of %d bytes where %d are left", n, len(r.data)-r.pos)
		}
		return err
	case opMark:
		r.marks++
		return r.push(mark{})
	case opPop:
		if len(r.stack) > 0 {
			if _, isMark := r.stack[len(r.stack)-1].(mark); isMark {
				r.stack = r.stack[:len(r.stack)-1]
				r.marks--
				return nil
			}
		}
		_, err := r.pop()
		return err
	case opPopMark:
		_, err := r.popMark()
		return err
	case opDup:
		v, err := r.top()
		if err != nil {
			return err
		}
		r.mentioned = true
		return r.push(v)
	case opNone:
		return r.push(nil)
	case opNewTrue:
		return r.push(true)
	case opNewFalse:
		return r.push(false)
	case opBinInt, opBinInt1, opBinInt2, opInt, opLong, opLong1, opLong4, opFloat, opBinFloat:
		return r.number(op)
	case opString, opBinString, opShortBinString, opUnicode, opBinUnicode, opShortBinUnicode, opBinUnicode8:
		return r.text(op)
	case opBinBytes, opShortBinBytes, opBinBytes8, opByteArray8:
		return r.bytes(op)
	case opMemoize, opPut, opBinPut, opLongBinPut, opGet, opBinGet, opLongBinGet:
		return r.remember(op)
	case opGlobal, opStackGlobal, opInst, opObj, opReduce, opNewObj, opNewObjEx, opBuild, opPersID, opBinPersID:
		return r.object(op)
	case opExt1, opExt2, opExt4:
		return r.errorf(cohort.NotSupported, "an extension code: it has a meaning only in the process that wrote it")
	case opNextBuffer, opReadOnlyBuffer:
		return r.errorf(cohort.NotSupported, "an out-of-band buffer: send the pickle with its buffers in band")
	default:
		return r.container(op)
	}
}

func (r *reader) number(op byte) error {
	switch op {
	case opBinInt:
		b, err := r.take(4)
		if err != nil {
			return err
		}
		return r.push(int64(int32(binary.LittleEndian.Uint32(b)))) //nolint:gosec // two's complement
	case opBinInt1, opBinInt2:
		size := 1
		if op == opBinInt2 {
			size = 2
		}
		n, err := r.uint(size)
		if err != nil {
			return err
		}
		return r.push(int64(n)) //nolint:gosec // at most 65535
	case opLong1, opLong4:
		size := 1
		if op == opLong4 {
			size = 4
		}
		b, err := r.sized(size)
		if err != nil {
			return err
		}
		if r.limits.JIT && len(b) != 8 {
			return r.bad("an integer of %d bytes; TorchScript has 8", len(b))
		}
		return r.push(decodeLong(b))
	case opBinFloat:
		b, err := r.take(8)
		if err != nil {
			return err
		}
		return r.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	default:
		line, err := r.line()
		if err != nil {
			return err
		}
		v, ok := parseNumber(op, line)
		if !ok {
			return r.bad("%q is not a number", shorten(line))
		}
		return r.push(v)
	}
}

func (r *reader) remember(op byte) error {
	var index uint64
	switch op {
	case opMemoize:
		index = uint64(len(r.memo) + len(r.sparse))
	case opBinPut, opBinGet, opLongBinPut, opLongBinGet:
		size := 1
		if op == opLongBinPut || op == opLongBinGet {
			size = 4
		}
		n, err := r.uint(size)
		if err != nil {
			return err
		}
		index = n
	default:
		line, err := r.line()
		if err != nil {
			return err
		}
		n, ok := parseIndex(line)
		if !ok {
			return r.bad("%q is not the number of a remembered value", shorten(line))
		}
		index = n
	}
	if op == opGet || op == opBinGet || op == opLongBinGet {
		return r.get(index)
	}
	v, err := r.top()
	if err != nil {
		return err
	}
	return r.put(index, v)
}

func (r *reader) container(op byte) error {
	switch op {
	case opEmptyTuple:
		return r.push(&Tuple{})
	case opEmptyList:
		return r.push(&List{})
	case opEmptyDict:
		return r.push(&Dict{})
	case opEmptySet:
		return r.push(&Set{})
	case opTuple1, opTuple2, opTuple3:
		n := int(op-opTuple1) + 1
		if len(r.stack) < n {
			return r.bad("the stack is empty")
		}
		items := make([]any, n)
		for i := n - 1; i >= 0; i-- {
			v, err := r.pop()
			if err != nil {
				return err
			}
			items[i] = v
		}
		return r.push(&Tuple{Items: items})
	case opAppend:
		v, err := r.pop()
		if err != nil {
			return err
		}
		return r.extend([]any{v})
	case opSetItem:
		value, err := r.pop()
		if err != nil {
			return err
		}
		key, err := r.pop()
		if err != nil {
			return err
		}
		return r.setItems([]any{key, value})
	case opTuple, opList, opDict, opFrozenSet, opAppends, opSetItems, opAddItems:
		items, err := r.popMark()
		if err != nil {
			return err
		}
		return r.marked(op, items)
	default:
		r.pos--
		return r.bad("unknown opcode %#02x", op)
	}
}

// marked finishes the opcodes that use everything above the last mark.
func (r *reader) marked(op byte, items []any) error {
	switch op {
	case opTuple:
		return r.push(&Tuple{Items: items})
	case opList:
		return r.push(&List{Items: items})
	case opFrozenSet:
		if err := r.hashable(items...); err != nil {
			return err
		}
		return r.push(&FrozenSet{Items: items})
	case opDict:
		if err := r.push(&Dict{}); err != nil {
			return err
		}
		return r.setItems(items)
	case opAppends:
		return r.extend(items)
	case opSetItems:
		return r.setItems(items)
	default: // opAddItems
		v, err := r.top()
		if err != nil {
			return err
		}
		set, ok := v.(*Set)
		if !ok {
			return r.bad("ADDITEMS on a %s", TypeName(v))
		}
		if err := r.hashable(items...); err != nil {
			return err
		}
		set.Items = append(set.Items, items...)
		return nil
	}
}

func (r *reader) extend(items []any) error {
	v, err := r.top()
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case *List:
		v.Items = append(v.Items, items...)
	case *Object:
		v.Items = append(v.Items, items...)
	default:
		return r.bad("APPENDS on a %s", TypeName(v))
	}
	return nil
}

func (r *reader) setItems(items []any) error {
	if len(items)%2 != 0 {
		return r.bad("a key without its value")
	}
	v, err := r.top()
	if err != nil {
		return err
	}
	pairs := make([]Pair, len(items)/2)
	for i := range pairs {
		if err := r.hashable(items[2*i]); err != nil {
			return err
		}
		pairs[i] = Pair{Key: items[2*i], Value: items[2*i+1]}
	}
	switch v := v.(type) {
	case *Dict:
		if v.Pairs == nil {
			v.Pairs = pairs
		} else {
			v.Pairs = append(v.Pairs, pairs...)
		}
	case *Object:
		v.Pairs = append(v.Pairs, pairs...)
	default:
		return r.bad("SETITEMS on a %s", TypeName(v))
	}
	return nil
}

// hashable refuses keys that Python refuses.
func (r *reader) hashable(keys ...any) error {
	for _, key := range keys {
		switch key.(type) {
		case *List, *Dict, *Set, *ByteArray:
			return r.bad("a %s as key or set member: Python cannot hash it", TypeName(key))
		}
	}
	return nil
}
