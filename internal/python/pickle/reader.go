// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort"
)

// Limits bound what a pickle may cost. The zero value of a field means its default.
type Limits struct {
	// Bytes is the longest pickle that is read. Default 256 MiB.
	Bytes int
	// Depth is the deepest nesting of containers. Default 200.
	Depth int
	// Values is the number of values the pickle may make, references to earlier ones included. Default 4 Mi.
	Values int
	// Memo is the number of values it may remember. Default 1 Mi.
	Memo int
	// Cycles allows a value that contains itself. Code that walks such a value must expect it.
	Cycles bool
	// RawStrings takes strings that are not UTF-8, as TorchScript's pickler writes them.
	RawStrings bool
	// JIT takes only what TorchScript's own reader takes: protocol 2 and its subset of opcodes.
	JIT bool
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.Bytes, 256<<20)
	set(&l.Depth, 200)
	set(&l.Values, 4<<20)
	set(&l.Memo, 1<<20)
	return l
}

// Decode reads a pickle that fills data exactly.
func Decode(data []byte, limits Limits) (any, error) {
	v, rest, err := decodePrefix(data, limits)
	if err == nil && len(rest) > 0 {
		err = cohort.Newf("pickle: decode", cohort.Protocol, "%d bytes follow the end of the pickle", len(rest))
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// decodePrefix reads the pickle at the start of data and returns what follows it.
func decodePrefix(data []byte, limits Limits) (v any, rest []byte, err error) {
	limits = limits.withDefaults()
	if len(data) > limits.Bytes {
		return nil, nil, cohort.Newf("pickle: decode", cohort.TooLarge, "a pickle of %d bytes, the limit is %d", len(data), limits.Bytes)
	}
	r := readers.Get().(*reader) //nolint:errcheck,forcetypeassert // only readers are put there
	*r = reader{data: data, limits: limits, stack: r.stack[:0], memo: r.memo[:0]}
	v, err = r.run()
	rest = data[r.pos:]
	// A value cannot be deeper than the number of values, nor contain itself without being mentioned twice.
	simple := !r.mentioned && r.values <= limits.Depth
	r.recycle()
	if err != nil {
		return nil, nil, err
	}
	if !simple {
		if err := checkGraph(v, limits); err != nil {
			return nil, nil, err
		}
	}
	return v, rest, nil
}

// readers keeps the stacks and memos of small pickles for the next ones, empty.
var readers = sync.Pool{New: func() any { return &reader{} }}

func (r *reader) recycle() {
	clear(r.stack[:cap(r.stack)])
	clear(r.memo[:cap(r.memo)])
	r.data, r.sparse = nil, nil
	if cap(r.stack) <= 256 && cap(r.memo) <= 256 {
		readers.Put(r)
	}
}

// mark is the value that MARK pushes. It is a private type, so no pickle can make it in another way.
type mark struct{}

// absent marks a memo slot that was never filled.
type absent struct{}

type reader struct {
	data   []byte
	pos    int
	limits Limits
	stack  []any
	memo   []any
	sparse map[uint64]any // memo indices far beyond the dense ones
	values int
	marks  int

	protocol  uint64
	mentioned bool // a value was pushed a second time
}

func (r *reader) errorf(code cohort.Code, format string, args ...any) error {
	return cohort.Newf("pickle: decode", code, "at byte %d: %s", r.pos, fmt.Sprintf(format, args...))
}

func (r *reader) bad(format string, args ...any) error {
	return r.errorf(cohort.Protocol, format, args...)
}

func (r *reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.data)-r.pos) { //nolint:gosec // a length
		return nil, r.bad("a length of %d where %d bytes are left", n, len(r.data)-r.pos)
	}
	b := r.data[r.pos : r.pos+int(n)] //nolint:gosec // bounded by len(data)
	r.pos += int(n)                   //nolint:gosec // bounded by len(data)
	return b, nil
}

func (r *reader) uint(size int) (uint64, error) {
	b, err := r.take(uint64(size)) //nolint:gosec // 1 to 8
	if err != nil {
		return 0, err
	}
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.LittleEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.LittleEndian.Uint32(b)), nil
	default:
		return binary.LittleEndian.Uint64(b), nil
	}
}

