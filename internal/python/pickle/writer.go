// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"slices"
	"strings"
	"unsafe"

	"github.com/cohort-dist/cohort"
)

// DefaultProtocol is what PyTorch's Python writes and what every Python since 3.4 reads.
const DefaultProtocol = 4

// maxWriteDepth keeps the writer's recursion, and that of a reader at the other end, within reason.
const maxWriteDepth = 1000

// maxOutput is the longest pickle that Append writes: about what the wires take.
const maxOutput = 1 << 30

// shortText is the length up to which strings, bytes and integers are written again. Longer ones that are the same memory
// are written once.
const shortText = 32

// Append appends the pickle of v to b. The protocol is 4 (or [DefaultProtocol]) or 2.
//
// Values that appear twice as the same pointer stay the same object; cycles through lists, dicts, sets and objects are
// kept. The same value gives the same bytes.
func Append(b []byte, v any, protocol int) ([]byte, error) {
	return AppendAtMost(b, v, protocol, maxOutput)
}

// AppendAtMost is Append, and an error for a pickle of more than most bytes.
func AppendAtMost(b []byte, v any, protocol, most int) ([]byte, error) {
	if protocol != 2 && protocol != 4 {
		return b, cohort.Newf("pickle: encode", cohort.InvalidArgument, "protocol %d: 2 and 4 are written", protocol)
	}
	start := len(b)
	w := writer{out: append(b, opProto, byte(protocol)), protocol: protocol, most: start + most}
	w.memo = w.memo0[:0]
	body := len(w.out)
	if protocol == 4 {
		w.out = append(w.out, opFrame, 0, 0, 0, 0, 0, 0, 0, 0)
		body = len(w.out)
	}
	if err := w.value(v, 0); err != nil {
		return b[:start], err
	}
	w.out = append(w.out, opStop)
	if protocol == 4 {
		n := len(w.out) - body
		if n < 4 { // CPython frames nothing that is shorter than the gain
			copy(w.out[body-9:], w.out[body:])
			w.out = w.out[:len(w.out)-9]
		} else {
			binary.LittleEndian.PutUint64(w.out[body-8:], uint64(n))
		}
	}
	return w.out, nil
}

// Encode returns the protocol 4 pickle of v.
func Encode(v any) ([]byte, error) { return Append(nil, v, DefaultProtocol) }

type memoEntry struct {
	key   any // a pointer, a Global, or a textKey
	index int
}

type writer struct {
	out      []byte
	protocol int
	most     int // bytes of out
	memo     []memoEntry
	index    map[any]int // built when memo grows long
	memo0    [16]memoEntry
}

func (w *writer) lookup(key any) (int, bool) {
	if w.index != nil {
		i, ok := w.index[key]
		return i, ok
	}
	for i := range w.memo {
		if w.memo[i].key == key {
			return w.memo[i].index, true
		}
	}
	return 0, false
}

func (w *writer) remember(key any) {
	n := len(w.memo)
	w.memo = append(w.memo, memoEntry{key, n})
	if w.index != nil {
		w.index[key] = n
	} else if n >= 32 {
		w.index = make(map[any]int, 2*n)
		for _, e := range w.memo {
			w.index[e.key] = e.index
		}
	}
	switch {
	case w.protocol == 4:
		w.out = append(w.out, opMemoize)
	case n <= math.MaxUint8:
		w.out = append(w.out, opBinPut, byte(n))
	default:
		w.out = binary.LittleEndian.AppendUint32(append(w.out, opLongBinPut), uint32(n)) //nolint:gosec // entries fit memory
	}
}

func (w *writer) recall(index int) {
	if index <= math.MaxUint8 {
		w.out = append(w.out, opBinGet, byte(index)) //nolint:gosec // checked
		return
	}
	w.out = binary.LittleEndian.AppendUint32(append(w.out, opLongBinGet), uint32(index)) //nolint:gosec // entries fit memory
}

