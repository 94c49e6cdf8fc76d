// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// value describes a value, for both languages: world.py builds the same ones. Tensors with the same store share memory.
type value struct {
	K       string  `json:"k"`
	S       string  `json:"s,omitempty"` // text of an int, bits of a float, bytes as hex, name of a dtype
	L       []value `json:"l,omitempty"` // children; keys and values of a dict in turn
	Shape   []int   `json:"shape,omitempty"`
	Strides []int   `json:"strides,omitempty"`
	Offset  int     `json:"offset,omitempty"`
	Store   int     `json:"store,omitempty"`
	N       int     `json:"n,omitempty"` // elements of the storage
	Seed    int     `json:"seed,omitempty"`
	Data    []int64 `json:"data,omitempty"` // of the indices of a sparse tensor
	Slot    string  `json:"slot,omitempty"`
	Index   int     `json:"index,omitempty"`

	object *object // what a reference refers to; for the model only
}

func strValue(s string) value { return value{K: "str", S: hex.EncodeToString([]byte(s))} }
func intValue(n int) value    { return value{K: "int", S: strconv.Itoa(n)} }
func listOf(l ...value) value { return value{K: "list", L: l} }

func dtypeOf(name string) tensor.DType {
	for d := range tensor.DType(16) {
		if d.Valid() && d.String() == name {
			return d
		}
	}
	panic("no dtype " + name)
}

// pattern is the contents of a storage.
func pattern(seed, n int, dtype string) []byte {
	mask := 255
	if dtype == "bool" {
		mask = 1
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((seed*31 + i*7 + (i>>8)*13) & mask)
	}
	return b
}