// line reads up to the next newline, for the text opcodes of protocol 0.
func (r *reader) line() (string, error) {
	for i := r.pos; i < len(r.data); i++ {
		if r.data[i] == '\n' {
			s := string(r.data[r.pos:i])
			r.pos = i + 1
			return s, nil
		}
	}
	return "", r.bad("a line without its end")
}

func (r *reader) push(v any) error {
	if r.values++; r.values > r.limits.Values {
		return r.errorf(cohort.TooLarge, "more than %d values", r.limits.Values)
	}
	r.stack = append(r.stack, v)
	return nil
}

func (r *reader) pop() (any, error) {
	if len(r.stack) == 0 {
		return nil, r.bad("the stack is empty")
	}
	v := r.stack[len(r.stack)-1]
	if _, isMark := v.(mark); isMark {
		return nil, r.bad("a mark where a value is expected")
	}
	r.stack = r.stack[:len(r.stack)-1]
	return v, nil
}

func (r *reader) top() (any, error) {
	if len(r.stack) == 0 {
		return nil, r.bad("the stack is empty")
	}
	v := r.stack[len(r.stack)-1]
	if _, isMark := v.(mark); isMark {
		return nil, r.bad("a mark where a value is expected")
	}
	return v, nil
}

// popMark takes everything above the last mark, in a separate slice.
func (r *reader) popMark() ([]any, error) {
	for i, v := range slices.Backward(r.stack) {
		if _, isMark := v.(mark); isMark {
			items := make([]any, len(r.stack)-i-1)
			copy(items, r.stack[i+1:])
			clear(r.stack[i:])
			r.stack = r.stack[:i]
			r.marks--
			return items, nil
		}
	}
	return nil, r.bad("no mark on the stack")
}

func (r *reader) put(index uint64, v any) error {
	if index < uint64(len(r.memo)) {
		r.memo[index] = v
		return nil
	}
	if index == uint64(len(r.memo)) {
		if len(r.memo)+len(r.sparse) >= r.limits.Memo {
			return r.errorf(cohort.TooLarge, "more than %d remembered values", r.limits.Memo)
		}
		r.memo = append(r.memo, v)
		return nil
	}
	if len(r.memo)+len(r.sparse) >= r.limits.Memo {
		return r.errorf(cohort.TooLarge, "more than %d remembered values", r.limits.Memo)
	}
	if r.sparse == nil {
		r.sparse = map[uint64]any{}
	}
	r.sparse[index] = v
	return nil
}

func (r *reader) get(index uint64) error {
	var v any = absent{}
	if index < uint64(len(r.memo)) {
		v = r.memo[index]
	} else if found, ok := r.sparse[index]; ok {
		v = found
	}
	if _, missing := v.(absent); missing {
		return r.bad("remembered value %d was never stored", index)
	}
	r.mentioned = true
	return r.push(v)
}

// size reports how many bytes of length an opcode has, and the largest length that is sensible.
func (r *reader) sized(lengthBytes int) ([]byte, error) {
	n, err := r.uint(lengthBytes)
	if err != nil {
		return nil, err
	}
	return r.take(n)
}

func decodeLong(b []byte) any {
	if len(b) == 0 {
		return int64(0)
	}
	negative := b[len(b)-1]&0x80 != 0
	if len(b) <= 8 {
		var u uint64
		for i, x := range b {
			u |= uint64(x) << (8 * i)
		}
		if negative && len(b) < 8 {
			u |= math.MaxUint64 << (8 * len(b))
		}
		return int64(u)
	}
	bigEndian := make([]byte, len(b))
	for i, x := range b {
		bigEndian[len(b)-1-i] = x
	}
	v := new(big.Int).SetBytes(bigEndian)
	if negative {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return shrink(v)
}

// shrink turns a big integer into int64 where it fits, so that a value has one form.
func shrink(v *big.Int) any {
	if v.IsInt64() {
		return v.Int64()
	}
	return v
}
