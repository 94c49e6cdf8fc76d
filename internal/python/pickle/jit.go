// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/cohort-dist/cohort"
)

// JIT writes TorchScript's pickle dialect: protocol 2 and nothing that torch::jit::Unpickler does not know. Its methods
// correspond one to one to what TorchScript's pickler pushes, so that equal values give equal bytes. The zero value is
// not usable: start with [NewJIT].
//
// Strings may hold any bytes. Globals and equal strings are written once and referred to afterwards.
type JIT struct {
	out     []byte
	next    int
	strings []memoEntry
	globals []memoEntry
	err     error
}

const jitPickle = "torch.jit._pickle"

// NewJIT starts a pickle at the end of b.
func NewJIT(b []byte) *JIT { return &JIT{out: append(b, opProto, 2)} }

// Finish ends the pickle and returns all bytes.
func (j *JIT) Finish() ([]byte, error) {
	if j.err != nil {
		return nil, j.err
	}
	return append(j.out, opStop), nil
}

// Len is how many bytes were written so far.
func (j *JIT) Len() int { return len(j.out) }

func (j *JIT) fail(format string, args ...any) {
	if j.err == nil {
		j.err = cohort.Newf("pickle: encode for TorchScript", cohort.InvalidArgument, format, args...)
	}
}

// Put remembers the value that was pushed last and returns its number for [JIT.Get].
func (j *JIT) Put() int {
	n := j.next
	j.next++
	if n <= math.MaxUint8 {
		j.out = append(j.out, opBinPut, byte(n)) //nolint:gosec // checked
	} else {
		j.out = binary.LittleEndian.AppendUint32(append(j.out, opLongBinPut), uint32(n)) //nolint:gosec // entries fit memory
	}
	return n
}

// Get pushes a remembered value.
func (j *JIT) Get(n int) {
	if n <= math.MaxUint8 {
		j.out = append(j.out, opBinGet, byte(n)) //nolint:gosec // checked
		return
	}
	j.out = binary.LittleEndian.AppendUint32(append(j.out, opLongBinGet), uint32(n)) //nolint:gosec // entries fit memory
}

// Int pushes an integer.
func (j *JIT) Int(v int64) {
	if v >= math.MinInt32 && v <= math.MaxInt32 {
		j.out = appendInt(j.out, v)
		return
	}
	j.out = binary.LittleEndian.AppendUint64(append(j.out, opLong1, 8), uint64(v)) //nolint:gosec // two's complement
}

// Bool pushes a bool.
func (j *JIT) Bool(v bool) {
	if v {
		j.out = append(j.out, opNewTrue)
	} else {
		j.out = append(j.out, opNewFalse)
	}
}

// Float pushes a float.
func (j *JIT) Float(v float64) {
	j.out = binary.BigEndian.AppendUint64(append(j.out, opBinFloat), math.Float64bits(v))
}

// Complex pushes a complex number.
func (j *JIT) Complex(v complex128) {
	j.Global("builtins", "complex")
	j.Float(real(v))
	j.Float(imag(v))
	j.out = append(j.out, opTuple2, opReduce)
}

// None pushes None.
func (j *JIT) None() { j.out = append(j.out, opNone) }

// String pushes a string of any bytes.
func (j *JIT) String(s string) {
	if uint64(len(s)) > math.MaxUint32 {
		j.fail("a string of %d bytes; the form has room for 4 GiB", len(s))
		return
	}
	for i := range j.strings {
		if j.strings[i].key == s {
			j.Get(j.strings[i].index)
			return
		}
	}
	j.out = binary.LittleEndian.AppendUint32(append(j.out, opBinUnicode), uint32(len(s))) //nolint:gosec // checked
	j.out = append(j.out, s...)
	n := j.Put()
	if len(j.strings) < 64 { // a longer list would make writing quadratic; repeating a string is always allowed
		j.strings = append(j.strings, memoEntry{s, n})
	}
}

// Global pushes a class or function.
func (j *JIT) Global(module, name string) {
	if module == "" || name == "" || strings.ContainsAny(module+name, "\n\x00") {
		j.fail("%q of module %q is not the name of a class or function", name, module)
		return
	}
	g := Global{Module: module, Name: name}
	for i := range j.globals {
		if j.globals[i].key == g {
			j.Get(j.globals[i].index)
			return
		}
	}
	j.out = append(j.out, opGlobal)
	j.out = append(append(j.out, module...), '\n')
	j.out = append(append(j.out, name...), '\n')
	j.globals = append(j.globals, memoEntry{g, j.Put()})
}