func (w *writer) value(v any, depth int) error {
	if depth > maxWriteDepth {
		return cohort.Newf("pickle: encode", cohort.InvalidArgument,
			"values nested deeper than %d, or a tuple that contains itself", maxWriteDepth)
	}
	if len(w.out) > w.most {
		return w.tooLong()
	}
	switch v := v.(type) {
	case nil:
		w.out = append(w.out, opNone)
	case bool:
		if v {
			w.out = append(w.out, opNewTrue)
		} else {
			w.out = append(w.out, opNewFalse)
		}
	case int:
		w.out = appendInt(w.out, int64(v))
	case int64:
		w.out = appendInt(w.out, v)
	case *big.Int:
		return w.big(v)
	case float64:
		w.out = binary.BigEndian.AppendUint64(append(w.out, opBinFloat), math.Float64bits(v))
	case complex128:
		return w.object(Call(Global{Module: w.builtins(), Name: "complex"}, real(v), imag(v)), depth)
	case string:
		return w.str(v)
	case Bytes:
		return w.bytes(v, depth)
	case Global:
		return w.global(v)
	case *Tuple, *List, *Dict, *Set, *FrozenSet, *ByteArray, *Object, *PersID:
		if i, ok := w.lookup(v); ok {
			w.recall(i)
			return nil
		}
		return w.container(v, depth+1)
	default:
		return cohort.Newf("pickle: encode", cohort.InvalidArgument, "a Go %T has no Python form", v)
	}
	return nil
}

func (w *writer) builtins() string {
	if w.protocol < 3 {
		return "__builtin__"
	}
	return "builtins"
}

func (w *writer) str(s string) error {
	if !validText(s) {
		return cohort.New("pickle: encode", cohort.InvalidArgument, "a string that is not UTF-8: send bytes instead")
	}
	key := textKey{"str", unsafe.StringData(s), len(s)} //nolint:gosec // compared, never read
	if again, err := w.again(key); again || err != nil {
		return err
	}
	w.out = appendString(w.out, s, w.protocol)
	w.rememberText(key)
	return nil
}

// textKey is a string, bytes or an integer by the memory that it is in, which the key keeps alive.
type textKey struct {
	kind string
	at   *byte
	n    int
}

// again refers to a text that was written before, and checks the length of one that was not.
func (w *writer) again(key textKey) (bool, error) {
	if key.n > shortText {
		if i, ok := w.lookup(key); ok {
			w.recall(i)
			return true, nil
		}
	}
	if len(w.out)+key.n > w.most {
		return false, w.tooLong()
	}
	return false, nil
}

func (w *writer) rememberText(key textKey) {
	if key.n > shortText {
		w.remember(key)
	}
}

func (w *writer) tooLong() error {
	return cohort.Newf("pickle: encode", cohort.TooLarge, "a value that takes more than %d bytes", w.most)
}

func (w *writer) big(v *big.Int) error {
	words := v.Bits()
	if len(words) == 0 {
		w.out = appendBig(w.out, v)
		return nil
	}
	kind := "int"
	if v.Sign() < 0 {
		kind = "-int"
	}
	//nolint:gosec // compared, never read
	key := textKey{kind, (*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words) * bits.UintSize / 8}
	if again, err := w.again(key); again || err != nil {
		return err
	}
	w.out = appendBig(w.out, v)
	w.rememberText(key)
	return nil
}

func appendString(b []byte, s string, protocol int) []byte {
	switch n := len(s); {
	case protocol >= 4 && n <= math.MaxUint8:
		b = append(b, opShortBinUnicode, byte(n))
	case uint64(n) <= math.MaxUint32:
		b = binary.LittleEndian.AppendUint32(append(b, opBinUnicode), uint32(n))
	default:
		b = binary.LittleEndian.AppendUint64(append(b, opBinUnicode8), uint64(n))
	}
	return append(b, s...)
}

