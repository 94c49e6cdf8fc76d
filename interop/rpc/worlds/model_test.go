// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
)

// object is a value that lives at a worker, as the test knows it.
type object struct {
	owner *worker
	kind  string // value, box or failed
	val   value
	n     int       // of a box
	held  []*object // by a box
	fault raises    // of a failed creation
	id    string    // learnt when it was made
}

func (o *object) text() string { return "R" + o.owner.name + "/" + o.id }

// plain objects hold no references, so that a box which keeps them never closes a circle.
func (o *object) plain() bool { return o.kind == "value" && len(refsIn(o.val)) == 0 }

// refsIn returns the objects that a described value refers to, in order.
func refsIn(v value) []*object {
	if v.K == "ref" {
		return []*object{v.object}
	}
	var all []*object
	for _, x := range v.L {
		all = append(all, refsIn(x)...)
	}
	return all
}

// slot is where a worker keeps references.
type slot struct {
	name   string
	at     *worker
	objs   []*object
	shared bool // used by a command of this batch
	locked bool // about to be dropped by one, or not there before its end
}

// task is one command of a batch, and what its answer must be.
type task struct {
	w     *worker
	c     command
	check func(got string) error
}

// generator makes the plan of a world as it goes, from a seed.
type generator struct {
	*rand.Rand
	present []*worker
	slots   []*slot
	batch   []task
	after   []func() // changes of the model that count when the batch is over
	touched map[*object]bool
	relays  int
	serial  bool // this batch has one command only
	stores  int
	count   int
	faulty  bool // a worker dies in this batch: PyTorch never ends the wait for a creation at a dead worker
	later   bool // a second round: references of PyTorch's work in the first one of a process only
}

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

func (g *generator) name(prefix string) string {
	g.count++
	return fmt.Sprintf("%s%d", prefix, g.count)
}

// ---- values

var dtypes = []string{
	"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128",
	"bool", "bfloat16",
}

func (g *generator) scalar(hashable bool) value {
	switch g.IntN(11) {
	case 0:
		return value{K: "none"}
	case 1:
		return value{K: "bool", S: pick(g, "0", "1")}
	case 2, 3:
		n := new(big.Int).Lsh(big.NewInt(g.Int64N(1000)-500),
			uint(pick(g, 0, 0, 7, 8, 15, 16, 24, 31, 32, 55, 63, 64, 127, 128, 700, 3000)))
		return value{K: "int", S: n.Add(n, big.NewInt(g.Int64N(3)-1)).String()}
	case 4, 5:
		f := pick(g, 0, math.Copysign(0, -1), 1.5, -2.25, math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64,
			math.SmallestNonzeroFloat64, g.NormFloat64())
		if math.IsNaN(f) {
			f = math.Float64frombits(pick(g, uint64(0x7ff8<<48), uint64(0xfff8<<48)))
			if hashable {
				f = 2.5
			}
		}
		return value{K: "float", S: floatText(f)}
	case 6:
		return value{K: "complex", S: floatText(g.NormFloat64(), pick(g, 0, math.Copysign(0, -1), math.Inf(1), g.NormFloat64()))}
	case 7:
		return value{K: "bytes", S: hex.EncodeToString(g.bytes())}
	case 8:
		if !hashable {
			return value{K: "bytearray", S: hex.EncodeToString(g.bytes())}
		}
		return intValue(g.IntN(5))
	default:
		return g.text()
	}
}

func (g *generator) bytes() []byte {
	b := make([]byte, pick(g, 0, 1, 3, 200, 255, 256, 257, 70000)*g.IntN(2))
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return b
}

func (g *generator) text() value {
	var b strings.Builder
	for range pick(g, 0, 1, 2, 5, 40, 255, 256, 300) {
		b.WriteString(pick(g, "a", "Z", " ", "'", "\"", "\\", "\n", "\x00", "\x7f", "\u0080", "ä", "ß", "€", "\u2028", "漢", "😀",
			"\U0010ffff",
			"\xed\xa0\x80", "\xed\xbf\xbf", ".", "\r"))
	}
	s := b.String()
	// a high and a low surrogate side by side would be one character for some writers
	return strValue(strings.ReplaceAll(s, "\xed\xa0\x80\xed\xbf\xbf", "x"))
}

