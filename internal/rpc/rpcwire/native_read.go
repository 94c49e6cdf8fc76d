// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// nativeReader reads values in the form of Go workers. Nothing about its input is trusted: every count is bounded by the
// bytes that are left.
type nativeReader struct {
	d    *Decoder
	data []byte
	err  error
	keep bool  // the payload refers to values by number
	kept []any // in the order in which they were complete
}

func newNativeReader(d *Decoder, payload []byte) nativeReader {
	return nativeReader{d: d, data: payload[1:], keep: payload[0] == nativeAgain}
}

// known numbers a value that may be referred to. The sender counts the same ones.
func (r *nativeReader) known(v any) any {
	if r.keep && r.err == nil {
		r.kept = append(r.kept, v)
	}
	return v
}

// textual is known for a string or for bytes, which are numbered when they are long.
func (r *nativeReader) textual(v any, n int) any {
	if n > pyconv.ShortText {
		return r.known(v)
	}
	return v
}

func (r *nativeReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = badPayload(format, args...)
	}
	r.data = nil
}

func (r *nativeReader) byte() byte {
	if len(r.data) == 0 {
		r.fail("a value ends early")
		return 0
	}
	b := r.data[0]
	r.data = r.data[1:]
	return b
}

func (r *nativeReader) uvarint() uint64 {
	n, size := binary.Uvarint(r.data)
	if size <= 0 {
		r.fail("a number ends early")
		return 0
	}
	r.data = r.data[size:]
	return n
}

func (r *nativeReader) varint() int64 {
	n, size := binary.Varint(r.data)
	if size <= 0 {
		r.fail("a number ends early")
		return 0
	}
	r.data = r.data[size:]
	return n
}

// count reads a number of things that take at least one byte each.
func (r *nativeReader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.data)) {
		r.fail("%d items in %d bytes", n, len(r.data))
		return 0
	}
	return int(n) //nolint:gosec // at most the length of a slice
}

func (r *nativeReader) bytes() []byte {
	n := r.count()
	b := r.data[:n:n]
	r.data = r.data[n:]
	return b
}

func (r *nativeReader) text() string { return string(r.bytes()) }

func (r *nativeReader) float() float64 {
	if len(r.data) < 8 {
		r.fail("a number ends early")
		return 0
	}
	f := math.Float64frombits(binary.LittleEndian.Uint64(r.data))
	r.data = r.data[8:]
	return f
}

func (r *nativeReader) global() py.Global { return py.Global{Module: r.text(), Name: r.text()} }

func (r *nativeReader) items(depth int) []any {
	n := r.count()
	if n == 0 {
		return []any{}
	}
	out := make([]any, 0, min(n, 1024))
	for range n {
		v := r.value(depth + 1)
		if r.err != nil {
			return nil
		}
		out = append(out, v)
	}
	return out
}

func (r *nativeReader) pairs(depth int) []py.Pair {
	n := r.count()
	if n == 0 {
		return nil
	}
	out := make([]py.Pair, 0, min(n, 1024))
	for range n {
		p := py.Pair{Key: r.value(depth + 1), Value: r.value(depth + 1)}
		if r.err != nil {
			return nil
		}
		out = append(out, p)
	}
	return out
}

func (r *nativeReader) worker() WorkerID {
	n := r.varint()
	if n < 0 || n > math.MaxInt16 {
		r.fail("worker id %d", n)
		return 0
	}
	return WorkerID(n)
}