func (w *writer) bytes(v []byte, depth int) error {
	if w.protocol < 3 { // protocol 2 has no bytes: CPython encodes a Latin-1 string instead
		return w.object(Call(Global{Module: "_codecs", Name: "encode"}, latin1(v), "latin1"), depth)
	}
	key := textKey{"bytes", unsafe.SliceData(v), len(v)} //nolint:gosec // compared, never read
	if again, err := w.again(key); again || err != nil {
		return err
	}
	switch n := len(v); {
	case n <= math.MaxUint8:
		w.out = append(w.out, opShortBinBytes, byte(n))
	case uint64(n) <= math.MaxUint32:
		w.out = binary.LittleEndian.AppendUint32(append(w.out, opBinBytes), uint32(n))
	default:
		w.out = binary.LittleEndian.AppendUint64(append(w.out, opBinBytes8), uint64(n))
	}
	w.out = append(w.out, v...)
	w.rememberText(key)
	return nil
}

func latin1(b []byte) string {
	var s strings.Builder
	for _, c := range b {
		s.WriteRune(rune(c))
	}
	return s.String()
}

func (w *writer) global(g Global) error {
	if g.Module == "" || g.Name == "" || strings.ContainsAny(g.Module+g.Name, "\n\x00") || !validText(g.Module+g.Name) {
		return cohort.Newf("pickle: encode", cohort.InvalidArgument, "%q of module %q is not the name of a class or function",
			g.Name, g.Module)
	}
	if i, ok := w.lookup(g); ok {
		w.recall(i)
		return nil
	}
	if w.protocol >= 4 {
		w.out = appendString(w.out, g.Module, w.protocol)
		w.out = appendString(w.out, g.Name, w.protocol)
		w.out = append(w.out, opStackGlobal)
	} else {
		if strings.Contains(g.Name, ".") {
			return cohort.Newf("pickle: encode", cohort.InvalidArgument, "the nested name %q needs protocol 4", g.Name)
		}
		w.out = append(w.out, opGlobal)
		w.out = append(w.out, g.Module+"\n"+g.Name+"\n"...)
	}
	w.remember(g)
	return nil
}

func appendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0 && v <= math.MaxUint8:
		return append(b, opBinInt1, byte(v))
	case v >= 0 && v <= math.MaxUint16:
		return binary.LittleEndian.AppendUint16(append(b, opBinInt2), uint16(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		return binary.LittleEndian.AppendUint32(append(b, opBinInt), uint32(v)) //nolint:gosec // two's complement
	}
	n := 8
	for n > 1 { // drop bytes that only repeat the sign
		if shift := uint(8*(n-1) - 1); v>>shift != 0 && v>>shift != -1 {
			break
		}
		n--
	}
	b = append(b, opLong1, byte(n)) //nolint:gosec // at most 8
	for i := range n {
		b = append(b, byte(v>>(8*i))) //nolint:gosec // the low byte is meant
	}
	return b
}

func appendBig(b []byte, v *big.Int) []byte {
	if v.IsInt64() {
		return appendInt(b, v.Int64())
	}
	n := v.BitLen()/8 + 1
	magnitude := new(big.Int).Set(v)
	if v.Sign() < 0 { // two's complement
		magnitude.Add(magnitude, new(big.Int).Lsh(big.NewInt(1), uint(8*n)))
	}
	raw := magnitude.FillBytes(make([]byte, n))
	if n > 1 && v.Sign() < 0 && raw[0] == 0xff && raw[1]&0x80 != 0 { // the shortest form, as CPython's
		raw, n = raw[1:], n-1
	}
	if n <= math.MaxUint8 {
		b = append(b, opLong1, byte(n)) //nolint:gosec // checked
	} else {
		b = binary.LittleEndian.AppendUint32(append(b, opLong4), uint32(n)) //nolint:gosec // a length
	}
	for _, r := range slices.Backward(raw) {
		b = append(b, r)
	}
	return b
}