// Mark opens a tuple of any length; [JIT.Tuple] closes it.
func (j *JIT) Mark() { j.out = append(j.out, opMark) }

// Tuple closes what Mark opened.
func (j *JIT) Tuple() { j.out = append(j.out, opTuple) }

// TupleOf makes a tuple of the last n pushed values, n from 0 to 3, in the short form.
func (j *JIT) TupleOf(n int) {
	switch n {
	case 0:
		j.out = append(j.out, opEmptyTuple)
	case 1, 2, 3:
		j.out = append(j.out, opTuple1+byte(n)-1)
	default:
		j.fail("a short tuple of %d values", n)
	}
}

// Reduce calls: the function and the tuple of its arguments were pushed.
func (j *JIT) Reduce() { j.out = append(j.out, opReduce) }

// PersID turns the last pushed value into a persistent id.
func (j *JIT) PersID() { j.out = append(j.out, opBinPersID) }

// EmptyDict pushes a dict. Mark, keys and values, and SetItems fill it.
func (j *JIT) EmptyDict() { j.out = append(j.out, opEmptyDict) }

// SetItems adds what follows the mark to the dict below it.
func (j *JIT) SetItems() { j.out = append(j.out, opSetItems) }

// EmptyList pushes a list. Mark, items and Appends fill it.
func (j *JIT) EmptyList() { j.out = append(j.out, opEmptyList) }

// Appends adds what follows the mark to the list below it.
func (j *JIT) Appends() { j.out = append(j.out, opAppends) }

// TensorID pushes a reference to the tensor table of the message.
func (j *JIT) TensorID(index int) {
	j.Global(jitPickle, "build_tensor_from_id")
	j.Mark()
	j.Int(int64(index))
	j.Tuple()
	j.Reduce()
	j.Put()
}

// OpenList opens a typed list: kind is "int", "double", "bool" or "tensor". The items follow, then CloseList.
func (j *JIT) OpenList(kind string) {
	j.Global(jitPickle, "build_"+kind+"list")
	j.Mark()
	j.EmptyList()
	j.Mark()
}

// CloseList ends a typed list.
func (j *JIT) CloseList() {
	j.Appends()
	j.Tuple()
	j.Reduce()
}

// OpenTagged starts a dict or generic list that carries its type; CloseTagged names the type.
func (j *JIT) OpenTagged() { j.Global(jitPickle, "restore_type_tag") }

// CloseTagged ends what OpenTagged started, such as CloseTagged("Dict[str, str]").
func (j *JIT) CloseTagged(typeName string) {
	j.String(typeName)
	j.TupleOf(2)
	j.Reduce()
}

// StringDict pushes a Dict[str, str].
func (j *JIT) StringDict(pairs [][2]string) {
	j.OpenTagged()
	j.EmptyDict()
	j.Mark()
	for _, p := range pairs {
		j.String(p[0])
		j.String(p[1])
	}
	j.SetItems()
	j.CloseTagged("Dict[str, str]")
	j.Put()
}

// Device pushes a torch.device.
func (j *JIT) Device(name string) {
	j.Global("torch", "device")
	j.String(name)
	j.TupleOf(1)
	j.Reduce()
	j.Put()
}

// What [JIT] writes as calls of TorchScript's functions is read back as objects. These functions see through them.

// Untag returns value and type of what [JIT.CloseTagged] has written, restore_type_tag(value, type), and of anything else v and "".
func Untag(v any) (any, string) {
	if o, ok := v.(*Object); ok && IsGlobal(o.Class, jitPickle, "restore_type_tag") && len(o.Args.Items) == 2 {
		if t, ok := o.Args.Items[1].(string); ok {
			return o.Args.Items[0], t
		}
	}
	return v, ""
}

// BuiltList returns the items of what [JIT.OpenList] begins, build_<kind>list([...]).
func BuiltList(v any, kind string) ([]any, bool) {
	o, ok := v.(*Object)
	if !ok || !IsGlobal(o.Class, jitPickle, "build_"+kind+"list") || len(o.Args.Items) != 1 {
		return nil, false
	}
	l, ok := o.Args.Items[0].(*List)
	if !ok {
		return nil, false
	}
	return l.Items, true
}

// BuiltTensor returns the number in what [JIT.TensorID] writes, build_tensor_from_id(n).
func BuiltTensor(v any) (int64, bool) {
	o, ok := v.(*Object)
	if !ok || !IsGlobal(o.Class, jitPickle, "build_tensor_from_id") || len(o.Args.Items) != 1 {
		return 0, false
	}
	n, ok := o.Args.Items[0].(int64)
	return n, ok
}