func (r *nativeReader) value(depth int) any {
	if depth > pyconv.MaxDepth {
		r.fail("values nested deeper than %d", pyconv.MaxDepth)
		return nil
	}
	switch tag := r.byte(); tag {
	case tagNone:
		return nil
	case tagFalse:
		return false
	case tagTrue:
		return true
	case tagInt:
		return r.varint()
	case tagFloat:
		return r.float()
	case tagComplex:
		re := r.float()
		return complex(re, r.float())
	case tagString:
		s := r.text()
		return r.textual(s, len(s))
	case tagBytes:
		b := append([]byte{}, r.bytes()...)
		return r.textual(b, len(b))
	case tagByteArray:
		return r.known(append(py.ByteArray{}, r.bytes()...))
	case tagList:
		return r.known(r.items(depth))
	case tagTuple:
		return r.known(py.Tuple(r.items(depth)))
	case tagSet:
		return r.known(py.Set(r.items(depth)))
	case tagFrozenSet:
		return r.known(py.FrozenSet(r.items(depth)))
	case tagDict:
		return r.known(&py.Dict{Pairs: r.pairs(depth)})
	case tagAgain:
		return r.again()
	case tagTensor:
		return r.tensor()
	case tagBig:
		return r.big()
	case tagGlobal:
		return r.global()
	case tagReference:
		return r.reference()
	case tagWorker:
		return WorkerInfo{Name: r.text(), ID: r.worker()}
	case tagDevice:
		return py.Device(r.text())
	case tagException:
		return &RemoteException{Msg: r.text(), Class: r.global()}
	case tagPickle:
		return r.pickled()
	default:
		r.fail("an unknown tag %d", tag)
		return nil
	}
}

// again reads the number of a value that came before.
func (r *nativeReader) again() any {
	n := r.uvarint()
	if n >= uint64(len(r.kept)) {
		r.fail("value %d of a payload with %d so far", n, len(r.kept))
		return nil
	}
	return r.kept[n]
}

// tensor reads the number of a tensor of the message.
func (r *nativeReader) tensor() any {
	n := r.uvarint()
	if n >= uint64(len(r.d.Tensors)) {
		r.fail("tensor %d of a message with %d", n, len(r.d.Tensors))
		return nil
	}
	return r.d.Tensors[n]
}

func (r *nativeReader) big() any {
	negative := r.byte() != 0
	n := new(big.Int).SetBytes(r.bytes())
	if negative {
		n.Neg(n)
	}
	return r.known(n)
}

// pickled reads what only a pickle can carry.
func (r *nativeReader) pickled() any {
	data := r.bytes()
	if r.err != nil {
		return nil
	}
	v, err := r.d.Unpickle(data)
	if err != nil {
		r.err = err
	}
	return r.known(v)
}

func (r *nativeReader) reference() any {
	f := RRefFork{Owner: r.worker(), RRef: GlobalID{On: r.worker(), Local: r.varint()}, Fork: GlobalID{On: r.worker(), Local: r.varint()}}
	f.Parent = r.worker()
	f.TypeName = r.text()
	if r.err != nil {
		return nil
	}
	if r.d.Arrive == nil {
		r.fail("a remote reference cannot be received here")
		return nil
	}
	v, err := r.d.Arrive(f)
	if err != nil {
		r.err = err
	}
	return v
}

func (r *nativeReader) finish() error {
	if r.err == nil && len(r.data) > 0 {
		r.fail("%d bytes behind the value", len(r.data))
	}
	return r.err
}

func (d *Decoder) nativeValue(payload []byte) (any, error) {
	r := newNativeReader(d, payload)
	v := r.value(0)
	return v, r.finish()
}

func (r *nativeReader) pair() RRefPair {
	p := RRefPair{RRef: GlobalID{r.worker(), r.varint()}, Fork: GlobalID{r.worker(), r.varint()}}
	for i := range p.Key {
		p.Key[i] = r.byte()
	}
	return p
}

func (r *nativeReader) script() ScriptUDF {
	s := ScriptUDF{Schema: r.text(), Name: r.text()}
	s.Async = r.byte() != 0
	s.Stack = r.items(0)
	return s
}

func (r *nativeReader) udf() UDF {
	u := UDF{Func: r.global(), Args: r.items(0)}
	u.Kwargs = &py.Dict{Pairs: r.pairs(0)}
	for _, p := range u.Kwargs.Pairs {
		if _, ok := p.Key.(string); !ok {
			r.fail("a keyword argument that is not a string")
		}
	}
	return u
}