func (g *generator) tensor() value {
	v := value{K: "tensor", S: pick(g, dtypes...), Seed: g.IntN(1000)}
	size := dtypeOf(v.S).Size()
	g.stores++
	v.Store = g.stores
	contiguous := func(shape ...int) {
		v.Shape, v.N = shape, 1
		for _, n := range slices.Backward(shape) {
			v.Strides = append([]int{v.N}, v.Strides...)
			v.N *= max(n, 1)
		}
		if slices.Contains(shape, 0) {
			v.N = 0
		}
	}
	switch g.IntN(6) {
	case 0:
		contiguous()
	case 1:
		contiguous(pick(g, [][]int{{0}, {0, 3}, {2, 0, 4}, {1, 1, 1}}...)...)
	case 2:
		contiguous(pick(g, 1000, 4096, 70000/size, 300000/size))
	default:
		return g.view(v)
	}
	return v
}

// view makes any view of a small storage; PyTorch sends large ones with little in them as copies.
func (g *generator) view(v value) value {
	v.N = 20 + g.IntN(300)
	v.Shape, v.Strides, v.Offset = nil, nil, g.IntN(8)
	room := v.N - 1 - v.Offset
	for range g.IntN(4) {
		n, stride := 1+g.IntN(4), g.IntN(12)
		if (n-1)*stride <= room {
			room -= (n - 1) * stride
			v.Shape, v.Strides = append(v.Shape, n), append(v.Strides, stride)
		}
	}
	return v
}

func (g *generator) sparse() value {
	rows, cols, count := 1+g.IntN(4), 1+g.IntN(4), g.IntN(4)
	v := value{K: "sparse", Shape: []int{rows, cols}}
	i := value{K: "tensor", S: "int64", Shape: []int{2, count}, Strides: []int{max(count, 1), 1}, N: 2 * count, Store: g.stores + 1}
	for range count {
		i.Data = append(i.Data, g.Int64N(int64(rows)))
	}
	for range count {
		i.Data = append(i.Data, g.Int64N(int64(cols)))
	}
	x := value{
		K: "tensor", S: pick(g, "float32", "float64", "int64", "int32", "complex64"), Shape: []int{count},
		Strides: []int{1}, N: count, Seed: g.IntN(100), Store: g.stores + 2,
	}
	g.stores += 2
	if g.IntN(3) == 0 {
		v.Shape, x.Shape, x.Strides, x.N = append(v.Shape, 3), append(x.Shape, 3), []int{3, 1}, 3*count
	}
	v.L = []value{i, x}
	return v
}

// value makes a nested value; refs are references of the sender to put into it.
func (g *generator) value(depth int, refs []value) value {
	if len(refs) == 1 && (depth == 0 || g.IntN(3) == 0) {
		return refs[0]
	}
	if len(refs) == 0 && (depth == 0 || g.IntN(3) == 0) {
		switch g.IntN(5) {
		case 0, 1:
			return g.tensor()
		case 2:
			if g.IntN(3) == 0 {
				return g.sparse()
			}
		}
		return g.scalar(false)
	}
	var items []value
	for range g.IntN(4) {
		items = append(items, g.value(max(depth-1, 0), nil))
	}
	if g.IntN(4) == 0 { // several views of one storage
		first := g.view(value{K: "tensor", S: pick(g, dtypes...), Seed: g.IntN(1000)})
		g.stores++
		first.Store = g.stores
		items = append(items, first)
		for range 1 + g.IntN(2) {
			other := first
			other = g.view(other)
			if other.N = first.N; reach(other) < first.N {
				items = append(items, other)
			}
		}
	}
	for len(refs) > 0 {
		k := 1 + g.IntN(len(refs))
		if depth == 0 {
			k = 1
		}
		items = append(items, g.value(max(depth-1, 0), refs[:k]))
		refs = refs[k:]
	}
	switch g.IntN(5) {
	case 0:
		return value{K: "tuple", L: items}
	case 1, 2:
		d := value{K: "dict"}
		for i, x := range items {
			d.L = append(d.L, g.key(i), x)
		}
		return d
	case 3:
		if len(items) == 0 {
			s := value{K: pick(g, "set", "frozenset")}
			for i := range g.IntN(5) {
				s.L = append(s.L, g.key(i))
			}
			return s
		}
	}
	return listOf(items...)
}

// key makes the i-th key of a dict: all differ.
func (g *generator) key(i int) value {
	switch g.IntN(5) {
	case 0:
		return intValue(1000 + i)
	case 1:
		return value{K: "bytes", S: fmt.Sprintf("%02x%02x", i, g.IntN(256))}
	case 2:
		return value{K: "tuple", L: []value{intValue(i), g.scalar(true)}}
	case 3:
		return value{K: "frozenset", L: []value{intValue(i), strValue("f")}}
	}
	return strValue(fmt.Sprintf("k%d", i) + pick(g, "", "ü", "\xed\xa0\x80"))
}

// reach is the last element of a view.
func reach(v value) int {
	at := v.Offset
	for i, n := range v.Shape {
		at += (n - 1) * v.Strides[i]
	}
	return at
}