func contents(v value) []byte {
	if v.Data == nil {
		return pattern(v.Seed, v.N*dtypeOf(v.S).Size(), v.S)
	}
	var b []byte
	for _, n := range v.Data {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// builder makes the values of one command at a Go worker.
type builder struct {
	slots  map[string][]*rpc.Ref[any]
	stores map[int]*tensor.Storage
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func (b *builder) build(v value) (any, error) {
	var items []any
	for _, x := range v.L {
		item, err := b.build(x)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	switch v.K {
	case "none":
		return nil, nil
	case "bool":
		return v.S == "1", nil
	case "int":
		n, _ := new(big.Int).SetString(v.S, 10)
		if n.IsInt64() {
			return n.Int64(), nil
		}
		return n, nil
	case "float":
		return math.Float64frombits(binary.BigEndian.Uint64(unhex(v.S))), nil
	case "complex":
		raw := unhex(v.S)
		return complex(math.Float64frombits(binary.BigEndian.Uint64(raw)), math.Float64frombits(binary.BigEndian.Uint64(raw[8:]))), nil
	case "str":
		return string(unhex(v.S)), nil
	case "bytes":
		return unhex(v.S), nil
	case "bytearray":
		return py.ByteArray(unhex(v.S)), nil
	case "tensor":
		return b.tensor(v)
	case "sparse":
		indices, ok1 := items[0].(*tensor.Tensor)
		values, ok2 := items[1].(*tensor.Tensor)
		if !ok1 || !ok2 {
			return nil, errors.New("a sparse tensor is not made of tensors")
		}
		return &tensor.Sparse{Shape: v.Shape, Indices: indices, Values: values}, nil
	case "list":
		if items == nil {
			items = []any{}
		}
		return items, nil
	case "tuple":
		return py.Tuple(items), nil
	case "set":
		return py.Set(items), nil
	case "frozenset":
		return py.FrozenSet(items), nil
	case "dict":
		d := &py.Dict{}
		for i := 0; i < len(items); i += 2 {
			d.Pairs = append(d.Pairs, py.Pair{Key: items[i], Value: items[i+1]})
		}
		return d, nil
	case "ref":
		refs := b.slots[v.Slot]
		if v.Index >= len(refs) {
			return nil, fmt.Errorf("no reference %d in slot %s", v.Index, v.Slot)
		}
		return refs[v.Index], nil
	}
	return nil, fmt.Errorf("unknown kind %q", v.K)
}

func (b *builder) tensor(v value) (*tensor.Tensor, error) {
	dt := dtypeOf(v.S)
	st := b.stores[v.Store]
	if st == nil {
		var err error
		if st, err = tensor.NewStorage(v.N * dt.Size()); err != nil {
			return nil, err
		}
		raw, err := st.Bytes()
		if err != nil {
			return nil, err
		}
		copy(raw, contents(v))
		b.stores[v.Store] = st
	}
	return tensor.FromStorage(st, dt, v.Shape, v.Strides, v.Offset)
}

// writer writes values as text; canon in world.py writes the same.
type writer struct {
	stores map[*byte]int
	refs   []*rpc.Ref[any]
	err    error
}

func joined[T any](items []T, sep string, each func(T) string) string {
	texts := make([]string, len(items))
	for i, x := range items {
		texts[i] = each(x)
	}
	return strings.Join(texts, sep)
}

func ints(l []int) string { return joined(l, ",", strconv.Itoa) }

func digest(raw []byte) string {
	if len(raw) == 0 {
		return "-"
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:16]
}

func logical(t *tensor.Tensor) []byte {
	c, err := t.Contiguous()
	if err != nil {
		return []byte(err.Error())
	}
	raw, err := c.Bytes()
	if err != nil {
		return []byte(err.Error())
	}
	return raw
}

func floatText(f ...float64) string {
	var b []byte
	for _, x := range f {
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(x))
	}
	return hex.EncodeToString(b)
}

func (w *writer) text(x any) string {
	sorted := func(items []any) string {
		texts := make([]string, len(items))
		for i, x := range items {
			texts[i] = w.text(x)
		}
		slices.Sort(texts)
		return strings.Join(texts, " ")
	}
	switch x := x.(type) {
	case nil:
		return "N"
	case bool:
		if x {
			return "T"
		}
		return "F"
	case int64:
		return fmt.Sprintf("i%d", x)
	case *big.Int:
		return "i" + x.String()
	case float64:
		return "f" + floatText(x)
	case complex128:
		return "c" + floatText(real(x), imag(x))
	case string:
		return "s" + hex.EncodeToString([]byte(x))
	case []byte:
		return "b" + hex.EncodeToString(x)
	case py.ByteArray:
		return "B" + hex.EncodeToString(x)
	case []any:
		return "[" + joined(x, " ", w.text) + "]"
	case py.Tuple:
		return "(" + joined(x, " ", w.text) + ")"
	case *py.Dict:
		return "{" + joined(x.Pairs, " ", func(p py.Pair) string { return w.text(p.Key) + "=" + w.text(p.Value) }) + "}"
	case py.Set:
		return "S{" + sorted(x) + "}"
	case py.FrozenSet:
		return "Z{" + sorted(x) + "}"
	case *tensor.Sparse:
		return fmt.Sprintf("p%s[%s](%s %s[%s]%s)", x.Values.DType(), ints(x.Shape), digest(logical(x.Indices)),
			x.Values.DType(), ints(x.Values.Shape()), digest(logical(x.Values)))
	case *tensor.Tensor:
		return w.tensor(x)
	case *rpc.Ref[any]:
		w.refs = append(w.refs, x)
		var on, n int64
		text := x.String()
		if _, err := fmt.Sscanf(text[strings.Index(text, "created_on="):], "created_on=%d, local_id=%d", &on, &n); err != nil {
			w.err = fmt.Errorf("%q: %w", text, err)
		}
		return fmt.Sprintf("R%s/%d.%d", x.Owner().Name, on, n)
	case *box:
		return fmt.Sprintf("box%d", x.n.Load())
	}
	w.err = fmt.Errorf("a %T came", x)
	return ""
}

func (w *writer) tensor(t *tensor.Tensor) string {
	where := "-"
	if raw, err := t.Storage().Bytes(); err != nil {
		w.err = err
	} else if len(raw) > 0 {
		if w.stores == nil {
			w.stores = map[*byte]int{}
		}
		first := unsafe.SliceData(raw)
		if _, known := w.stores[first]; !known {
			w.stores[first] = len(w.stores)
		}
		where = fmt.Sprintf("%d/%d", w.stores[first], len(raw))
	}
	return fmt.Sprintf("t%s[%s;%s]%d@%s:%s", t.DType(), ints(t.Shape()), ints(t.Strides()), t.Offset(), where, digest(logical(t)))
}

// expected is the text of a value by its description alone.
type expected struct {
	stores map[int]int
	refs   []*object
}

func (e *expected) text(v value) string {
	sorted := func() string {
		texts := make([]string, len(v.L))
		for i, x := range v.L {
			texts[i] = e.text(x)
		}
		slices.Sort(texts)
		return strings.Join(texts, " ")
	}
	switch v.K {
	case "none":
		return "N"
	case "bool":
		return map[string]string{"1": "T", "0": "F"}[v.S]
	case "int":
		return "i" + v.S
	case "float":
		return "f" + v.S
	case "complex":
		return "c" + v.S
	case "str":
		return "s" + v.S
	case "bytes":
		return "b" + v.S
	case "bytearray":
		return "B" + v.S
	case "list":
		return "[" + joined(v.L, " ", e.text) + "]"
	case "tuple":
		return "(" + joined(v.L, " ", e.text) + ")"
	case "set":
		return "S{" + sorted() + "}"
	case "frozenset":
		return "Z{" + sorted() + "}"
	case "dict":
		var texts []string
		for i := 0; i < len(v.L); i += 2 {
			key := e.text(v.L[i])
			texts = append(texts, key+"="+e.text(v.L[i+1]))
		}
		return "{" + strings.Join(texts, " ") + "}"
	case "sparse":
		i, x := v.L[0], v.L[1]
		return fmt.Sprintf("p%s[%s](%s %s[%s]%s)", x.S, ints(v.Shape), digest(elements(i)), x.S, ints(x.Shape), digest(elements(x)))
	case "tensor":
		where := "-"
		if v.N > 0 {
			if e.stores == nil {
				e.stores = map[int]int{}
			}
			if _, known := e.stores[v.Store]; !known {
				e.stores[v.Store] = len(e.stores)
			}
			where = fmt.Sprintf("%d/%d", e.stores[v.Store], v.N*dtypeOf(v.S).Size())
		}
		return fmt.Sprintf("t%s[%s;%s]%d@%s:%s", v.S, ints(v.Shape), ints(v.Strides), v.Offset, where, digest(elements(v)))
	case "ref":
		e.refs = append(e.refs, v.object)
		return v.object.text()
	}
	panic("unknown kind " + v.K)
}

// elements are the bytes of a described tensor in logical order.
func elements(v value) []byte {
	size := dtypeOf(v.S).Size()
	raw := contents(v)
	var out []byte
	var walk func(dim, at int)
	walk = func(dim, at int) {
		if dim == len(v.Shape) {
			out = append(out, raw[at*size:(at+1)*size]...)
			return
		}
		for i := range v.Shape[dim] {
			walk(dim+1, at+i*v.Strides[dim])
		}
	}
	walk(0, v.Offset)
	return out
}
